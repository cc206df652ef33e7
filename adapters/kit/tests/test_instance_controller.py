"""The controller of an instance: late responses, the order of its requests, and what it reports when."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from adapters.kit.tests.sample_views import NOW, member, operation, task, view
from mooring_adapter import (
    Adapter,
    Barrier,
    Finish,
    InstanceView,
    MakeSecret,
    MemberObservation,
    Observation,
    Operation,
    Plan,
    Reading,
    ReportUsage,
    RunTask,
    StepRecord,
    Task,
    Usage,
)
from mooring_adapter.instance_controller import (
    CALM_SECONDS,
    OLD_VIEWS_MAX,
    SHOW_SECONDS,
    InstanceController,
    unrecorded_changes,
)
from mooring_adapter.platform_client import HeldClaim, PlatformClient
from mooring_sdk import MooringError


class ViewSequence:
    """A platform that returns these views, one after the other, and records how operations end."""

    def __init__(self, *seconds: float) -> None:
        self.views = [self._view(each) for each in seconds]
        self.finished = 0

    def _view(self, seconds: float) -> Mapping[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(view(member("a", "ready"), under=operation("restart")))
        return plain | {"now": (NOW + timedelta(seconds=seconds)).isoformat()}

    async def read(self, held: HeldClaim) -> Mapping[str, Any]:
        return self.views.pop(0)

    async def finish(self, held: HeldClaim, operation: Operation, report: Mapping[str, Any]) -> None:
        self.finished += 1


def plan(view: InstanceView, operation: Operation) -> Plan:
    return Plan((Finish(),))


def controller_for(platform: ViewSequence) -> InstanceController:
    return InstanceController(
        Adapter(app_slug="app", plan=plan), cast(PlatformClient, platform), HeldClaim("instance", 1)
    )


@pytest.mark.anyio
async def test_a_view_that_was_overtaken_is_read_again_soon_and_nothing_is_done_by_it() -> None:
    platform = ViewSequence(10, 5, 20)
    controller = controller_for(platform)
    await controller._round()
    assert platform.finished == 1
    assert 0 < await controller._round() < CALM_SECONDS / 10
    assert platform.finished == 1
    await controller._round()
    assert platform.finished == 2


@pytest.mark.anyio
async def test_the_very_view_that_was_seen_before_is_read_again_soon_too() -> None:
    """It may be older than the event that woke the controller, which would miss the news if it rested on it."""
    platform = ViewSequence(10, 10, 20)
    controller = controller_for(platform)
    await controller._round()
    assert 0 < await controller._round() < CALM_SECONDS / 10
    assert platform.finished == 1
    await controller._round()
    assert platform.finished == 2


@pytest.mark.anyio
async def test_a_platform_whose_clock_was_set_back_is_believed_after_a_few_looks() -> None:
    platform = ViewSequence(1_000, *range(OLD_VIEWS_MAX + 2))
    controller = controller_for(platform)
    for _ in range(OLD_VIEWS_MAX + 3):
        await asyncio.wait_for(controller._round(), 10)
    assert platform.finished == 3


class RecordingPlatform(ViewSequence):
    """A platform that records its requests, in order."""

    def __init__(self, *views: InstanceView) -> None:
        super().__init__()
        self.views = [
            msgspec.to_builtins(each) | {"now": (NOW + timedelta(seconds=number / 10)).isoformat()}
            for number, each in enumerate(views)
        ]
        self.asked: list[str] = []

    async def make_secret(self, held: HeldClaim, operation: Operation, body: MakeSecret) -> None:
        self.asked.append(f"secret {body.name}")

    async def report(self, held: HeldClaim, report: Mapping[str, Any], operation: Operation | None = None) -> None:
        begun = ["begin"] if report.get("begin") else []
        self.asked.append(" ".join([*begun, "steps", *(each["name"] for each in report.get("steps", ()))]))

    async def create_task(self, held: HeldClaim, operation: Operation | None, body: Mapping[str, Any]) -> Task:
        self.asked.append(f"task {body['step']}")
        return task(body["step"], "queued")


def secretive(view: InstanceView, operation: Operation) -> Plan:
    run = RunTask(step="start", member_id="a", type="process.run")
    return Plan((MakeSecret(step="key", name="key"), run, Barrier(step="all"), Finish()))


@pytest.mark.anyio
async def test_a_secret_is_stored_before_it_is_reported_and_granted_to_a_task() -> None:
    platform = RecordingPlatform(view(member("a", "ready"), under=operation("restart")))
    controller = InstanceController(
        Adapter(app_slug="app", plan=secretive), cast(PlatformClient, platform), HeldClaim("instance", 1)
    )
    await controller._round()
    assert platform.asked == ["secret key", "steps key start", "task start"]


class Refusing(RecordingPlatform):
    """A platform that refuses secrets."""

    async def make_secret(self, held: HeldClaim, operation: Operation, body: MakeSecret) -> None:
        raise MooringError("there is a secret of this name", code="name_taken", status=409)

    async def finish(self, held: HeldClaim, operation: Operation, report: Mapping[str, Any]) -> None:
        self.asked.append(f"finish {report['outcome']}")


@pytest.mark.anyio
async def test_an_operation_is_begun_before_its_first_secret_so_that_a_refusal_of_it_can_end_it() -> None:
    platform = Refusing(view(member("a", "ready"), under=operation("restart", status="accepted")))
    controller = InstanceController(
        Adapter(app_slug="app", plan=secretive), cast(PlatformClient, platform), HeldClaim("instance", 1)
    )
    await controller._round()
    assert platform.asked == ["begin steps", "finish failed"]


@pytest.mark.anyio
async def test_the_progress_of_tasks_is_reported_a_little_later_or_with_the_next_report() -> None:
    def two(view: InstanceView, operation: Operation) -> Plan:
        both = [RunTask(step=each, member_id=each, type="process.run") for each in ("a", "b")]
        return Plan((*both, Barrier(step="all"), Finish()))

    begun = operation("restart", steps=[StepRecord(name=each, status="running") for each in ("a", "b")])
    members = (member("a", "ready"), member("b", "ready"))
    half = view(*members, tasks=(task("a"), task("b", "claimed")), under=begun)
    platform = RecordingPlatform(half, half, half, half, half)
    controller = InstanceController(
        Adapter(app_slug="app", plan=two), cast(PlatformClient, platform), HeldClaim("instance", 1), lambda: NOW
    )
    assert await controller._round() == pytest.approx(SHOW_SECONDS)
    await controller._round()
    await controller._round()
    assert platform.asked == []  # 0.2 s after the first
    await controller._round()
    assert platform.asked == ["steps a"]
    fresh = view(*members, tasks=(task("a"),), under=operation("restart"))
    platform = RecordingPlatform(fresh, half)
    controller = InstanceController(
        Adapter(app_slug="app", plan=two), cast(PlatformClient, platform), HeldClaim("instance", 1), lambda: NOW
    )
    await controller._round()
    assert platform.asked == ["task b"]  # it is created at once, and shown as running later
    over = view(*members, tasks=(task("a"), task("b")), under=begun)
    platform = RecordingPlatform(half, over)
    controller = InstanceController(
        Adapter(app_slug="app", plan=two), cast(PlatformClient, platform), HeldClaim("instance", 1)
    )
    await controller._round()
    await controller._round()
    assert (platform.asked, platform.finished) == (["steps a b all"], 1)


class ConflictingPlatform(ViewSequence):
    """A platform that has one record with other content, and refuses every request that contains it."""

    def __init__(self) -> None:
        super().__init__(10)
        self.stored: list[str] = []

    async def report_usage(self, held: HeldClaim, usage: Sequence[Usage]) -> None:
        if any(each.record_id == "odd" for each in usage):
            raise MooringError("the record odd is stored with another content", code="conflict", retryable=True)
        self.stored += [each.record_id for each in usage]


@pytest.mark.anyio
async def test_a_record_stored_with_other_content_blocks_neither_the_others_nor_the_operation() -> None:
    def metered(view: InstanceView, operation: Operation) -> Plan:
        records = [
            Usage(record_id=name, unit="hours", started_at=NOW, ended_at=NOW, quantity=1) for name in ("a", "odd", "b")
        ]
        done = operation.is_done("usage")
        return Plan((Finish(),)) if done else Plan((ReportUsage(step="usage", usage=tuple(records)), Finish()))

    platform = ConflictingPlatform()
    reported: list[Mapping[str, Any]] = []

    async def report(held: HeldClaim, report: Mapping[str, Any], operation: Operation | None = None) -> None:
        reported.append(report)

    platform.report = report  # type: ignore[attr-defined]
    controller = InstanceController(
        Adapter(app_slug="app", plan=metered), cast(PlatformClient, platform), HeldClaim("instance", 1)
    )
    await controller._round()
    assert platform.stored == ["a", "b"]
    assert reported[-1] == {"steps": [{"name": "usage", "status": "done"}]}


class MeteringPlatform(ViewSequence):
    """A platform that refuses every request with a reading of one series."""

    def __init__(self) -> None:
        super().__init__(10)
        self.sent: list[list[str]] = []

    async def report_readings(self, held: HeldClaim, readings: Sequence[Reading]) -> None:
        self.sent.append([each.series for each in readings])
        if any(each.series == "odd" for each in readings):
            raise MooringError("the value falls inside its epoch", code="conflict", retryable=True)


@pytest.mark.anyio
async def test_a_series_that_is_refused_blocks_no_other_one_and_equal_readings_are_sent_once() -> None:
    platform = MeteringPlatform()
    read = tuple(
        Reading(series=name, epoch=1, seq=1, value=1, at=NOW, unit="tokens") for name in ("a", "odd", "z", "z")
    )
    adapter = Adapter(app_slug="app", plan=lambda view, operation: Plan(()))
    controller = InstanceController(adapter, cast(PlatformClient, platform), HeldClaim("instance", 1))
    for _ in range(2):
        await controller._watch(view(), lambda view: Observation(readings=read))
    assert platform.sent == [["a", "odd", "z", "z"], ["a"], ["odd"], ["z", "z"]]


def test_a_new_text_is_reported_with_the_figures_of_its_moment_though_the_health_is_the_same() -> None:
    instance = msgspec.structs.replace(view().instance, health="healthy", health_detail="2 workers")
    seen = view(member("a", "ready", health="healthy", health_detail="idle"), instance=instance)
    observed = MemberObservation(member_id="a", health="healthy", health_detail="3 jobs")
    found = Observation(members=(observed,), health="healthy", health_detail="3 workers", detail={"nodes": 3})
    assert unrecorded_changes(seen, found) == {
        "members": [{"id": "a", "health_detail": "3 jobs"}],
        "instance": {"health_detail": "3 workers", "detail": {"nodes": 3}},
    }
    known = msgspec.structs.replace(instance, health_detail="3 workers", adapter_detail={"nodes": 3})
    assert unrecorded_changes(view(instance=known), Observation(health="healthy", health_detail="3 workers")) == {}
