"""One mutation: load, decide, apply, answer.

Every mutation, from the API or from a worker, runs through `Work.execute`. It loads a snapshot, lets the core decide,
builds the answer, and applies the decision together with a record of that answer. When another writer was faster, it
waits for its turn (`commands/live/row_queues.py`), loads and decides again, for a bounded time.

Idempotency costs nothing in the normal case: the record is written together with the effect, under a unique key. It
is looked up only after a failure. So two equal requests at once have one effect and get the same answer, and a
repeated request gets its first answer even when it would be refused now. Refusals are not recorded: a repeated
request is evaluated again.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from mooring.commands.kernel.apply import EveryRaceLost, apply_and_notify
from mooring.commands.live.row_queues import OutOfPatience, Turn
from mooring.commands.services import Services
from mooring.core.kernel.decision import Actor, AuditRecord, Decision, DecisionContext, Insert, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Authority
from mooring.gateways.telemetry.instruments import bound
from mooring.storage.kernel import idempotency
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.sealed_document import open_body, seal_body
from mooring.storage.kernel.unit_of_work import AlreadyAnswered, Origin, StaleWrite, StoredAnswer, record_read

SEALED_ANSWER: Final = "idempotent_answer"

Snapshot = TypeVar("Snapshot")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PresentedAnswer:
    """The answer to the caller. It is built before the decision is applied, so both are stored together."""

    status: int
    body: bytes
    has_secret: bool = False  # the body shows a token or code, only this once: the stored answer is sealed


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and whether it repeats the recorded answer of an earlier request."""

    status: int
    body: bytes
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class IdempotencyRequest:
    """The caller's idempotency key, the route it applies to, and a fingerprint of the request."""

    principal_id: str
    route: str
    key: str
    fingerprint: bytes


class LostRace(Exception):
    """Another writer was faster than this decision."""

    def __init__(self, decision: Decision[Any]) -> None:
        self.decision = decision


def _no_content(result: Any) -> PresentedAnswer:
    return PresentedAnswer(204, b"")


