"""The calls of the adapter contract, over the SDK: one method for each, and nothing decided here.

Each request carries the correlation id and the trace of the operation that it is for. The routes take no
Idempotency-AdapterKey: fences and names make them safe to repeat.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring_adapter.instance_view import Operation as WorldOperation
from mooring_adapter.instance_view import Task
from mooring_adapter.steps import MakeSecret, Usage
from mooring_sdk import (
    AsyncClient,
    Call,
    CallOptions,
    ClientSettings,
    MooringError,
    Operation,
    ServiceAccountCredentials,
)
from mooring_sdk.credentials import TOKEN_PATH, private_key_from

ACCOUNTS: Final = Operation("list_adapter_accounts", "POST", "/api/v1/runtime/accounts", is_public=True)
CLAIMS: Final = Operation("claim_instances", "POST", "/api/v1/runtime/claims")
RELEASES: Final = Operation("release_instances", "POST", "/api/v1/runtime/releases")
_INSTANCE: Final = "/api/v1/runtime/instances/{instance_id}"
READ: Final = Operation("read_runtime_instance", "GET", _INSTANCE)
REPORTS: Final = Operation("report_instance", "POST", _INSTANCE + "/reports")
FINISH: Final = Operation("finish_operation", "POST", _INSTANCE + "/operations/{operation_id}/finish")
TASKS: Final = Operation("create_instance_task", "POST", _INSTANCE + "/tasks")
MANY_TASKS: Final = Operation("create_instance_tasks", "POST", _INSTANCE + "/tasks:batch")
SECRETS: Final = Operation("create_instance_secret", "POST", _INSTANCE + "/secrets")
USAGE: Final = Operation("report_usage", "POST", _INSTANCE + "/usage")
KEY_PREFIX: Final = "key:"
USAGE_MAX: Final = 500
TASKS_MAX: Final = 50


class AdapterAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account that the adapter's key opens."""

    service_account_id: str
    key_id: str
    project_id: str = ""
    apps: list[str] = []


class InstanceClaim(msgspec.Struct, frozen=True):
    """A claim on an instance: whoever has a higher fence is the holder."""

    instance_id: str
    fence: int


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a poll."""

    claims: list[InstanceClaim] = []
    changed: list[str] = []
    lost: list[InstanceClaim] = []
    cursor: str | None = None
    lease_seconds: float = 45.0


class CreationRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task was not made."""

    code: str
    detail: str = ""
    retryable: bool = False
    details: dict[str, Any] = {}

    def error(self) -> MooringError:
        """The same as the error of a request of its own."""
        return MooringError(self.detail, code=self.code, retryable=self.retryable, details=self.details)


class TaskCreation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one of several tasks."""

    step: str
    task: Task | None = None
    refusal: CreationRefusal | None = None


class _AllMade(msgspec.Struct):
    tasks: list[TaskCreation] = []


class _Accounts(msgspec.Struct):
    accounts: list[AdapterAccount] = []
    next_after: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """The adapter's Ed25519 key: what is in the file, and the name that its public half is known by."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"AdapterKey({self.public!r})"


