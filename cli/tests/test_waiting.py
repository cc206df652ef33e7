"""Waiting for what a command started: the progress, the exit code, Ctrl-C, and callers who may not read everything."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import (
    CREATED,
    PROJECT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    page,
    problem,
)
from mooring_cli import waiting
from mooring_cli.noun_table import NOUNS
from mooring_cli.nouns import Noun
from mooring_sdk.operations import BY_NAME
from tests.support.rows import every_row

Run = Callable[..., Result]
INSTANCE = "ins_01web"
AT = f"/api/v1/projects/{PROJECT}/app-instances"
ONE = f"{AT}/{INSTANCE}"
STARTED = ("models.Operation", "models.AttachedOperation", "models.Instance", "models.Allocation", "models.Attachment")


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str], platform: FakeCliPlatform) -> None:
    environment["MOORING_PROJECT"] = PROJECT
    platform.on("GET", f"/api/v1/projects/{PROJECT}/tasks", page())
    platform.on("GET", f"{ONE}/members", page(member("web-0"), member("web-1", status="joining", health="unknown")))


def member(name: str, **changes: Any) -> dict[str, Any]:
    return {"id": f"mem_{name}", "name": name, "status": "ready", "health": "healthy", **changes}


def operation(status: str, etag: str = "1", **changes: Any) -> dict[str, Any]:
    steps = [
        {"name": "prepare", "status": "done"},
        {"name": "start/mem_web-1", "status": "running", "detail": "slurmd"},
        {"name": "probe", "status": "waiting"},
    ]
    given = {"id": "op_1", "kind": "add", "status": status, "steps": steps, "etag": etag, "member_ids": ["mem_web-1"]}
    return {**given, "instance_id": INSTANCE, "blocker": None, "created_at": CREATED, **changes}


def goes(platform: FakeCliPlatform, *states: dict[str, Any], start: str = f"{ONE}/members") -> None:
    """The operation goes through these states; each is read once, the last one for ever."""
    left = list(states)
    platform.on("POST", start, CannedResponse(202, left[0]))
    platform.on(
        "GET", f"{ONE}/operations/op_1", lambda asked: CannedResponse(body=left.pop(1 if len(left) > 2 else -1))
    )


def every_noun(nouns: Any) -> list[Noun]:
    return [each for noun in nouns for each in (noun, *every_noun(noun.below))]


def test_every_verb_that_starts_something_can_be_waited_for() -> None:
    for noun in every_noun(NOUNS.values()):
        for verb, names in noun.operations.items():
            found = BY_NAME[names[0]]
            if found.method != "GET" and found.answer in STARTED:
                assert names[0] in waiting.GOALS, f"{noun.name} {verb} has no --wait"


@every_row(
    ("words", "start"),
    [
        (("members", "add", INSTANCE, "--component", "web"), f"{ONE}/members"),
        (("members", "drain", INSTANCE, "mem_web-1"), f"{ONE}/members/mem_web-1/drain"),
        (("members", "remove", INSTANCE, "mem_web-1", "--yes"), f"{ONE}/members/mem_web-1/remove"),
        (("members", "replace", INSTANCE, "mem_web-1"), f"{ONE}/members/mem_web-1/replace"),
        (("repair", INSTANCE), f"{ONE}/repair"),
        (("rollback", INSTANCE), f"{ONE}/rollback"),
        (("upgrade", INSTANCE, "--version", "2.0.0"), f"{ONE}/upgrade"),
    ],
)
def test_the_exit_code_is_that_of_the_operation(run: Run, platform: FakeCliPlatform, words: Any, start: str) -> None:
    failed = operation("failed", failure_code="no_room", failure_detail="the node is full", last_lines=["no space"])
    goes(platform, operation("accepted"), failed, start=start)
    result = run("instances", *words, "--wait")
    assert result.exit_code == 1, result.output
    assert "add failed after 0 s: no_room: the node is full" in result.stdout
    assert "  | no space" in result.stdout
    assert "mooring why op_1" in result.stderr
    goes(platform, operation("accepted"), operation("running"), operation("succeeded", "2"), start=start)
    result = run("instances", *words, "--wait")
    assert (result.exit_code, result.stdout) == (0, "add succeeded after 0 s\n")


def test_json_has_the_operation_as_it_ended(run: Run, platform: FakeCliPlatform) -> None:
    goes(platform, operation("accepted"), operation("failed", failure_code="no_room"))
    result = run("instances", "members", "add", INSTANCE, "--component", "web", "--wait", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["status"], result.stderr) == (1, "failed", "")


def test_the_progress_names_members_the_step_and_the_cause_when_nothing_moves(
    run: Run, platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes(platform, operation("accepted", "0"), operation("running"), operation("succeeded", "2"))
    cause = {
        "noun": "task",
        "id": "tsk_1",
        "name": "pull",
        "status": "queued",
        "text": "no node is free",
        "code": "full",
    }
    explained = {"chain": [cause], "next": {"who": "you", "what": "wait, or add a node", "command": None}}
    platform.on("GET", f"{ONE}/operations/op_1/why", CannedResponse(body=explained))
    monkeypatch.setattr(waiting, "STILL_SECONDS", 0.0)
    result = run("instances", "members", "add", INSTANCE, "--component", "web", "--wait")
    assert result.exit_code == 0
    assert "add: running, 1 of 3 steps, now start of web-1 (slurmd)  0 s" in result.stderr
    assert "  web-1  joining, unknown" in result.stderr
    assert "web-0" not in result.stderr, "the operation does not concern it"
    assert "  because task pull: no node is free [full]" in result.stderr
    assert "  next: wait, or add a node" in result.stderr
    asked = [each.query for each in platform.of("GET") if each.path.endswith("/op_1")]
    assert [each["changed_from"] for each in asked] == ["0", "1"], "the server answers when it changed"


def test_the_progress_is_drawn_in_place_on_a_terminal(
    on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform
) -> None:
    goes(platform, operation("accepted", "0"), operation("running"), operation("succeeded", "2"))
    ran = on_terminal("instances", "members", "add", INSTANCE, "--component", "web", "--wait", COLUMNS="80")
    assert ran.exit_code == 0
    assert "\x1b[2A\r\x1b[Jadd: running, 1 of 3 steps" in ran.screen
    assert ran.screen.rstrip().endswith("add succeeded after 0 s")
    assert max(len(line) for line in ran.screen.splitlines()) < 100


def test_ctrl_c_ends_the_waiting_and_says_how_to_come_back(
    spawn: Callable[..., "subprocess.Popen[str]"], platform: FakeCliPlatform
) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupt(asked: RecordedRequest) -> CannedResponse:
        os.kill(started[0].pid, signal.SIGINT)
        return CannedResponse(body=operation("running"))

    platform.on("POST", f"{ONE}/members", CannedResponse(202, operation("accepted", "0")))
    platform.on("GET", f"{ONE}/operations/op_1", interrupt)
    started.append(spawn("instances", "members", "add", INSTANCE, "--component", "web", "--wait"))
    _, err = started[0].communicate(timeout=120)
    assert started[0].returncode == 130
    assert "the operation goes on" in err
    assert f"mooring instances operations get {INSTANCE} op_1" in err
    assert "Traceback" not in err


def test_an_allocation_and_an_instance_are_waited_for_too(run: Run, platform: FakeCliPlatform) -> None:
    box = {"id": "alc_1", "name": "box", "status": "requested", "etag": "1"}
    at = f"/api/v1/projects/{PROJECT}/allocations"
    platform.on("POST", at, CannedResponse(202, box))
    words = [
        "allocations",
        "create",
        "--name",
        "box",
        "--shape",
        "gpu_slice",
        "--sku",
        "s",
        "--gpu-count",
        "1",
        "--wait",
    ]
    for status, code in (("active", 0), ("failed", 1)):
        ended = {**box, "status": status, "failure_code": None if code == 0 else "no_node"}
        platform.on("GET", f"{at}/alc_1", CannedResponse(body=ended))
        result = run(*words)
        assert (result.exit_code, result.stdout.startswith(f"box is {status}")) == (code, True)
    web = {"id": INSTANCE, "name": "web", "etag": "1", "operation": None, "failure_detail": "it ended"}
    platform.on("POST", AT, CannedResponse(201, {**web, "status": "created", "correlation_id": "cor_1"}))
    for status, code in (("running", 0), ("failed", 1)):
        platform.on("GET", ONE, CannedResponse(body={**web, "status": status}))
        result = run("instances", "launch", "hello", "--name", "web", "--sku", "s", "--wait")
        assert (result.exit_code, result.stdout.startswith(f"web is {status}")) == (code, True)


def test_somebody_who_may_not_read_events_watches_the_state(run: Run, platform: FakeCliPlatform) -> None:
    states = ["starting", "starting", "failed"]
    web = {"id": INSTANCE, "name": "web", "operation": None, "failure_code": "x", "failure_detail": "y", "health": "?"}
    platform.on("GET", AT, page({**web, "status": "starting"}))
    platform.on(
        "GET",
        ONE,
        lambda asked: CannedResponse(body={**web, "etag": "7", "status": states.pop(0) if states else "failed"}),
    )
    platform.on("GET", f"{ONE}/timeline", problem(403, "permission_denied"))
    platform.on("GET", f"/api/v1/projects/{PROJECT}/tasks", problem(403, "permission_denied"))
    result = run("instances", "watch", "web")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (1, "web is failed: x: y")
    assert "event.read" in result.stderr
    assert [each.query.get("changed_from") for each in platform.of("GET") if each.path == ONE][-1] == "7"


def test_an_action_that_the_server_waits_for_ends_with_one_if_it_failed(run: Run, platform: FakeCliPlatform) -> None:
    for status, code in (("failed", 1), ("succeeded", 0), ("running", 0)):
        platform.on("POST", f"{ONE}/actions/reload", CannedResponse(202, operation(status)))
        words = ["instances", "actions", "act", INSTANCE, "reload", "--wait", "5"]
        assert run(*words).exit_code == code
    assert platform.of("POST")[0].query["wait"] == "5.0"


def test_a_blocked_operation_says_so_once() -> None:
    blocked = operation("blocked", blocker="no room", steps=[])
    assert waiting.operation_text(blocked, {}) == "add: blocked: no room"
    assert waiting.operation_text({**blocked, "status": "running"}, {}) == "add: running, blocked: no room"
