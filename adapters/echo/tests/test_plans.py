"""The plans of echo: state in, steps out."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mooring_adapter import (
    Blocked,
    Finish,
    Instance,
    InstanceView,
    Member,
    Operation,
    Pin,
    Plan,
    RunTask,
    Task,
    next_actions,
)
from mooring_echo.actions import remember, say
from mooring_echo.members import port_of
from mooring_echo.plans import plan
from mooring_echo.watch import watch

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def members(status: str = "ready", *, seeds: int = 3, workers: int = 2) -> list[Member]:
    counts = {"seed": seeds, "worker": workers, "gate": 1}
    return [
        Member(id=f"{key}{number}", name=f"{key}-{number}", component_key=key, ordinal=number, status=status)
        for key, count in counts.items()
        for number in range(count)
    ]


def view(standing: list[Member], tasks: tuple[Task, ...] = (), **more: Any) -> InstanceView:
    instance = Instance(id="i", status="running", pin=Pin(version="1.0.0"), **more)
    return InstanceView(instance=instance, members=standing, tasks=list(tasks), now=NOW)


def operation(kind: str, *ids: str, **more: Any) -> Operation:
    until = NOW + timedelta(minutes=5)
    return Operation(id="op", kind=kind, status="running", begun=True, member_ids=list(ids), deadline_at=until, **more)


def end_of(found: Plan) -> Finish | None:
    last = found.steps[-1]
    return last if isinstance(last, Finish) else None


def begun(found: Plan, here: InstanceView, under: Operation) -> list[str]:
    return [each.name for each in next_actions(found, here, under).tasks]


def test_the_seeds_come_first() -> None:
    here, under = view(members("requested")), operation("deploy")
    assert begun(plan(here, under), here, under) == ["files/seed0", "files/seed1", "files/seed2"]


def test_an_even_number_of_seeds_is_refused() -> None:
    end = end_of(plan(view(members("requested", seeds=2)), operation("deploy")))
    assert end is not None
    assert end.failure is not None
    assert end.failure.code == "config_refused"


def test_a_member_is_drained_when_a_probe_found_it_quiet_and_not_before() -> None:
    standing = members()
    standing[3] = Member(id="worker0", name="w", component_key="worker", status="draining")
    under = operation("drain", "worker0")
    cordon = Task(id="t1", operation_id="op", step="cordon/worker0", status="succeeded")
    busy = Task(id="t2", operation_id="op", step="quiet/worker0/1", status="failed", finished_at=NOW)
    quiet = Task(id="t3", operation_id="op", step="quiet/worker0/2", status="succeeded", finished_at=NOW)
    here = view(standing, (cordon, busy))
    found = next_actions(plan(here, under), here, under)
    assert (found.members, found.finish, found.wake_at) == ({}, None, NOW + timedelta(seconds=1))
    here = view(standing, (cordon, busy, quiet))
    found = next_actions(plan(here, under), here, under)
    assert found.members["worker0"]["status"] == "drained"
    assert found.finish is not None


def test_a_drain_that_finds_no_quiet_in_time_fails_as_not_quiet() -> None:
    under = Operation(id="op", kind="drain", status="running", member_ids=["worker0"], deadline_at=NOW)
    busy = Task(id="t2", operation_id="op", step="quiet/worker0/1", status="failed", finished_at=NOW)
    end = end_of(plan(view(members(), (busy,)), under))
    assert end is not None
    assert end.failure is not None
    assert end.failure.code == "not_quiet"


def test_a_seed_goes_only_while_a_majority_stands() -> None:
    assert not isinstance(plan(view(members()), operation("remove", "seed0")).steps[0], Blocked)
    standing = members()
    standing[1] = Member(id="seed1", name="seed-1", component_key="seed", status="failed")
    first = plan(view(standing), operation("remove", "seed0")).steps[0]
    assert isinstance(first, Blocked)
    assert first.code == "quorum"


def test_an_upgrade_takes_one_of_three_seeds_at_a_time() -> None:
    under = operation("upgrade", target_pin=Pin(version="1.1.0"))
    here = view(members())
    assert begun(plan(here, under), here, under) == ["files/seed0"]


def test_a_failed_member_is_removed_without_being_asked_anything() -> None:
    standing = members()
    standing[4] = Member(id="worker1", name="w", component_key="worker", status="failed", failure_code="exited")
    under = operation("remove", "worker1")
    asked = [each for each in plan(view(standing), under).steps if isinstance(each, RunTask)]
    assert "worker1" not in {each.member_id for each in asked}


def test_a_lost_node_is_not_waited_for_at_the_end() -> None:
    standing = members()
    standing[0] = Member(id="seed0", name="s", component_key="seed", status="failed", failure_code="node_lost")
    asked = [each for each in plan(view(standing), operation("decommission")).steps if isinstance(each, RunTask)]
    assert {each.member_id for each in asked} == {each.id for each in standing[1:]}


def test_say_answers_with_what_the_node_printed() -> None:
    said = Task(id="t", operation_id="op", step="say", status="succeeded", member_id="gate0", last_lines=["hello"])
    under = operation("action", request={"action": "echo.say", "input": {"text": "hello"}})
    end = end_of(say(view(members(), (said,)), under))
    assert end is not None
    assert end.output == {"text": "hello"}


def test_what_no_majority_of_the_seeds_kept_is_not_remembered() -> None:
    under = operation("action", request={"action": "echo.remember", "input": {"text": "x"}})
    tasks = tuple(
        Task(id=f"t{n}", operation_id="op", step=f"remember/seed{n}", member_id=f"seed{n}", status=status)
        for n, status in enumerate(("succeeded", "failed", "failed"))
    )
    end = end_of(remember(view(members(), tasks), under))
    assert end is not None
    assert end.outcome == "failed"


def test_usage_is_reported_once_per_interval_by_any_replica() -> None:
    first = watch(view(members()))
    assert first.usage == ()
    assert first.detail == {"metered_until": int(NOW.timestamp()), "metered_members": 6}
    begun_at = int((NOW - timedelta(minutes=6)).timestamp())
    again = watch(view(members(), adapter_detail={"metered_until": begun_at, "metered_members": 4}))
    (record,) = again.usage
    assert (record.record_id, record.quantity) == (f"ready/{begun_at}", 4), "what was recorded inside of the interval"
    assert again.detail == {"metered_until": begun_at + 300, "metered_members": 6}


def test_usage_counts_the_peak_of_the_interval() -> None:
    begun_at = int((NOW - timedelta(minutes=2)).timestamp())
    records: dict[str, Any] = {"metered_until": begun_at, "metered_members": 3}
    for present, peak in ((4, 4), (2, 4), (6, 6), (1, 6)):
        seen = watch(view(members()[:present], adapter_detail=records))
        assert seen.usage == ()
        records = dict(seen.detail or {})
        assert records["metered_members"] == peak, present
    over = {**records, "metered_until": begun_at - 300}
    (record,) = watch(view(members()[:2], adapter_detail=over)).usage
    assert record.quantity == 6, "the peak, not what was there at the beginning or at the end"


def test_a_member_whose_drain_was_taken_back_accepts_work_again() -> None:
    standing = members()
    standing[3] = Member(
        id="worker0", name="w", component_key="worker", status="ready", adapter_detail={"cordoned_by": "op"}
    )
    (look,) = watch(view(standing)).looks
    assert (look.step, look.type) == ("wanted/worker0/op", "probe.http")


def test_health_speaks_of_the_majority() -> None:
    assert watch(view(members())).health == "healthy"
    standing = members()
    for index in (0, 1):
        standing[index] = Member(id=f"seed{index}", name="s", component_key="seed", status="failed")
    seen = watch(view(standing))
    assert seen.health == "degraded"
    assert seen.health_detail is not None
    assert "not a majority" in seen.health_detail


def test_ports_are_the_same_in_every_language() -> None:
    assert port_of(Member(id="mem_1", component_key="seed")) == 20_000 + _by_hand("mem_1") % 12_000


def _by_hand(text: str) -> int:
    number = 5381
    for each in text.encode():
        number = (number * 33 + each) & 0xFFFFFFFF
    return number
