"""Replicas of an adapter: the real kit over the commands that the adapter routes call, without HTTP between them.

Bodies go through the routes' own schemas, answers through their views. One call of a replica's is under way at a time,
so that a seed gives one order.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from mooring.api.schemas.runtime.adapter import (
    FinishOperation,
    MakeMemberTask,
    MakeMemberTasks,
    MakeReport,
    MakeSecret,
    ending_of,
    report_of,
    task_request_of,
)
from mooring.api.schemas.runtime.adapter_view import made_tasks, runtime_task, runtime_whole
from mooring.commands.kernel.work import Answered, PresentedAnswer, Work
from mooring.commands.live.claim_broker import ClaimBroker, ClaimPoll
from mooring.commands.money import usage as usage_commands
from mooring.commands.runtime import adapter as commands
from mooring.commands.runtime import adapter_secret, member_task
from mooring.commands.runtime.adapter import ClaimRef
from mooring.commands.runtime.member_task_batch import make_many
from mooring.commands.services import Services
from mooring.core.kernel.decision import Actor, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Authority
from mooring.core.money.usage import UsageReport
from mooring.core.runtime.claim import FencedInstance as HeldThere
from mooring.storage.kernel.database import Acting
from mooring.storage.runtime.claim import ClaimRequester
from mooring_adapter import Adapter
from mooring_adapter.instance_controller import ClaimLost, InstanceController
from mooring_adapter.instance_view import Operation as WorldOperation
from mooring_adapter.instance_view import Task
from mooring_adapter.platform_client import HeldClaim, TaskCreation
from mooring_adapter.steps import Usage
from mooring_sdk import MooringError
from server.tests.world.starting_point import StartingPoint

LEASE: float = 45.0
PASSING = frozenset({Code.TEMPORARILY_UNAVAILABLE})
Result = TypeVar("Result")


class InProcessPlatform:
    """What the kit calls the platform, in the same process."""

    def __init__(self, services: Services, start: StartingPoint, holder: str) -> None:
        self.services, self.start, self.holder = services, start, holder
        self.acting = Acting(start.tenant_id)
        self.calls = 0  # that changed something, or tried to
        self.awaited = 0  # tasks that were made or are under way, of which a node tells
        self.ended = False  # an operation ended: the next request for work says what comes after it
        self._turn = asyncio.Lock()

    async def read(self, held: HeldClaim) -> Mapping[str, Any]:
        """The world of an instance."""
        whole = await self._asked(commands.load_for_adapter(self.services, self.acting, self._under(held)))
        self.ended = False
        self.awaited = sum(1 for each in whole.tasks if each.finished_at is None)
        plain: Mapping[str, Any] = msgspec.to_builtins(runtime_whole(whole))
        return plain

    async def report(self, held: HeldClaim, fields: Mapping[str, Any], operation: WorldOperation | None = None) -> None:
        """Tell what was observed."""
        body = msgspec.convert(_with(fields, held, operation), MakeReport)
        work: Work[Any] = self._work()
        await self._done(commands.report(work, self._under(held), body.operation_id, report_of(body)))

    async def finish(self, held: HeldClaim, operation: WorldOperation, fields: Mapping[str, Any]) -> None:
        """Tell how an operation ended."""
        body = msgspec.convert({"fence": held.fence, **fields}, FinishOperation)
        work: Work[Any] = self._work()
        await self._done(commands.finish(work, self._under(held), operation.id, ending_of(body)))
        self.ended = True

    async def create_task(self, held: HeldClaim, operation: WorldOperation | None, intent: Mapping[str, Any]) -> Task:
        """Have a task made."""
        body = msgspec.convert(_with(_carried(intent), held, operation), MakeMemberTask)
        self.awaited += 1
        work: Work[Any] = self._work(runtime_task)
        answer = await self._done(member_task.make(work, self._under(held), body.operation_id, task_request_of(body)))
        return msgspec.json.decode(answer.body, type=Task, strict=False)

    async def create_tasks(
        self, held: HeldClaim, operation: WorldOperation | None, intents: Sequence[Mapping[str, Any]]
    ) -> list[TaskCreation]:
        """Have several tasks made at once."""
        fields = {"tasks": [_carried(each) for each in intents]}
        body = msgspec.convert(_with(fields, held, operation), MakeMemberTasks)
        self.awaited += len(intents)
        work: Work[Any] = self._work(made_tasks)
        asked = [task_request_of(each) for each in body.tasks]
        answer = await self._done(make_many(work, self._under(held), body.operation_id, asked))
        return msgspec.convert(msgspec.json.decode(answer.body)["tasks"], list[TaskCreation], strict=False)

    async def make_secret(self, held: HeldClaim, operation: WorldOperation, intent: Any) -> None:
        """Have a secret kept."""
        plain = {
            "fence": held.fence,
            "name": intent.name,
            "purpose": intent.purpose,
            "generate_bytes": intent.generate_bytes,
        }
        body = msgspec.convert(plain, MakeSecret)
        wanted = adapter_secret.SecretSpec(body.name, body.purpose, body.value, body.generate_bytes)
        work: Work[Any] = self._work()
        await self._done(adapter_secret.store(work, self._under(held), wanted))

    async def report_usage(self, held: HeldClaim, usage: Sequence[Usage]) -> None:
        """Tell what was metered."""
        records = [
            UsageReport(
                each.record_id, each.unit, each.started_at, each.ended_at, Decimal(repr(each.quantity)).normalize()
            )
            for each in usage
        ]
        work: Work[Any] = self._work()
        await self._done(usage_commands.report_usage(work, self._under(held), records))

    def _under(self, held: HeldClaim) -> ClaimRef:
        return ClaimRef(self.start.account_id, self.start.project_id, held.instance_id, held.fence)

    def _work(self, shown: Any = None) -> Work[Any]:
        clock = self.services.clock
        actor = Actor(PrincipalKind.SERVICE_ACCOUNT, self.start.account_id)
        context = DecisionContext(actor, clock.now(), clock.mint(Prefix.CORRELATION), "b" * 32, clock.mint)

        def present(result: Any) -> PresentedAnswer:
            return PresentedAnswer(200, b"" if shown is None else msgspec.json.encode(shown(result)))

        return Work(self.services, self.acting, context, Authority(), present=present)

    async def _done(self, call: Awaitable[Answered]) -> Answered:
        self.calls += 1
        async with self._turn:
            return await self._asked(call)

    @staticmethod
    async def _asked(call: Awaitable[Result]) -> Result:
        try:
            return await call
        except Refusal as refusal:
            raise MooringError(
                refusal.detail,
                code=refusal.code.value,
                retryable=refusal.code in PASSING,
                details=dict(refusal.details),
            ) from refusal


def _with(fields: Mapping[str, Any], held: HeldClaim, operation: WorldOperation | None) -> dict[str, Any]:
    body = {"fence": held.fence, **fields}
    return body if operation is None else {**body, "operation_id": operation.id}


def _carried(intent: Mapping[str, Any]) -> Mapping[str, Any]:
    """A task without the bytes of an artifact: in this world nothing is stored anywhere."""
    if intent["type"] != "files.write":
        return intent
    files = [
        {"path": each["path"], "mode": each["mode"], "content": "simulated"} if "artifact" in each else each
        for each in intent["arguments"]["files"]
    ]
    return {**intent, "arguments": {**intent["arguments"], "files": files}}


@dataclass
class Replica:
    """One replica of the adapter; it comes back under another name when it died."""

    services: Services
    start: StartingPoint
    adapter: Adapter
    name: str
    lives: int = 0
    controllers: dict[str, InstanceController] = field(default_factory=dict)
    polled_at: datetime | None = None
    due_at: datetime | None = None  # when it looks again without being woken
    woken: bool = False  # something happened to what it holds

    def __post_init__(self) -> None:
        self.broker = ClaimBroker(self.services)
        self._born()

    def die(self) -> None:
        """All that it knew is forgotten."""
        self.lives += 1
        self.controllers = {}
        self.polled_at = self.due_at = None
        self.woken = False
        self._born()

    def _born(self) -> None:
        self.platform = InProcessPlatform(self.services, self.start, f"{self.name}-{self.lives}")

    @property
    def wants_poll(self) -> bool:
        """Whether its heartbeat is due."""
        now = self.services.clock.now()
        return not self.controllers or self.polled_at is None or (now - self.polled_at).total_seconds() > LEASE / 2

    async def step(self) -> bool:
        """Heartbeat where it is due, else one round of the kit; whether there is more to do at once."""
        if self.wants_poll:
            return await self._poll()
        more = self.woken = False
        for instance_id, controller in list(self.controllers.items()):
            calls = self.platform.calls
            try:
                rest = await controller._round()
            except ClaimLost:
                del self.controllers[instance_id]
                more = True
                continue
            except MooringError as error:
                if not error.retryable:
                    raise
                rest = 0.0
            # Wake those who wait for a node.
            more = more or (self.platform.calls > calls and not self.platform.awaited and not self.platform.ended)
            self.due_at = self.services.clock.now() + timedelta(seconds=rest)
        return more

    async def leave(self) -> None:
        """A clean end: what it holds is given back."""
        await self.broker.release(self._asking(), self._held())
        self.controllers = {}

    def _asking(self) -> ClaimRequester:
        start = self.start
        return ClaimRequester(start.account_id, start.tenant_id, start.project_id, self.platform.holder)

    def _held(self) -> tuple[HeldThere, ...]:
        return tuple(HeldThere(each.claim.instance_id, each.claim.fence) for each in self.controllers.values())

    async def _poll(self) -> bool:
        given = await self.broker.poll(ClaimPoll(self._asking(), self._held(), 10, 0.0, None))
        self.polled_at = self.services.clock.now()
        for lost in given.lost:
            self.controllers.pop(lost.instance_id, None)
        for claim in given.claims:
            controller = InstanceController(self.adapter, self.platform, HeldClaim(claim.instance_id, claim.fence))  # type: ignore[arg-type]
            controller._backoff.next_pause = lambda: 0.0  # type: ignore[method-assign]  # time passes only when the world says so
            self.controllers[claim.instance_id] = controller
        late = self.due_at is not None and self.due_at <= self.polled_at
        return bool(self.controllers) and (bool(given.claims) or self.woken or late)
