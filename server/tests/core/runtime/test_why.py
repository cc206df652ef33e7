"""Why something is as it is: state in, chain of causes and one next step out."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mooring.core.fleet.allocation import Allocation, AllocationState, FailureReason
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_family import FailureCode
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_reconcile import NO_CAPACITY
from mooring.core.runtime.instance_snapshot import ClaimWatch, InstanceSnapshot, MemberSnapshot, NodeStanding
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.next_steps import (
    NEXT_OF_BLOCKER,
    VAGUE,
    Unblocker,
    next_of_allocation,
    next_of_failure,
    retry_command,
)
from mooring.core.runtime.operation import Operation, OperationFailure, OperationKind, OperationState
from mooring.core.runtime.why import OperatorFacts, Why, WhyFacts, why_instance, why_member, why_operation
from tests.support.rows import every_row

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(minutes=10)
LABELS = {"tenant_id": "ten_1", "project_id": "prj_1", "correlation_id": "cor_1", "trace_id": "a" * 32}
HELD = ClaimWatch("adapter-1", NOW + timedelta(seconds=30), NOW)
PIN: dict[str, Any] = {"version_id": "ver_1", "version": "1.0.0", "manifest_digest": "sha256:0", "artifacts": {}}


def instance(**columns: Any) -> Instance:
    given: dict[str, Any] = {
        "id": "ins_1",
        "name": "web",
        "app_id": "app_1",
        "app_slug": "hello",
        "app_category": "tool",
        "version_id": "ver_1",
        "version": "1.0.0",
        "channel": None,
        "pin": PIN,
        "config": {},
        "topology": {"main": 1},
        "placement": {},
        "operating_mode": "tenant_dedicated",
        "control_plane_scope": "project",
        "runtime_backend": "container",
        "service_account_id": "sac_1",
        "requested_by": "usr_1",
        "status": "running",
        "generation": 1,
        "revision": 1,
        "created_at": BEFORE,
        **LABELS,
        **columns,
    }
    return Instance(**given)


def member(**columns: Any) -> Member:
    given: dict[str, Any] = {
        "id": "mem_1",
        "instance_id": "ins_1",
        "component_key": "main",
        "ordinal": 0,
        "name": "main-0",
        "version_id": "ver_1",
        "version": "1.0.0",
        "status": "ready",
        "generation": 1,
        "revision": 1,
        "created_at": BEFORE,
        "allocation_id": "alc_1",
        **LABELS,
        **columns,
    }
    return Member(**given)


def operation(**columns: Any) -> Operation:
    given: dict[str, Any] = {
        "id": "opr_1",
        "instance_id": "ins_1",
        "kind": "deploy",
        "request": {},
        "deadline_at": NOW,
        "requested_by": "usr_1",
        "status": "running",
        "generation": 1,
        "revision": 1,
        "created_at": BEFORE,
        "member_ids": ["mem_1"],
        **LABELS,
        **columns,
    }
    return Operation(**given)


def allocation(**columns: Any) -> Allocation:
    given: dict[str, Any] = {
        "id": "alc_1",
        "name": "one",
        "shape": "gpu_slice",
        "sku_id": "sku_1",
        "sku_slug": "small",
        "gpu_model": "",
        "gpu_count": 1,
        "regions": [],
        "price_minor_per_gpu_hour": 0,
        "currency": "EUR",
        "price_revision": 1,
        "deadline_at": NOW,
        "status": "active",
        "generation": 1,
        "revision": 1,
        "created_at": BEFORE,
        **LABELS,
        **columns,
    }
    return Allocation(**given)


def task(**columns: Any) -> Task:
    given: dict[str, Any] = {
        "id": "tsk_1",
        "allocation_id": "alc_1",
        "node_id": "nod_1",
        "owner": "alc_1/mem_1",
        "instance_id": "ins_1",
        "member_id": "mem_1",
        "operation_id": "opr_1",
        "step": "run",
        "type": "container.run",
        "arguments": {},
        "maker": "sac_1",
        "status": "failed",
        "generation": 1,
        "revision": 1,
        "fence": 1,
        "created_at": BEFORE,
        "expires_at": NOW,
        **LABELS,
        **columns,
    }
    return Task(**given)


def facts(
    at: Instance | None = None,
    *,
    members: Sequence[MemberSnapshot] = (),
    operations: Sequence[Operation] = (),
    watch: ClaimWatch = HELD,
    **further: Any,
) -> WhyFacts:
    seen = InstanceSnapshot(at or instance(), tuple(members), tuple(operations), watch=watch)
    return WhyFacts(seen, NOW, **further)


def path(why: Why) -> list[str]:
    return [f"{cause.noun} {cause.status}" for cause in why.chain]


# The chain ----------------------------------------------------------------------------------------------------------


def test_an_instance_that_runs_well_needs_nothing() -> None:
    why = why_instance(facts(members=[MemberSnapshot(member(), allocation())]))
    assert (path(why), why.next.who) == (["instance running"], Unblocker.NOBODY)


def test_a_launch_that_waits_for_capacity_leads_to_the_allocation_and_its_blocker() -> None:
    waiting = allocation(status="requested", blocker="2 GPUs on one machine are asked for, at most 1 is free")
    blocked = operation(status="blocked", blocker="no capacity: …", blocker_code=NO_CAPACITY)
    seen = MemberSnapshot(member(status="requested"), waiting)
    why = why_instance(facts(instance(status="created"), members=[seen], operations=[blocked]))
    assert path(why) == ["instance created", "operation blocked", "member requested", "allocation requested"]
    assert why.chain[-1].text == waiting.blocker
    assert why.next.who is Unblocker.YOU
    assert why.next.command == "mooring allocations explain --shape gpu_slice --sku small --gpu-count 1"


def test_a_launch_that_no_adapter_takes_leads_to_the_operator_of_the_adapter() -> None:
    dispatched = operation(status="accepted", dispatched_at=BEFORE)
    seen = MemberSnapshot(member(status="requested"), allocation())
    why = why_instance(
        facts(instance(status="created"), members=[seen], operations=[dispatched], watch=ClaimWatch(None, None, BEFORE))
    )
    assert path(why) == ["instance created", "operation accepted", "adapter absent"]
    assert BEFORE.isoformat(timespec="seconds") in why.chain[-1].text
    assert why.next.who is Unblocker.APP_TEAM


def test_a_launch_under_way_shows_the_task_and_how_far_it_is() -> None:
    pulling = task(status="claimed", type="image.pull", progress={"stage": "pulling", "done": 5, "total": 9})
    under_way = operation(dispatched_at=BEFORE, started_at=BEFORE)
    seen = MemberSnapshot(member(status="joining"), allocation())
    why = why_instance(facts(instance(status="starting"), members=[seen], operations=[under_way], open=(pulling,)))
    assert path(why) == ["instance starting", "operation running", "member joining", "task claimed"]
    assert "pulling 5 of 9" in why.chain[-1].text
    assert why.next.who is Unblocker.NOBODY


def test_a_failed_launch_leads_to_the_task_that_failed_with_its_last_lines() -> None:
    failed = operation(status="failed", failure_code="runtime_error", failure_detail="main-0 ended", finished_at=NOW)
    ended = task(failure_code="exited", exit_code=127, last_lines=["sh: serve: not found"])
    at = instance(status="failed", failure_code="runtime_error", failure_detail="main-0 ended", failed_at=NOW)
    why = why_instance(facts(at, ended=(failed,), failed=(ended,)))
    assert path(why) == ["instance failed", "operation failed", "task failed"]
    assert why.chain[-1].last_lines == ("sh: serve: not found",)
    assert "127" in why.chain[-1].text
    assert "command" in why.next.what


def test_a_probe_that_nobody_answered_does_not_explain_a_program_that_ended() -> None:
    failed = operation(status="failed", failure_code="runtime_error", last_lines=["no such file"], finished_at=NOW)
    probe = task(type="probe.http", failure_code="probe_failed")
    why = why_operation(facts(ended=(failed,), failed=(probe,)), failed)
    assert path(why) == ["operation failed"]
    assert "the app itself" in why.next.what


def test_a_stop_that_waits_for_a_silent_node_names_it_and_what_ends_the_wait() -> None:
    node = NodeStanding("nod_1", "ready", BEFORE)
    stopping = operation(kind="decommission", phase="platform", status="blocked", blocker="node nod_1 …")
    seen = MemberSnapshot(member(status="removing"), allocation(), node, started=True)
    why = why_instance(facts(instance(status="stopping"), members=[seen], operations=[stopping]))
    assert path(why)[-1] == "node ready"
    assert (why.next.who, why.next.command) == (Unblocker.OPERATOR, "mooring nodes write-off nod_1")


def test_something_that_is_left_on_a_node_leads_to_its_receipt() -> None:
    node = NodeStanding("nod_1", "ready")
    left = member(status="removing", blocker="something is left", retry_at=NOW)
    seen = MemberSnapshot(left, allocation(), node, started=True, receipt_id="rcp_1")
    why = why_operation(facts(members=[seen]), operation(kind="remove", phase="platform"))
    assert path(why) == ["operation running", "member removing"]
    assert why.next.command == "mooring receipts get rcp_1"


def test_a_running_instance_that_nobody_watches_says_so() -> None:
    why = why_instance(facts(members=[MemberSnapshot(member(), allocation())], watch=ClaimWatch()))
    assert path(why) == ["instance running", "adapter absent"]


def test_a_running_instance_with_a_failed_member_leads_to_it() -> None:
    broken = member(id="mem_2", status="failed", failure_code="node_lost", failed_at=NOW)
    gone = NodeStanding("nod_2", "retired")
    seen = [MemberSnapshot(member(), allocation()), MemberSnapshot(broken, allocation(id="alc_2"), gone)]
    why = why_instance(facts(members=seen))
    assert path(why) == ["instance running", "member failed", "node retired"]
    assert why.next.command == "mooring instances members remove ins_1 mem_2"


def test_a_member_that_is_held_names_the_hold() -> None:
    kept = member(status="ready", holds=[{"owner": "sac_1", "reason": "a user works on it", "since": "now"}])
    why = why_member(facts(members=[MemberSnapshot(kept, allocation())]), kept)
    assert "a user works on it" in why.chain[0].text


def test_a_member_that_is_drained_names_who_holds_it_and_not_an_old_text() -> None:
    hold = {"owner": "usr_2", "reason": "the fan is loud", "since": "now"}
    kept = member(status="drained", health_detail="it takes jobs", holds=[hold])
    why = why_member(facts(members=[MemberSnapshot(kept, allocation())]), kept)
    assert why.chain[0].text == "held by usr_2: the fan is loud"


def test_a_drain_that_waits_for_a_job_names_it_and_the_member() -> None:
    busy = "main-0 still runs 42 (train of ada)"
    waiting = operation(kind="drain", status="blocked", dispatched_at=BEFORE, blocker=busy, blocker_code="not_quiet")
    seen = [MemberSnapshot(member(status="draining"), allocation())]
    why = why_instance(facts(members=seen, operations=[waiting]))
    assert path(why) == ["instance running", "operation blocked", "member draining"]
    assert why.chain[1].text == busy
    assert why.next.who is Unblocker.YOU


def account(**columns: Any) -> OperatorFacts:
    given: dict[str, Any] = {"id": "sac_1", "name": "app-hello", "status": "active", **columns}
    return OperatorFacts(**given)


def test_a_disabled_operator_account_is_named_where_its_adapter_is_missing() -> None:
    disabled = account(status="disabled", disabled_at=BEFORE)
    waiting = operation(status="accepted", dispatched_at=BEFORE)
    for known in (
        facts(watch=ClaimWatch(), account=disabled),
        facts(operations=[waiting], watch=ClaimWatch(), account=disabled),
    ):
        why = why_instance(known)
        assert path(why)[-2:] == ["adapter absent", "service_account disabled"]
        assert BEFORE.isoformat(timespec="seconds") in why.chain[-1].text
        assert (why.next.who, why.next.command) == (Unblocker.PROJECT_ADMIN, "mooring service-accounts enable sac_1")


def test_what_an_operator_account_was_refused_is_named() -> None:
    refused = account(refused_action="task.create", refused_reason="this account lacks it", refused_at=NOW)
    failed = operation(status="failed", failure_code="permission_denied", finished_at=NOW)
    for why in (
        why_instance(facts(watch=ClaimWatch(), account=refused)),
        why_operation(facts(ended=(failed,), account=refused), failed),
    ):
        assert (why.chain[-1].noun, why.chain[-1].code) == ("service_account", "permission_denied")
        assert "task.create" in why.chain[-1].text
        assert why.next.who is Unblocker.PROJECT_ADMIN


def test_a_released_allocation_is_the_cause_of_the_stop_that_followed() -> None:
    request = {"reason": "allocation one is released, and main would have 0 members", "allocation_id": "alc_1"}
    stop = operation(kind="decommission", requested_by="system", request=request)
    released = (allocation(status="released"),)
    over = replace(stop, status="succeeded", finished_at=NOW)
    at = instance(status="stopped", teardown_proof="receipts")
    stopped = why_instance(facts(at, ended=(over,), released=released))
    stopping = why_instance(facts(instance(status="stopping"), operations=[stop], released=released))
    assert path(stopped) == ["instance stopped", "operation succeeded", "allocation released"]
    assert path(stopping)[1] == "operation running"
    assert {request["reason"] in why.chain[1].text for why in (stopped, stopping)} == {True}
    by_somebody = replace(over, requested_by="usr_1")
    assert path(why_instance(facts(at, ended=(by_somebody,)))) == ["instance stopped"]


def test_a_removed_member_and_a_stopped_instance_are_over() -> None:
    assert why_member(facts(), member(status="removed")).next.who is Unblocker.NOBODY
    stopped = facts(instance(status="stopped", teardown_proof="receipts"))
    assert "receipts" in why_instance(stopped).next.what


def test_what_an_adapter_names_leads_to_its_team() -> None:
    blocked = operation(status="blocked", dispatched_at=BEFORE, blocker="waits for a licence", blocker_code="licence")
    why = why_operation(facts(operations=[blocked]), blocked)
    assert why.next.who is Unblocker.APP_TEAM


def test_an_open_circuit_is_shown_beside_the_failure() -> None:
    at = instance(status="failed", failure_code="runtime_error", failed_at=NOW)
    why = why_instance(facts(at, circuit="it failed 3 times in a row"))
    assert path(why) == ["instance failed", "circuit open"]


# Every name has its line --------------------------------------------------------------------------------------------


@every_row("code", list(OperationFailure))
def test_each_failure_of_an_operation_gives_a_next_step(code: OperationFailure) -> None:
    failed = operation(status="failed", failure_code=code.value, finished_at=NOW)
    why = why_operation(facts(ended=(failed,)), failed)
    assert why.next.who is not Unblocker.NOBODY
    assert why.next.what
    assert why.next.command
    of_member = member(status="failed", failure_code=code.value)
    assert why_member(facts(members=[MemberSnapshot(of_member, allocation())]), of_member).next.what


@every_row("code", list(FailureCode))
@every_row("vague", sorted(VAGUE))
def test_each_failure_of_a_task_gives_a_next_step(code: FailureCode, vague: OperationFailure) -> None:
    failed = operation(status="failed", failure_code=vague.value, finished_at=NOW)
    why = why_operation(facts(ended=(failed,), failed=(task(failure_code=code.value),)), failed)
    general = next_of_failure(vague.value, None)
    if (code, vague) == (FailureCode.PROBE_FAILED, OperationFailure.RUNTIME_ERROR):
        return  # a test of its own
    assert why.chain[-1].code == code.value
    assert why.next.what != general.what or code is FailureCode.IMAGE_PULL_FAILED
    assert why.next.who is not Unblocker.NOBODY


@every_row("code", [*FailureReason, *FailureCode])
def test_each_failure_of_an_allocation_gives_a_next_step(code: str) -> None:
    assert next_of_allocation(code).what
    dead = allocation(status="failed", failure_code=code, failure_detail="why", failed_at=NOW)
    waiting = MemberSnapshot(member(status="requested"), dead)
    why = why_operation(facts(members=[waiting]), operation(status="accepted"))
    assert why.chain[-1].noun == "allocation"
    assert why.next.who is not Unblocker.NOBODY


@every_row("state", list(AllocationState))
@every_row("blocker", [None, "something that has a name"])
def test_each_state_of_an_allocation_with_and_without_a_blocker_explains_a_wait(
    state: AllocationState, blocker: str | None
) -> None:
    seen = MemberSnapshot(member(status="requested"), allocation(status=state.value, blocker=blocker))
    why = why_operation(facts(members=[seen]), operation(status="accepted"))
    assert why.next.what
    if state is not AllocationState.ACTIVE:
        assert why.chain[-1].noun == "allocation"


@every_row("code", list(NEXT_OF_BLOCKER))
def test_each_blocker_of_the_platform_gives_a_next_step(code: str) -> None:
    blocked = operation(status="blocked", dispatched_at=BEFORE, blocker="…", blocker_code=code)
    assert why_operation(facts(operations=[blocked]), blocked).next == NEXT_OF_BLOCKER[code]


@every_row("kind", list(OperationKind))
@every_row("state", list(OperationState))
@every_row("phase", ["adapter", "platform"])
def test_every_operation_in_every_state_is_explained(kind: OperationKind, state: OperationState, phase: str) -> None:
    each = operation(kind=kind.value, status=state.value, phase=phase, failure_code="runtime_error", blocker="…")
    for watch in (HELD, ClaimWatch()):
        why = why_operation(facts(members=[MemberSnapshot(member(), allocation())], watch=watch), each)
        assert why.chain[0].id == each.id
        assert why.next.what
    assert retry_command(instance(), each).startswith("mooring ")


@every_row("state", list(MemberState))
def test_every_member_in_every_state_is_explained(state: MemberState) -> None:
    each = replace(member(), status=state.value, failure_code="runtime_error")
    for node in (None, NodeStanding("nod_1", "ready", BEFORE), NodeStanding("nod_1", "retired")):
        why = why_member(facts(members=[MemberSnapshot(each, allocation(), node)]), each)
        assert why.chain[0].status == state.value
        assert why.next.what
