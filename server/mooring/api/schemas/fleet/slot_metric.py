"""Bodies of the metrics of GPUs."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.fleet.slot_metric import ROWS_MAX, MetricPoint, MetricRange, SlotMetrics, by_slot


class MetricsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which figures of which time."""

    series: (
        Annotated[
            str, Meta(max_length=300, pattern="^[a-z_,]*$", description="Names separated by commas; without it, all.")
        ]
        | None
    ) = None
    since: Annotated[Time, Meta(description="From this time on; without it, an hour before the end.")] | None = None
    until: Annotated[Time, Meta(description="Before this time; without it, until now.")] | None = None
    step: (
        Annotated[int, Meta(ge=60, le=86_400, description="Seconds of a point; without it, what keeps them readable.")]
        | None
    ) = None


class SlotMetricsView(Shown):
    """What one GPU did in the range. The lists have one value for each time in `at`; null: it was not measured."""

    node_id: str
    index: int
    allocation_id: str | None
    gpu_model: str
    simulated: Annotated[bool, Meta(description="A simulated GPU computes nothing, and its figures mean nothing.")]
    price_minor_per_gpu_hour: int | None
    currency: str | None
    measured_seconds: int
    idle_seconds: Annotated[int, Meta(description="Of the measured ones: below 5 % utilisation for a whole minute.")]
    last_at: Annotated[Time | None, Meta(description="The last minute with a sample.")]
    at: Annotated[list[int], Meta(description="When each point begins, in seconds since 1970.")]
    series: dict[str, list[float | None]]


class SlotMetricsListView(Shown):
    """The GPUs in the order of their nodes and indices."""

    since: Time
    until: Time
    step_seconds: int
    truncated: Annotated[bool, Meta(description="There were too many points: ask for a longer step.")]
    slots: list[SlotMetricsView]


def metrics_view(wanted: MetricRange, points: Sequence[MetricPoint], names: Sequence[str]) -> SlotMetricsListView:
    return SlotMetricsListView(
        since=wanted.since,
        until=wanted.until,
        step_seconds=wanted.step_seconds,
        truncated=len(points) >= ROWS_MAX,
        slots=[_slot(each) for each in by_slot(points, names)],
    )


def _slot(each: SlotMetrics) -> SlotMetricsView:
    first = each.first
    return SlotMetricsView(
        node_id=first.node_id,
        index=first.index,
        allocation_id=first.allocation_id,
        gpu_model=first.gpu_model,
        simulated=first.simulated,
        price_minor_per_gpu_hour=first.price_minor_per_gpu_hour,
        currency=first.currency,
        measured_seconds=60 * each.measured_minutes,
        idle_seconds=60 * each.idle_minutes,
        last_at=each.last_minute,
        at=[int(at.timestamp()) for at in each.at],
        series=each.series,
    )
