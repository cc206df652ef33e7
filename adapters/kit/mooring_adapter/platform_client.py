"""The calls of the adapter contract, over the SDK: one method for each, without any decision.

Each request carries the correlation id and the trace of its operation. The routes take no
Idempotency-AdapterKey: fences and names make them safe to repeat.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring_adapter.instance_view import Operation as ViewedOperation
from mooring_adapter.instance_view import Task
from mooring_adapter.steps import MakeSecret, Reading, Usage
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
READINGS: Final = Operation("report_readings", "POST", _INSTANCE + "/readings")
KEY_PREFIX: Final = "key:"
USAGE_MAX: Final = 500
TASKS_MAX: Final = 50


class KeyAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account that the adapter's key opens."""

    service_account_id: str
    key_id: str
    project_id: str = ""
    apps: list[str] = []


class HeldClaim(msgspec.Struct, frozen=True):
    """A claim on an instance; the claim with the highest fence is the valid one."""

    instance_id: str
    fence: int


class ClaimResponse(msgspec.Struct, frozen=True, kw_only=True):
    claims: list[HeldClaim] = []
    changed: list[str] = []
    lost: list[HeldClaim] = []
    cursor: str | None = None
    lease_seconds: float = 45.0


class CreationRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task was not made."""

    code: str
    detail: str = ""
    retryable: bool = False
    details: dict[str, Any] = {}

    def error(self) -> MooringError:
        """The error that a request for this task alone would have raised."""
        return MooringError(self.detail, code=self.code, retryable=self.retryable, details=self.details)


class TaskCreation(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one of several tasks."""

    step: str
    task: Task | None = None
    refusal: CreationRefusal | None = None


class _TaskCreations(msgspec.Struct):
    tasks: list[TaskCreation] = []


class _Accounts(msgspec.Struct):
    accounts: list[KeyAccount] = []
    next_after: str | None = None


@dataclass(frozen=True, slots=True)
class AdapterKey:
    """The adapter's Ed25519 key: the content of its file, and its public half as the platform names it."""

    private: bytes
    public: str

    def __repr__(self) -> str:
        return f"AdapterKey({self.public!r})"


