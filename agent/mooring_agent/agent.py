"""The agent: one long poll that claims, one loop that tells, and now and then a look for strays.

Its order at a start is that of trust: find what stands on the machine, go on with what a crash cut off, tell what
the machine has, compare it with what the platform knows, and only then ask for work.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from mooring_agent import VERSION
from mooring_agent.control_plane.keys import Identity, NodeKeys, store_identity, with_announced_keys
from mooring_agent.control_plane.messages import ClaimResponse
from mooring_agent.control_plane.platform_client import PlatformClient, Rejected, Unreachable
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.hosts.contract import Host, HostFailure, Stray
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS, TaskHandler
from mooring_agent.tasks.journal import Journal, JournalFull
from mooring_agent.tasks.log_read import LogReadHandler
from mooring_agent.tasks.probes import PROBES
from mooring_agent.tasks.reporter import Reporter
from mooring_agent.tasks.verifier import TaskRefused, TaskVerifier
from mooring_agent.tunnels.tunnel import tunnel_handlers

SWEEP_SECONDS: Final = 600.0
WAIT_SECONDS: Final = 30.0

log = logging.getLogger("mooring.agent")


@dataclass(slots=True)
class AgentParts:
    """What an agent is made of; a test or a simulated one puts others in."""

    identity: Identity
    keys: NodeKeys
    host: Host
    journal: Journal
    inventory: Callable[[], Mapping[str, Any]]
    now: Callable[[], float]
    directory: Path | None = None  # where the identity is kept when keys are announced
    concurrency: int = 16
    handlers: Mapping[str, TaskHandler] = field(default_factory=lambda: HANDLERS)
    transport: httpx.AsyncBaseTransport | None = None  # where many agents of one process share their connections
    sweeps: Sequence[Callable[[Collection[str]], Awaitable[Sequence[Stray]]]] = ()  # of what the host does not make


class NodeRetired(Exception):
    """The platform knows this node no more (it was retired): the agent ends, and what runs on the machine goes on."""


class Agent:
    """One agent, for as long as it runs."""

    def __init__(self, parts: AgentParts) -> None:
        self.parts = parts
        self.identity = parts.identity
        self.client = PlatformClient(parts.identity, parts.keys, parts.now, parts.transport)
        self.executor = Executor(
            parts.host,
            parts.journal,
            parts.keys,
            parts.now,
            self._wake_reporter,
            parts.concurrency,
            {**LogReadHandler().handlers(), **parts.handlers, **PROBES, **tunnel_handlers(self.client.authorization)},
        )
        self.reporter = Reporter(self.client, self.executor, parts.journal, parts.host, parts.now)
        self._started_at = parts.now()

    async def run(self) -> None:
        """Work until it is cancelled; what runs on the machine goes on without it."""
        parts = self.parts
        sandboxes = await parts.host.recover()
        log.info("found %d sandboxes of this agent", len(sandboxes))
        await self.executor.resume()
        reporting = asyncio.create_task(self.reporter.run(), name="reporter")
        try:
            await self._report_inventory()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._claim(), name="claims")
                group.create_task(self._sweep(), name="sweep")
        except ExceptionGroup as problems:
            retired = problems.subgroup(NodeRetired)
            raise (problems if retired is None else retired.exceptions[0]) from None
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            await self.executor.stop()
            await self.client.close()

    @property
    def verifier(self) -> TaskVerifier:
        """Whom this agent believes now."""
        return TaskVerifier(self.identity.node_id, self.identity.audience, self.identity.pinned)

    def health(self) -> dict[str, Any]:
        """How the agent itself is."""
        health: dict[str, Any] = {
            "version": VERSION,
            "host": self.parts.host.kind,
            "uptime_seconds": int(self.parts.now() - self._started_at),
            "running": len(self.executor.tracked),
            "results_owed": len(self.parts.journal.undelivered()),
            "disk_is_full": not self.parts.journal.keep_reserve(),
            "load": [round(each, 2) for each in os.getloadavg()],
        }
        if self.parts.directory is not None:
            health["disk_free_bytes"] = shutil.disk_usage(self.parts.directory).free
        return health

    def _wake_reporter(self) -> None:
        self.reporter.wake.set()

    async def _report_inventory(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            try:
                await self.client.report_inventory(self.parts.inventory())
                return
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                log.warning("the platform does not take this machine's inventory: %s", error)
                await backoff.wait()

    async def _claim(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            free = self.executor.free
            try:
                wait = WAIT_SECONDS if free else 1.0
                claimed = await self.client.claim(free, wait, self.executor.running(), self.health())
                backoff.reset()
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                log.warning("no claim: %s", error)
                await backoff.wait()
                continue
            self._accept(claimed)

    def _accept(self, claimed: ClaimResponse) -> None:
        known = with_announced_keys(self.identity, claimed.keys)
        if known is not self.identity:
            self.identity = known
            if self.parts.directory is not None:
                store_identity(self.parts.directory, known)
        for envelope in claimed.tasks:
            try:
                self.executor.accept(self.verifier.verify(envelope, self.parts.now()))
            except TaskRefused as refused:
                log.warning("a task was refused: %s", refused)
                self.reporter.report_refusal(refused.reason, refused.detail, refused.task_id)
            except JournalFull as full:
                log.error("a task cannot be taken, and is offered again later: %s", full)
        for lease in claimed.cancel:
            self.executor.cancel(lease.task_id)

    async def _sweep(self) -> None:
        backoff = ReconnectBackoff()
        while True:
            try:
                await self.sweep()
                backoff.reset()
            except (Unreachable, Rejected) as error:
                _raise_if_retired(error)
                log.warning("no sweep now: %s", error)
            except (HostFailure, OSError):  # the platform may wait for it before it gives this node any work
                log.exception("the sweep came to no end, and is begun again")
                await backoff.wait()
                continue
            self.parts.journal.prune(self.parts.now())
            await asyncio.sleep(SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Compare this machine with what the platform knows; what is ours and unknown is reaped and reported."""
        # A sandbox may be made while the platform is asked, and while the machine is looked through: what comes
        # meanwhile is added to this very set before anything of it is made, so that it is never taken for unknown.
        known = self.executor.touched
        known.clear()
        known.update(each.task.allocation_id for each in self.executor.tracked.values())
        known.update(await self.client.allocations())
        strays = [stray for sweep in self.parts.sweeps for stray in await sweep(known)]
        strays += await self.parts.host.sweep(known)
        self.reporter.report_strays(  # none is told as well: it ends the sweep that the platform waits for
            [
                {
                    "kind": each.resource.kind,
                    "name": each.resource.name[:200],
                    "verdict": each.verdict,
                    "allocation_id": each.allocation_id,
                }
                for each in strays
            ]
        )


def _raise_if_retired(error: Unreachable | Rejected) -> None:
    """A node that was retired is not to knock for ever."""
    if isinstance(error, Rejected) and error.code == "assertion_refused":
        raise NodeRetired(f"the platform does not take this node any more: {error}") from error
