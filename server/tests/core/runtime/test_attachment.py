"""Attachments, state in and decision out: names, refusals, every end of their operations, the end of their instance."""

import itertools
import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.kernel.decision import Decision, Insert, StateChange, Write
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.lifecycle import IllegalTransition
from mooring.core.runtime.attachment import ACCOUNT_NAME_PATTERN, ATTACHMENTS_MAX, LIVE, AttachmentState, account_name
from mooring.core.runtime.attachment_change import (
    OPEN_MAX,
    AttachContext,
    DetachRequest,
    attach_project,
    detach_project,
    require_active,
)
from mooring.core.runtime.instance_change import cancel_operation
from mooring.core.runtime.operation import OperationKind
from mooring.core.runtime.operation_finish import FinishContext, FinishOutcome, OperationEnd, finish_operation
from server.tests.core.runtime.test_operation_finish import CANCELLED, DONE, FAILED
from server.tests.support.decision_context import NOW, context
from server.tests.support.instance_rows import Theatre, attachment, operation, theatre
from server.tests.support.runtime_rows import manifest as pinned
from server.tests.support.runtime_rows import seen as seen_rows
from server.tests.support.sample_decisions.attachments import attached, neighbour, shared
from server.tests.support.sample_decisions.instances import BOUNDS
from tests.support.rows import every_row

HERE = context()
REQUESTED = {"id": "att_1", "project_id": "prj_other", "account_name": "p-other"}


def attaching(**changed: Any) -> AttachContext:
    """A project that may be attached."""
    return replace(AttachContext(shared(HERE), neighbour(HERE), (), frozenset()), **changed)


def refusal(seen: AttachContext) -> Refusal:
    """Why a project is not attached."""
    with pytest.raises(Refusal) as raised:
        attach_project(HERE, seen, BOUNDS)
    return raised.value


def statuses(decision: Decision[Any]) -> list[tuple[str, str]]:
    """What moves where."""
    return [(each.noun, each.edge.target.value) for each in decision.writes if isinstance(each, StateChange)]


def of_attachment(decision: Decision[Any]) -> list[Write]:
    """What a decision writes of an attachment that is there."""
    return [each for each in decision.writes if not isinstance(each, Insert) and each.noun == "attachment"]


@every_row("slug", ["research", "root", "a" * 40, "ends-in-a-hyphen-where-it-is-cut-off-xy", "abc"])
def test_an_account_is_named_after_its_project_within_its_bounds(slug: str) -> None:
    plain = account_name(slug, "prj_1", ())
    assert re.fullmatch(ACCOUNT_NAME_PATTERN, plain)
    assert plain.startswith(f"p-{slug[:20]}")
    other = account_name(slug, "prj_2", {plain})
    assert re.fullmatch(ACCOUNT_NAME_PATTERN, other)
    assert other != plain
    assert other == account_name(slug, "prj_2", {plain, "p-another"}), "asked again, it is the same"


def test_an_accounts_name_is_not_handed_on_to_a_project_whose_mark_another_ones_slug_looks_like() -> None:
    marked = account_name("research", "prj_2", {"p-research"})
    other = account_name("research", "prj_2", {"p-research", marked})
    assert re.fullmatch(ACCOUNT_NAME_PATTERN, other)
    assert other not in ("p-research", marked)


def test_an_attachment_is_asked_for_with_the_operation_that_makes_it() -> None:
    decision = attach_project(HERE, attaching(), BOUNDS)
    made = decision.result
    rows = {each.noun: each.row for each in decision.writes if isinstance(each, Insert)}
    assert rows["operation"]["id"] == made.operation_id
    assert rows["operation"]["request"] == {"attachment": made.for_adapter()}
    assert rows["operation"]["project_id"] == made.owning_project_id != made.project_id
    assert {each.project_id for each in decision.audits} == {made.project_id, made.owning_project_id}
    assert {each.project_id for each in decision.events} == {made.project_id, made.owning_project_id}


