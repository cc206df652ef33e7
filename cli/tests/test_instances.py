"""Launching, watching, stopping and explaining instances."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import (
    CREATED,
    PROJECT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    page,
    problem,
)
from mooring_cli import watch
from tests.support.rows import every_row

Run = Callable[..., Result]
INSTANCE = "ins_01web"
AT = f"/api/v1/projects/{PROJECT}/app-instances"
ONE = f"{AT}/{INSTANCE}"


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str]) -> None:
    environment["MOORING_PROJECT"] = PROJECT


def instance(status: str = "running", **fields: Any) -> dict[str, Any]:
    given = {
        "id": INSTANCE,
        "name": "web",
        "status": status,
        "health": "unknown",
        "operation": None,
        "members_summary": [{"component_key": "main", "desired": 2, "current": 1, "healthy": 1}],
        "failure_code": None,
        "failure_detail": None,
        "last_lines": [],
        "correlation_id": "cor_launch",
        "created_at": CREATED,
    }
    return {**given, **fields}


def entry(number: int, text: str, kind: str = "instance", /, **data: Any) -> dict[str, Any]:
    return {
        "cursor": f"c{number}",
        "id": f"evt_{number}",
        "at": "2999-01-31T12:00:01Z",
        "kind": kind,
        "type": "x",
        "subject_id": INSTANCE,
        "app_instance_id": INSTANCE,
        "text": text,
        "actor_kind": "user",
        "actor_id": "usr_1",
        "correlation_id": "cor_launch",
        "trace_id": "a",
        "data": data,
    }


def story(platform: FakeCliPlatform, *pages: list[dict[str, Any]]) -> None:
    """Serve the timeline page by page; then nothing more."""
    left = list(pages)

    def answer(asked: RecordedRequest) -> CannedResponse:
        items = left.pop(0) if left else []
        after = items[-1]["cursor"] if items else asked.query.get("cursor", "c0")
        return CannedResponse(body={"items": items, "next_cursor": after})

    platform.on("GET", f"{ONE}/timeline", answer)


def states(platform: FakeCliPlatform, *given: dict[str, Any]) -> None:
    """Serve the states of the instance one after the other; the last one stays."""
    left = list(given)
    platform.on("GET", ONE, lambda asked: CannedResponse(body=left.pop(0) if len(left) > 1 else left[0]))
    platform.on("GET", AT, page(given[-1]))
    platform.on("GET", f"/api/v1/projects/{PROJECT}/tasks", page())


# Watching -----------------------------------------------------------------------------------------------------------


def test_watch_tells_the_timeline_and_ends_when_it_runs(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("starting"), instance("starting"), instance("running"))
    story(platform, [entry(1, "instance web is created"), entry(2, "instance web is starting")])
    result = run("instances", "watch", "web")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "12:00:01  instance web is created",
        "12:00:01  instance web is starting",
        "web is running",
    ]


def test_watch_goes_on_from_the_last_cursor(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("starting"), instance("starting"), instance("starting"), instance("running"))
    story(platform, [entry(1, "one")], [entry(2, "two")])
    assert run("instances", "watch", INSTANCE).exit_code == 0
    asked = [each.query.get("cursor") for each in platform.of("GET") if each.path.endswith("/timeline")]
    assert asked == [None, "c1", "c2"]


def test_a_connection_that_breaks_costs_nothing_but_the_wait(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("starting"), instance("running"))
    broken = [problem(503, "unavailable", retryable=True), problem(503, "unavailable", retryable=True)]
    shown = [{"items": [entry(1, "one")], "next_cursor": "c1"}, {"items": [], "next_cursor": "c1"}]

    def answer(asked: RecordedRequest) -> CannedResponse:
        return broken.pop() if broken else CannedResponse(body=shown.pop(0) if len(shown) > 1 else shown[0])

    platform.on("GET", f"{ONE}/timeline", answer)
    result = run("instances", "watch", "web")
    assert result.exit_code == 0
    assert result.stdout.count("one") == 1


def test_a_failed_instance_ends_with_one_its_last_lines_and_a_hint(run: Run, platform: FakeCliPlatform) -> None:
    failed = instance("failed", failure_code="runtime_error", failure_detail="it ended", last_lines=["no such file"])
    states(platform, instance("starting"), failed)
    story(platform, [entry(1, "instance web is failed; runtime_error")])
    result = run("instances", "watch", "web")
    assert result.exit_code == 1
    assert "web is failed: runtime_error: it ended" in result.stdout
    assert "| no such file" in result.stdout
    assert f"mooring why {INSTANCE}" in result.stderr


def test_json_is_an_object_a_line_and_the_result_last(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("starting"), instance("running"))
    story(platform, [entry(1, "one")])
    result = run("instances", "watch", "web", "--json")
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["kind"] for each in shown] == ["instance", "result"]
    assert shown[-1]["status"] == "running"


def test_a_running_instance_without_changes_is_printed_at_once(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("running"))
    result = run("instances", "watch", "web")
    assert (result.exit_code, result.stdout) == (0, "web is running\n")


def test_a_change_that_fails_while_it_is_watched_ends_with_one(run: Run, platform: FakeCliPlatform) -> None:
    upgrade = {"id": "op_1", "kind": "upgrade", "status": "running", "phase": "adapter", "blocker": None}
    under_way = instance("running", operation=upgrade)
    states(platform, under_way, under_way, instance("running"))
    platform.on("GET", f"{ONE}/operations/op_1", CannedResponse(body={**upgrade, "steps": [], "created_at": CREATED}))
    story(platform, [entry(1, "operation upgrade is failed", "operation", kind="upgrade", status="failed")])
    assert run("instances", "watch", "web").exit_code == 1


def test_progress_says_steps_members_and_bytes() -> None:
    operation = {"kind": "deploy", "blocker": None, "steps": [{"status": "done"}, {"status": "running"}]}
    pulling = {"type": "image.pull", "progress": {"stage": "pulling", "done": 512, "total": 2048, "unit": "bytes"}}
    text = watch.progress_of(instance("starting"), operation, [pulling])
    assert text == "starting · deploy 1/2 · main 1/2 healthy · image.pull 512 B of 2.0 KiB (25 %)"


def test_progress_is_written_over_on_a_terminal(on_terminal: Callable[..., Any], platform: FakeCliPlatform) -> None:
    starting = instance("starting")
    states(platform, starting, starting, starting, instance("running"))
    story(platform, [entry(1, "instance web is starting")], [])
    ran = on_terminal("instances", "watch", "web")
    assert ran.exit_code == 0
    assert "\r\x1b[Jstarting · main 1/2 healthy" in ran.screen
    assert "web is running" in ran.screen


def test_an_unused_name_is_not_found(run: Run, platform: FakeCliPlatform) -> None:
    states(platform, instance("running"))
    assert run("instances", "watch", "other").exit_code == 4


# Launching ----------------------------------------------------------------------------------------------------------


def test_a_launch_sends_what_the_options_say(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", AT, CannedResponse(201, instance("created")))
    result = run(
        "instances",
        "launch",
        "hello",
        "--name",
        "web",
        "--sku",
        "small",
        "--gpu-count",
        "1",
        "--config",
        "port=8080",
        "--config",
        "motd=hello there",
        "--topology",
        "main=2",
        "--version",
        "1.0.0",
        "--use-secret",
        "HF_TOKEN=hub-token",
    )
    assert result.exit_code == 0
    assert platform.of("POST")[0].body == {
        "app": "hello",
        "name": "web",
        "version": "1.0.0",
        "config": {"port": 8080, "motd": "hello there"},
        "topology": {"main": 2},
        "placement": {"sku": "small", "gpu_count": 1},
        "secrets": {"HF_TOKEN": "hub-token"},
    }
    assert "mooring instances watch web" in result.stderr


def test_a_launch_that_waits_watches_and_ends_as_the_instance_does(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", AT, CannedResponse(201, instance("created")))
    states(platform, instance("starting"), instance("running"))
    story(platform, [entry(1, "instance web is starting")])
    result = run("instances", "launch", "hello", "--allocation", "alc_01one", "--wait")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "web is running"
    assert "cor_launch" in result.stderr
    body = platform.of("POST")[0].body
    assert body["placement"] == {"allocations": ["alc_01one"]}
    assert body["name"].startswith("hello-")


def shape(sku: str, gpu_count: int, *, fits: bool = True, available: bool = True) -> dict[str, Any]:
    size = {"sku": sku, "shape": "gpu_slice", "gpu_count": gpu_count}
    return {**size, "regions": ["eu"] if fits else [], "fits": fits, "available": available}


@every_row(
    ("shapes", "words", "sent"),
    [
        ([shape("small", 2), shape("small", 1), shape("big", 1, fits=False)], (), {"sku": "small", "gpu_count": 1}),
        ([shape("small", 1), shape("small", 2)], ("--gpu-count", "2"), {"sku": "small", "gpu_count": 2}),
        ([shape("small", 1), shape("gone", 1, available=False)], (), {"sku": "small", "gpu_count": 1}),
        ([shape("small", 1), shape("big", 1)], (), "--sku big or --sku small"),
        ([shape("small", 2, fits=False), shape("small", 1, fits=False)], (), {"sku": "small", "gpu_count": 1}),
        ([shape("small", 1), shape("small", 2)], ("--gpu-count", "3"), {"sku": "small", "gpu_count": 3}),
        ([], (), None),
    ],
)
def test_the_only_sku_that_fits_need_not_be_named(
    run: Run, platform: FakeCliPlatform, shapes: Any, words: Any, sent: Any
) -> None:
    platform.asked.clear()
    platform.on("POST", f"{AT}:plan", CannedResponse(body={"shapes": shapes}))
    platform.on("POST", AT, CannedResponse(201, instance("created")))
    result = run("launch", "hello", *words)
    if isinstance(sent, str):
        assert (sent in result.stderr, len(platform.of("POST"))) == (True, 1), "only the plan was asked for"
    else:
        assert platform.of("POST")[-1].body.get("placement") == sent


@pytest.mark.parametrize("wrong", [("--config", "port"), ("--topology", "main=many"), ("--topology", "main")])
def test_a_malformed_pair_is_refused(run: Run, platform: FakeCliPlatform, wrong: tuple[str, str]) -> None:
    result = run("instances", "launch", "hello", *wrong)
    assert result.exit_code == 1
    assert platform.of("POST") == []


def test_a_plan_is_shown_as_a_table_with_its_blockers(run: Run, platform: FakeCliPlatform) -> None:
    plan = {
        "launchable": False,
        "topology": {"main": 1},
        "allocations": [],
        "new_allocations": 1,
        "hindrances": [{"code": "policy_denied", "detail": "region eu is not allowed", "details": {}}],
        "version": {"version": "1.1.0", "canary": True},
        "policy": {"allowed": False, "layer": "tenant", "reason": "it is not on the allow list"},
        "shapes": [
            {
                "sku": "small",
                "shape": "gpu_slice",
                "gpu_count": 1,
                "regions": ["eu"],
                "fits": True,
                "available": True,
                "price_minor_per_hour": 250,
                "currency": "EUR",
                "smallest_change": "",
            }
        ],
        "price": [{"currency": "EUR", "minor_per_hour": 250, "added_minor_per_hour": 250}],
        "expected": {"seconds": 12.4, "basis": "version", "samples": 3, "stages": []},
        "placement": {"fits_now": False, "because": "eu: full", "smallest_change": "1 more GPU on one machine"},
        "adapter": {"listening": False, "last_seen_at": None},
    }
    platform.on("POST", f"{AT}:plan", CannedResponse(body=plan))
    result = run("instances", "launch", "hello", "--plan")
    assert "1.1.0 (canary)" in result.stdout
    assert "2.50 EUR an hour" in result.stdout
    assert "about 12 s" in result.stdout
    assert "no room now: eu: full; what would help: 1 more GPU on one machine" in result.stdout
    assert "none listens; one was last seen: never" in result.stdout
    assert "blocked: policy_denied: region eu is not allowed" in result.stdout
    assert "denied by the tenant policy: it is not on the allow list" in result.stdout


# Stopping -----------------------------------------------------------------------------------------------------------


def test_a_stop_that_waits_shows_the_proof_of_each_member(run: Run, platform: FakeCliPlatform) -> None:
    platform.on(
        "POST", f"{ONE}/stop", CannedResponse(202, {"id": "op_9", "kind": "decommission", "created_at": CREATED})
    )
    states(platform, instance("stopping"), instance("stopped"))
    old = {**entry(1, "long ago"), "at": "2020-01-01T00:00:00Z"}
    story(platform, [old, entry(2, "instance web is stopping")])
    proof = {
        "id": "clo_1",
        "member_name": "main-0",
        "kind": "receipt",
        "receipt": {"receipt_id": "rcp_01", "clean": True},
        "node_id": None,
        "reason": None,
        "created_at": CREATED,
    }
    platform.on("GET", f"{ONE}/closing-records", page(proof))
    result = run("instances", "stop", "web", "--wait", "--yes")
    assert result.exit_code == 0
    assert "rcp_01" in result.stdout
    assert "long ago" not in result.stdout
    assert "web is stopped" in result.stdout


# Explaining ---------------------------------------------------------------------------------------------------------

WHY: dict[str, Any] = {
    "chain": [
        {
            "noun": "instance",
            "id": INSTANCE,
            "name": "web",
            "status": "failed",
            "text": "it ended",
            "code": "runtime_error",
            "since": CREATED,
            "last_lines": [],
        },
        {
            "noun": "task",
            "id": "tsk_1",
            "name": "container.run",
            "status": "failed",
            "text": "exit code 127",
            "code": "exited",
            "since": CREATED,
            "last_lines": ["sh: serve: not found"],
        },
    ],
    "next": {"who": "you", "what": "change its command", "command": f"mooring instances stop {INSTANCE}"},
}


def test_why_draws_the_chain_and_the_next_step(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}/why/web", CannedResponse(body=WHY))
    result = run("why", "web")
    assert result.stdout.splitlines() == [
        f"instance web is failed [runtime_error]  ({INSTANCE})",
        "   it ended",
        "└─ task container.run is failed [exited]  (tsk_1)",
        "      exit code 127",
        "      | sh: serve: not found",
        "",
        "next: you: change its command",
        f"      mooring instances stop {INSTANCE}",
    ]


def test_why_is_exact_in_json(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}/why/ins_01", CannedResponse(body=WHY))
    assert json.loads(run("why", "ins_01", "--json").stdout) == WHY


def test_what_a_server_says_cannot_move_the_cursor(run: Run, platform: FakeCliPlatform) -> None:
    chain: list[dict[str, Any]] = WHY["chain"]
    evil = {**WHY, "chain": [{**chain[0], "text": "\x1b[2J", "last_lines": ["\x1b]0;evil\x07"]}]}
    platform.on("GET", f"/api/v1/projects/{PROJECT}/why/web", CannedResponse(body=evil))
    assert "\x1b" not in run("why", "web").stdout


# Replay -------------------------------------------------------------------------------------------------------------


def replayed(**fields: Any) -> dict[str, Any]:
    given = {"id": INSTANCE, "name": "web", "component_key": None, "status": "running", "since": "2999-01-31T12:00:03Z"}
    return {**given, "trigger": "report_ready", "generation": 2, "correlation_id": "cor_launch", **fields}


def test_replay_shows_every_state_of_a_moment_and_the_moments_beside_it(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", AT, page(instance()))
    moment = {"at": "2999-01-31T12:00:05Z", "changed_at": "2999-01-31T12:00:03Z", "next_at": None}
    moment["previous_at"] = "2999-01-31T12:00:02Z"
    member = replayed(name="main-0", component_key="main", status="ready")
    body = {**moment, "instance": replayed(), "members": [member], "operations": []}
    platform.on("GET", f"{ONE}/replay", CannedResponse(body=body))
    result = run("instances", "replay", "web", "--at", "2999-01-31T12:00:05Z")
    lines = result.stdout.splitlines()
    assert lines[0] == "at 2999-01-31 12:00:05.000, unchanged since 2999-01-31 12:00:03.000"
    assert [line.split()[:3] for line in lines if line.startswith(("instance", "member"))] == [
        ["instance", "web", "running"],
        ["member", "main-0", "ready"],
    ]
    assert lines[-2:] == ["before: --at 2999-01-31T12:00:02Z", "after: nothing"]
    assert all(len(line) <= 80 for line in lines)
    (asked,) = [each for each in platform.of("GET") if each.path.endswith("/replay")]
    assert asked.query["at"] == "2999-01-31T12:00:05+00:00"


def test_replay_without_a_moment_lists_every_transition(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", AT, page(instance()))
    change = {"noun": "member", "subject_id": "mem_1", "name": "main-0", "generation": 0, "source": None}
    change |= {"at": "2999-01-31T12:00:01.5Z", "trigger": "create", "target": "requested", "correlation_id": "c"}
    platform.on("GET", f"{ONE}/transitions", page(change))
    result = run("instances", "replay", "web")
    assert result.stdout == "2999-01-31 12:00:01.500  member main-0  (new) → requested  by create\n"
    refused = run("instances", "replay", "web", "--at", "yesterday")
    assert refused.exit_code == 1
    assert "neither a time" in refused.stderr
