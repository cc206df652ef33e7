"""Applies decisions: the one way to write a decision, wake its listeners, and win or lose a race.

A decision is guarded by the rows that it was made on. When another writer changed one of them first, the decision is
stale and nothing of it is written. Three functions cover what a caller can do then: `apply_and_notify` raises,
`apply_once` reports the lost race, and `apply_with_retry` waits for its turn (`commands/live/row_queues.py`) and
decides again.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from mooring.commands.live.row_queues import OutOfPatience
from mooring.commands.services import Services
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import Origin, StaleWrite, StoredAnswer, apply

Result = TypeVar("Result")

log = logging.getLogger("mooring.apply")


class EveryRaceLost(Refusal):
    """Other writers were faster as long as this one had time; the caller did nothing wrong and may try again."""

    def __init__(self) -> None:
        super().__init__(
            Code.TEMPORARILY_UNAVAILABLE,
            "other requests kept changing the same resource, and this one never had its turn; nothing was changed",
        )


async def apply_and_notify(
    services: Services,
    acting: Acting,
    context: DecisionContext,
    decision: Decision[Any],
    *,
    origin: Origin | None = None,
    answer: StoredAnswer | None = None,
) -> None:
    """Write the decision and wake who waits for its events; raises StaleWrite when another writer was faster."""
    await apply(services.database, acting, context, decision, origin=origin, answer=answer)
    if decision.events:
        services.hub.notify(event.type for event in decision.events)


async def apply_once(
    services: Services,
    acting: Acting,
    context: DecisionContext,
    decision: Decision[Any],
    *,
    origin: Origin | None = None,
    lost_codes: frozenset[Code] = frozenset(),
) -> bool:
    """Write the decision; returns False, with nothing written, when another writer was faster.

    `lost_codes` are refusals of the database that also mean a lost race: a constraint, not a guard, stopped the slower
    writer. Other refusals are raised.
    """
    try:
        await apply_and_notify(services, acting, context, decision, origin=origin)
    except StaleWrite:
        return False
    except Refusal as refusal:
        if refusal.code not in lost_codes:
            raise
        log.info("lost a race and wrote nothing; the next pass decides again: %s", refusal.detail)
        return False
    return True


async def apply_with_retry(
    services: Services,
    acting: Acting,
    context: DecisionContext,
    decide: Callable[[], Awaitable[Decision[Result] | None]],
    *,
    origin: Origin | None = None,
) -> Decision[Result] | None:
    """Load and decide, then write; after a lost race again, in turn with other writers of the same rows.

    `decide` returns None when nothing is left to do. Raises EveryRaceLost when the time for it is over.
    """
    turn = services.rows.turn()
    try:
        while True:
            decision = await decide()
            while decision is not None and turn.is_behind(decision):
                await turn.wait_for(decision)
                decision = await decide()
            if decision is None or await apply_once(services, acting, context, decision, origin=origin):
                return decision
            await turn.lost(decision)
    except OutOfPatience as error:
        raise EveryRaceLost from error
    finally:
        turn.end()
