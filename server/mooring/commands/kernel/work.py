"""One piece of work: load, decide, apply, answer.

Every mutation, from the API or a worker, runs through `Work.execute`. It loads a snapshot, lets the core decide,
makes the answer, and applies the decision together with the record of that answer. When another writer was faster it
loads and decides again, a bounded number of times.

Idempotency costs nothing on the way that goes well: the record is written with the effect, and its key is unique.
Only when something goes wrong is it looked up: a race of two equal requests ends in one effect and two equal answers,
and a repeat of an old request gets the old answer even where it would now be refused. Refusals are not kept: they are
evaluated anew.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from mooring.commands.kernel.apply import ATTEMPTS_MAX, EveryRaceLost, apply_and_notify
from mooring.commands.services import Services
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, Insert, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Authority
from mooring.storage.kernel import idempotency
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.unit_of_work import AlreadyAnswered, Origin, StaleWrite, StoredAnswer

SEALED_ANSWER: Final = "idempotent_answer"

Snapshot = TypeVar("Snapshot")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PresentedAnswer:
    """What the caller is told: made before the effect is applied, so that both are kept together."""

    status: int
    body: bytes
    has_secret: bool = False  # a token or code that is told once: the record of this answer is sealed


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, and whether it is the record of an earlier one."""

    status: int
    body: bytes
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class IdempotencyRequest:
    """The caller's key, the route it counts for, and what the request looked like."""

    principal_id: str
    route: str
    key: str
    fingerprint: bytes


def _nothing_to_tell(result: Any) -> PresentedAnswer:
    return PresentedAnswer(204, b"")


@dataclass(frozen=True, slots=True)
class Work(Generic[Result]):
    """Who wants something done, for whom, and how the outcome is presented."""

    services: Services
    acting: Acting
    context: DecisionContext
    authority: Authority
    origin: Origin = field(default_factory=Origin)
    idempotency: IdempotencyRequest | None = None
    present: Callable[[Result], PresentedAnswer] = _nothing_to_tell

    @property
    def database(self) -> Database:
        """Where this work reads."""
        return self.services.database

    async def execute(
        self, load: Callable[[], Awaitable[Snapshot]], decide: Callable[[Snapshot], Decision[Result]]
    ) -> Answered:
        """Do it once, however often it is asked for, and say how it went."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                return await self._attempt(load, decide)
            except AlreadyAnswered:
                earlier = await self._earlier()
                if earlier is not None:
                    return earlier
            except StaleWrite:
                earlier = await self._earlier()
                if earlier is not None:
                    return earlier
                await asyncio.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 6)))
            except Refusal:
                earlier = await self._earlier()
                if earlier is not None:
                    return earlier
                raise
        raise EveryRaceLost

    async def _attempt(
        self, load: Callable[[], Awaitable[Snapshot]], decide: Callable[[Snapshot], Decision[Result]]
    ) -> Answered:
        decision = decide(await load())
        presented = self.present(decision.result)
        decision, answer = self._kept(decision, presented)
        if decision.writes or decision.audits or answer is not None:
            await apply_and_notify(
                self.services, self.acting, self.context, decision, origin=self.origin, answer=answer
            )
        return Answered(presented.status, presented.body)

    def _kept(
        self, decision: Decision[Result], presented: PresentedAnswer
    ) -> tuple[Decision[Result], StoredAnswer | None]:
        """The record of the answer, and the decision with the secret in which a telling answer is sealed."""
        request = self.idempotency
        if request is None:
            return decision, None
        answer = StoredAnswer(
            request.principal_id,
            request.route,
            request.key,
            self.acting.tenant_id,
            request.fingerprint,
            presented.status,
            presented.body,
        )
        if not presented.has_secret:
            return decision, answer
        secret_id = self.context.mint(Prefix.SECRET)
        sealed = self.services.secrets.seal(
            presented.body, id=secret_id, tenant_id=self.acting.tenant_id, purpose=SEALED_ANSWER
        )
        expires_at = self.context.now + timedelta(hours=self.services.settings.idempotency_retention_hours)
        writes = (*decision.writes, Insert("secret", sealed.row(self.context.now, expires_at)))
        return replace(decision, writes=writes), replace(answer, body=b"", secret_id=secret_id)

    async def _earlier(self) -> Answered | None:
        """The answer that was given under this key before, or a refusal when it was for something else."""
        request = self.idempotency
        if request is None:
            return None
        kept = await idempotency.find(self.database, self.acting, (request.principal_id, request.route, request.key))
        if kept is None:
            return None
        if kept.fingerprint != request.fingerprint:
            raise Refusal(
                Code.IDEMPOTENCY_CONFLICT,
                "this Idempotency-Key was used for another request on this route",
                {"first_correlation_id": kept.correlation_id},
            )
        body = kept.body if kept.sealed is None else self.services.secrets.unseal(kept.sealed)
        return Answered(kept.status, body, replayed=True)


def system_context(services: Services) -> DecisionContext:
    """What the platform does by itself, it does under this name."""
    clock = services.clock
    correlation_id = clock.mint(Prefix.CORRELATION)
    trace_id = correlation_id[-26:].encode().hex()[:32]
    return DecisionContext(Actor(PrincipalKind.SYSTEM, "system"), clock.now(), correlation_id, trace_id, clock.mint)
