"""Traces, as a real OTLP receiver on the loopback sees them."""

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.trace import SpanProcessor

from mooring.api.trace import RequestTrace
from mooring.core.identity.caller import Caller
from mooring.core.kernel.decision import Actor, PrincipalKind
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.gateways.telemetry.instruments import Telemetry, bound, span, wants_traces
from mooring.gateways.telemetry.log import MASK, LogOutput
from mooring.gateways.telemetry.otlp import OtlpTracing
from tests.support.rows import every_row

BODY = "01m7gkb3xcnvwxkmhw0gsmppk2"
TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
CALLER = Caller(Actor(PrincipalKind.USER, f"usr_{BODY}"), f"ten_{BODY}", Authority())
VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED")


class SpanReceiver:
    """A collector: takes what is sent to it and keeps it."""

    def __init__(self) -> None:
        self.exports: list[ExportTraceServiceRequest] = []
        self.paths: list[str] = []
        receiver = self

        class SpanHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.paths.append(self.path)
                receiver.exports.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), SpanHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def spans(self) -> dict[str, Span]:
        """What has arrived, by name."""
        scopes = [scope for export in self.exports for each in export.resource_spans for scope in each.scope_spans]
        return {each.name: each for scope in scopes for each in scope.spans}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[SpanReceiver]:
    for name in (*VARIABLES, "OTEL_SERVICE_NAME", "OTEL_TRACES_SAMPLER"):
        monkeypatch.delenv(name, raising=False)
    receiver = SpanReceiver()
    yield receiver
    receiver.close()


def telemetry_to(endpoint: str) -> Telemetry:
    return Telemetry(lines=LogOutput("critical", "json", io.StringIO()), otlp_endpoint=endpoint)


def attributes(values: "list[KeyValue]") -> dict[str, object]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in values}


