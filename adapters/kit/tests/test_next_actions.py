"""The next actions of a plan: state in, actions out."""

from datetime import timedelta

import pytest

from adapters.kit.tests.sample_views import NOW, member, operation, task, view
from mooring_adapter import (
    Barrier,
    Blocked,
    Failure,
    Finish,
    MakeSecret,
    OnFailure,
    Plan,
    PlanRefused,
    ReportEndpoint,
    ReportMember,
    RunTask,
    Step,
    StepRecord,
    Wait,
)
from mooring_adapter.instance_controller import report_parts, task_batches
from mooring_adapter.next_actions import NextActions, cancelling, next_actions
from mooring_adapter.platform_client import TASKS_MAX


def run(name: str, of: str, **more: object) -> RunTask:
    return RunTask(step=name, member_id=of, type="process.run", **more)  # type: ignore[arg-type]


def made(found: NextActions) -> list[str]:
    return [each.name for each in found.tasks]


def test_steps_of_one_member_follow_each_other_and_members_go_side_by_side() -> None:
    plan = Plan((run("a1", "a"), run("a2", "a"), run("b1", "b"), run("b2", "b"), Finish()))
    found = next_actions(plan, view(member("a"), member("b")), operation())
    assert made(found) == ["a1", "b1"]
    found = next_actions(plan, view(member("a"), member("b"), tasks=(task("a1"), task("b1", "queued"))), operation())
    assert made(found) == ["a2"]
    assert found.finish is None


def test_a_step_without_a_member_waits_for_all_before_it_and_holds_all_behind_it() -> None:
    plan = Plan((run("a1", "a"), Barrier(step="first"), run("b1", "b"), Finish()))
    assert made(next_actions(plan, view(), operation())) == ["a1"]
    assert made(next_actions(plan, view(tasks=(task("a1"),)), operation())) == ["b1"]
    assert next_actions(plan, view(tasks=(task("a1"), task("b1"))), operation()).finish is not None


def test_after_replaces_the_order_of_the_list() -> None:
    plan = Plan((run("a1", "a"), run("b1", "b", after=("a1",)), Finish()))
    assert made(next_actions(plan, view(), operation())) == ["a1"]
    assert made(next_actions(plan, view(tasks=(task("a1"),)), operation())) == ["b1"]


def test_a_report_and_what_follows_it_go_in_one_round() -> None:
    plan = Plan((ReportMember(step="join", member_id="a", status="joining"), run("a1", "a"), Finish()))
    found = next_actions(plan, view(member("a")), operation(status="accepted"))
    assert found.report() == {
        "begin": True,
        "steps": [{"name": "join", "status": "done"}, {"name": "a1", "status": "running"}],
        "members": [{"id": "a", "status": "joining"}],
    }
    assert made(found) == ["a1"]


def test_what_the_members_state_shows_is_not_reported_again() -> None:
    plan = Plan((ReportMember(step="join", member_id="a", status="joining"), run("a1", "a"), Finish()))
    found = next_actions(plan, view(member("a", "ready"), tasks=(task("a1"),)), operation())
    assert found.members == {}
    assert found.finish is not None


def test_a_step_that_is_noted_as_done_is_not_done_again() -> None:
    noted = [StepRecord(name="slow", status="done")]
    plan = Plan((ReportMember(step="slow", member_id="a", status="degraded"), Finish()))
    found = next_actions(plan, view(member("a", "ready")), operation("upgrade", steps=noted))
    assert found.members == {}
    assert found.finish is not None


def test_a_report_has_one_state_per_member() -> None:
    steps = (
        ReportMember(step="down", member_id="a", status="degraded"),
        ReportMember(step="up", member_id="a", status="ready"),
        Finish(),
    )
    found = next_actions(Plan(steps), view(member("a", "ready")), operation("upgrade"))
    assert found.members["a"]["status"] == "degraded"
    assert found.finish is None


def test_a_failed_task_ends_the_operation_with_a_code_of_the_list_and_its_last_lines() -> None:
    failed = task("a1", "failed", failure_code="image_pull_failed", failure_detail="no such digest", last_lines=["404"])
    found = next_actions(
        Plan((run("a1", "a"), run("b1", "b"), Finish())), view(member("a", "joining"), tasks=(failed,)), operation()
    )
    assert found.tasks == []
    assert found.finish is not None
    assert found.finish.failure == Failure("image_pull_failed", "a1: no such digest", ("404",))
    assert found.members["a"]["status"] == "failed"


