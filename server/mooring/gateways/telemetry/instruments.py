"""Telemetry of the running platform: log lines, metrics and traces.

Each request is observed once. While it runs, what is known about it (route, caller, place) is stored on its
`ObservedRequest`, and every log line written in the meantime, at any depth, carries its labels. At its end there is
one log line, one count, one duration, and one span if traces are enabled. The path, the query, headers, bodies and
tokens are never recorded: the route's template and the ids of the place say where the request went.

The rounds of a worker are observed in the same way; `bound` adds the labels of the current item, so that the lines of a
delivery carry the correlation id of the request that caused it.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Token
from time import perf_counter
from types import TracebackType
from typing import Final, Protocol

from mooring.core.identity.caller import Caller
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.kernel.permissions import Place
from mooring.gateways.telemetry import metrics as telemetry_metrics
from mooring.gateways.telemetry.log import (
    CARRIED,
    LEVELS,
    Fields,
    LogContext,
    LogOutput,
    configure_logging,
    configured_lines,
    error_fields,
    mask,
)
from mooring.gateways.telemetry.metrics import Metrics, Source, bounded_method, template_of

__all__ = ["METRICS_MEDIA_TYPE", "ObservedRequest", "Telemetry", "bound", "configure_logging", "span"]

METRICS_MEDIA_TYPE: Final = telemetry_metrics.MEDIA_TYPE
PROBES: Final = ("/healthz", "/readyz", "/metrics")
CLOSE_SECONDS: Final = 5.0
_NO_SPAN: Final = nullcontext()


class TraceLabels(Protocol):
    """The labels that a request brought, or that the server assigned."""

    @property
    def correlation_id(self) -> str: ...
    @property
    def trace_id(self) -> str: ...
    @property
    def span_id(self) -> str: ...
    @property
    def parent_span_id(self) -> str | None: ...
    @property
    def flags(self) -> str: ...


class SpanUnderWay(Protocol):
    """The span of a request while it lasts."""

    def end(self, name: str, attributes: Mapping[str, object], *, failed: bool) -> None: ...


class SpanMaker(Protocol):
    """Makes spans; see `otlp`."""

    def request(self, traced: TraceLabels) -> SpanUnderWay: ...
    def span(
        self, name: str, attributes: Mapping[str, object], trace_id: str | None
    ) -> AbstractContextManager[None]: ...
    def close(self, timeout_seconds: float) -> None: ...


class ObservedRequest:
    """One request, and what is known about it so far."""

    __slots__ = (
        "_begun",
        "_error",
        "_method",
        "_outer",
        "_span",
        "_stream_begun",
        "_telemetry",
        "_traced",
        "caller",
        "code",
        "place",
        "route",
        "status",
    )

    def __init__(self, telemetry: "Telemetry", method: str, traced: TraceLabels) -> None:
        self.route: str | None = None  # method and template, as the audit trail calls it
        self.status: int | None = None
        self.code: str | None = None
        self.caller: Caller | None = None
        self.place: Place | None = None
        self._telemetry = telemetry
        self._method = method
        self._traced = traced
        self._error: BaseException | None = None
        self._stream_begun: float | None = None
        self._span: SpanUnderWay | None = None

    @property
    def tracing(self) -> SpanMaker | None:
        """What makes the spans within this request."""
        return self._telemetry.tracing

    def failed(self, error: BaseException) -> None:
        """Record an internal error; only the log contains the details."""
        self._error = error

    def begin_stream(self) -> None:
        """The answer is a stream: it stays open, and its duration is not measured any more."""
        if self._stream_begun is None:
            self._stream_begun = perf_counter()
            self._telemetry.streams += 1

    def labels(self) -> dict[str, object]:
        """The labels of every log line of this request, as far as they are known."""
        traced = self._traced
        found: dict[str, object] = {
            "correlation_id": traced.correlation_id,
            "trace_id": traced.trace_id,
            "span_id": traced.span_id,
            "route": template_of(self.route),
        }
        caller, place = self.caller, self.place
        if caller is not None:
            tenant_id = caller.tenant_id
            if tenant_id is None and place is not None and _well_formed(place.tenant_id, Prefix.TENANT):
                tenant_id = place.tenant_id
            if tenant_id is not None:
                found["org_id"] = tenant_id
        if place is not None and _well_formed(place.project_id, Prefix.PROJECT):
            found["project_id"] = place.project_id
        if caller is not None:
            actor = caller.actor
            found["principal_kind"] = actor.kind.value
            found["principal_id"] = actor.id
            if actor.token_id is not None:
                found["token_id"] = actor.token_id
            if actor.break_glass_id is not None:
                found["break_glass_id"] = actor.break_glass_id
        return found

    def __enter__(self) -> "ObservedRequest":
        self._begun = perf_counter()
        self._telemetry.in_flight += 1
        self._outer: Token[LogContext | None] = CARRIED.set(self)
        tracing = self._telemetry.tracing
        if tracing is not None:
            self._span = tracing.request(self._traced)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = perf_counter()
        telemetry = self._telemetry
        telemetry.in_flight -= 1
        if self._stream_begun is not None:
            telemetry.streams -= 1
        if isinstance(error, Exception):
            self._error = self._error or error
        telemetry.numbers.count_request(
            self._method, self.route, self.status, (self._stream_begun or ended) - self._begun
        )
        if self.code is not None:
            telemetry.numbers.count_refusal(self.code)
        level = self._level()
        if LEVELS[level] >= telemetry.lines.threshold:
            self._write_line(level, self._fields(ended, cut_off=error is not None))
        if self._span is not None:
            self._end_span(self._span)
        CARRIED.reset(self._outer)

    def _level(self) -> str:
        status = self.status
        if self._error is not None or status == 500:
            return "error"
        if status is not None and status >= 500:
            return "warning"
        return "debug" if self.route is not None and self.route.endswith(PROBES) else "info"

    def _fields(self, ended: float, *, cut_off: bool) -> Fields:
        fields: Fields = {
            "method": bounded_method(self._method),
            "status": self.status,
            "duration_ms": round((ended - self._begun) * 1000, 3),
        }
        if self.code is not None:
            fields["code"] = self.code
        if self._stream_begun is not None:
            fields["stream"] = True
        if cut_off:
            fields["cut_off"] = True  # the answer was not sent completely
        if self._error is not None:
            fields["error"] = error_fields(self._error)
        return fields

    def _write_line(self, level: str, fields: Fields) -> None:
        lines = self._telemetry.lines
        if self._error is not None:
            lines.write(level, "request", fields)  # an error may quote anything
            return
        fields.update(self.labels())
        # The only value in this line that the caller chose, and people put tokens into the strangest places.
        fields["correlation_id"] = mask(self._traced.correlation_id)
        lines.write_own(level, "request", fields)

    def _end_span(self, span_under_way: SpanUnderWay) -> None:
        method, template = bounded_method(self._method), template_of(self.route)
        attributes: dict[str, object] = {
            "http.request.method": method,
            "http.route": template,
            "http.response.status_code": self.status,
            "mooring.code": self.code,
            "error.type": None if self._error is None else type(self._error).__qualname__,
        }
        labels = self.labels()
        for name in ("correlation_id", "org_id", "project_id", "principal_kind", "principal_id"):
            attributes[f"mooring.{name}"] = labels.get(name)
        failed = self._error is not None or (self.status or 0) >= 500
        span_under_way.end(f"{method} {template}", attributes, failed=failed)


def _well_formed(text: str | None, prefix: Prefix) -> bool:
    """Record path parameters only if they are ids: an unauthorized request can have anything there."""
    return text is not None and is_id(text, prefix)


class BoundContext:
    """A piece of work with its own labels."""

    __slots__ = ("_labels", "_outer", "tracing")

    def __init__(self, labels: dict[str, object], tracing: SpanMaker | None) -> None:
        self._labels = labels
        self.tracing = tracing

    def labels(self) -> dict[str, object]:
        """The labels of every log line of this work."""
        return self._labels

    def __enter__(self) -> None:
        self._outer = CARRIED.set(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        CARRIED.reset(self._outer)


def bound(**labels: str | None) -> BoundContext:
    """Add these labels to the log lines written inside: `with bound(correlation_id=…):`."""
    outer = CARRIED.get()
    known: dict[str, object] = {} if outer is None else dict(outer.labels())
    known.update({name: value for name, value in labels.items() if value is not None})
    return BoundContext(known, _tracing_of(outer))


def span(name: str, **attributes: object) -> AbstractContextManager[None]:
    """A span within the current work; it costs almost nothing when traces are disabled."""
    carried = CARRIED.get()
    tracing = _tracing_of(carried)
    if tracing is None or carried is None:
        return _NO_SPAN
    trace_id = carried.labels().get("trace_id")
    return tracing.span(name, attributes, None if trace_id is None else str(trace_id))


def _tracing_of(carried: LogContext | None) -> SpanMaker | None:
    return carried.tracing if isinstance(carried, ObservedRequest | BoundContext) else None


def wants_traces(endpoint: str, environment: Mapping[str, str]) -> bool:
    """Whether an OTLP endpoint is configured, by our settings or OpenTelemetry's variables, and not disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return bool(endpoint) or any(environment.get(name) for name in named)


