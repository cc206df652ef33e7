"""What GPUs do, by the minute: samples of agents, and the figures that are read.

An agent says how long ago it took a sample, and the platform's clock says when that was: a node whose clock is wrong or
that lies about it, writes neither into the future nor into another tenant's time.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from mooring.core.kernel.validation import invalid

SAMPLES_MAX: Final = 512
GPU_INDEX_MAX: Final = 255
SAMPLE_AGE_MAX: Final = 600.0
MEMORY_BYTES_MAX: Final = 1 << 50
POINTS_MAX: Final = 720
"""How many points one GPU has in an answer."""
ROWS_MAX: Final = 50_000
RANGE_MAX: Final = timedelta(days=31)
IDLE_PERCENT: Final = 5
"""A GPU below this utilisation for a minute was idle in it."""
STEPS: Final = (60, 300, 900, 3_600, 21_600, 86_400)
SERIES: Final = (
    "utilisation_percent",
    "utilisation_max_percent",
    "memory_used_bytes",
    "memory_total_bytes",
    "power_watts",
    "temperature_celsius",
    "ecc_errors",
    "xid",
)


@dataclass(frozen=True, slots=True)
class SlotSample:
    """What one GPU did at one moment."""

    index: int
    at: datetime
    utilisation_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_milliwatts: int | None
    temperature_celsius: int | None
    ecc_errors: int | None
    xid: int | None


@dataclass(frozen=True, slots=True)
class MetricRange:
    """From when to when, and how long each point is."""

    since: datetime
    until: datetime
    step_seconds: int


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """One point of one GPU under one allocation, as it was read; `values` are in the order of SERIES."""

    node_id: str
    index: int
    allocation_id: str | None
    at: datetime
    values: tuple[float | None, ...]
    measured_minutes: int
    idle_minutes: int
    last_minute: datetime
    gpu_model: str
    simulated: bool
    price_minor_per_gpu_hour: int | None = None
    currency: str | None = None


@dataclass(slots=True)
class SlotMetrics:
    """One GPU under one allocation, over the range."""

    first: MetricPoint
    at: list[datetime] = field(default_factory=list)
    series: dict[str, list[float | None]] = field(default_factory=dict)
    measured_minutes: int = 0
    idle_minutes: int = 0
    last_minute: datetime | None = None


def metric_range(since: datetime | None, until: datetime | None, step: int | None, now: datetime) -> MetricRange:
    """The range that is read: the last hour if nothing is said, in steps that keep the number of points bounded."""
    end = until or now
    start = since or end - timedelta(hours=1)
    if start >= end:
        raise invalid("since", "must be before `until`")
    if end - start > RANGE_MAX:
        raise invalid("since", f"at most {RANGE_MAX.days} days before `until`")
    seconds = (end - start).total_seconds()
    if step is None:
        step = next((each for each in STEPS if seconds / each <= POINTS_MAX / 3), STEPS[-1])
    if seconds / step > POINTS_MAX:
        raise invalid("step", f"at most {POINTS_MAX} points: use a longer step or a shorter range")
    start -= timedelta(seconds=start.timestamp() % step)
    return MetricRange(start, end, step)


def wanted_series(text: str | None) -> tuple[str, ...]:
    """The series of a comma-separated list; all if there is none."""
    if text is None:
        return SERIES
    names = tuple(dict.fromkeys(each for each in text.split(",") if each))
    if unknown := [each for each in names if each not in SERIES]:
        raise invalid("series", f"{unknown[0]!r} is unknown; allowed: {', '.join(SERIES)}")
    return names or SERIES


def check_samples(samples: Iterable[SlotSample]) -> None:
    """Refuse values that cannot be true together."""
    for each in samples:
        if (each.memory_used_bytes or 0) > (each.memory_total_bytes or 0):
            raise invalid("samples", f"GPU {each.index} uses more memory than it has")


def by_slot(points: Sequence[MetricPoint], names: Sequence[str]) -> list[SlotMetrics]:
    """The points of each GPU under each allocation, in the order in which they were read."""
    found: dict[tuple[str, int, str | None], SlotMetrics] = {}
    places: Mapping[str, int] = {name: SERIES.index(name) for name in names}
    for point in points:
        one = found.setdefault((point.node_id, point.index, point.allocation_id), SlotMetrics(point))
        one.at.append(point.at)
        for name, place in places.items():
            one.series.setdefault(name, []).append(point.values[place])
        one.measured_minutes += point.measured_minutes
        one.idle_minutes += point.idle_minutes
        one.last_minute = max(point.last_minute, one.last_minute or point.last_minute)
    return list(found.values())
