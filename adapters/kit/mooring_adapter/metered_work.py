"""Makes usage of work that has ended, such as jobs and runs: hours of it, and of what it held, each counted once.

An adapter says which work ended, as often as it sees it; the records have the same ids each time, so the platform
stores each once. A running attempt has no record: its quantity would change, and a stored record never does.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from mooring_adapter.instance_view import InstanceView
from mooring_adapter.steps import Usage

PLACES: Final = 9
"""Decimal places of hours: a microsecond is visible, and the same work has the same quantity each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedWork:
    """One attempt of something that ran: `key` names it for ever, and `per_hour` says what an hour of it counts."""

    key: str
    started_at: datetime
    ended_at: datetime
    per_hour: Mapping[str, float] = field(default_factory=dict)  # by unit, such as {"job_hours": 1, "gpu_hours": 8}
    attached_project_id: str | None = None


def usage_of_work(view: InstanceView, ended: Iterable[EndedWork]) -> tuple[Usage, ...]:
    """The usage of work that ended, in the units that the instance's manifest declares."""
    units = {each["unit"] for each in view.manifest.get("usage_units", ())}
    return tuple(record for each in ended for record in _records(each) if record.unit in units)


def _records(work: EndedWork) -> Iterator[Usage]:
    hours = (work.ended_at - work.started_at).total_seconds() / 3_600
    for unit, each_hour in work.per_hour.items():
        if hours * each_hour > 0:
            yield Usage(
                record_id=f"{work.key}/{unit}",
                unit=unit,
                started_at=work.started_at,
                ended_at=work.ended_at,
                quantity=round(hours * each_hour, PLACES),
                attached_project_id=work.attached_project_id,
            )