@dataclass(frozen=True, slots=True)
class Work(Generic[Result]):
    """A requested mutation: who acts, for which tenant, and how the result is presented."""

    services: Services
    acting: Acting
    context: DecisionContext
    authority: Authority
    origin: Origin = field(default_factory=Origin)
    idempotency: IdempotencyRequest | None = None
    present: Callable[[Result], PresentedAnswer] = _no_content
    path: str = ""  # of the request: those to the same path most often want the same rows
    shown: AuditRecord | None = None  # the row of an answer that changes nothing, where every answer leaves one

    @property
    def database(self) -> Database:
        return self.services.database

    async def execute(
        self,
        load: Callable[[], Awaitable[Snapshot]],
        decide: Callable[[Snapshot], Decision[Result]],
        *,
        context_of: Callable[[Snapshot], DecisionContext] | None = None,
    ) -> Answered:
        """Load, decide and apply once, even when the same idempotency key comes several times; return the answer.

        `context_of` returns the context under which a snapshot is decided on, where that is not the request's own.
        """
        turn = self.services.rows.turn(self.path)
        try:
            await turn.wait_by_path()
            while True:
                try:
                    return await self._attempt(load, decide, context_of, turn)
                except LostRace as lost:
                    earlier = await self._earlier()
                    if earlier is not None:
                        return earlier
                    await turn.lost(lost.decision)
                except (AlreadyAnswered, StaleWrite):  # a load that writes by itself can lose a race, too
                    earlier = await self._earlier()
                    if earlier is not None:
                        return earlier
                    await turn.pause()
                except Refusal:
                    earlier = await self._earlier()
                    if earlier is not None:
                        return earlier
                    raise
        except OutOfPatience as error:
            raise EveryRaceLost from error
        finally:
            turn.end()

    async def _attempt(
        self,
        load: Callable[[], Awaitable[Snapshot]],
        decide: Callable[[Snapshot], Decision[Result]],
        context_of: Callable[[Snapshot], DecisionContext] | None,
        turn: Turn,
    ) -> Answered:
        snapshot = await load()
        decision = decide(snapshot)
        while turn.is_behind(decision):
            await turn.wait_for(decision)
            snapshot = await load()
            decision = decide(snapshot)
        if context_of is None:
            return await self._write(decision)
        context = context_of(snapshot)
        with bound(correlation_id=context.correlation_id, trace_id=context.trace_id):
            return await replace(self, context=context)._write(decision)

    async def _write(self, decision: Decision[Result]) -> Answered:
        presented = self.present(decision.result)
        if self.shown is not None and not decision.audits:
            decision = replace(decision, audits=(self.shown,))
        decision, answer = self._recorded(decision, presented)
        if decision.writes or decision.audits or answer is not None:
            try:
                await apply_and_notify(
                    self.services, self.acting, self.context, decision, origin=self.origin, answer=answer
                )
            except StaleWrite as error:
                raise LostRace(decision) from error
        return Answered(presented.status, presented.body)

    def _recorded(
        self, decision: Decision[Result], presented: PresentedAnswer
    ) -> tuple[Decision[Result], StoredAnswer | None]:
        """The record of the answer, and the decision, which also stores the answer as a sealed secret if it has one."""
        request = self.idempotency
        if request is None:
            return decision, None
        if not presented.has_secret:
            # Any answer may repeat what the caller sent, such as a task's arguments.
            body = seal_body(self.database.documents, presented.body, _bound(request))
            return decision, self._answer(request, presented.status, body)
        secret_id = self.context.mint(Prefix.SECRET)
        sealed = self.services.secrets.seal(
            presented.body, id=secret_id, tenant_id=self.acting.tenant_id, purpose=SEALED_ANSWER
        )
        expires_at = self.context.now + timedelta(hours=self.services.settings.idempotency_retention_hours)
        writes = (*decision.writes, Insert("secret", sealed.row(self.context.now, expires_at)))
        return replace(decision, writes=writes), self._answer(request, presented.status, b"", secret_id)

    def _answer(
        self, request: IdempotencyRequest, status: int, body: bytes, secret_id: str | None = None
    ) -> StoredAnswer:
        return StoredAnswer(
            request.principal_id,
            request.route,
            request.key,
            self.acting.tenant_id,
            request.fingerprint,
            status,
            body,
            secret_id,
        )

    async def _earlier(self) -> Answered | None:
        """The earlier answer under this key, or None; a Refusal when the key was used for a different request."""
        request = self.idempotency
        if request is None:
            return None
        earlier = await idempotency.find(
            self.database, self.acting, principal_id=request.principal_id, route=request.route, key=request.key
        )
        if earlier is None:
            return None
        if earlier.fingerprint != request.fingerprint:
            raise Refusal(
                Code.IDEMPOTENCY_CONFLICT,
                "this Idempotency-Key was used for another request on this route",
                {"first_correlation_id": earlier.correlation_id},
            )
        if self.shown is not None:
            await record_read(self.database, self.context, self.shown, self.origin)
        if earlier.sealed is None:
            body = open_body(earlier.body, _bound(request))
        else:
            body = self.services.secrets.unseal(earlier.sealed)
        return Answered(earlier.status, body, replayed=True)


def _bound(request: IdempotencyRequest) -> str:
    return f"{SEALED_ANSWER}|{request.principal_id}|{request.route}|{request.key}"


def system_context(services: Services) -> DecisionContext:
    """The context for what the platform does by itself, as the actor `system`."""
    clock = services.clock
    correlation_id = clock.mint(Prefix.CORRELATION)
    trace_id = correlation_id[-26:].encode().hex()[:32]
    return DecisionContext(Actor(PrincipalKind.SYSTEM, "system"), clock.now(), correlation_id, trace_id, clock.mint)