def read_key(content: bytes) -> AdapterKey:
    raw = private_key_from(content).public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return AdapterKey(content, base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


async def accounts_of(
    url: str, key: AdapterKey, settings: ClientSettings, audience: str | None = None
) -> list[KeyAccount]:
    """The accounts of all projects that this key opens."""
    known_as = url.rstrip("/") if audience is None else audience.removesuffix(TOKEN_PATH)
    signer = ServiceAccountCredentials(
        KEY_PREFIX + key.public, "adapter", key.private, audience=known_as + ACCOUNTS.path
    )
    found: list[KeyAccount] = []
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
    """The adapter contract under one account."""

    def __init__(self, client: AsyncClient, holder: str) -> None:
        self.client = client
        self.holder = holder

    async def claim(
        self, held: Sequence[HeldClaim], free: int, wait_seconds: float, after: str | None
    ) -> ClaimResponse:
        """One long poll: it renews what is held, claims what is offered, and returns the news."""
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

    async def release(self, held: Sequence[HeldClaim]) -> None:
        """Release claims, so that another replica can have them at once."""
        await self.client.execute(Call(RELEASES, body={"holder": self.holder, "held": list(held)}))

    async def read(self, claim: HeldClaim) -> Mapping[str, Any]:
        """Read an instance."""
        path = {"instance_id": claim.instance_id}
        answer: Mapping[str, Any] = await self.client.call(Call(READ, path, {"fence": claim.fence}), dict[str, Any])
        return answer

    async def report(
        self, claim: HeldClaim, report: Mapping[str, Any], operation: ViewedOperation | None = None
    ) -> None:
        """Report what was observed, all or nothing."""
        body = {"fence": claim.fence, **report}
        if operation is not None:
            body["operation_id"] = operation.id
        await self.client.execute(self._call(REPORTS, claim, body, operation))

    async def finish(self, claim: HeldClaim, operation: ViewedOperation, end: Mapping[str, Any]) -> None:
        """Report how an operation ended."""
        body = {"fence": claim.fence, **end}
        path = {"instance_id": claim.instance_id, "operation_id": operation.id}
        await self.client.execute(Call(FINISH, path, body=body, options=traced(operation)))

    async def create_task(self, claim: HeldClaim, operation: ViewedOperation | None, task: Mapping[str, Any]) -> Task:
        """Create a task, or find the one that this step already has; without an operation it is a look."""
        body = {"fence": claim.fence, **task}
        if operation is not None:
            body["operation_id"] = operation.id
        answer = await self.client.call(self._call(TASKS, claim, body, operation), dict[str, Any])
        return msgspec.convert(answer, Task, strict=False)

    async def create_tasks(
        self, claim: HeldClaim, operation: ViewedOperation | None, tasks: Sequence[Mapping[str, Any]]
    ) -> list[TaskCreation]:
        """Create several tasks at once, at most `TASKS_MAX`; each has its own outcome."""
        body: dict[str, Any] = {"fence": claim.fence, "tasks": list(tasks)}
        if operation is not None:
            body["operation_id"] = operation.id
        answer = await self.client.call(self._call(MANY_TASKS, claim, body, operation), dict[str, Any])
        return msgspec.convert(answer, _TaskCreations, strict=False).tasks

    async def make_secret(self, claim: HeldClaim, operation: ViewedOperation, secret: MakeSecret) -> None:
        """Have a secret stored; its value is never returned."""
        body: dict[str, Any] = {"fence": claim.fence, "name": secret.name, "purpose": secret.purpose}
        if secret.value is not None:
            body["value"] = secret.value
        else:
            body["generate_bytes"] = secret.generate_bytes
        await self.client.execute(self._call(SECRETS, claim, body, operation))

    async def report_usage(self, claim: HeldClaim, usage: Sequence[Usage]) -> None:
        """Report usage; a record that was reported before is not counted again."""
        for start in range(0, len(usage), USAGE_MAX):
            records = [_usage(each) for each in usage[start : start + USAGE_MAX]]
            await self.client.execute(self._call(USAGE, claim, {"fence": claim.fence, "records": records}, None))

    async def report_readings(self, claim: HeldClaim, readings: Sequence[Reading]) -> None:
        """Report what counters showed; a reading that was reported before adds nothing."""
        for start in range(0, len(readings), USAGE_MAX):
            shown = [_reading(each) for each in readings[start : start + USAGE_MAX]]
            await self.client.execute(self._call(READINGS, claim, {"fence": claim.fence, "readings": shown}, None))

    @staticmethod
    def _call(operation: Operation, claim: HeldClaim, body: Mapping[str, Any], under: ViewedOperation | None) -> Call:
        return Call(operation, {"instance_id": claim.instance_id}, body=body, options=traced(under))


def traced(operation: ViewedOperation | None) -> CallOptions:
    """Call options with the correlation id and the trace of an operation."""
    if operation is None:
        return CallOptions()
    span = secrets.token_hex(8)
    parent = f"00-{operation.trace_id}-{span}-01" if len(operation.trace_id) == 32 else None
    return CallOptions(correlation_id=operation.correlation_id or None, traceparent=parent)


def _reading(each: Reading) -> dict[str, Any]:
    plain = {name: getattr(each, name) for name in Reading.__slots__}
    return {name: value for name, value in plain.items() if value is not None} | {"at": each.at.isoformat()}


def _usage(each: Usage) -> dict[str, Any]:
    record = {
        "record_id": each.record_id,
        "unit": each.unit,
        "started_at": each.started_at.isoformat(),
        "ended_at": each.ended_at.isoformat(),
        "quantity": each.quantity,
        "attached_project_id": each.attached_project_id,
    }
    return {name: value for name, value in record.items() if value is not None}
