"""`mooring logs`: the last lines, everything from an offset, and following, each byte once."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import PROJECT, CannedResponse, FakeCliPlatform, RecordedRequest, page, problem
from cli.tests.test_instances import AT, INSTANCE, ONE, instance
from mooring_cli import logs

Run = Callable[..., Result]
MEMBER = "mem_01head"
LOG = f"{ONE}/members/{MEMBER}/log"


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str]) -> None:
    environment["MOORING_PROJECT"] = PROJECT


def part(text: str, offset: int, size: int, **other: Any) -> dict[str, Any]:
    """A part of the log."""
    return {
        "member_id": MEMBER,
        "service": "web",
        "kind": "service",
        "offset": offset,
        "next_offset": offset + len(text.encode()),
        "size": size,
        "text": text,
        "truncated_before": False,
        "dropped_bytes": None,
        "log": "",
        **other,
    }


def members(platform: FakeCliPlatform, *names: str, status: str = "ready") -> None:
    """An instance with these members."""
    platform.on("GET", AT, page(instance()))
    found = [{"id": f"mem_01{name}", "name": name, "status": status} for name in names]
    platform.on("GET", f"{ONE}/members", page(*found))


def serve_log(platform: FakeCliPlatform, *parts: CannedResponse) -> list[RecordedRequest]:
    """Answer with these parts one after the other; returns the requests."""
    left, asked = list(parts), []

    def answer(request: RecordedRequest) -> CannedResponse:
        asked.append(request)
        return left.pop(0)

    platform.on("GET", LOG, answer)
    return asked


def test_the_last_lines_are_shown_without_what_steers_a_terminal(platform: FakeCliPlatform, run: Run) -> None:
    members(platform, "head")
    asked = serve_log(platform, CannedResponse(body=part("a\tb\r\n\x1b[2Jc\n", 90, 100)))
    result = run("logs", "web", "--tail", "2")
    assert (result.exit_code, result.stdout) == (0, "a\tb\n�[2Jc\n")
    assert asked[0].query["tail"] == "2"
    assert "offset" not in asked[0].query


def test_from_an_offset_all_parts_are_printed_and_dropped_bytes_reported(platform: FakeCliPlatform, run: Run) -> None:
    members(platform, "head")
    asked = serve_log(
        platform,
        CannedResponse(body=part("one\n", 0, 100)),
        CannedResponse(body=part("two\n", 96, 100, truncated_before=True, dropped_bytes=92, log="0a")),
    )
    result = run("logs", "web", "--offset", "0", "--service", "web")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
    assert "[92 bytes were dropped here]" in result.stderr
    assert [each.query["offset"] for each in asked] == ["0", "4"]
    assert {each.query["service"] for each in asked} == {"web"}


def test_following_goes_on_from_the_last_byte_and_over_a_node_that_is_away(
    platform: FakeCliPlatform, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    members(platform, "head")
    monkeypatch.setattr(logs, "AGAIN_SECONDS", 0.0)
    away = problem(503, "temporarily_unavailable", "the node does not answer")
    asked = serve_log(
        platform,
        CannedResponse(body=part("one\n", 0, 4)),
        *[away] * 3,
        CannedResponse(body=part("", 4, 4)),
        CannedResponse(body=part("two\n", 4, 8, log="0a")),
        CannedResponse(body=part("three\n", 8, 14, log="0a")),
        problem(409, "conflict", "the member is removed"),
    )
    result = run("logs", "web", "--follow")
    assert (result.exit_code != 0, result.stdout) == (True, "one\ntwo\nthree\n")
    assert "removed" in result.stderr
    assert [each.query.get("offset") for each in asked][-4:] == ["4", "4", "8", "14"]
    assert [each.query.get("log", "") for each in asked][-3:] == ["", "0a", "0a"]
    assert {each.query.get("wait") for each in asked[1:]} == {"20"}


def test_when_nobody_can_be_asked_the_last_known_lines_are_shown_with_the_reason(
    platform: FakeCliPlatform, run: Run
) -> None:
    members(platform, "head", status="removed")
    gone = problem(409, "conflict", "member head is removed")
    serve_log(platform, replace(gone, body={**gone.body, "details": {"last_lines": ["it broke"]}}))
    result = run("logs", "web")
    assert (result.exit_code != 0, result.stdout) == (True, "it broke\n")
    assert "member head is removed" in result.stderr


def test_of_several_members_one_is_named(platform: FakeCliPlatform, run: Run) -> None:
    members(platform, "head", "hand")
    asked = serve_log(platform, CannedResponse(body=part("x\n", 0, 2)))
    vague = run("logs", "web")
    assert vague.exit_code == 1
    assert "hand, head" in vague.stderr
    assert run("logs", "web", "head").stdout == "x\n"
    assert run("logs", "web", "nobody").exit_code != 0
    assert len(asked) == 1


def test_json_is_an_object_a_part(platform: FakeCliPlatform, run: Run) -> None:
    members(platform, "head")
    serve_log(platform, CannedResponse(body=part("x\n", 0, 2)))
    assert json.loads(run("logs", INSTANCE, "--json").stdout)["text"] == "x\n"


def test_a_place_and_a_number_of_lines_exclude_each_other(platform: FakeCliPlatform, run: Run) -> None:
    result = run("logs", "web", "--tail", "2", "--offset", "3")
    assert result.exit_code == 1
    assert "--offset" in result.stderr


def test_merged_logs_name_the_member_and_a_search_goes_on_until_the_end(platform: FakeCliPlatform, run: Run) -> None:
    members(platform, "head", "hand")
    asked: list[RecordedRequest] = []

    def answer(request: RecordedRequest) -> CannedResponse:
        asked.append(request)
        line = {"member_id": MEMBER, "member": "head", "service": "web", "offset": 0, "at": None, "ends": True}
        items = [{**line, "text": f"line {len(asked)}\x1b"}]
        body = {
            "next_cursor": f"c{len(asked)}",
            "at_end": len(asked) != 2,
            "gaps": [],
            "unread": [],
            "scanned_bytes": 9,
        }
        return CannedResponse(body={**body, "items": items})

    platform.on("GET", f"{ONE}/log", answer)
    assert run("logs", "web", "--merged", "--tail", "5").stdout == "head | line 1\ufffd\n"
    assert run("logs", "web", "head", "--grep", "line").stdout == "line 2\ufffd\nline 3\ufffd\n"
    assert [each.query for each in asked] == [
        {"tail": "5"},
        {"member": "mem_01head", "grep": "line"},
        {"member": "mem_01head", "grep": "line", "cursor": "c2"},
    ]
    assert run("logs", "web", "--regex").exit_code != 0
