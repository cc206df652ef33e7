"""What is observed about a running instance, and when it is probed again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from adapters.workload.tests.plan_driver import member
from mooring_adapter.instance_view import Instance, InstanceView, Operation, Task
from mooring_workload.catalog import manifest_of
from mooring_workload.watch import WATCH_SECONDS, watch

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def seen(*looks: Task, now: datetime = NOW, status: str = "ready", app: str = "hello") -> Any:
    """The observation of one member after these looks."""
    one = member(0, status=status, health="healthy")
    instance = Instance(id="ins_1", status="running", app_slug=app)
    return watch(InstanceView(instance=instance, manifest=manifest_of(app), members=[one], tasks=list(looks), now=now))


def look(type_: str, status: str, result: dict[str, Any] | None = None, **more: Any) -> Task:
    fields = {"id": "tsk_1", "operation_id": None, "step": "watch/mem_0/0", "type": type_, "member_id": "mem_0"}
    return Task(**{**fields, "status": status, "result": result, "created_at": NOW, **more})


def test_a_member_is_probed_once_in_a_period() -> None:
    (due,) = seen().looks
    assert (due.type, due.member_id) == ("probe.http", "mem_0")
    done = look("probe.http", "succeeded", step=due.step)
    assert seen(done).looks == ()
    (next_one,) = seen(done, now=NOW + timedelta(seconds=WATCH_SECONDS)).looks
    assert next_one.step != due.step


def test_a_look_that_is_under_way_is_waited_for() -> None:
    assert seen(look("probe.http", "claimed"), now=NOW + timedelta(hours=1)).looks == ()


def test_a_probe_that_succeeds_is_health() -> None:
    found = seen(look("probe.http", "succeeded"))
    assert (found.members[0].status, found.members[0].health, found.health) == ("ready", "healthy", "healthy")


def test_a_failed_probe_is_reported_and_the_program_is_inspected() -> None:
    (first,) = seen().looks
    failed = look("probe.http", "failed", failure_code="probe_failed", failure_detail="no answer", step=first.step)
    found = seen(failed)
    assert (found.members[0].status, found.members[0].health, found.health) == ("degraded", "degraded", "degraded")
    assert found.members[0].health_detail == "no answer"
    (due,) = found.looks
    assert due.type == "service.inspect"


def test_a_program_that_has_ended_is_reported_with_its_exit_code_and_last_lines() -> None:
    result = {"state": "failed", "exit_code": 3, "restarts": 5, "last_lines": ["one", "no such module"]}
    found = seen(look("service.inspect", "succeeded", result))
    observed = found.members[0]
    assert (observed.health, observed.detail["restarts"]) == ("degraded", 5)
    assert "exit code 3" in observed.health_detail
    assert "no such module" in observed.health_detail


def test_a_removed_member_is_not_observed() -> None:
    for status in ("requested", "joining", "draining", "drained", "failed", "removing", "removed"):
        found = seen(status=status)
        assert (found.members, found.looks) == ((), ())


def test_what_was_seen_before_the_member_came_up_last_says_nothing() -> None:
    failed = look("probe.http", "failed", failure_code="probe_failed")
    one = member(0, status="ready", adapter_detail={"since": (NOW + timedelta(seconds=1)).isoformat()})
    view = InstanceView(
        instance=Instance(id="ins_1"), manifest=manifest_of("hello"), members=[one], tasks=[failed], now=NOW
    )
    assert watch(view).members == ()
    assert len(watch(view).looks) == 1


def test_a_member_after_a_drain_that_was_taken_back_is_degraded() -> None:
    one = member(0, status="ready", adapter_detail={"quiet": "its program has ended (exited)"})
    view = InstanceView(instance=Instance(id="ins_1"), manifest=manifest_of("hello"), members=[one], now=NOW)
    (observed,) = watch(view).members
    assert (observed.status, observed.health) == ("degraded", "degraded")
    assert "reconcile" in (observed.health_detail or "")


def test_while_somebody_is_at_work_nothing_is_seen() -> None:
    at_work = [Operation(id="opr_1", kind="restart")]
    failed = look("probe.http", "failed", failure_code="probe_failed")
    found = watch(
        InstanceView(
            instance=Instance(id="ins_1"),
            manifest=manifest_of("hello"),
            members=[member(0, status="ready")],
            tasks=[failed],
            now=NOW,
            operations=at_work,
        )
    )
    assert (found.members, found.looks) == ((), ())


def test_a_view_from_the_platform_can_be_watched() -> None:
    plain = {"id": "tsk_1", "operation_id": None, "step": "watch/mem_0/1", "type": "probe.http", "status": "succeeded"}
    assert not msgspec.convert(plain, Task).operation_id


def test_counters_of_the_manifest_are_read_beside_the_probe_and_say_nothing_about_health() -> None:
    manifest = manifest_of("hello")
    port = manifest["runtime_profile"]["ports"][0]["name"]
    counters = [{"metric": "hello_requests_total", "unit": "request"}]
    manifest = {**manifest, "metering": [{"port": port, "counters": counters}]}
    instance = Instance(id="ins_1", status="running", app_slug="hello")
    one = member(0, status="ready", health="healthy")

    def watched(*tasks: Task) -> Any:
        return watch(InstanceView(instance=instance, manifest=manifest, members=[one], tasks=list(tasks), now=NOW))

    probe, meter = watched().looks
    assert (probe.step.split("/")[0], meter.step.split("/")[0], meter.type) == ("watch", "meter", "probe.http")
    assert meter.arguments["metrics"] == ["hello_requests_total", "process_start_time_seconds"]
    samples = ["process_start_time_seconds 1893450000", "hello_requests_total 12"]
    done = look("probe.http", "succeeded", {"samples": samples}, step=meter.step)
    found = watched(done)
    assert (found.members, found.health) == ((), None), "a look at counters is not one at health"
    assert [(each.unit, each.value, each.member_id) for each in found.readings] == [
        ("request", 0, "mem_0"),
        ("request", 12, "mem_0"),
    ]
    assert [each.step.split("/")[0] for each in found.looks] == ["watch"]
