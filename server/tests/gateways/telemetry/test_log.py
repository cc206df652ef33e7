"""What the platform says of itself by log lines, and what they may never say."""

import asyncio
import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.api.trace import RequestTrace
from mooring.core.identity.caller import ANONYMOUS, Caller
from mooring.core.kernel.decision import Actor, PrincipalKind
from mooring.core.kernel.permissions import Authority, Place, Scope
from mooring.gateways.telemetry.instruments import Telemetry, bound, configure_logging
from mooring.gateways.telemetry.log import MASK, LogOutput, is_sensitive, mask
from tests.support.rows import every_row

BODY = "01m7gkb3xcnvwxkmhw0gsmppk2"
TENANT, PROJECT, USER, TOKEN = f"ten_{BODY}", f"prj_{BODY}", f"usr_{BODY}", f"tok_{BODY}"
TRACED = RequestTrace("cor_1", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", None)
ROUTE = "GET /api/v1/projects/{project_id}/service-accounts"
CALLER = Caller(Actor(PrincipalKind.USER, USER, TOKEN), TENANT, Authority())
SECRET_TOKEN = "mrgp_Zx9-secret_value_0123456789abcdefghijkl"


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def telemetry(stream: io.StringIO) -> Telemetry:
    return Telemetry(lines=LogOutput("info", "json", stream))


@pytest.fixture
def _logging_restored() -> Iterator[None]:
    """Logging belongs to the whole process: put it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def observe(telemetry: Telemetry, method: str = "GET", **known: object) -> None:
    with telemetry.request(method, TRACED) as observed:
        for name, value in {"status": 200, **known}.items():
            setattr(observed, name, value)


# Log lines


def test_a_request_leaves_one_line_that_says_who_did_what_where(telemetry: Telemetry, stream: io.StringIO) -> None:
    place = Place(Scope.PROJECT, None, PROJECT)
    observe(telemetry, route=ROUTE, caller=CALLER, place=place)

    (line,) = lines_of(stream)
    assert line.pop("time").endswith("+00:00")
    assert line.pop("duration_ms") >= 0
    assert line == {
        "level": "info",
        "event": "request",
        "method": "GET",
        "status": 200,
        "correlation_id": "cor_1",
        "trace_id": TRACED.trace_id,
        "span_id": TRACED.span_id,
        "route": "/api/v1/projects/{project_id}/service-accounts",
        "org_id": TENANT,
        "project_id": PROJECT,
        "principal_kind": "user",
        "principal_id": USER,
        "token_id": TOKEN,
    }


def test_a_platform_caller_is_noted_in_the_tenant_it_acts_in(telemetry: Telemetry, stream: io.StringIO) -> None:
    caller = Caller(Actor(PrincipalKind.USER, USER, TOKEN, f"bgl_{BODY}"), None, Authority())
    observe(telemetry, caller=caller, place=Place(Scope.TENANT, TENANT))

    (line,) = lines_of(stream)
    assert (line["org_id"], line["break_glass_id"]) == (TENANT, f"bgl_{BODY}")


def test_nothing_of_a_path_is_noted_that_is_not_an_id(telemetry: Telemetry, stream: io.StringIO) -> None:
    place = Place(Scope.PROJECT, "ten_'; drop table", SECRET_TOKEN)
    observe(telemetry, method="BREW\n", status=404, code="not_found", caller=ANONYMOUS, place=place)

    (line,) = lines_of(stream)
    assert (line["method"], line["route"], line["code"]) == ("none", "none", "not_found")
    assert not {"org_id", "project_id"} & set(line)


def test_the_error_behind_a_failure_is_in_the_log_with_its_traceback(telemetry: Telemetry, stream: io.StringIO) -> None:
    with telemetry.request("POST", TRACED) as observed:
        try:
            raise ConnectionError(f"cannot use {SECRET_TOKEN}")
        except ConnectionError as error:
            observed.failed(error)
        observed.status, observed.code = 500, "internal"

    (line,) = lines_of(stream)
    assert line["level"] == "error"
    assert (line["error"]["type"], line["error"]["message"]) == ("ConnectionError", f"cannot use {MASK}")
    assert "test_log.py" in line["error"]["traceback"]
    assert SECRET_TOKEN not in stream.getvalue()


def test_what_escapes_a_request_is_logged_and_goes_on(telemetry: Telemetry, stream: io.StringIO) -> None:
    with pytest.raises(RuntimeError, match="the stream broke"), telemetry.request("GET", TRACED):
        raise RuntimeError("the stream broke")

    (line,) = lines_of(stream)
    assert (line["level"], line["status"], line["cut_off"]) == ("error", None, True)
    assert telemetry.in_flight == 0


async def test_a_cancelled_request_is_not_an_error(telemetry: Telemetry, stream: io.StringIO) -> None:
    begun = asyncio.Event()

    async def hang() -> None:
        with telemetry.request("GET", TRACED):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    (line,) = lines_of(stream)
    assert (line["level"], line["cut_off"]) == ("info", True)


@pytest.mark.parametrize("probe", ["/healthz", "/readyz", "/metrics"])
def test_probes_are_logged_only_at_debug_level_and_when_they_fail(
    probe: str, telemetry: Telemetry, stream: io.StringIO
) -> None:
    observe(telemetry, route=f"GET {probe}")
    assert stream.getvalue() == ""
    observe(telemetry, route=f"GET {probe}", status=503)
    assert lines_of(stream)[0]["level"] == "warning"

    debugging = io.StringIO()
    observe(Telemetry(lines=LogOutput("debug", "json", debugging)), route=f"GET {probe}")
    assert lines_of(debugging)[0]["level"] == "debug"


@pytest.mark.usefixtures("_logging_restored")
async def test_lines_from_deep_inside_carry_the_labels_of_their_own_request(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    telemetry = Telemetry()
    both = asyncio.Barrier(2)

    async def deep(number: int) -> None:
        await both.wait()
        logging.getLogger("mooring.hub").warning("request %d is deep inside", number)

    async def request(number: int) -> None:
        with telemetry.request("GET", RequestTrace(f"cor_{number}", "a" * 32, "b" * 16, None)) as observed:
            observed.caller, observed.place = CALLER, Place(Scope.PROJECT, None, PROJECT)
            await asyncio.create_task(deep(number))

    await asyncio.gather(request(1), request(2))
    logging.getLogger("mooring.hub").warning("outside of any request")

    deep_lines = [line for line in lines_of(stream) if "deep inside" in line["event"]]
    assert [line["correlation_id"] for line in deep_lines] == [f"cor_{line['event'].split()[1]}" for line in deep_lines]
    assert len(deep_lines) == 2
    for line in deep_lines:
        assert (line["org_id"], line["project_id"], line["trace_id"]) == (TENANT, PROJECT, "a" * 32)
        assert (line["logger"], line["level"]) == ("mooring.hub", "warning")
    assert "correlation_id" not in lines_of(stream)[-1]


@pytest.mark.usefixtures("_logging_restored")
def test_every_logger_of_the_process_writes_the_same_way(stream: io.StringIO) -> None:
    configure_logging("warning", "json", io.StringIO())
    output = configure_logging("info", "json", stream)

    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("asyncpg").error("gone", extra={"pool": "tenant"})
    output.log.info("from a logger with fields", tenant=1)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("a warning of the language", stacklevel=1)
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("mooring").exception("failed")
    logging.getLogger("mooring").debug("not now")

    lines = lines_of(stream)
    assert [line["event"] for line in lines[:3]] == ["started", "gone", "from a logger with fields"]
    assert lines[1]["pool"] == "tenant"
    assert "a warning of the language" in lines[3]["event"]
    assert (lines[4]["event"], lines[4]["error"]["type"]) == ("failed", "KeyError")
    assert len(lines) == 5


@pytest.mark.usefixtures("_logging_restored")
def test_a_message_whose_arguments_do_not_fit_is_still_written(stream: io.StringIO) -> None:
    configure_logging("info", "json", stream)
    record = logging.makeLogRecord({"msg": "%d of %s", "args": ("no number", 1), "levelno": 25})
    logging.getLogger().handlers[-1].handle(record)

    (line,) = lines_of(stream)
    assert (line["level"], line["event"]) == ("info", "%d of %s (its arguments do not fit)")


@pytest.mark.usefixtures("_logging_restored")
def test_loggers_that_tell_addresses_are_silent(stream: io.StringIO) -> None:
    configure_logging("debug", "json", stream)

    logging.getLogger("uvicorn.access").info("GET /api/v1/events?token=%s", SECRET_TOKEN)
    logging.getLogger("httpx").info("HTTP Request: POST https://example.org/hook?key=1")
    assert stream.getvalue() == ""
    logging.getLogger("httpx").warning("heard")
    assert lines_of(stream)[0]["event"] == "heard"


def test_labels_can_be_added_for_a_stretch_of_work(telemetry: Telemetry, stream: io.StringIO) -> None:
    with telemetry.worker_tick("outbox"):
        with bound(correlation_id="cor_9", project_id=PROJECT, app_slug=None):
            telemetry.lines.log.info("delivered")
        telemetry.lines.log.info("done")

    inside, after = lines_of(stream)
    assert (inside["worker"], inside["correlation_id"], inside["project_id"]) == ("outbox", "cor_9", PROJECT)
    assert "app_slug" not in inside
    assert "correlation_id" not in after


def test_a_value_without_a_json_form_still_makes_a_line(telemetry: Telemetry, stream: io.StringIO) -> None:
    circle: list[object] = []
    circle.append(circle)
    telemetry.lines.log.info("odd", half="\ud800", thing=object, circle=circle, raw=b"\x00\x01", keys={(1,): 2})

    (line,) = lines_of(stream)
    assert line["half"] == "\ud800"
    assert line["raw"] == "<2 bytes>"
    assert line["thing"] == "<class 'object'>"


def test_a_line_that_cannot_be_written_is_counted_and_fails_nothing(telemetry: Telemetry, stream: io.StringIO) -> None:
    stream.close()
    observe(telemetry)

    assert telemetry.lines.lost == 1
    assert b"\nmooring_log_lines_lost 1.0\n" in telemetry.metrics()


def test_lines_for_people_say_the_same_and_show_the_traceback(stream: io.StringIO) -> None:
    telemetry = Telemetry(lines=LogOutput("info", "console", stream))
    with telemetry.request("GET", TRACED) as observed:
        observed.route = ROUTE
        secret_local = SECRET_TOKEN
        try:
            raise ValueError(f"bad {secret_local}")
        except ValueError as error:
            observed.failed(error)
        observed.status = 500

    text = stream.getvalue()
    for part in ("error", "request", "status=500", "correlation_id=cor_1", "Traceback", f"bad {MASK}"):
        assert part in text
    assert "\x1b[" not in text
    assert SECRET_TOKEN not in text


# Secrets

LEAKS = [
    f"token {SECRET_TOKEN} was used",
    "mrgs_abc mrga_abc mrgb_abc mrg1_abc mrgn_abc mrge_abc mrgv_abc",
    "Authorization: Bearer abcdefghij.klmnop",
    "authorization: basic dXNlcjpwYXNz",
    "cannot connect to postgresql://mooring:hunter2@db.example.org/mooring",
    "key whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "assertion eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJzYSJ9.c2lnbmF0dXJl",
    "stored $argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$aGFzaA",
    "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIA\n-----END PRIVATE KEY-----",
    "DETAIL:  Failing row contains (tok_1, \\x0123abcd, hunter2).\nHINT: none",
]
PARTS = [
    "Zx9-secret",
    "mrgs_",
    "mrga_",
    "mrgb_",
    "mrg1_",
    "mrgn_",
    "mrge_",
    "mrgv_",
    "abcdefghij",
    "dXNlcjpwYXNz",
    "hunter2",
    "MfKQ9r8",
]
PARTS += ["eyJpc3M", "c29tZXNhbHQ", "MC4CAQ", "0123abcd"]


@pytest.mark.usefixtures("_logging_restored")
@pytest.mark.parametrize("format", ["json", "console"])
@pytest.mark.parametrize("leak", LEAKS)
def test_no_secret_comes_out_wherever_it_was_put(leak: str, format: str, stream: io.StringIO) -> None:
    telemetry = Telemetry(lines=configure_logging("debug", format, stream))
    log = logging.getLogger("mooring.test")

    log.info(leak)
    log.info("with %s", leak, extra={"note": leak, "nested": {"list": [leak, {"deep": leak}]}})
    try:
        raise RuntimeError(leak)
    except RuntimeError as error:
        log.exception("it failed")
        with telemetry.request("GET", TRACED) as observed:
            observed.failed(error)
            observed.code = leak
    telemetry.lines.log.info(leak, note=leak)

    text = stream.getvalue()
    assert len(text.splitlines()) >= 5
    assert [part for part in PARTS if part in text] == []


@given(
    before=st.text(max_size=20),
    body=st.from_regex(r"[A-Za-z0-9_\-]{20,60}", fullmatch=True),
    kind=st.sampled_from("spabnev1"),
)
def test_no_token_comes_out_in_any_company(before: str, body: str, kind: str) -> None:
    stream = io.StringIO()
    token = f"mrg{kind}_{body}"
    log = LogOutput("info", "json", stream).log
    log.info(before + token, note={"x": [before + token]})

    assert token not in stream.getvalue()
    json.loads(stream.getvalue())


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "access_token",
        "newPassword",
        "Authorization",
        "client-secret",
        "private_key",
        "cookie",
        "apiKey_secret",
    ],
)
def test_a_field_that_speaks_of_a_secret_loses_its_value(name: str, telemetry: Telemetry, stream: io.StringIO) -> None:
    telemetry.lines.log.info("x", **{name: "plain", "nested": {name: ["plain"]}})

    (line,) = lines_of(stream)
    assert (line[name], line["nested"][name]) == (MASK, MASK)


@every_row(
    "name",
    [
        "token_id",
        "secret_id",
        "token_kind",
        "public_key",
        "tokens_count",
        "route",
        "master_key_id",
        "",
        "token_cache_seconds",
    ],
)
def test_a_field_about_a_secret_keeps_its_value(name: str) -> None:
    assert not is_sensitive(name)


def test_text_without_secrets_is_left_alone() -> None:
    text = "mrgx_1 https://example.org:7420/path bearer of news eyJ $argon whsec a@b"
    assert mask(text) == text
