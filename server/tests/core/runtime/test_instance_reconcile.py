"""Reconciling an instance, state in and decision out: every kind of operation, with and without an adapter."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.catalog.artifact_hold import ArtifactHold
from mooring.core.kernel.decision import Insert, Remove, StateChange
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_snapshot import ClaimWatch, NodeStanding, idle_holds
from mooring.core.runtime.instance_teardown import evidence_of
from mooring.core.runtime.launch_history import CircuitFacts, LaunchOutcome
from mooring.core.runtime.operation import TEARDOWN_KINDS, WHOLE_KINDS, OperationFailure, OperationKind, advice_of
from server.tests.support.decision_context import NOW
from server.tests.support.instance_rows import (
    LIMITS,
    PIN,
    TARGET,
    Theatre,
    allocation,
    instance,
    member,
    operation,
    theatre,
)
from tests.support.rows import every_row

HELD = ClaimWatch("adapter-1", NOW + timedelta(days=30), NOW)
NOBODY = ClaimWatch(None, None, None)
REACHABLE = NodeStanding("nod_1", "ready")
UNREACHABLE = NodeStanding("nod_1", "ready", NOW)
RETIRED = NodeStanding("nod_1", "retired", NOW, "the machine burnt down", "its disks")


def begun(kind: OperationKind, status: str, phase: str, watch: ClaimWatch, node: NodeStanding) -> Theatre:
    """An instance in the state that such an operation finds it in."""
    state = {"deploy": "starting", "decommission": "stopping"}.get(kind, "running")
    if kind == "deploy" and status == "accepted":
        state = "created"
    made = theatre(
        operation(kind, status, phase=phase),
        status=state,
        members=2,
        watch=watch,
        nodes={"nod_1": node},
        started={"mem_0", "mem_1"},
    )
    if kind in ("deploy", "add"):
        made.members["mem_0"] = replace(made.members["mem_0"], status="joining")
    if kind in ("drain", "remove"):
        made.members["mem_0"] = replace(made.members["mem_0"], status="draining")
    if kind == "replace":
        made.members["mem_0"] = replace(made.members["mem_0"], status="draining")
        made.members["mem_1"] = replace(made.members["mem_1"], replaces_id="mem_0")
        made.operations["op_replace"] = replace(made.operations["op_replace"], member_ids=["mem_0", "mem_1"])
    return made


def play(made: Theatre, *, clean: bool = True) -> None:
    """Let time pass until nothing more comes of itself."""
    for _ in range(60):
        made.settle()
        if made.nodes_work(clean=clean):
            continue
        moment = made.next_moment()
        if moment is None:
            return
        made.now = moment
    pytest.fail("time does not bring it to an end")


@every_row("node", [REACHABLE, UNREACHABLE, RETIRED], ids=["reachable", "unreachable", "retired"])
@every_row("watch", [HELD, NOBODY], ids=["held", "nobody"])
@every_row("status", ["accepted", "running", "blocked", "cancelling"])
@pytest.mark.parametrize(
    ("kind", "phase"),
    [(kind, "adapter") for kind in OperationKind] + [(kind, "platform") for kind in sorted(TEARDOWN_KINDS)],
)
def test_nothing_waits_without_a_bound(
    kind: OperationKind, status: str, phase: str, watch: ClaimWatch, node: NodeStanding
) -> None:
    made = begun(kind, status, phase, watch, node)
    play(made)
    for each in made.operations.values():
        if not each.is_over:
            assert each.phase == "platform"
            assert (each.status, each.blocker_code) == ("blocked", "node_unreachable") or each.status == "cancelling"
            waiting = [one for one in made.members.values() if one.status == "removing"]
            assert waiting
            assert all(str(one.blocker).startswith("node nod_1 unreachable since") for one in waiting)
            assert node is UNREACHABLE
        if each.status == "failed":
            assert each.failure_code in set(OperationFailure)
            assert each.failure_detail
    if kind == "decommission":
        assert made.instance.status == ("stopping" if node is UNREACHABLE else "stopped")
        if node is RETIRED:
            assert made.instance.teardown_proof == "written_off"
            assert {row["kind"] for row in made.closings.values()} == {"write_off"}
        if node is REACHABLE:
            assert made.instance.teardown_proof == "receipts"
            assert {row["kind"] for row in made.closings.values()} == {"receipt"}
    if made.instance.status == "failed" and node is not UNREACHABLE:
        assert set(made.closings) == set(made.members), "tear down what is left of a failed instance too"
    assert reconcile(made.context(), LIMITS, made.seen()) is None


@every_row("kind", sorted(WHOLE_KINDS | {OperationKind.ADD, OperationKind.DRAIN, OperationKind.ACTION}))
def test_who_is_late_fails_by_name(kind: OperationKind) -> None:
    made = begun(kind, "running", "adapter", HELD, REACHABLE)
    made.now = NOW + timedelta(hours=1)
    made.step()
    expected = {"deploy": "bootstrap_timeout", "drain": "not_quiet"}.get(kind, "deadline_exceeded")
    ended = made.operations[f"op_{kind}"]
    assert (ended.status, ended.failure_code) == ("failed", expected)
    assert ended.evidence == advice_of(expected)
    assert (made.instance.status == "failed") is (kind == "deploy")


@every_row("kind", sorted(WHOLE_KINDS | {OperationKind.ADD, OperationKind.DRAIN, OperationKind.ACTION}))
def test_what_nobody_takes_says_when_an_adapter_was_last_seen(kind: OperationKind) -> None:
    seen_at = NOW - timedelta(days=2)
    for watch, said in ((NOBODY, "never"), (ClaimWatch(None, None, seen_at), seen_at.isoformat(timespec="seconds"))):
        made = begun(kind, "accepted", "adapter", watch, REACHABLE)
        made.now = NOW + LIMITS.claim - timedelta(seconds=1)
        made.step()
        assert made.operations[f"op_{kind}"].status == "accepted"
        made.now = NOW + LIMITS.claim
        made.settle()
        ended = made.operations[f"op_{kind}"]
        assert (ended.status, ended.failure_code) == ("failed", "adapter_unavailable")
        assert str(ended.failure_detail).endswith(f"one was last seen: {said}")


def test_a_step_that_takes_too_long_fails_by_its_name() -> None:
    steps = [{"name": "pull/main-0", "status": "running", "started_at": NOW.isoformat()}]
    made = begun(OperationKind.UPGRADE, "running", "adapter", HELD, REACHABLE)
    made.operations["op_upgrade"] = replace(made.operations["op_upgrade"], steps=steps)
    made.now = NOW + LIMITS.step
    made.step()
    ended = made.operations["op_upgrade"]
    assert (ended.failure_code, ended.failure_detail) == (
        "step_timeout",
        f"step pull/main-0 has been running since {NOW.isoformat(timespec='seconds')}",
    )


@every_row(
    ("status", "blocker", "seconds", "expected"),
    [
        ("active", None, 0, ("running", None, None)),
        ("requested", None, 0, ("accepted", None, None)),
        ("requested", None, 10, ("blocked", "waiting_for_capacity", "waits until allocation alc-0 is active")),
        ("requested", "no room: full", 0, ("blocked", "no_capacity", "no capacity: no room: full")),
        ("provisioning", "node x is silent", 0, ("blocked", "no_capacity", "no capacity: node x is silent")),
    ],
)
@every_row("kind", ["deploy", "add"])
def test_an_operation_is_offered_when_its_allocations_stand(
    kind: str, status: str, blocker: str | None, seconds: int, expected: tuple[str, str | None, str | None]
) -> None:
    waiting = operation(kind, "accepted", dispatched_at=None)
    made = theatre(waiting, status="created" if kind == "deploy" else "running", watch=HELD)
    made.members["mem_0"] = member(status="requested", health="unknown")
    made.allocations["alc_0"] = allocation(status=status, blocker=blocker)
    made.now = NOW + timedelta(seconds=seconds)
    made.step()
    now = made.operations[waiting.id]
    if expected[0] == "running":
        assert (now.status, now.dispatched_at) == ("accepted", made.now)
        return
    assert (now.status, now.blocker_code, now.blocker) == expected
    assert now.dispatched_at is None
    made.settle()
    made.allocations["alc_0"] = allocation(status="active")
    made.now += timedelta(minutes=20)
    made.step()
    offered = made.operations[waiting.id]
    assert offered.dispatched_at == made.now
    assert offered.deadline_at == made.now + timedelta(hours=1)  # the time that it waited is not counted
    assert offered.status == ("accepted" if expected[0] == "accepted" else "running")
    assert offered.blocker is None


def test_a_launch_that_waited_for_capacity_meets_the_open_circuit_when_it_would_begin() -> None:
    waiting = operation("deploy", "accepted", dispatched_at=None)
    made = theatre(waiting, status="created", watch=HELD)
    made.members["mem_0"] = member(status="requested", health="unknown")
    failures = [LaunchOutcome(made.instance.tenant_id, f"op_{number}", NOW, "runtime_error") for number in range(3)]
    made.circuit = CircuitFacts(made.instance.tenant_id, failures)
    made.step()
    blocked = made.operations["op_deploy"]
    assert (blocked.status, blocked.blocker_code, blocked.dispatched_at) == ("blocked", "circuit_open", None)
    assert made.step() is None
    made.now = NOW + timedelta(minutes=31)
    made.step()
    assert made.operations["op_deploy"].dispatched_at == made.now
    made.operations["op_deploy"] = replace(blocked, deadline_at=NOW)
    made.now = NOW
    made.step()
    assert (made.operations["op_deploy"].failure_code, made.instance.status) == ("circuit_open", "failed")


@every_row(
    ("code", "expected"), [("no_capacity", "no_capacity"), ("host_error", "no_capacity"), ("node_lost", "node_lost")]
)
def test_an_allocation_that_fails_takes_the_launch_along(code: str, expected: str) -> None:
    waiting = operation("deploy", "accepted", dispatched_at=None)
    made = theatre(waiting, status="created", watch=HELD)
    made.members["mem_0"] = member(status="requested", health="unknown")
    made.allocations["alc_0"] = allocation(status="failed", failure_code=code, failure_detail="nothing was free")
    made.step()
    assert (made.instance.status, made.instance.failure_code) == ("failed", expected)
    assert made.operations["op_deploy"].failure_detail == "allocation alc-0 of main-0: nothing was free"
    made.settle()
    assert [row["kind"] for row in made.closings.values()] == ["nothing_started"]
    assert made.instance.status == "failed"


def test_a_teardown_that_left_something_is_tried_again_with_growing_pauses() -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "platform", NOBODY, REACHABLE)
    pauses = []
    for _ in range(4):
        made.settle()
        made.nodes_work(clean=False)
        made.settle()
        one = made.members["mem_0"]
        assert one.retry_at is not None
        assert "found leftovers: receipt rcp_" in str(one.blocker)
        assert made.operations["op_decommission"].blocker_code == "something_left"
        pauses.append((one.retry_at - made.now).total_seconds())
        made.now = one.retry_at
    assert pauses == [30, 60, 120, 240]
    made.settle()
    made.nodes_work()
    made.settle()
    assert made.instance.status == "stopped"


@every_row(
    ("claimed", "code", "at_once"), [(False, None, True), (True, "interrupted", True), (True, "host_error", False)]
)
def test_a_teardown_that_nobody_took_or_that_was_interrupted_is_made_again_at_once(
    claimed: bool, code: str | None, at_once: bool
) -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "platform", NOBODY, REACHABLE)
    made.settle()
    for key, task in list(made.tasks.items()):
        ended: dict[str, Any] = {"status": "failed" if claimed else "expired", "failure_code": code}
        made.tasks[key] = replace(task, **ended, first_claimed_at=NOW if claimed else None)
    made.settle()
    assert len(made.tasks) == (4 if at_once else 2)
    assert (made.members["mem_0"].blocker is None) is at_once


def test_a_late_receipt_ends_what_waits_for_its_next_try() -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "platform", NOBODY, REACHABLE)
    made.settle()
    made.nodes_work(clean=False)
    made.settle()
    made.clean = {"mem_0": "rcp_1", "mem_1": "rcp_2"}
    made.settle()
    assert made.instance.status == "stopped"


@every_row(
    ("owns", "keeps", "shared", "released"),
    [(True, False, False, True), (False, False, False, False), (True, True, False, False), (True, False, True, False)],
)
def test_an_allocation_that_was_asked_for_with_a_member_goes_with_it(
    owns: bool, keeps: bool, shared: bool, released: bool
) -> None:
    made = begun(OperationKind.REMOVE, "running", "platform", HELD, UNREACHABLE)
    made.members["mem_0"] = replace(made.members["mem_0"], owns_allocation=owns, keep_allocation=keeps)
    if shared:  # the other member is in it too, and stays
        made.members["mem_1"] = replace(made.members["mem_1"], allocation_id="alc_0")
    made.settle()
    assert made.allocations["alc_0"].status == ("releasing" if released else "active")
    assert made.members["mem_0"].status == "removing"  # its machine does not answer; it is not charged meanwhile


def test_the_adapter_has_its_time_for_the_graceful_part_and_no_more() -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "adapter", HELD, REACHABLE)
    made.now = NOW + timedelta(seconds=59)
    assert made.step() is None
    made.now = NOW + timedelta(seconds=60)
    made.step()
    handed = made.operations["op_decommission"]
    assert (handed.phase, handed.status) == ("platform", "running")
    assert handed.evidence == {"graceful": False, "handed_over": "the adapter's time limit passed"}


def test_a_stop_of_what_never_began_needs_no_adapter_and_no_time() -> None:
    made = theatre(operation("decommission", "accepted"), operation("deploy", "cancelling"), status="stopping")
    made.members["mem_0"] = member(status="requested", health="unknown")
    made.settle()
    assert (made.instance.status, made.instance.teardown_proof) == ("stopped", "receipts")
    assert [row["kind"] for row in made.closings.values()] == ["nothing_started"]
    assert made.operations["op_deploy"].status == "cancelled"


def test_a_failed_instance_is_closed_while_it_stays_failed_and_a_later_stop_finds_the_records() -> None:
    made = theatre(status="failed", started={"mem_0"})
    made.members["mem_0"] = member(status="failed", failure_code="runtime_error", failed_at=NOW)
    play(made)
    assert made.instance.status == "failed"
    (leftovers,) = made.operations.values()
    assert (leftovers.kind, leftovers.requested_by, leftovers.status) == ("decommission", "system", "succeeded")
    assert leftovers.evidence is not None
    assert leftovers.evidence["closing"] == {"receipt": 1}
    made.instance = replace(made.instance, status="stopping")
    made.operations["op_decommission"] = operation("decommission", "accepted")
    made.settle()
    assert (made.instance.status, made.instance.teardown_proof) == ("stopped", "receipts")


def test_the_replaced_member_goes_and_the_new_one_stays() -> None:
    made = begun(OperationKind.REPLACE, "running", "adapter", HELD, REACHABLE)
    play(made)
    assert made.operations["op_replace"].status == "succeeded"
    assert [each.status for each in made.members.values()] == ["removed", "ready"]


def test_a_replacement_whose_new_member_is_not_ready_in_time_takes_nothing_away() -> None:
    made = begun(OperationKind.REPLACE, "running", "adapter", HELD, REACHABLE)
    made.members["mem_1"] = replace(made.members["mem_1"], status="joining")
    made.now = NOW + timedelta(seconds=60)
    made.settle()
    assert made.operations["op_replace"].failure_code == "deadline_exceeded"
    assert [each.status for each in made.members.values()] == ["draining", "failed"]


@every_row(("minimum", "state"), [(1, "running"), (2, "failed")])
def test_a_lost_machine_fails_its_members_and_the_instance_below_its_minimum(minimum: int, state: str) -> None:
    made = theatre(members=2, watch=HELD, started={"mem_0", "mem_1"}, minimum={"main": minimum})
    made.nodes["nod_2"] = replace(RETIRED, id="nod_2")
    made.allocations["alc_1"] = replace(made.allocations["alc_1"], node_id="nod_2")
    made.step()
    assert (made.members["mem_1"].status, made.members["mem_1"].failure_code) == ("failed", "node_lost")
    assert made.instance.status == state
    if state == "running":
        assert made.instance.health == "degraded"
        assert made.step() is None
    else:
        assert made.instance.failure_code == "below_minimum"
        assert made.instance.failure_detail == (
            "the machine of main-1 is lost, and main would have 1 members of the 2 that it needs"
        )
        play(made)
        assert {key: row["kind"] for key, row in made.closings.items()} == {"mem_0": "receipt", "mem_1": "write_off"}


@every_row("status", ["releasing", "release_failed"])
def test_an_allocation_that_is_given_back_lets_its_member_go_first(status: str) -> None:
    made = theatre(members=2, watch=HELD, started={"mem_0", "mem_1"})
    made.allocations["alc_1"] = allocation(1, status)
    made.step()
    (removal,) = made.operations.values()
    assert (removal.kind, removal.requested_by, removal.member_ids) == ("remove", "system", ["mem_1"])
    assert (made.members["mem_1"].status, made.instance.topology) == ("draining", {"main": 1})
    assert made.step() is None  # the adapter has its time
    play(made)
    assert made.members["mem_1"].status == "removed"
    assert made.instance.status == "running"


def test_who_is_busy_with_a_member_is_asked_to_end_before_it_is_removed() -> None:
    drain = operation("drain", "running", member_ids=["mem_1"])
    made = theatre(drain, members=2, watch=HELD, started={"mem_0", "mem_1"})
    made.members["mem_1"] = member(1, "draining")
    made.allocations["alc_1"] = allocation(1, "releasing")
    made.step()
    assert made.operations["op_drain"].status == "cancelling"
    play(made)
    assert made.members["mem_1"].status == "removed"


@every_row(("others", "status"), [(False, "cancelling"), (True, "running")])
def test_an_add_that_brings_others_too_is_waited_for_and_not_cancelled(others: bool, status: str) -> None:
    add = operation("add", "running", member_ids=["mem_1", "mem_2"] if others else ["mem_1"])
    made = theatre(add, members=3, watch=HELD, started={"mem_0", "mem_1", "mem_2"})
    made.members["mem_2"] = member(2, "joining")
    made.allocations["alc_1"] = allocation(1, "releasing")
    made.step()
    assert made.operations["op_add"].status == status
    made.operations["op_add"] = replace(made.operations["op_add"], status="succeeded", finished_at=made.now)
    made.members["mem_2"] = member(2, "ready")
    play(made)
    assert [each.status for each in made.members.values()] == ["ready", "removed", "ready"]


def test_an_allocation_that_was_left_to_others_goes_with_the_last_of_them() -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "platform", NOBODY, REACHABLE)
    made.step()
    seen = made.seen()
    for inherited, released in ((False, 0), (True, 2)):
        members = tuple(replace(each, inherited=inherited) for each in seen.members)
        decision = reconcile(made.context(), LIMITS, replace(seen, members=members))
        assert decision is not None
        moved = [each for each in decision.writes if isinstance(each, StateChange) and each.noun == "allocation"]
        assert len(moved) == released


@every_row(("status", "code"), [("failed", "image_pull_failed"), ("cancelled", "cancelled")])
def test_members_to_come_of_which_nobody_takes_care_have_failed(status: str, code: str) -> None:
    made = theatre(members=2, watch=HELD, started={"mem_0"})
    made.members["mem_1"] = member(1, "joining", health="unknown")
    seen = made.seen()
    ended = (code, "its adapter said so")
    alone = replace(seen, members=(seen.members[0], replace(seen.members[1], ended=ended)))
    decision = reconcile(made.context(), LIMITS, alone)
    assert decision is not None
    made.apply(decision)
    assert (made.members["mem_1"].status, made.members["mem_1"].failure_code) == ("failed", code)
    made.settle()
    assert made.members["mem_1"].status == ("removed" if code == "cancelled" else "failed")


def test_what_nobody_sees_is_unknown_and_a_restart_of_an_adapter_is_not_nobody() -> None:
    made = theatre(watch=ClaimWatch("adapter-1", NOW - timedelta(seconds=10), NOW))
    made.instance = replace(made.instance, health="healthy")
    assert made.step() is None
    made.watch = ClaimWatch("adapter-1", NOW - timedelta(seconds=45), NOW)
    made.step()
    assert made.instance.health == "unknown"
    assert made.step() is None
    made.nodes["nod_1"] = UNREACHABLE
    made.step()
    assert made.members["mem_0"].health == "unknown"
    assert made.members["mem_0"].status == "ready"  # unknown is not drained, and not failed
    assert made.step() is None


def test_a_change_that_did_not_come_to_pass_lets_go_of_its_digests() -> None:
    def hold(digest: str, version_id: str) -> ArtifactHold:
        return ArtifactHold(
            id=f"hld_{digest}",
            tenant_id="ten_1",
            project_id="prj_1",
            digest=digest,
            holder_noun="instance",
            holder_id="ins_1",
            version_id=version_id,
            revision=0,
            created_at=NOW,
        )

    old, new = hold("sha256:a", "ver_1"), hold("sha256:b", "ver_2")
    assert idle_holds(instance(), [member()], [], [old, new]) == (new,)
    assert idle_holds(instance(), [member()], [operation("upgrade")], [old, new]) == ()
    assert idle_holds(instance(), [member(version_id="ver_2")], [], [old, new]) == ()  # half of it is there
    assert idle_holds(instance(pin=TARGET, previous_pin=PIN), [member(version_id="ver_2")], [], [old, new]) == ()
    made = begun(OperationKind.UPGRADE, "running", "adapter", HELD, REACHABLE)
    made.now = NOW + timedelta(hours=1)
    decision = reconcile(made.context(), LIMITS, replace(made.seen(), holds=(old, new)))
    assert decision is not None
    assert [each.id for each in decision.writes if isinstance(each, Remove)] == [new.id]


def test_a_step_is_written_under_the_correlation_of_what_it_is_about() -> None:
    made = begun(OperationKind.DECOMMISSION, "running", "platform", NOBODY, REACHABLE)
    made.operations["op_decommission"] = replace(made.operations["op_decommission"], correlation_id="cor_stop")
    made.step()
    decision = reconcile(made.context(), LIMITS, made.seen())
    assert decision is not None
    assert decision.result.correlation_id == "cor_stop"
    tasks = [each.row for each in decision.writes if isinstance(each, Insert) and each.noun == "task"]
    assert {each["correlation_id"] for each in tasks} == {"cor_stop"}
    assert {each["step"] for each in tasks} == {"teardown.verify/mem_0/1", "teardown.verify/mem_1/1"}


def test_no_more_members_than_one_statement_takes_are_moved_in_one_step() -> None:
    made = theatre(operation("decommission", phase="platform"), status="stopping", members=120)
    decision = made.step()
    assert decision is not None
    assert sum(1 for each in decision.writes if isinstance(each, StateChange)) == 50
    made.settle()
    assert made.instance.status == "stopped"


def test_the_evidence_counts_an_allocation_once_however_many_members_it_had() -> None:
    from_, until = NOW, NOW + timedelta(seconds=100)
    closed = [
        replace(each, gpu_count=2, held_from=from_, held_until=until, allocation_id="alc_0")
        for each in theatre_closed("mem_0", "mem_1")
    ]
    evidence = evidence_of(closed, NOW + timedelta(hours=1))
    assert evidence == {"receipts": ["rcp_mem_0", "rcp_mem_1"], "closing": {"receipt": 2}, "gpu_seconds": 200}


def theatre_closed(*member_ids: str) -> list[Any]:
    """Members that have their receipts."""
    made = theatre()
    made.closings = {each: {"kind": "receipt", "receipt": {"receipt_id": f"rcp_{each}"}} for each in member_ids}
    return list(made.seen().closed)
