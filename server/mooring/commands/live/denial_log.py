"""Writes the audit rows of refused requests, and collapses repeated ones.

The first refusal of a kind is written at once. Further ones of the same caller, action and target within a minute are
counted, and one row with the count follows when the minute is over; so a caller who repeats a refused request fills no
table. A tenant, or all strangers together, get at most KINDS_MAX kinds per minute; what is beyond is only counted.
Counts are in memory: a crash loses those of the last minute, never the first row of a kind.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from mooring.core.kernel.decision import AuditRecord, DecisionContext, PrincipalKind
from mooring.storage.kernel.database import Database
from mooring.storage.kernel.unit_of_work import Origin, record_refusal

WINDOW_SECONDS: Final = 60.0
KINDS_MAX: Final = 200
BEYOND: Final = "audit.collapsed"
"""The action of the row that counts refusals of further kinds."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A refused request, as the audit trail shows it."""

    context: DecisionContext
    audited: AuditRecord
    outcome: str
    origin: Origin


@dataclass(slots=True)
class _Window:
    owner: str | None
    until: float
    latest: Refused
    repeats: int = 0


class DenialLog:
    """The windows of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[object, ...], _Window] = {}
        self._kinds: dict[str | None, int] = {}

    async def record(
        self, database: Database, context: DecisionContext, audited: AuditRecord, outcome: str, origin: Origin
    ) -> None:
        """Write the row of a refused request, or count it."""
        refused = Refused(context, audited, outcome, origin)
        key, owner, now = _key(refused), audited.tenant_id, self._clock()
        if key not in self._windows and self._kinds.get(owner, 0) >= KINDS_MAX:
            key = (owner, outcome, BEYOND)
            refused = replace(refused, audited=_beyond(owner))
        window = self._windows.get(key)
        if window is not None and now < window.until:
            window.latest = refused
            window.repeats += 1
            return
        if window is not None:
            await self._end(database, key, window)
        window = self._windows[key] = _Window(owner, now + WINDOW_SECONDS, refused)
        self._kinds[owner] = self._kinds.get(owner, 0) + 1
        try:
            await record_refusal(database, context, refused.audited, outcome, origin)
        except BaseException:
            self._forget(key, window)  # the next one is written, not counted
            raise

    async def flush(self, database: Database, *, everything: bool = False) -> None:
        """Write the counts of the windows that are over, or of all."""
        now = self._clock()
        for key, window in [each for each in self._windows.items() if everything or each[1].until <= now]:
            await self._end(database, key, window)

    async def _end(self, database: Database, key: tuple[object, ...], window: _Window) -> None:
        self._forget(key, window)
        if window.repeats:
            latest = window.latest
            try:
                await record_refusal(
                    database, latest.context, latest.audited, latest.outcome, latest.origin, count=window.repeats
                )
            except BaseException:
                if key not in self._windows:  # the next flush tries again
                    self._windows[key] = window
                    self._kinds[window.owner] = self._kinds.get(window.owner, 0) + 1
                raise

    def _forget(self, key: tuple[object, ...], window: _Window) -> None:
        if self._windows.get(key) is window:
            del self._windows[key]
            left = self._kinds[window.owner] - 1
            if left:
                self._kinds[window.owner] = left
            else:
                del self._kinds[window.owner]


def _key(refused: Refused) -> tuple[object, ...]:
    actor, audited, origin = refused.context.actor, refused.audited, refused.origin
    stranger = actor.kind is PrincipalKind.ANONYMOUS
    return (
        refused.outcome,
        audited.action,
        audited.noun,
        audited.subject_id,
        audited.tenant_id,
        audited.project_id,
        actor.id,
        actor.token_id,
        actor.break_glass_id,
        audited.reason,
        origin.route,
        origin.remote_address if stranger else None,
    )


def _beyond(tenant_id: str | None) -> AuditRecord:
    reason = f"more than {KINDS_MAX} kinds of refused requests in a minute; further ones are only counted"
    return AuditRecord(BEYOND, "audit", None, tenant_id, reason=reason)
