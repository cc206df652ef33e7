"""Metrics: a fixed table of names, in its own registry.

The labels of every metric are bounded: a method is one of HTTP's, a route is one of our templates, a code is one of the
catalogue; everything else is counted as `none`. The children of a metric are looked up once for each combination and
then cached, because every request needs them. Values that other parts know (connections in use, waiting deliveries) are
requested when the metrics are read, through `watch`.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from mooring.core.kernel.errors import Code

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
NONE: Final = "none"
METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

Values = Mapping[tuple[str, ...], float]
Source = Callable[[], Values]

log = logging.getLogger("mooring.metrics")


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that another part of the process provides."""

    meaning: str
    labels: tuple[str, ...] = ()


GAUGES: Final[Mapping[str, Gauge]] = {
    "mooring_http_requests_in_flight": Gauge("Requests in progress, including open streams."),
    "mooring_event_streams": Gauge("Open event streams."),
    "mooring_log_lines_lost": Gauge("Log lines that could not be written since the start."),
    "mooring_database_connections": Gauge("Connections of this process to PostgreSQL.", ("pool", "state")),
    "mooring_cost_rate": Gauge("Minor units an hour that running allocations cost by their plans.", ("currency",)),
    "mooring_outbox_deliveries": Gauge("Webhook deliveries that are unfinished or dead.", ("status",)),
}


class CounterValue:
    """A value that only grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Durations:
    """The number of requests by duration; the last count is for those above all buckets."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class _Requests(Collector):
    """Counts requests without locks, because all are observed in the thread of the event loop."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str, str], CounterValue] = {}
        self.durations: dict[tuple[str, str], Durations] = {}

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "mooring_http_requests", "Requests answered.", labels=("method", "route", "status")
        )
        for labels, tally in list(self.tallies.items()):
            requests.add_metric(labels, tally.count)
        yield requests
        durations = HistogramMetricFamily(
            "mooring_http_request_duration_seconds",
            "Time from a request to its whole answer; of a stream, to its beginning.",
            labels=("method", "route"),
        )
        for shown, measured in list(self.durations.items()):
            bounds = [*map(str, BUCKETS), "+Inf"]
            buckets = list(zip(bounds, accumulate(measured.counts), strict=True))
            durations.add_metric(shown, buckets, measured.seconds)
        yield durations


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        # They would add a second series for each counter, which nobody reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._requests = _Requests()
        self.registry.register(self._requests)
        refusals = Counter(
            "mooring_http_refusals", "Refused requests by error code.", ("code",), registry=self.registry
        )
        self._refusals = {code.value: refusals.labels(code.value) for code in Code}
        self._ticks = Counter(
            "mooring_worker_ticks", "Rounds of the workers.", ("worker", "outcome"), registry=self.registry
        )
        self._tick_durations = Histogram(
            "mooring_worker_tick_duration_seconds",
            "Time that one round of a worker took.",
            ("worker",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._counted: dict[tuple[str, str | None, int | None], tuple[CounterValue, Durations]] = {}
        self._watched = _Watched()
        self.registry.register(self._watched)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def watch(self, name: str, source: Source) -> None:
        """Call `source` for the values of this gauge, by labels, whenever the metrics are read."""
        if name not in GAUGES:
            raise ValueError(f"{name} is not a known gauge; the gauges are {', '.join(GAUGES)}")
        self._watched.sources[name] = source

    def count_request(self, method: str, route: str | None, status: int | None, seconds: float) -> None:
        """Count an answered request; `route` is its method and template."""
        children = self._counted.get((method, route, status))
        if children is None:
            children = self._bind(method, route, status)
        tally, durations = children
        tally.count += 1
        durations.counts[bisect_left(BUCKETS, seconds)] += 1
        durations.seconds += seconds

    def count_refusal(self, code: str) -> None:
        """Count a refused request."""
        counter = self._refusals.get(code)
        if counter is not None:
            counter.inc()

    def count_tick(self, worker: str, outcome: str, seconds: float) -> None:
        """Count a finished round of a worker."""
        self._ticks.labels(worker, outcome).inc()
        self._tick_durations.labels(worker).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _bind(self, method: str, route: str | None, status: int | None) -> tuple[CounterValue, Durations]:
        shown = (bounded_method(method), template_of(route))
        children = (
            self._requests.tallies.setdefault((*shown, NONE if status is None else str(status)), CounterValue()),
            self._requests.durations.setdefault(shown, Durations()),
        )
        if method in METHODS:  # invented methods must not fill the cache
            self._counted[method, route, status] = children
        return children


def bounded_method(method: str) -> str:
    """The method, or `none` if it is not one of HTTP's."""
    return method if method in METHODS else NONE


def template_of(route: str | None) -> str:
    """The template of a route named `<method> <template>`."""
    return NONE if route is None else route.partition(" ")[2] or route


class _Watched(Collector):
    """Collects the gauges from their sources."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def collect(self) -> Iterator[Metric]:
        for name, source in list(self.sources.items()):
            gauge = GAUGES[name]
            family = GaugeMetricFamily(name, gauge.meaning, labels=gauge.labels)
            try:
                values = dict(source())
            except Exception:
                # A source that fails must not hide the other metrics.
                log.exception("cannot read the metric %s; leaving it out", name)
                continue
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family