def test_a_task_that_may_fail_its_member_alone_lets_the_others_go_on() -> None:
    steps: tuple[Step, ...] = (
        run("a1", "a", on_failure=OnFailure.FAIL_MEMBER),
        run("a2", "a"),
        run("b1", "b"),
        Finish(),
    )
    failed = task("a1", "failed", failure_code="exited", exit_code=3)
    here = view(member("a", "joining"), member("b", "joining"), tasks=(failed,))
    found = next_actions(Plan(steps), here, operation("add"))
    assert made(found) == ["b1"]
    assert found.members["a"]["failure"]["code"] == "runtime_error"
    here = view(member("a", "failed", failure_code="runtime_error"), member("b", "ready"), tasks=(failed, task("b1")))
    end = next_actions(Plan(steps), here, operation("add")).finish
    assert end is not None
    assert (end.outcome, end.failure and end.failure.code) == ("failed", "runtime_error")


def test_a_plan_may_tolerate_failures() -> None:
    steps = (run("a1", "a", on_failure=OnFailure.FAIL_MEMBER), Finish(tolerates_failures=True))
    failed = task("a1", "failed", failure_code="exited")
    end = next_actions(Plan(steps), view(member("a", "failed"), tasks=(failed,)), operation()).finish
    assert end is not None
    assert end.outcome == "succeeded"


def test_an_attempt_that_was_cut_off_is_made_again_a_bounded_number_of_times() -> None:
    plan = Plan((run("a1", "a", attempts=2), Finish()))
    cut = task("a1", "failed", failure_code="interrupted")
    assert made(next_actions(plan, view(member("a"), tasks=(cut,)), operation())) == ["a1/2"]
    twice = (cut, task("a1/2", "failed", failure_code="interrupted"))
    assert next_actions(plan, view(member("a"), tasks=twice), operation()).finish is not None
    refused = task("a1", "failed", failure_code="permission_denied")
    end = next_actions(plan, view(member("a"), tasks=(refused,)), operation()).finish
    assert end is not None
    assert end.failure is not None
    assert end.failure.code == "permission_denied"


def test_a_lost_node_fails_what_is_under_way_on_it() -> None:
    lost = member("a", "failed", failure_code="node_lost")
    end = next_actions(Plan((run("a1", "a"), Finish())), view(lost, tasks=(task("a1", "queued"),)), operation()).finish
    assert end is not None
    assert end.failure is not None
    assert end.failure.code == "node_lost"


def test_a_blocker_is_reported_once_and_cleared_when_it_is_gone() -> None:
    blocked = Plan((Blocked(step="wait", code="quorum", detail="too few"), Finish()))
    report = next_actions(blocked, view(), operation()).report()
    assert report == {"blocked": {"code": "quorum", "detail": "too few"}}
    assert next_actions(blocked, view(), operation(status="blocked", blocker_code="quorum")).is_empty
    gone = next_actions(
        Plan((run("a1", "a"), Finish())), view(), operation(status="blocked", blocker_code="quorum")
    ).report()
    assert gone["blocked"] is None


def test_a_blocker_that_names_something_else_is_reported_again() -> None:
    known = operation(status="blocked", blocker_code="not_quiet", blocker="it runs 42")
    now = Plan((Blocked(step="busy", code="not_quiet", detail="it runs 43"),))
    assert next_actions(now, view(), known).report() == {"blocked": {"code": "not_quiet", "detail": "it runs 43"}}


def test_a_step_that_the_plan_no_longer_has_ends_with_its_task() -> None:
    recorded = [StepRecord(name="check/1", status="running"), StepRecord(name="check/2", status="running")]
    seen = view(member("a"), tasks=(task("check/1", "failed"), task("check/2", "claimed")))
    found = next_actions(Plan((run("check/3", "a"),)), seen, operation(steps=recorded))
    assert found.steps["check/1"] == {"name": "check/1", "status": "done"}
    assert "check/2" not in found.steps, "its task still runs"


def test_a_wait_ends_by_the_platforms_clock() -> None:
    later = NOW + timedelta(seconds=5)
    plan = Plan((Wait(step="pause", until=later), Finish()))
    found = next_actions(plan, view(), operation())
    assert (found.finish, found.wake_at) == (None, later)
    plan = Plan((Wait(step="pause", until=NOW), Finish()))
    assert next_actions(plan, view(), operation()).finish is not None


def test_an_endpoint_is_reported_with_the_task_that_opened_it_beside_those_that_are_known() -> None:
    plan = Plan(
        (run("start", "a"), ReportEndpoint(step="web", name="web", member_id="a", port=80, task="start"), Finish())
    )
    found = next_actions(plan, view(member("a", "ready"), tasks=(task("start"),)), operation())
    assert found.instance["endpoints"] == [
        {"name": "web", "member_id": "a", "protocol": "http", "port": 80, "task_id": "task-start"}
    ]


