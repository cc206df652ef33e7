"""How each function that decides about sources of usage is driven, for the tests of every statement."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.money.late_usage import LateUsageStatus, Resolution, resolve_late_usage
from mooring.core.money.meter_event import accept_events
from mooring.core.money.meter_reading import take_readings
from server.tests.support import usage_source_rows as rows


def _resolved(now: DecisionContext) -> Iterator[Decision[Any]]:
    for status in (LateUsageStatus.ACCEPTED, LateUsageStatus.REJECTED):
        late = rows.late_usage(now)
        yield resolve_late_usage(now, late, rows.metered(now), Resolution(status, "the sender was offline"))


DRIVEN_USAGE_SOURCES: Final[dict[str, Callable[[DecisionContext], Any]]] = {
    "late_usage.resolve_late_usage": _resolved,
    "meter_event.accept_events": lambda now: accept_events(
        now, rows.batch(now), [rows.event(now, "a"), rows.event(now, "b", 2), rows.event(now, "c", days_ago=40)]
    ),
    "meter_reading.take_readings": lambda now: take_readings(
        now, rows.readings_of(now), [rows.reading(now, 0, 0), rows.reading(now, 1, 5)]
    ),
}
