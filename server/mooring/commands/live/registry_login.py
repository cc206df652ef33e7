"""Tokens of tenants' private registries for tasks that were just claimed.

The registry belongs to a tenant and may be slow or silent, so nobody waits for it: a task that needs such a token is
delivered on its own, when its token is there. Each tenant has a few logins at a time, and each login a time limit. A
task without its token is delivered anyway, and its agent fails it.

The node gets the token itself where the registry has a token service, as for the platform's own registry; otherwise
the whole header, `Basic …`, which contains the password.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from mooring.core.fleet.task import Task
from mooring.core.kernel.errors import Refusal
from mooring.gateways.registry.artifact_reader import ArtifactReader
from mooring.storage.fleet.task_claim import SecretGrant

LOGIN_SECONDS: Final = 10.0
LOGINS_PER_TENANT: Final = 4
BEARER: Final = "Bearer "

log = logging.getLogger("mooring.dispatch")


class RegistryLogins:
    """The logins that are under way."""

    def __init__(self, artifacts: ArtifactReader) -> None:
        self._artifacts = artifacts
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._waiting: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, task: Task, grants: Sequence[SecretGrant], deliver: Callable[[Sequence[SecretGrant]], None]
    ) -> None:
        """Log in for a task, and deliver it with the grants that have their values."""
        running = asyncio.create_task(self._run(task, grants, deliver))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for each in self._tasks:
            each.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self, task: Task, grants: Sequence[SecretGrant], deliver: Callable[[Sequence[SecretGrant]], None]
    ) -> None:
        tenant_id = task.tenant_id
        turns = self._turns.setdefault(tenant_id, asyncio.Semaphore(LOGINS_PER_TENANT))
        self._waiting[tenant_id] = self._waiting.get(tenant_id, 0) + 1
        try:
            async with asyncio.timeout(LOGIN_SECONDS):
                async with turns:
                    grants = [await self._logged_in(each) for each in grants]
        except (Refusal, TimeoutError) as error:
            why = error.detail if isinstance(error, Refusal) else f"no answer within {LOGIN_SECONDS:g} s"
            log.warning("no registry token for task %s; sending it without one: %s", task.id, why)
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id], self._turns[tenant_id]
        deliver([each for each in grants if each.source is None or each.value is not None])

    async def _logged_in(self, grant: SecretGrant) -> SecretGrant:
        if grant.source is None or grant.repository is None:
            return grant
        header = await self._artifacts.pull_authorization(grant.source, grant.repository)
        return replace(grant, value=None if header is None else header.removeprefix(BEARER).encode())