def test_what_is_not_to_be_attached_is_refused_for_its_own_reason() -> None:
    seen = attaching()
    instance, lifecycle = seen.current.instance, seen.current.manifest
    assert lifecycle is not None
    own = replace(seen, project=replace(seen.project, id=instance.project_id))
    assert refusal(own).code is Code.CONFLICT
    alone = replace(seen, current=replace(seen.current, instance=replace(instance, control_plane_scope="project")))
    assert refusal(alone).code is Code.NOT_SUPPORTED
    without = replace(seen, current=replace(seen.current, manifest=replace(lifecycle, lifecycle=None)))
    assert refusal(without).code is Code.NOT_SUPPORTED
    stopping = replace(seen, current=replace(seen.current, instance=replace(instance, status="stopping")))
    assert refusal(stopping).code is Code.ILLEGAL_TRANSITION
    there = replace(seen, live=[attachment(project_id=seen.project.id)])
    assert refusal(there).details["attachment_id"] == "att_1"
    full = replace(seen, live=[attachment(id=f"att_{number}") for number in range(ATTACHMENTS_MAX)])
    assert refusal(full).code is Code.LIMIT_REACHED


def test_an_attachment_takes_work_while_it_is_active_and_so_much_of_it() -> None:
    active = attachment()
    assert require_active(active, ()).seen == {"id": "att_1", "generation": 0}
    for state in AttachmentState:
        if state is not AttachmentState.ACTIVE:
            with pytest.raises(Refusal, match=f"attachment is {state}"):
                require_active(attachment(state), ())
    own = [
        operation(OperationKind.ACTION, id=f"op_{each}", request={"attachment": REQUESTED}) for each in range(OPEN_MAX)
    ]
    with pytest.raises(Refusal, match="are open"):
        require_active(active, own)
    assert require_active(attachment(id="att_2"), own).seen["id"] == "att_2"


def test_a_detach_is_asked_for_once_and_hurried_when_that_is_asked_for() -> None:
    seen, active = attached(HERE, status="active")
    decision = detach_project(HERE, seen, active, DetachRequest(timeout_seconds=60))
    (made,) = [each.row for each in decision.writes if isinstance(each, Insert)]
    assert made["request"] == {"attachment": active.for_adapter(), "cancel_work": False, "timeout_seconds": 60}
    open_ = operation(OperationKind.DETACH, id=decision.result.operation_id)
    going, busy = decision.result, replace(seen, operations=[open_])
    assert detach_project(HERE, busy, going, DetachRequest()).writes == ()
    hurried = detach_project(HERE, busy, going, DetachRequest(cancel_work=True))
    assert (hurried.result.cancel_work, statuses(hurried)) == (True, [("operation", "cancelling")])
    assert detach_project(HERE, busy, hurried.result, DetachRequest(cancel_work=True)).writes == ()
    with pytest.raises(Refusal, match="cannot be cancelled"):
        cancel_operation(HERE, seen.instance, open_, "")


def test_what_is_over_or_was_never_active_has_nothing_to_detach() -> None:
    seen, made = attached(HERE)
    making = operation(OperationKind.ATTACH, id=made.operation_id)
    taken_back = detach_project(HERE, replace(seen, operations=[making]), made, DetachRequest())
    assert statuses(taken_back) == [("operation", "cancelling")]
    assert detach_project(HERE, seen, replace(made, status="detached"), DetachRequest()).writes == ()
    with pytest.raises(IllegalTransition):
        detach_project(HERE, seen, replace(made, status="refused"), DetachRequest())
    for wrong in (-1, 604_801):
        with pytest.raises(Refusal, match="timeout_seconds"):
            detach_project(HERE, seen, replace(made, status="active"), DetachRequest(timeout_seconds=wrong))


ENDS = {
    ("attach", "succeeded"): "active", ("attach", "failed"): "refused", ("attach", "cancelled"): "refused",
    ("detach", "succeeded"): "detached", ("detach", "failed"): "detaching", ("detach", "cancelled"): "detaching",
}  # fmt: skip
BEFORE = {"attach": "requested", "detach": "detaching"}


