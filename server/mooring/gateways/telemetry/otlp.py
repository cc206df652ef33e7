"""OpenTelemetry traces, sent to an OTLP/HTTP endpoint in the background.

This module is loaded only when an endpoint is configured, because the SDK costs start-up time and a thread. Spans are
created explicitly. The span of a request has the same ids as its answer, its events and its log lines, so the SDK gets
these ids and does not generate others. The caller's `traceparent` decides whether a trace is sampled; without one, the
environment's `OTEL_TRACES_SAMPLER` does.

A span contains the type of the error that ended it, but never its message: that is only in the log.
"""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final, Protocol

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from mooring.gateways.telemetry.log import mask, masked

TRACES_PATH: Final = "/v1/traces"
Attribute = str | bool | int | float


class TraceIds(Protocol):
    """The ids of a request, in hexadecimal digits."""

    @property
    def trace_id(self) -> str: ...
    @property
    def span_id(self) -> str: ...
    @property
    def parent_span_id(self) -> str | None: ...
    @property
    def flags(self) -> str: ...


_WANTED: Final[ContextVar[tuple[int, int | None] | None]] = ContextVar("mooring_span_ids", default=None)


class _Ids(RandomIdGenerator):
    """Random ids, unless the span that is being started has ids already."""

    def generate_trace_id(self) -> int:
        wanted = _WANTED.get()
        return super().generate_trace_id() if wanted is None else wanted[0]

    def generate_span_id(self) -> int:
        wanted = _WANTED.get()
        return super().generate_span_id() if wanted is None or wanted[1] is None else wanted[1]


class RequestSpan:
    """The span of one request while it lasts."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Token[Context] = otel_context.attach(trace.set_span_in_context(span))

    def end(self, name: str, attributes: Mapping[str, object], *, failed: bool) -> None:
        """The request is answered: set its final attributes and end the span."""
        otel_context.detach(self._token)
        self._span.update_name(name)
        self._span.set_attributes(_attributes(attributes))
        if failed:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class OtlpTracing:
    """Creates OpenTelemetry spans and exports them over OTLP/HTTP in the background."""

    def __init__(self, endpoint: str | None) -> None:
        """`endpoint` is the collector's URL; None means that OpenTelemetry's own variables configure it."""
        named = bool(os.environ.get("OTEL_SERVICE_NAME"))
        resource = Resource.create({} if named else {SERVICE_NAME: "mooring"})
        self._provider = TracerProvider(resource=resource, id_generator=_Ids(), shutdown_on_exit=False)
        address = None if endpoint is None else endpoint.rstrip("/").removesuffix(TRACES_PATH) + TRACES_PATH
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address)))
        self._tracer = self._provider.get_tracer("mooring")

    def request(self, traced: TraceIds) -> RequestSpan:
        """Start the span of a request, with the request's own ids."""
        trace_id = int(traced.trace_id, 16)
        parent = Context()
        if traced.parent_span_id is not None:
            flags = TraceFlags(int(traced.flags, 16))
            remote = SpanContext(trace_id, int(traced.parent_span_id, 16), is_remote=True, trace_flags=flags)
            parent = trace.set_span_in_context(NonRecordingSpan(remote), parent)
        with _ids(trace_id, int(traced.span_id, 16)):
            return RequestSpan(self._tracer.start_span("request", parent, SpanKind.SERVER))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, object], trace_id: str | None) -> Iterator[None]:
        """Start a span within the current one or, without one, in the trace of the work that caused it."""
        if trace_id is not None and not trace.get_current_span().get_span_context().is_valid:
            with _ids(int(trace_id, 16), None):
                span = self._tracer.start_span(name, attributes=_attributes(attributes))
        else:
            span = self._tracer.start_span(name, attributes=_attributes(attributes))
        token = otel_context.attach(trace.set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    def close(self, timeout_seconds: float) -> None:
        """Send the remaining spans; waits a bounded time."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(timeout_seconds)


@contextmanager
def _ids(trace_id: int, span_id: int | None) -> Iterator[None]:
    token = _WANTED.set((trace_id, span_id))
    try:
        yield
    finally:
        _WANTED.reset(token)


def _attributes(attributes: Mapping[str, object]) -> dict[str, Attribute]:
    """The attributes in a form that a span accepts, without secrets."""
    known = {}
    for name, value in attributes.items():
        if value is not None:
            plain = masked(name, value)
            known[name] = plain if isinstance(plain, bool | int | float) else mask(str(plain))
    return known
