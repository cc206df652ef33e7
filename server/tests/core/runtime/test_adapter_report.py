"""Reports of adapters: state in, decision out."""

from dataclasses import replace
from typing import Any

import pytest

from mooring.core.kernel.decision import Decision, RowGuard, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.adapter_report import (
    AdapterReport,
    BlockerReport,
    FailureReport,
    HoldReport,
    InstanceReport,
    MemberReport,
    ReportableState,
    StepReport,
    take_report,
    with_correlation,
)
from mooring.core.runtime.claim import InstanceClaim, require_fence
from mooring.core.runtime.instance import InstanceHealth
from mooring.core.runtime.member import MEMBER, MemberState
from mooring.core.runtime.operation import OperationFailure, OperationKind, StepState
from server.tests.support.decision_context import context
from server.tests.support.runtime_rows import ACCOUNT, NEXT, instance, member, operation, seen
from tests.support.rows import every_row

FAILURE = FailureReport(OperationFailure.RUNTIME_ERROR, "it ended")
STEP = StepReport("pull", StepState.RUNNING)


def moves(decision: Decision[Any]) -> list[tuple[str, str]]:
    """Which nouns go where."""
    return [(each.noun, str(each.edge.target)) for each in decision.writes if isinstance(each, StateChange)]


def changes(decision: Decision[Any]) -> dict[str, Any]:
    """What is changed beside transitions."""
    return {name: value for each in decision.writes if isinstance(each, Update) for name, value in each.set.items()}


def test_what_is_written_is_guarded_by_the_fence_and_what_is_not_is_not() -> None:
    report = AdapterReport(instance=InstanceReport(health=InstanceHealth.HEALTHY))
    written = take_report(context(), seen(), report)
    assert [each for each in written.writes if isinstance(each, RowGuard)] == [
        RowGuard("instance_claim", {"instance_id": "ins_1", "fence": 3})
    ]
    again = take_report(context(), seen(of=instance(health="healthy")), report)
    assert (again.writes, again.events, again.audits) == ((), (), ())


@every_row("claim", [InstanceClaim("ins_1", ACCOUNT, None, 3), InstanceClaim("ins_1", ACCOUNT, "holder", 4)])
def test_a_fence_that_is_not_the_newest_or_that_nobody_holds_is_refused(claim: InstanceClaim) -> None:
    with pytest.raises(Refusal) as refused:
        require_fence(claim, 3)
    assert refused.value.code is Code.LEASE_LOST


def test_a_deploy_that_begins_makes_its_instance_start() -> None:
    there = seen(of=instance(status="created"), during=operation(OperationKind.DEPLOY, "accepted"))
    decision = take_report(context(), there, AdapterReport(begin=True))
    assert moves(decision) == [("operation", "running"), ("instance", "starting")]


def test_a_deploy_that_the_worker_unblocked_has_not_begun_yet() -> None:
    during = operation(OperationKind.DEPLOY, started_at=None, attempt_fence=None)
    decision = take_report(context(), seen(of=instance(status="created"), during=during), AdapterReport(begin=True))
    assert moves(decision) == [("instance", "starting")]
    assert changes(decision)["attempts"] == 1
    assert changes(decision)["started_at"] == context().now


def test_steps_before_the_beginning_are_refused() -> None:
    with pytest.raises(Refusal) as refused:
        take_report(context(), seen(during=operation(OperationKind.ADD, "accepted")), AdapterReport(steps=(STEP,)))
    assert refused.value.code is Code.ILLEGAL_TRANSITION


@every_row("columns", [{"status": "succeeded"}, {"phase": "platform"}, {"dispatched_at": None}])
def test_nothing_is_reported_on_an_operation_that_is_not_the_adapters_turn(columns: dict[str, Any]) -> None:
    during = replace(operation(OperationKind.REMOVE), **columns)
    with pytest.raises(Refusal) as refused:
        take_report(context(), seen(during=during), AdapterReport(steps=(STEP,)))
    assert refused.value.code is Code.CONFLICT


def test_a_step_that_is_begun_again_counts_one_attempt_more() -> None:
    during = operation(OperationKind.ADD)
    for status, attempts in (("running", 1), ("failed", 1), ("running", 2), ("done", 2)):
        report = AdapterReport(steps=(StepReport("pull", StepState(status)),))
        (step,) = changes(take_report(context(), seen(during=during), report))["steps"]
        assert (step["status"], step["attempts"]) == (status, attempts)
        during = replace(during, steps=[step])