def read_key(content: bytes) -> AdapterKey:
    """A key out of a PEM file."""
    raw = private_key_from(content).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return AdapterKey(content, base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


async def accounts_of(
    url: str, key: AdapterKey, settings: ClientSettings, audience: str | None = None
) -> list[AdapterAccount]:
    """The accounts of all projects that this key opens."""
    known_as = url.rstrip("/") if audience is None else audience.removesuffix(TOKEN_PATH)
    signer = ServiceAccountCredentials(
        KEY_PREFIX + key.public, "adapter", key.private, audience=known_as + ACCOUNTS.path
    )
    found: list[AdapterAccount] = []
    async with AsyncClient(url, settings=settings) as client:
        after: str | None = None
        while True:
            body = {"assertion": signer.assertion(url, settings.timing.wall())}
            page = await client.call(Call(ACCOUNTS, body=body | ({"after": after} if after else {})), _Accounts)
            found += page.accounts
            after = page.next_after
            if after is None:
                return found


class PlatformClient:
    """The platform, as one account sees it."""

    def __init__(self, client: AsyncClient, holder: str) -> None:
        self.client = client
        self.holder = holder

    async def claim(
        self, held: Sequence[InstanceClaim], free: int, wait_seconds: float, after: str | None
    ) -> ClaimResponse:
        """Heartbeat of all that is held, claim of what is offered, and the news: one long poll."""
        body: dict[str, Any] = {
            "holder": self.holder,
            "free": free,
            "wait_seconds": wait_seconds,
            "held": list(held),
        }
        if after is not None:
            body["after"] = after
        patience = CallOptions(timeout_seconds=wait_seconds + 15.0, deadline_seconds=wait_seconds + 20.0)
        return await self.client.call(Call(CLAIMS, body=body, options=patience), ClaimResponse)

    async def release(self, held: Sequence[InstanceClaim]) -> None:
        """Give claims back, so that another replica has them at once."""
        await self.client.execute(Call(RELEASES, body={"holder": self.holder, "held": list(held)}))

    async def read(self, held: InstanceClaim) -> Mapping[str, Any]:
        """The view of an instance."""
        path = {"instance_id": held.instance_id}
        answer: Mapping[str, Any] = await self.client.call(Call(READ, path, {"fence": held.fence}), dict[str, Any])
        return answer

    async def report(
        self, held: InstanceClaim, told: Mapping[str, Any], operation: WorldOperation | None = None
    ) -> None:
        """Tell what was observed, all or nothing."""
        body = {"fence": held.fence, **told}
        if operation is not None:
            body["operation_id"] = operation.id
        await self.client.execute(self._call(REPORTS, held, body, operation))

    async def finish(self, held: InstanceClaim, operation: WorldOperation, told: Mapping[str, Any]) -> None:
        """Tell how an operation ended."""
        body = {"fence": held.fence, **told}
        path = {"instance_id": held.instance_id, "operation_id": operation.id}
        await self.client.execute(Call(FINISH, path, body=body, options=traced(operation)))

    async def create_task(self, held: InstanceClaim, operation: WorldOperation | None, wish: Mapping[str, Any]) -> Task:
        """Have a task made, or find the one that was made under this step before; without an operation, a look."""
        body = {"fence": held.fence, **wish}
        if operation is not None:
            body["operation_id"] = operation.id
        answer = await self.client.call(self._call(TASKS, held, body, operation), dict[str, Any])
        return msgspec.convert(answer, Task, strict=False)

    async def create_tasks(
        self, held: InstanceClaim, operation: WorldOperation | None, wishes: Sequence[Mapping[str, Any]]
    ) -> list[TaskCreation]:
        """Have several tasks made at once, at most `TASKS_MAX`; each has its own outcome."""
        body: dict[str, Any] = {"fence": held.fence, "tasks": list(wishes)}
        if operation is not None:
            body["operation_id"] = operation.id
        answer = await self.client.call(self._call(MANY_TASKS, held, body, operation), dict[str, Any])
        return msgspec.convert(answer, _AllMade, strict=False).tasks

    async def make_secret(self, held: InstanceClaim, operation: WorldOperation, wish: MakeSecret) -> None:
        """Have a secret kept; its value is never told."""
        body: dict[str, Any] = {"fence": held.fence, "name": wish.name, "purpose": wish.purpose}
        if wish.value is not None:
            body["value"] = wish.value
        else:
            body["generate_bytes"] = wish.generate_bytes
        await self.client.execute(self._call(SECRETS, held, body, operation))

    async def report_usage(self, held: InstanceClaim, usage: Sequence[Usage]) -> None:
        """Tell what was metered; a record that was told before is not counted again."""
        for start in range(0, len(usage), USAGE_MAX):
            records = [_usage(each) for each in usage[start : start + USAGE_MAX]]
            await self.client.execute(self._call(USAGE, held, {"fence": held.fence, "records": records}, None))

    @staticmethod
    def _call(operation: Operation, held: InstanceClaim, body: Mapping[str, Any], under: WorldOperation | None) -> Call:
        return Call(operation, {"instance_id": held.instance_id}, body=body, options=traced(under))


def traced(operation: WorldOperation | None) -> CallOptions:
    """The labels of the operation that a call is for."""
    if operation is None:
        return CallOptions()
    span = secrets.token_hex(8)
    parent = f"00-{operation.trace_id}-{span}-01" if len(operation.trace_id) == 32 else None
    return CallOptions(correlation_id=operation.correlation_id or None, traceparent=parent)


def _usage(each: Usage) -> dict[str, Any]:
    told = {
        "record_id": each.record_id,
        "unit": each.unit,
        "started_at": each.started_at.isoformat(),
        "ended_at": each.ended_at.isoformat(),
        "quantity": each.quantity,
        "attached_project_id": each.attached_project_id,
    }
    return {name: value for name, value in told.items() if value is not None}
