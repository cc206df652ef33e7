"""The numbers of a process: what is counted, under which labels, and who is asked for the rest."""

import asyncio
import io

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mooring.api.trace import RequestTrace
from mooring.gateways.telemetry.instruments import METRICS_MEDIA_TYPE, Telemetry
from mooring.gateways.telemetry.log import LogOutput

TRACED = RequestTrace("cor_1", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", None)
ROUTE = "GET /api/v1/projects/{project_id}/service-accounts"


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def telemetry(stream: io.StringIO) -> Telemetry:
    return Telemetry(lines=LogOutput("info", "json", stream))


def observe(telemetry: Telemetry, method: str = "GET", **known: object) -> None:
    with telemetry.request(method, TRACED) as observed:
        for name, value in {"status": 200, **known}.items():
            setattr(observed, name, value)


def samples(telemetry: Telemetry, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by the values of its labels, which are sorted by name."""
    found = {}
    for family in text_string_to_metric_families(telemetry.metrics().decode()):
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sample.labels.values())] = sample.value
    return found


def test_requests_are_counted_by_method_template_and_status_and_measured(telemetry: Telemetry) -> None:
    observe(telemetry, route=ROUTE)
    observe(telemetry, route=ROUTE)
    observe(telemetry, route=ROUTE, status=404, code="not_found")

    template = ROUTE.split()[1]
    assert samples(telemetry, "mooring_http_requests_total") == {
        ("GET", template, "200"): 2,
        ("GET", template, "404"): 1,
    }
    assert samples(telemetry, "mooring_http_request_duration_seconds_count") == {("GET", template): 3}
    assert samples(telemetry, "mooring_http_refusals_total")[("not_found",)] == 1


def test_strangers_cannot_make_new_series(telemetry: Telemetry) -> None:
    for number in range(50):
        observe(telemetry, method=f"M{number}", status=405, code=f"invented_{number}")

    assert samples(telemetry, "mooring_http_requests_total") == {("none", "none", "405"): 50}
    assert not any(code[0].startswith("invented") for code in samples(telemetry, "mooring_http_refusals_total"))
    assert len(telemetry.numbers._counted) == 0


def test_what_is_under_way_is_counted_while_it_lasts(telemetry: Telemetry) -> None:
    with telemetry.request("GET", TRACED) as observed:
        observed.begin_stream()
        observed.begin_stream()
        assert samples(telemetry, "mooring_http_requests_in_flight") == {(): 1}
        assert samples(telemetry, "mooring_event_streams") == {(): 1}

    assert samples(telemetry, "mooring_http_requests_in_flight") == {(): 0}
    assert samples(telemetry, "mooring_event_streams") == {(): 0}


def test_a_stream_is_measured_to_its_beginning(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 10.5, 4000.0])
    monkeypatch.setattr("mooring.gateways.telemetry.instruments.perf_counter", lambda: next(times))
    with telemetry.request("GET", TRACED) as observed:
        observed.begin_stream()

    assert samples(telemetry, "mooring_http_request_duration_seconds_sum") == {("GET", "none"): 0.5}


def test_gauges_ask_their_source_when_they_are_read(telemetry: Telemetry) -> None:
    deliveries: dict[tuple[str, ...], float] = {("queued",): 3.0, ("dead",): 0.0}
    telemetry.watch("mooring_outbox_deliveries", lambda: deliveries)
    telemetry.watch("mooring_database_connections", lambda: {("platform", "idle"): 2})
    assert samples(telemetry, "mooring_outbox_deliveries") == {("queued",): 3, ("dead",): 0}
    deliveries[("dead",)] = 1
    assert samples(telemetry, "mooring_outbox_deliveries")[("dead",)] == 1
    assert samples(telemetry, "mooring_database_connections") == {("platform", "idle"): 2}

    with pytest.raises(ValueError, match="not a known gauge"):
        telemetry.watch("mooring_something", dict)


def test_a_source_that_fails_hides_its_own_numbers_only(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> dict[tuple[str, ...], float]:
        raise ConnectionError("no database")

    telemetry.watch("mooring_outbox_deliveries", fails)

    assert samples(telemetry, "mooring_outbox_deliveries") == {}
    assert samples(telemetry, "mooring_http_requests_in_flight") == {(): 0}
    assert "cannot read the metric mooring_outbox_deliveries" in caplog.text


def test_the_rounds_of_a_worker_are_counted_by_their_outcome(telemetry: Telemetry) -> None:
    with telemetry.worker_tick("janitor"):
        pass
    with pytest.raises(OSError, match="disk"), telemetry.worker_tick("janitor"):
        raise OSError("disk")
    with pytest.raises(asyncio.CancelledError), telemetry.worker_tick("janitor"):
        raise asyncio.CancelledError

    assert samples(telemetry, "mooring_worker_ticks_total") == {
        ("done", "janitor"): 1,
        ("failed", "janitor"): 1,
        ("cancelled", "janitor"): 1,
    }
    assert samples(telemetry, "mooring_worker_tick_duration_seconds_count") == {("janitor",): 3}


def test_two_of_them_in_one_process_count_apart(telemetry: Telemetry) -> None:
    other = Telemetry(lines=LogOutput("error", "json", io.StringIO()))
    observe(other)

    assert samples(telemetry, "mooring_http_requests_total") == {}
    assert samples(telemetry, "process_open_fds")[()] > 0
    assert METRICS_MEDIA_TYPE.startswith("text/plain; version=")
