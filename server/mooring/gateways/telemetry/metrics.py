"""Metrics: a closed table of names, counted in a registry of its own.

The labels of every metric are bounded: a method is one of HTTP's, a route is a template of our own, a code
is one of the catalogue; what fits none of these is counted as `none`. The children of a metric are looked
up once for each combination and then kept, since they are touched on every request. What others know
(connections in use, deliveries that wait) is asked for when somebody reads the metrics, through `watch`.
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
    """A number that somebody else knows."""

    meaning: str
    labels: tuple[str, ...] = ()


GAUGES: Final[Mapping[str, Gauge]] = {
    "mooring_http_requests_in_flight": Gauge("Requests that are being answered now, open streams included."),
    "mooring_event_streams": Gauge("Event streams that are open now."),
    "mooring_log_lines_lost": Gauge("Log lines since the start that could not be written."),
    "mooring_database_connections": Gauge("Connections of this process to PostgreSQL.", ("pool", "state")),
    "mooring_outbox_deliveries": Gauge("Deliveries to webhooks that are not ended, or dead.", ("status",)),
}


class CounterValue:
    """A number that grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Durations:
    """How many requests took how long; the last count is of those beyond every bucket."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0


class _Requests(Collector):
    """Counts requests without locks: they are all observed in the thread of the event loop."""

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
    """The numbers of one process."""

    def __init__(self) -> None:
        # They would be a second series for each counter, which nothing reads.
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
        """Ask `source` for the values of this gauge, by their labels, whenever the metrics are read."""
        if name not in GAUGES:
            raise ValueError(f"{name} is not a gauge of the table; those are {', '.join(GAUGES)}")
        self._watched.sources[name] = source

    def count_request(self, method: str, route: str | None, status: int | None, seconds: float) -> None:
        """One request was answered; `route` is method and template."""
        key = (method, route, status)
        children = self._counted.get(key)
        if children is None:
            children = self._bind(key)
        tally, durations = children
        tally.count += 1
        durations.counts[bisect_left(BUCKETS, seconds)] += 1
        durations.seconds += seconds

    def count_refusal(self, code: str) -> None:
        """One request was refused."""
        counter = self._refusals.get(code)
        if counter is not None:
            counter.inc()

    def count_tick(self, worker: str, outcome: str, seconds: float) -> None:
        """One round of a worker ended."""
        self._ticks.labels(worker, outcome).inc()
        self._tick_durations.labels(worker).observe(seconds)

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self.registry)

    def _bind(self, key: tuple[str, str | None, int | None]) -> tuple[CounterValue, Durations]:
        method, route, status = key
        shown = (bounded_method(method), template_of(route))
        children = (
            self._requests.tallies.setdefault((*shown, NONE if status is None else str(status)), CounterValue()),
            self._requests.durations.setdefault(shown, Durations()),
        )
        if method in METHODS:  # whoever invents methods does not fill our memory
            self._counted[key] = children
        return children


def bounded_method(method: str) -> str:
    """The method, or `none` where it is none of HTTP's."""
    return method if method in METHODS else NONE


def template_of(route: str | None) -> str:
    """The template of a route that is called `<method> <template>`."""
    return NONE if route is None else route.partition(" ")[2] or route


class _Watched(Collector):
    """Asks the sources of the gauges."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def collect(self) -> Iterator[Metric]:
        for name, source in list(self.sources.items()):
            gauge = GAUGES[name]
            family = GaugeMetricFamily(name, gauge.meaning, labels=gauge.labels)
            try:
                values = dict(source())
            except Exception:
                # One source that fails must not hide the other numbers; its own go missing.
                log.exception("the metric %s cannot be read", name)
                continue
            for labels, value in values.items():
                family.add_metric(labels, value)
            yield family
