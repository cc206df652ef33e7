"""One correlation id, of a launch that fails, finds everything: log lines, trace, task, events and audit rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from mooring_workload.bundle import bundle_of, key_at
from tests.e2e.full_platform import SKU, FullPlatform
from tests.e2e.leftovers import eventually
from tests.e2e.trace_collector import TraceCollector

pytestmark = pytest.mark.real_part("apps")
CORRELATION = "the-reef-of-this-test"
VERSION = "1.9.0"
LAST_WORDS = "there is a reef ahead"
EVENTS = {
    "apps.instance.requested", "capacity.allocation.requested", "capacity.allocation.active",
    "apps.operation.changed", "nodes.task.queued", "nodes.task.finished", "apps.instance.failed",
}  # fmt: skip


def install_a_wreck(place: FullPlatform) -> None:
    """A version of the small app whose command says something and ends."""
    bundle = bundle_of("hello", {}, key_at(place.directory / "adapter.key"), VERSION)
    profile = bundle["manifest"]["runtime_profile"]
    profile["command"] = ["/bin/sh", "-c", f"echo {LAST_WORDS}; exit 7"]
    profile["probes"]["startup"] |= {"period_seconds": 1, "timeout_seconds": 1, "failures_max": 1}
    place.install_bundle(bundle)


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines of a log that are JSON and stand under the correlation id."""
    found = []
    for line in path.read_text(errors="replace").splitlines():
        if CORRELATION in line and line.startswith("{"):
            read = json.loads(line)
            if read.get("correlation_id") == CORRELATION:
                found.append(read)
    return found


def events_of(place: FullPlatform) -> list[dict[str, Any]]:
    """The events under the correlation id, once all are in sight: a read stops at the oldest open transaction."""
    events: list[dict[str, Any]] = eventually(
        lambda: place.platform.did("events", "--correlation", CORRELATION, "--limit", "0", *place.project),
        lambda seen: {each["type"] for each in seen} >= EVENTS,
    )
    return events


def test_one_correlation_id_of_a_failed_launch_finds_everything(
    full_platform: FullPlatform, collector: TraceCollector
) -> None:
    place = full_platform
    install_a_wreck(place)
    platform, project = place.platform, ("--project", place.platform.project_id)
    where = ("--sku", SKU, "--gpu-count", "1", "--region", "process")
    asked = ("--name", "wreck", "--version", VERSION, *where, "--wait", *project)
    launched = platform.run("--correlation-id", CORRELATION, "instances", "launch", "hello", *asked)
    assert launched.exit_code == 1, f"{launched.out}\n{launched.err}\n{place.said()}"
    instance = platform.did("instances", "get", "wreck", *project)
    assert (instance["status"], instance["correlation_id"]) == ("failed", CORRELATION)

    # The chain of causes ends at the program's own last words.
    why = platform.did("why", "wreck", *project)
    assert [each["noun"] for each in why["chain"]][:2] == ["instance", "operation"]
    assert any(LAST_WORDS in each["last_lines"] for each in why["chain"]), json.dumps(why, indent=1)
    assert why["next"]["who"] == "you"

    # Events, audit rows, tasks.
    events = events_of(place)
    assert {each["trace_id"] for each in events} == {instance["trace_id"]}
    rows = platform.did("audit", "--correlation", CORRELATION, "--limit", "0", *project)
    assert {"instance.create", "task.create", "agent.report", "runtime.report"} <= {each["action"] for each in rows}
    assert {"user", "service_account", "node", "system"} <= {each["actor_kind"] for each in rows}
    tasks = [
        each
        for each in platform.did("tasks", "list", "--limit", "0", *project)
        if each["correlation_id"] == CORRELATION
    ]
    assert "failed" in {each["status"] for each in tasks}

    # Log lines: of the API, the workers, the adapter and the agent.
    server_log = lines_of(platform.mooring.directory / "log")
    assert [each for each in server_log if each["event"] == "request" and each["method"] == "POST"]
    assert [each for each in server_log if "worker" in each]
    assert lines_of(place.directory / "adapter.log")
    assert f"correlation_id={CORRELATION} " in place.machines[0].said()

    # The trace.
    assert collector.has(instance["trace_id"])
    proofs = place.stopped("wreck")
    assert [place.receipt(each["receipt_id"])["clean"] for each in proofs] == [True]