def test_an_operation_that_is_cancelled_is_not_blocked_any_more() -> None:
    during = operation(OperationKind.ADD, "cancelling")
    decision = take_report(context(), seen(during=during), AdapterReport(blocked=BlockerReport("x", "y")))
    assert decision.writes == ()


CELLS = [(state, wanted) for state in MemberState for wanted in ReportableState]


@every_row(("state", "wanted"), CELLS)
def test_a_member_goes_where_the_lifecycle_lets_it_and_nowhere_else(
    state: MemberState, wanted: ReportableState
) -> None:
    """Every state, every report: the same is accepted, an edge is taken, everything else is refused."""
    report = MemberReport(id="mem_head", status=wanted, failure=FAILURE if wanted is ReportableState.FAILED else None)
    targets = {edge.target for edge in MEMBER.edges if edge.source is state}
    meant = MemberState(wanted.value)
    may = meant in targets and not (
        (state is MemberState.FAILED and meant is MemberState.JOINING)  # only inside of an operation
        or (state in (MemberState.DRAINING, MemberState.DRAINED) and meant is MemberState.READY)
    )
    there = seen(member(status=state.value))
    if meant is state:
        assert take_report(context(), there, AdapterReport(members=(report,))).writes == ()
    elif may:
        assert moves(take_report(context(), there, AdapterReport(members=(report,)))) == [("member", wanted.value)]
    else:
        with pytest.raises(Refusal) as refused:
            take_report(context(), there, AdapterReport(members=(report,)))
        assert refused.value.code is Code.ILLEGAL_TRANSITION


def test_a_failed_member_is_built_once_more_inside_of_a_repair() -> None:
    report = AdapterReport(members=(MemberReport(id="mem_head", status=ReportableState.JOINING),))
    there = seen(member(status="failed"), during=operation(OperationKind.REPAIR))
    assert moves(take_report(context(), there, report)) == [("member", "joining")]


def test_what_cannot_be_observed_is_not_drained() -> None:
    report = AdapterReport(members=(MemberReport(id="mem_head", status=ReportableState.DRAINED),))
    with pytest.raises(Refusal) as refused:
        take_report(context(), seen(member(status="draining"), unreachable=frozenset({"mem_head"})), report)
    assert refused.value.code is Code.CONFLICT


def test_an_adapter_sets_and_clears_its_own_holds_alone() -> None:
    theirs = {"owner": "usr_1", "reason": "mine", "since": "then"}
    own = {"owner": ACCOUNT, "reason": "old", "since": "then"}
    report = MemberReport(id="mem_head", holds=(HoldReport("new"),))
    after = changes(take_report(context(), seen(member(holds=[theirs, own])), AdapterReport(members=(report,))))[
        "holds"
    ]
    assert [(each["owner"], each["reason"]) for each in after] == [("usr_1", "mine"), (ACCOUNT, "new")]
    cleared = MemberReport(id="mem_head", holds=())
    left = changes(take_report(context(), seen(member(holds=[theirs, own])), AdapterReport(members=(cleared,))))[
        "holds"
    ]
    assert left == [theirs]


def test_a_member_runs_the_instances_version_or_the_one_that_the_operation_leads_to() -> None:
    report = AdapterReport(members=(MemberReport(id="mem_head", version="2.0.0"),))
    with pytest.raises(Refusal) as refused:
        take_report(context(), seen(member()), report)
    assert refused.value.code is Code.VALIDATION_FAILED
    during = operation(OperationKind.UPGRADE, target_pin=NEXT)
    decision = take_report(context(), seen(member(), during=during), report)
    assert changes(decision) == {"version": "2.0.0", "version_id": "ver_2"}


def test_a_member_of_another_instance_is_not_there() -> None:
    with pytest.raises(Refusal) as refused:
        take_report(
            context(), seen(), AdapterReport(members=(MemberReport(id="mem_other", health=InstanceHealth.HEALTHY),))
        )
    assert refused.value.code is Code.NOT_FOUND


def test_a_report_belongs_to_the_correlation_of_what_it_is_about() -> None:
    assert with_correlation(context(), seen()).correlation_id == instance().correlation_id
    during = operation(OperationKind.ADD, correlation_id="cor_of_the_add")
    assert with_correlation(context(), seen(during=during)).correlation_id == "cor_of_the_add"


@every_row("detail", [{"a": "x" * 20_000}, {"a": "\0"}])
def test_an_adapters_own_words_have_their_bounds(detail: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        take_report(context(), seen(), AdapterReport(instance=InstanceReport(detail=detail)))
    assert refused.value.code is Code.VALIDATION_FAILED
