"""Tables and details at 80 columns: what is shown first, what only with -o wide, and what is alive."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import (
    PROJECT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    page,
    problem,
)
from mooring_cli import listing
from mooring_cli.columns import OF_NOUN, chosen
from mooring_cli.output import cells_of, fitted
from tests.support.rows import every_row

Run = Callable[..., Result]
OnTerminal = Callable[..., TerminalResult]
AT = f"/api/v1/projects/{PROJECT}"
LONG = "a-name-of-forty-characters-is-the-longes"
DIGEST = "sha256:" + "c7" * 32
CREATED = "2026-11-16T02:00:00Z"
LONG_ID = "rcp_01m7prhrvd41zagasgcy65nswq"
IDS = {"id": "ins_01m7prhrvd41zagasgcy65nswq", "tenant_id": "ten_01m7prhrvd41zagasgcy65nswq", "project_id": PROJECT}


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str]) -> None:
    environment["MOORING_PROJECT"] = PROJECT


def an_instance(name: str = "web", status: str = "running", **changes: Any) -> dict[str, Any]:
    return {
        **IDS,
        "name": name,
        "app_id": "app_01m7prhrvd41zagasgcy65nswq",
        "app": "hello",
        "app_category": "web",
        "version": "1.0.0",
        "pin": {"version_id": "ver_01m7prhrvd41zagasgcy65nswq", "manifest_digest": DIGEST},
        "previous_pin": None,
        "status": status,
        "health": "healthy",
        "health_detail": None,
        "members_summary": [{"component_key": "web", "desired": 2, "current": 2, "healthy": 1}],
        "endpoints": [
            {"name": "page", "protocol": "http", "port": 80},
            {"name": "api", "protocol": "http", "port": 81},
        ],
        "failure_code": None,
        "last_lines": [],
        "created_at": CREATED,
        "stopped_at": None,
        "revision": 2,
        "etag": "2",
        "allowed_actions": ["instance.connect", "instance.delete", "instance.update", "member.add"],
        **changes,
    }


def a_member() -> dict[str, Any]:
    names = ("instance_id", "version_id", "allocation_id", "node_id")
    return {
        **IDS,
        **dict.fromkeys(names, "xxx_01m7prhrvd41zagasgcy65nswq"),
        "name": f"{LONG}-web-0",
        "component_key": "web",
        "ordinal": 0,
        "version": "1.0.0",
        "status": "draining",
        "health": "degraded",
        "health_detail": "it does not answer its probe since 12:00:01",
        "created_at": CREATED,
    }


def a_sku() -> dict[str, Any]:
    return {
        "id": "sku_01m7prhrvd41zagasgcy65nswq",
        "slug": "north-slice-of-eight",
        "shape": "gpu_slice",
        "gpu_model": "simulated",
        "regions": ["north", "south", "east"],
        "allowed_gpu_counts": [1, 2, 4, 8],
        "price_minor_per_gpu_hour": 299,
        "currency": "EUR",
        "status": "offered",
        "created_at": CREATED,
    }


@every_row(
    ("words", "path", "row", "heads"),
    [
        (
            ("instances", "list"),
            f"{AT}/app-instances",
            an_instance(LONG),
            ["NAME", "STATUS", "HEALTH", "AGE", "ADDRESS"],
        ),
        (
            ("instances", "members", "list", IDS["id"]),
            f"{AT}/app-instances/{IDS['id']}/members",
            a_member(),
            ["NAME", "STATUS", "HEALTH", "AGE"],
        ),
        (("skus", "list"), "/api/v1/skus", a_sku(), ["SLUG", "STATUS", "SHAPE"]),
        (("instances", "get", IDS["id"]), f"{AT}/app-instances/{IDS['id']}", an_instance(LONG), ["NAME", LONG]),
    ],
)
def test_nothing_is_wider_than_a_terminal_of_80_columns_but_a_digest(
    on_terminal: OnTerminal, platform: FakeCliPlatform, words: Any, path: str, row: Any, heads: list[str]
) -> None:
    platform.on("GET", path, CannedResponse(body=row) if "get" in words else page(row))
    screen = on_terminal(*words, COLUMNS="80", NO_COLOR="1").screen.splitlines()
    assert screen[0].split()[: len(heads)] == heads
    assert [line for line in screen if len(line) > 80 and DIGEST not in line] == []


@every_row(
    ("noun", "row"),
    [
        ("closing record", {"member_name": "greeter-web-0", "kind": "receipt", "receipt": {"receipt_id": LONG_ID}}),
        ("receipt", {"id": LONG_ID, "task_type": "teardown.verify", "clean": True}),
        ("operation", {"id": LONG_ID, "kind": "decommission", "status": "succeeded", "steps": []}),
        ("task", {"id": LONG_ID, "type": "container.control", "status": "succeeded"}),
    ],
)
def test_an_id_that_a_table_of_80_columns_shows_is_whole(noun: str, row: dict[str, Any]) -> None:
    columns = OF_NOUN[noun]
    heads, cells = cells_of([{**row, "created_at": CREATED}], chosen([row], columns, wide=False))
    assert LONG_ID in fitted(heads, cells, len(columns.first), 80)[1][0]


def test_ids_are_only_in_a_wide_table(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/app-instances", page(an_instance()))
    heads, row = run("instances", "list").stdout.splitlines()
    assert heads.split() == ["NAME", "STATUS", "HEALTH", "AGE", "ADDRESS", "APP", "VERSION", "MEMBERS"]
    assert row.split()[:3] == ["web", "running", "healthy"]
    assert "web/page, web/api" in row
    assert "1/2" in row
    assert IDS["id"] not in row
    wide = run("instances", "list", "-o", "wide").stdout.splitlines()
    assert wide[0].split()[:5] == ["NAME", "STATUS", "HEALTH", "AGE", "ADDRESS"]
    assert wide[1].split()[-1] == IDS["id"]


def test_names_are_printed_for_pipes_and_ids_where_there_are_none(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/app-instances", page(an_instance("one"), an_instance("two")))
    assert run("instances", "list", "-o", "name").stdout.split() == ["one", "two"]
    platform.on("GET", f"{AT}/tasks", page({"id": "tsk_1", "type": "probe.http", "status": "queued"}))
    assert run("tasks", "list", "-o", "name").stdout.split() == ["tsk_1"]


def test_a_list_has_what_is_alive_unless_all_or_a_status_is_asked_for(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/app-instances", page(an_instance("dead", "stopped"), an_instance("alive")))
    assert run("instances", "list", "-o", "name").stdout.split() == ["alive"]
    assert run("instances", "list", "--limit", "1", "-o", "name").stdout.split() == ["alive"]
    for words in (["--all"], ["--status", "stopped"]):
        assert run("instances", "list", *words, "-o", "name").stdout.split() == ["dead", "alive"]
    assert [each["name"] for each in json.loads(run("instances", "list", "-o", "json").stdout)] == ["dead", "alive"]
    platform.on("GET", f"{AT}/app-instances", page(an_instance("dead", "stopped")))
    shown = run("instances", "list")
    assert (shown.stdout, shown.stderr) == ("", "No instances; --all includes what is stopped.\n")


def test_details_are_sections_without_fields_that_have_no_value(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/app-instances/{IDS['id']}", CannedResponse(body=an_instance()))
    shown = run("instances", "get", IDS["id"]).stdout
    first, *sections = shown.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()][:3] == ["NAME", "STATUS", "HEALTH"]
    assert [each.splitlines()[0] for each in sections] == ["PIN", "MEMBERS SUMMARY", "ENDPOINTS", "IDS"]
    assert not [line for line in shown.splitlines() if line.endswith("  -")]
    assert "STOPPED" not in shown
    assert IDS["id"] in sections[-1]


def test_a_watched_list_shows_what_changed_when_an_event_comes(run: Run, platform: FakeCliPlatform) -> None:
    states = [[an_instance("one", "starting"), an_instance("two", id="ins_2")], [an_instance("one", "running")]]
    platform.on("GET", f"{AT}/app-instances", lambda asked: page(*states.pop(0)))

    def events(asked: RecordedRequest) -> CannedResponse:
        if "newest" in asked.query:
            return CannedResponse(body={"items": [], "next_cursor": "c7"})
        assert (asked.query["cursor"], float(asked.query["wait"])) == ("c7", listing.EVENT_WAIT_SECONDS)
        return CannedResponse(body={"items": [], "next_cursor": "c7"}) if states else problem(401, "token_expired")

    platform.on("GET", f"{AT}/events", events)
    result = run("instances", "list", "--watch", "-o", "json")
    assert result.exit_code == 3
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["name"], each["status"]) for each in shown] == [
        ("one", "starting"),
        ("two", "running"),
        ("one", "running"),
    ]


def test_a_watched_list_is_read_again_by_somebody_who_may_not_read_events(
    run: Run, platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "AGAIN_SECONDS", 0.0)
    platform.on("GET", f"{AT}/events", problem(403, "permission_denied"))
    answers = [page(an_instance("one", "starting")), page(an_instance("one")), problem(401, "token_expired")]
    platform.on("GET", f"{AT}/app-instances", lambda asked: answers.pop(0))
    shown = run("instances", "list", "--watch").stdout
    assert [line.split()[:2] for line in shown.splitlines() if "NAME" not in line] == [
        ["one", "starting"],
        ["one", "running"],
    ]


def test_a_watched_list_is_drawn_in_place_on_a_terminal(on_terminal: OnTerminal, platform: FakeCliPlatform) -> None:
    states = ["starting", "running"]
    platform.on("GET", f"{AT}/app-instances", lambda asked: page(an_instance("one", states.pop(0))))

    def events(asked: RecordedRequest) -> CannedResponse:
        ended = "newest" not in asked.query and not states
        return problem(401, "token_expired") if ended else CannedResponse(body={"items": [], "next_cursor": "c"})

    platform.on("GET", f"{AT}/events", events)
    screen = on_terminal("instances", "list", "--watch", COLUMNS="80").screen
    assert "\x1b[2A" in screen, "the second table is drawn over the two lines of the first"
    assert screen.index("starting") < screen.index("\x1b[2A") < screen.index("running")


def test_events_shows_the_newest_and_a_program_pages_from_the_oldest(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{AT}/events", CannedResponse(body={"items": [], "next_cursor": "c2"}))
    for words, newest in ((["--limit", "7"], "true"), (["-o", "json"], None), (["--since", "c1"], None)):
        assert run("events", *words).exit_code == 0
        assert platform.asked[-1].query.get("newest") == newest, words
    assert run("events", "--limit", "7").exit_code == 0
    assert platform.asked[-1].query["limit"] == "7"


def test_events_of_a_server_that_finds_no_newest_ones_start_with_the_oldest(
    run: Run, platform: FakeCliPlatform
) -> None:
    old = problem(422, "validation_failed")
    refused = CannedResponse(422, {**old.body, "details": {"path": "newest"}}, media_type=old.media_type)
    empty = CannedResponse(body={"items": [], "next_cursor": "c"})
    platform.on("GET", f"{AT}/events", lambda asked: refused if "newest" in asked.query else empty)
    assert run("events").exit_code == 0


def test_why_fits_on_a_terminal_of_80_columns(on_terminal: OnTerminal, platform: FakeCliPlatform) -> None:
    text = "no room: " + "1 GPU on one machine is requested, none is free; " * 3
    cause = {"noun": "operation", "id": "op_1", "name": "deploy", "status": "blocked", "text": text, "code": "full"}
    following = {"who": "you", "what": "wait until capacity is free, or stop this and request what fits now " * 2}
    answer = CannedResponse(body={"chain": [cause, cause], "next": following})
    platform.on("GET", f"{AT}/why/web", answer)
    platform.on("GET", f"{AT}/app-instances", page(an_instance()))
    platform.on("GET", f"{AT}/why/{IDS['id']}", answer)
    screen = on_terminal("why", "web", COLUMNS="80").screen.splitlines()
    assert len(screen) > 8
    assert max(map(len, screen)) <= 80