class Telemetry:
    """Log lines, metrics and traces of one process."""

    def __init__(self, *, lines: LogOutput | None = None, otlp_endpoint: str = "") -> None:
        """`lines` is the result of `configure_logging`; without it, lines go to standard error."""
        self.lines = lines or configured_lines() or LogOutput()
        self.numbers = Metrics()
        self.in_flight = 0
        self.streams = 0
        self.tracing: SpanMaker | None = None
        if wants_traces(otlp_endpoint, os.environ):
            # The SDK is loaded only when it is used: it would double the import time of every start.
            module = importlib.import_module("mooring.gateways.telemetry.otlp")
            self.tracing = module.OtlpTracing(otlp_endpoint or None)
        self.numbers.watch("mooring_http_requests_in_flight", lambda: {(): self.in_flight})
        self.numbers.watch("mooring_event_streams", lambda: {(): self.streams})
        self.numbers.watch("mooring_log_lines_lost", lambda: {(): self.lines.lost})

    def request(self, method: str, traced: TraceLabels) -> ObservedRequest:
        """Observe one request: `with telemetry.request(method, traced) as observed:`."""
        return ObservedRequest(self, method, traced)

    def watch(self, name: str, source: Source) -> None:
        """Call `source` for the values of this gauge, by labels, when the metrics are read."""
        self.numbers.watch(name, source)

    def metrics(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return self.numbers.text()

    @contextmanager
    def worker_tick(self, worker: str) -> Iterator[None]:
        """Observe one round of a worker. An exception is counted and raised again: the worker's loop logs it."""
        begun = perf_counter()
        outcome = "cancelled"
        with BoundContext({"worker": worker}, self.tracing):
            try:
                yield
                outcome = "done"
            except Exception:
                outcome = "failed"
                raise
            finally:
                self.numbers.count_tick(worker, outcome, perf_counter() - begun)

    def close(self, timeout_seconds: float = CLOSE_SECONDS) -> None:
        """Send the remaining spans; waits a bounded time."""
        if self.tracing is not None:
            self.tracing.close(timeout_seconds)