@every_row(("kind", "outcome"), ENDS)
def test_an_attachment_follows_what_its_adapter_says(kind: str, outcome: str) -> None:
    ending = {"succeeded": DONE, "failed": FAILED, "cancelled": CANCELLED}[outcome]
    status = "cancelling" if outcome == "cancelled" else "running"
    during = operation(kind, status, member_ids=[], request={"attachment": REQUESTED})
    before = attachment(BEFORE[kind], operation_id=during.id)
    finishing = FinishContext(seen_rows(during=during), during, pinned(), attachment=before)
    decision = finish_operation(HERE, finishing, ending)
    after = next((each for each in of_attachment(decision)), None)
    target = after.edge.target.value if isinstance(after, StateChange) else before.status
    assert target == ENDS[kind, outcome]
    other = replace(finishing, attachment=replace(before, operation_id="op_another"))
    assert of_attachment(finish_operation(HERE, other, ending)) == []


def staged(status: str, state: str, kind: str, outcome: str) -> Theatre:
    """An instance in a state with an attachment in another, and how the last operation of it stands."""
    columns = {"failure_detail": "no room", "request": {"attachment": REQUESTED}}
    last = operation(kind, outcome, member_ids=[], finished_at=NOW, **columns)
    if not last.is_over:
        last = replace(last, finished_at=None)
    made = theatre(last, status=status)
    made.instance = replace(made.instance, control_plane_scope="tenant")
    made.attachments["att_1"] = attachment(state, operation_id=last.id)
    return made


@every_row(("kind", "outcome"), ENDS)
def test_an_attachment_follows_an_operation_that_ended_without_an_adapter(kind: str, outcome: str) -> None:
    made = staged("running", BEFORE[kind], kind, outcome)
    made.settle()
    after = made.attachments["att_1"]
    assert after.status == ENDS[kind, outcome]
    if outcome == "failed":
        assert (after.refusal_reason or after.blocker) == "no room"


def test_a_detach_that_failed_is_done_again_after_a_pause_that_grows() -> None:
    made = staged("running", "detaching", "detach", "failed")
    made.settle()
    pauses = []
    for _ in range(3):
        retry_at = made.attachments["att_1"].retry_at
        assert retry_at is not None
        pauses.append(retry_at - made.now)
        made.now = retry_at
        made.settle()
        last = made.operations[made.attachments["att_1"].operation_id]
        assert (last.kind, last.status) == ("detach", "accepted")
        made.operations[last.id] = replace(last, status="failed", failure_detail="still busy", finished_at=made.now)
        made.settle()
    assert pauses == [timedelta(seconds=30), timedelta(seconds=60), timedelta(seconds=120)]


@every_row(
    ("state", "outcome", "held"),
    list(itertools.product(sorted(LIVE), ["running", "failed", "succeeded"], [True, False])),
)
def test_with_an_instance_that_is_stopped_every_attachment_ends(state: str, outcome: str, held: bool) -> None:
    kind = "attach" if state != "detaching" else "detach"
    made = staged("stopping", state, kind, outcome)
    made.operations["op_decommission"] = operation(OperationKind.DECOMMISSION)
    if not held:
        made.members = {}
    for _ in range(10):
        made.settle()
        made.nodes_work()
        made.now = made.next_moment() or made.now
    assert made.instance.status == "stopped"
    assert made.attachments["att_1"].is_over
    assert all(each.is_over for each in made.operations.values())


def test_a_failed_instance_lets_go_of_its_attachments_when_nothing_is_left_of_it() -> None:
    made = staged("failed", "active", "attach", "succeeded")
    for _ in range(5):
        made.settle()
        made.nodes_work()
    assert (made.instance.status, made.attachments["att_1"].status) == ("failed", "detached")
    empty = staged("failed", "active", "attach", "succeeded")
    empty.members = {}
    empty.settle()
    assert empty.attachments["att_1"].status == "detached"


def test_a_failed_end_of_an_attach_needs_a_failure() -> None:
    during = operation(OperationKind.ATTACH, member_ids=[], request={"attachment": REQUESTED})
    finishing = FinishContext(seen_rows(during=during), during, pinned(), attachment=attachment("requested"))
    with pytest.raises(Refusal, match="failure"):
        finish_operation(HERE, finishing, OperationEnd(FinishOutcome.FAILED))