def test_a_secret_is_made_before_what_follows_it() -> None:
    plan = Plan((MakeSecret(step="token", name="token"), run("a1", "a"), Finish()))
    found = next_actions(plan, view(), operation())
    assert [each.name for each in found.secrets] == ["token"]
    assert found.steps["token"] == {"name": "token", "status": "done"}  # it is stored before that is reported
    assert made(found) == ["a1"]
    again = next_actions(plan, view(), operation(steps=[StepRecord(name="token", status="done")]))
    assert (again.secrets, made(again)) == ([], ["a1"])


def test_a_report_that_only_says_how_far_tasks_are_may_wait_and_no_other_does() -> None:
    plan = Plan((run("a1", "a"), run("b1", "b"), Barrier(step="both"), Finish()))
    both = view(member("a", "joining"), member("b", "joining"))
    asked = next_actions(plan, both, operation())
    assert (made(asked), asked.report_may_wait, asked.does_nothing) == (["a1", "b1"], True, False)
    assert not next_actions(plan, both, operation(status="accepted")).report_may_wait  # it reports the begin
    begun = [StepRecord(name=name, status="running") for name in ("a1", "b1")]
    half = view(*both.members, tasks=(task("a1"), task("b1", "claimed")))
    shown = next_actions(plan, half, operation(steps=begun))
    assert list(shown.steps) == ["a1"]
    assert (shown.report_may_wait, shown.does_nothing) == (True, True)
    over = view(*both.members, tasks=(task("a1"), task("b1")))
    assert not next_actions(plan, over, operation(steps=begun)).report_may_wait


def test_steps_skipped_by_a_failure_are_not_reported_as_done() -> None:
    plan = Plan((MakeSecret(step="token", name="token"), run("a1", "a", after=()), Finish()))
    failed = next_actions(plan, view(member("a"), tasks=(task("a1", "failed", failure_code="exited"),)), operation())
    assert failed.finish is not None
    assert (failed.secrets, "token" in failed.steps) == ([], False)


def test_a_large_plan_notes_nothing_that_the_members_say_themselves() -> None:
    names = [f"m{number}" for number in range(200)]
    steps = [
        step
        for name in names
        for step in (ReportMember(step=f"join/{name}", member_id=name, status="joining"), run(f"start/{name}", name))
    ]
    found = next_actions(Plan((*steps, Finish())), view(*(member(name) for name in names)), operation("add"))
    assert (len(found.members), len(found.tasks), found.steps) == (200, 200, {})
    assert [len(each.get("members", ())) for each in report_parts(found.report())] == [200]


def test_the_tasks_of_a_member_are_asked_for_in_one_request_and_in_order() -> None:
    """A node does them in the order of their creation."""
    names = [f"m{number}" for number in range(30)]
    steps = [run(f"{verb}/{name}", name, after=()) for verb in ("write", "start", "prove", "look") for name in names]
    found = next_actions(Plan((*steps, Finish())), view(*(member(name) for name in names)), operation("add"))
    requests = task_batches(found.tasks)
    assert sorted(len(each) for each in requests) == [24, 48, 48]
    assert max(map(len, requests)) <= TASKS_MAX
    for name in names:
        (mine,) = [each for each in requests if any(wanted.task.member_id == name for wanted in each)]
        order = [wanted.name for wanted in mine if wanted.task.member_id == name]
        assert order == [f"{verb}/{name}" for verb in ("write", "start", "prove", "look")]


def test_a_long_report_goes_in_parts_and_what_is_done_is_noted_last() -> None:
    parts = report_parts({"begin": True, "members": [{"id": str(n)} for n in range(250)], "steps": [{"name": "all"}]})
    assert [sorted(each) for each in parts] == [["begin"], ["members"], ["members"], ["steps"]]


def test_what_is_cancelled_waits_for_what_is_under_way_and_begins_nothing() -> None:
    under_way = view(tasks=(task("a1", "claimed"),))
    assert cancelling(under_way, operation(status="cancelling")).steps == ()
    (end,) = cancelling(view(tasks=(task("a1"),)), operation(status="cancelling")).steps
    assert isinstance(end, Finish)
    assert end.outcome == "cancelled"


def test_a_plan_with_one_name_for_two_steps_is_refused() -> None:
    with pytest.raises(PlanRefused, match="twice: a1"):
        Plan((run("a1", "a"), run("a1", "b")))
    with pytest.raises(PlanRefused, match="which is not a step of this plan"):
        Plan((run("a1", "a", after=("a0",)),))