def test_a_request_is_a_span_with_the_ids_that_its_answer_states(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(receiver.address)
    with telemetry.request("POST", RequestTrace("cor_1", TRACE, SPAN, PARENT)) as observed:
        observed.route = "POST /api/v1/projects/{project_id}/service-accounts"
        observed.caller, observed.place = CALLER, Place(Scope.PROJECT, None, f"prj_{BODY}")
        observed.status = 201
    telemetry.close(60)

    (request,) = receiver.spans().values()
    assert receiver.paths == ["/v1/traces"]
    assert (request.trace_id.hex(), request.span_id.hex(), request.parent_span_id.hex()) == (
        TRACE,
        SPAN,
        PARENT,
    )
    assert request.name == "POST /api/v1/projects/{project_id}/service-accounts"
    assert request.kind == Span.SPAN_KIND_SERVER
    assert request.status.code == Status.STATUS_CODE_UNSET
    assert attributes(list(request.attributes)) == {
        "http.request.method": "POST",
        "http.route": "/api/v1/projects/{project_id}/service-accounts",
        "http.response.status_code": 201,
        "mooring.correlation_id": "cor_1",
        "mooring.org_id": f"ten_{BODY}",
        "mooring.project_id": f"prj_{BODY}",
        "mooring.principal_kind": "user",
        "mooring.principal_id": f"usr_{BODY}",
    }
    resource = receiver.exports[0].resource_spans[0].resource
    assert attributes(list(resource.attributes))["service.name"] == "mooring"


def test_a_request_without_a_parent_begins_the_trace_that_its_answer_states(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(f"{receiver.address}/v1/traces/")
    with telemetry.request("GET", RequestTrace("cor_1", TRACE, SPAN, None)):
        pass
    telemetry.close(60)

    (request,) = receiver.spans().values()
    assert receiver.paths == ["/v1/traces"]
    assert (request.trace_id.hex(), request.span_id.hex(), request.parent_span_id) == (TRACE, SPAN, b"")


def test_spans_within_a_request_hang_below_it(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(receiver.address)
    with telemetry.request("GET", RequestTrace("cor_1", TRACE, SPAN, None)), span("load", rows=3, none=None):
        with span("decide", note=f"mrgp_{'x' * 30}", password="hunter2"):
            pass
        with bound(project_id=f"prj_{BODY}"), span("apply"):
            pass
    telemetry.close(60)

    found = receiver.spans()
    assert set(found) == {"load", "decide", "apply", "GET none"}
    assert {each.trace_id.hex() for each in found.values()} == {TRACE}
    assert found["load"].parent_span_id.hex() == SPAN
    assert found["decide"].parent_span_id == found["apply"].parent_span_id == found["load"].span_id
    assert attributes(list(found["load"].attributes)) == {"rows": 3}
    assert attributes(list(found["decide"].attributes)) == {"note": MASK, "password": MASK}


def test_a_failure_is_named_by_its_kind_and_only_the_log_has_its_text(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(receiver.address)
    with telemetry.request("GET", RequestTrace("cor_1", TRACE, SPAN, None)) as observed:
        with pytest.raises(ConnectionError), span("apply"):
            raise ConnectionError("hunter2")
        observed.failed(ConnectionError("hunter2"))
        observed.status, observed.code = 500, "internal"
    telemetry.close(60)

    for found in receiver.spans().values():
        assert found.status.code == Status.STATUS_CODE_ERROR
        assert attributes(list(found.attributes))["error.type"] == "ConnectionError"
        assert b"hunter2" not in found.SerializeToString()
    assert len(receiver.spans()) == 2


def test_a_caller_that_does_not_want_to_be_sampled_is_not(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(receiver.address)
    with telemetry.request("GET", RequestTrace("cor_1", TRACE, SPAN, PARENT, "00")), span("load"):
        pass
    telemetry.close(60)

    assert receiver.spans() == {}


def test_the_work_of_a_worker_joins_the_trace_of_what_caused_it(receiver: SpanReceiver) -> None:
    telemetry = telemetry_to(receiver.address)
    with telemetry.worker_tick("outbox"):
        with bound(correlation_id="cor_1", trace_id=TRACE), span("deliver"), span("dial"):
            pass
        with span("look"):
            pass
    telemetry.close(60)

    found = receiver.spans()
    assert found["deliver"].trace_id.hex() == found["dial"].trace_id.hex() == TRACE
    assert found["dial"].parent_span_id == found["deliver"].span_id
    assert found["look"].trace_id.hex() != TRACE


def test_the_variables_of_opentelemetry_are_honoured(receiver: SpanReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mooring-east")
    telemetry = telemetry_to("")
    with telemetry.request("GET", RequestTrace("cor_1", TRACE, SPAN, None)):
        pass
    telemetry.close(60)

    assert receiver.paths == ["/v1/traces"]
    resource = receiver.exports[0].resource_spans[0].resource
    assert attributes(list(resource.attributes))["service.name"] == "mooring-east"


@every_row(
    ("endpoint", "environment", "wanted"),
    [
        ("", {}, False),
        ("http://collector:4318", {}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ("http://collector:4318", {"OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_made_only_where_an_endpoint_is_set(
    endpoint: str, environment: dict[str, str], wanted: bool
) -> None:
    assert wants_traces(endpoint, environment) is wanted


def test_without_an_endpoint_the_sdk_is_not_even_loaded() -> None:
    program = (
        "import sys\n"
        "from mooring.gateways.telemetry.instruments import Telemetry, span\n"
        "telemetry = Telemetry()\n"
        "assert telemetry.tracing is None and span('x') is span('y')\n"
        "telemetry.close()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    paths = ":".join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


class Held(SpanProcessor):
    """Does not end before it is let go."""

    def __init__(self) -> None:
        self.ending, self.let_go = threading.Event(), threading.Event()

    def shutdown(self) -> None:
        self.ending.set()
        self.let_go.wait()


def test_traces_that_cannot_be_sent_do_not_hold_up_the_end(receiver: SpanReceiver) -> None:
    telemetry, held = telemetry_to(receiver.address), Held()
    assert isinstance(telemetry.tracing, OtlpTracing)
    telemetry.tracing._provider.add_span_processor(held)
    ending = threading.Thread(target=telemetry.close, args=(0.05,), daemon=True)
    ending.start()
    try:
        assert held.ending.wait(60)
        ending.join(60)
        assert not ending.is_alive(), "it waits for what does not end"
    finally:
        held.let_go.set()
