"""Allocations, state in and decision out: what people ask for, and each step that the platform takes by itself."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.catalog.policy import NameRules, PolicyRules
from mooring.core.fleet.allocation import (
    OPEN_MAX,
    Allocation,
    AllocationRequest,
    AllocationState,
    ProjectHolding,
    release_allocation,
    request_allocation,
    retry_release,
)
from mooring.core.fleet.allocation_group import AllocationGroupRequest, GroupState, create_group, require_room, state_of
from mooring.core.fleet.allocation_reconcile import (
    AllocationPlacement,
    AllocationSnapshot,
    TaskFacts,
    place_allocations,
    reconcile,
    wait_for,
)
from mooring.core.fleet.slot import Slot
from mooring.core.fleet.task import Task
from mooring.core.kernel.decision import Decision, Insert, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from server.tests.support.allocation_rows import REQUESTED, TERMS, asking, network, node, pick, requested
from server.tests.support.decision_context import NOW, PROJECT, TENANT, context
from tests.support.rows import every_row

HOME = (TENANT, PROJECT)
HERE = context()
WHOLE = AllocationRequest(CapacityShape.BAREMETAL, "h100", 8)


def standing(status: str, **changed: Any) -> Allocation:
    """An allocation that has its place, in some state."""
    there = node(HERE)
    placed = replace(
        requested(HERE, HOME), status=status, generation=3, node_id=there.id, releasing_at=NOW, activated_at=NOW
    )
    return replace(placed, **changed)


def seen(status: str, **changed: Any) -> AllocationSnapshot:
    """Such an allocation on a machine that is there, with slots that are its own."""
    allocation = standing(status)
    there = node(HERE, id=allocation.node_id)
    slots = tuple(
        Slot(f"slt_{index}", there.id, index, 0, "h100-80g", 1, False, "claimed", allocation.id, 7, NOW)
        for index in range(2)
    )
    return replace(AllocationSnapshot(allocation, there, slots=slots, started=True), **changed)


def task(type_: str = "sandbox.destroy", status: str = "succeeded", **changed: Any) -> TaskFacts:
    arguments = {
        "hostname": "any",
        "cpus": 1.0,
        "memory_bytes": 1 << 30,
        "pids": 100,
        "devices": [],
        "peers": [],
        "network": {"name": "any", "address": "10.64.0.2", "subnet": "10.64.0.0/24", "machine": False},
        "isolation": "user_namespace",
    }
    return replace(TaskFacts("tsk_1", type_, status, True, arguments), **changed)


def steps(decision: Decision[Any] | None) -> list[str]:
    """Which triggers a decision pulls, and which rows it changes besides."""
    assert decision is not None
    said = []
    for write in decision.writes:
        if isinstance(write, StateChange):
            said.append(f"{write.noun}: {write.edge.trigger}")
        elif isinstance(write, Update):
            said.append(f"{write.noun} changed")
        elif isinstance(write, Insert):
            said.append(f"{write.noun} made")
    return said


def slot_statuses(decision: Decision[Any] | None) -> set[object]:
    assert decision is not None
    return {write.set["status"] for write in decision.writes if isinstance(write, Update) and write.noun == "slot"}


# Asking ------------------------------------------------------------------------------------------------------------


def test_a_request_keeps_the_price_and_the_regions_of_the_moment() -> None:
    made = request_allocation(HERE, asking(HOME), REQUESTED).result
    assert (made.price_minor_per_gpu_hour, made.currency, made.price_revision) == (250, "EUR", 3)
    assert made.regions == ["eu-1", "us-1"]
    assert made.deadline_at == NOW + timedelta(hours=1)
    assert made.name.startswith("alc-")


def test_only_regions_that_the_policy_allows_are_used() -> None:
    rules = PolicyRules(regions=NameRules(deny=("us-*",)))
    assert request_allocation(HERE, asking(HOME, rules), REQUESTED).result.regions == ["eu-1"]
    with pytest.raises(Refusal) as refused:
        request_allocation(HERE, asking(HOME, PolicyRules(regions=NameRules(allow=("mars",)))), REQUESTED)
    assert refused.value.code is Code.POLICY_DENIED
    assert refused.value.details["layer"] == "project"


def test_the_maximum_counts_what_is_held_and_what_is_asked_for() -> None:
    rules = PolicyRules(gpus_max=8)
    fits = asking(HOME, rules, holding=ProjectHolding(6, 3, 5))
    assert steps(request_allocation(HERE, fits, REQUESTED)) == ["project_quota changed", "allocation made"]
    with pytest.raises(Refusal) as refused:
        request_allocation(HERE, asking(HOME, rules, holding=ProjectHolding(7, 3, 5)), REQUESTED)
    assert refused.value.details["subject"] == "gpus"


def test_without_a_maximum_requests_do_not_wait_for_each_other() -> None:
    assert steps(request_allocation(HERE, asking(HOME), REQUESTED)) == ["allocation made"]


@every_row(
    ("request", "path"),
    [
        (replace(REQUESTED, gpu_count=3), "gpu_count"), (replace(REQUESTED, gpu_count=None), "gpu_count"),
        (replace(REQUESTED, region="mars-1"), "region"), (WHOLE, "shape"), (replace(REQUESTED, name="No Slug"), "name"),
        (replace(REQUESTED, place_within_seconds=10**9), "place_within_seconds"),
        (replace(REQUESTED, integration_metadata={"a": "b" * 300}), "integration_metadata"),
        (replace(REQUESTED, integration_metadata={str(number): "" for number in range(65)}), "integration_metadata"),
        (replace(REQUESTED, integration_metadata={f"{n:0>200}": "a" * 200 for n in range(64)}), "integration_metadata"),
        (replace(REQUESTED, scheduler_type="a\nb"), "scheduler_type"),
    ],
)  # fmt: skip
def test_an_impossible_request_is_refused_by_its_field(request: AllocationRequest, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        request_allocation(HERE, asking(HOME), request)
    assert (refused.value.code, refused.value.details["path"]) == (Code.VALIDATION_FAILED, path)


def test_a_sku_that_is_sold_in_one_size_needs_no_number() -> None:
    terms = replace(TERMS, allowed_gpu_counts=[8])
    made = request_allocation(HERE, asking(HOME, terms=terms), replace(REQUESTED, gpu_count=None)).result
    assert made.gpu_count == 8


def test_a_project_has_a_bounded_number_of_allocations() -> None:
    with pytest.raises(Refusal) as refused:
        request_allocation(HERE, asking(HOME, holding=ProjectHolding(0, OPEN_MAX, 0)), REQUESTED)
    assert refused.value.code is Code.LIMIT_REACHED


# Giving back -------------------------------------------------------------------------------------------------------


@every_row(
    ("status", "step", "after"),
    [
        ("requested", "fail", "failed"), ("provisioning", "fail", "failed"), ("active", "release", "releasing"),
        ("failed", "release", "releasing"), ("release_failed", "release", "releasing"),
    ],
)  # fmt: skip
def test_it_can_be_given_back_until_it_is(status: str, step: str, after: str) -> None:
    decision = release_allocation(HERE, standing(status))
    assert (steps(decision), decision.result.status) == ([f"allocation: {step}"], after)


@every_row("status", ["releasing", "released"])
def test_it_is_given_back_once(status: str) -> None:
    with pytest.raises(Refusal) as refused:
        release_allocation(HERE, standing(status))
    assert refused.value.code is Code.ILLEGAL_TRANSITION


def test_a_release_by_an_admin_from_its_tenant_is_published() -> None:
    entered = replace(HERE, actor=replace(HERE.actor, break_glass_id="bgl_1"))
    types = [event.type for event in release_allocation(entered, standing("active")).events]
    assert types == [EventType.ALLOCATION_RELEASING, EventType.ALLOCATION_LOST]


def test_only_a_teardown_that_failed_is_tried_again() -> None:
    assert retry_release(HERE, standing("release_failed")).result.status == "releasing"
    for state in set(AllocationState) - {AllocationState.RELEASE_FAILED}:
        with pytest.raises(Refusal) as refused:
            retry_release(HERE, standing(state.value))
        assert refused.value.code is Code.ILLEGAL_TRANSITION


def test_it_is_charged_until_it_is_given_back_for_the_first_time() -> None:
    earlier = NOW - timedelta(hours=3)
    assert retry_release(HERE, standing("release_failed", releasing_at=earlier)).result.releasing_at == earlier


# Placing -----------------------------------------------------------------------------------------------------------


def test_a_place_is_the_slots_the_network_and_the_task_in_one_decision() -> None:
    waits, there = requested(HERE, HOME), node(HERE)
    placed = [AllocationPlacement(waits, pick(waits, there))]
    decision = place_allocations(HERE, placed, there, network(HERE, waits, there))
    assert steps(decision) == [
        "project_network made",
        "slot changed",
        "slot changed",
        "allocation: provision",
        "task made",
    ]
    made = next(write for write in decision.writes if isinstance(write, Insert) and write.noun == "task")
    assert made.row["arguments"]["cpus"] == 16.0  # type: ignore[index]
    assert made.row["arguments"]["memory_bytes"] == 128 << 30  # type: ignore[index]
    (after,) = decision.result
    assert (after.task_id, after.node_id, after.address) == (made.row["id"], there.id, "10.64.0.2")


def test_a_whole_machine_is_all_of_it_with_its_network() -> None:
    terms = replace(TERMS, shape="baremetal")
    waits = request_allocation(HERE, asking(HOME, terms=terms), WHOLE).result
    there = node(HERE)
    decision = place_allocations(
        HERE, [AllocationPlacement(waits, pick(waits, there))], there, network(HERE, waits, there)
    )
    made = next(write for write in decision.writes if isinstance(write, Insert) and write.noun == "task")
    arguments: Any = made.row["arguments"]
    assert (arguments["cpus"], arguments["network"]["machine"], len(arguments["devices"])) == (64.0, True, 8)


# The platform's own steps ------------------------------------------------------------------------------------------


@every_row("status", ["requested", "released"])
def test_there_is_no_step_without_a_place_or_after_the_end(status: str) -> None:
    assert reconcile(HERE, seen(status)) is None


def test_a_created_sandbox_makes_it_active() -> None:
    facts = {"isolation": "bounded", "address": "10.64.0.2", "limits": {}, "host": "namespace", "other": 1}
    decision = reconcile(HERE, seen("provisioning", task=task("sandbox.create", result=facts)))
    assert steps(decision) == ["allocation: activate"]
    assert decision is not None
    assert decision.result.facts == {key: facts[key] for key in facts if key != "other"}
    assert decision.result.activated_at == NOW


@every_row("status", ["queued", "claimed", "cancelling"])
def test_a_task_that_is_not_over_is_waited_for(status: str) -> None:
    assert reconcile(HERE, seen("provisioning", task=task("sandbox.create", status))) is None
    assert reconcile(HERE, seen("releasing", task=task(status=status))) is None


def test_an_interrupted_task_is_tried_again_and_then_not() -> None:
    interrupted = task("sandbox.create", "failed", failure_code="interrupted")
    again = seen("provisioning", task=interrupted, tasks_made=1)
    decision = reconcile(HERE, again)
    assert steps(decision) == ["allocation changed", "task made"]
    assert decision is not None
    assert {write.row["step"] for write in decision.writes if isinstance(write, Insert)} == {"sandbox.create/2"}
    often = replace(again, allocation=replace(again.allocation, attempts=3))
    assert steps(reconcile(HERE, often)) == ["allocation: fail"]


@every_row(("status", "code"), [("expired", "timed_out"), ("cancelled", "cancelled")])
def test_a_task_that_did_not_come_to_its_end_is_a_failure(status: str, code: str) -> None:
    decision = reconcile(HERE, seen("provisioning", task=task("sandbox.create", status)))
    assert decision is not None
    assert (decision.result.status, decision.result.failure_code) == ("failed", code)


def test_what_failed_is_torn_down() -> None:
    assert steps(reconcile(HERE, seen("failed"))) == ["allocation: release"]


def test_a_teardown_is_asked_for_once() -> None:
    assert steps(reconcile(HERE, seen("releasing"))) == ["allocation changed", "task made"]


def test_only_a_clean_receipt_ends_it_and_frees_its_slots() -> None:
    clean = reconcile(HERE, seen("releasing", task=task(), receipt_id="rcp_1", clean_receipt_id="rcp_1"))
    assert steps(clean) == ["allocation: finish_teardown", "slot changed", "slot changed"]
    assert slot_statuses(clean) == {"free"}
    left = reconcile(HERE, seen("releasing", task=task(), receipt_id="rcp_1"))
    assert steps(left) == ["allocation: fail_teardown", "slot changed", "slot changed"]
    assert slot_statuses(left) == {"cleanup_blocked"}
    assert left is not None
    assert "rcp_1" in str(left.result.blocker)
    assert steps(reconcile(HERE, seen("releasing", task=task())))[0] == "allocation: fail_teardown", "no receipt at all"


def test_a_teardown_that_nobody_came_for_is_asked_for_again() -> None:
    lapsed = task(status="expired", claimed=False)
    assert steps(reconcile(HERE, seen("releasing", task=lapsed))) == ["allocation changed", "task made"]
    assert steps(reconcile(HERE, seen("releasing", task=task(status="expired"))))[0] == "allocation: fail_teardown"


def test_what_no_agent_began_ends_with_its_tasks_taken_back() -> None:
    waits, there = requested(HERE, HOME), node(HERE)
    placed = place_allocations(
        HERE, [AllocationPlacement(waits, pick(waits, there))], there, network(HERE, waits, there)
    )
    (row,) = [write.row for write in placed.writes if isinstance(write, Insert) and write.noun == "task"]
    queued = Task(**row, status="queued", generation=4)  # type: ignore[arg-type]
    decision = reconcile(HERE, seen("releasing", started=False, queued=(queued,)))
    assert steps(decision)[:2] == ["task: cancel", "allocation: finish_teardown"]
    assert decision is not None
    assert [event.type for event in decision.events] == [EventType.ALLOCATION_RELEASED, EventType.TASK_FINISHED]
    assert decision.result.teardown_proof == "nothing_started"


def test_a_failed_teardown_waits_for_its_time_or_for_a_late_receipt() -> None:
    waits = seen("release_failed")
    waits = replace(waits, allocation=replace(waits.allocation, retry_at=NOW + timedelta(seconds=1)))
    assert reconcile(HERE, waits) is None
    assert steps(reconcile(HERE, replace(waits, clean_receipt_id="rcp_1"))) == ["allocation: release"]
    due = replace(waits, allocation=replace(waits.allocation, retry_at=NOW))
    assert steps(reconcile(HERE, due)) == ["allocation: release"]


@every_row(
    ("status", "step", "is_lost"),
    [
        ("provisioning", "fail", True), ("active", "release", True), ("failed", "release", False),
        ("releasing", "write_off", False), ("release_failed", "write_off", False),
    ],
)  # fmt: skip
def test_allocations_of_a_lost_node_are_lost_and_written_off(status: str, step: str, is_lost: bool) -> None:
    there = seen(status)
    assert there.node is not None
    gone = replace(there, node=replace(there.node, status="retired", written_off_at=NOW))
    decision = reconcile(HERE, gone)
    assert steps(decision) == [f"allocation: {step}"]
    assert decision is not None
    assert (EventType.ALLOCATION_LOST in {event.type for event in decision.events}) is is_lost
    if step == "write_off":
        assert decision.result.teardown_proof == "written_off"


def test_a_blocker_is_reported_once_and_cleared() -> None:
    there = seen("active")
    assert there.node is not None
    away = replace(there, node=replace(there.node, unreachable_since=NOW))
    decision = reconcile(HERE, away)
    assert decision is not None
    assert decision.result.blocker == f"node {there.node.id} unreachable since 2026-03-01T12:00:00+00:00"
    assert reconcile(HERE, replace(away, allocation=decision.result)) is None
    back = reconcile(HERE, replace(there, allocation=decision.result))
    assert back is not None
    assert back.result.blocker is None
    assert wait_for(HERE, there.allocation, None) is None


# Groups ------------------------------------------------------------------------------------------------------------


@every_row(
    ("statuses", "state"),
    [
        ([], GroupState.EMPTY), (["active", "active"], GroupState.ACTIVE),
        (["active", "requested"], GroupState.REQUESTED),
        (["active", "provisioning"], GroupState.PROVISIONING), (["active", "failed"], GroupState.FAILED),
        (["active", "releasing"], GroupState.RELEASING), (["released", "release_failed"], GroupState.RELEASING),
        (["released", "released"], GroupState.RELEASED), (["released", "active"], GroupState.RELEASING),
    ],
)  # fmt: skip
def test_the_state_of_a_group_follows_from_its_allocations(statuses: list[str], state: GroupState) -> None:
    assert state_of(statuses) is state


def test_a_group_is_made_with_all_that_is_in_it() -> None:
    decision = create_group(HERE, asking(HOME), AllocationGroupRequest("cluster", 3, True, REQUESTED))
    assert [each.name for each in decision.result.allocations] == ["cluster-1", "cluster-2", "cluster-3"]
    assert {each.group_id for each in decision.result.allocations} == {decision.result.group.id}
    with pytest.raises(Refusal):
        create_group(HERE, asking(HOME, PolicyRules(gpus_max=5)), AllocationGroupRequest("cluster", 3, True, REQUESTED))
    for wrong in (
        AllocationGroupRequest("a" * 40, 1, False, REQUESTED),
        AllocationGroupRequest("cluster", 65, False, REQUESTED),
    ):
        with pytest.raises(Refusal):
            create_group(HERE, asking(HOME), wrong)


def test_a_whole_machine_does_not_join_those_who_share_one() -> None:
    made = create_group(HERE, asking(HOME), AllocationGroupRequest("cluster", 2, True, REQUESTED)).result
    require_room(made.group, CapacityShape.GPU_SLICE, made.allocations)
    with pytest.raises(Refusal):
        require_room(made.group, CapacityShape.BAREMETAL, made.allocations)
    with pytest.raises(Refusal) as refused:
        require_room(made.group, CapacityShape.GPU_SLICE, made.allocations * 32)
    assert refused.value.code is Code.LIMIT_REACHED


@every_row("status", ["releasing", "release_failed"])
def test_an_allocation_that_is_given_back_waits_for_the_members_in_it(status: str) -> None:
    held = replace(standing("releasing"), blocker=None)
    names = tuple(f"main-{number}" for number in range(7))
    waits = reconcile(HERE, AllocationSnapshot(held, node(HERE), started=True, members=names))
    assert waits is not None
    assert waits.result.blocker == "members main-0, main-1, main-2, main-3, main-4 and 2 more are removed first"
    assert reconcile(HERE, AllocationSnapshot(waits.result, node(HERE), started=True, members=names)) is None
    goes_on = reconcile(HERE, AllocationSnapshot(waits.result, node(HERE), started=True))
    assert goes_on is not None
    assert [each.row["type"] for each in goes_on.writes if isinstance(each, Insert)] == ["sandbox.destroy"]
    lost = AllocationSnapshot(standing(status), node(HERE, status="retired"), members=("main-0",))
    waits = reconcile(HERE, lost)
    assert waits is not None
    assert (waits.result.status, waits.result.blocker) == (status, "members main-0 are removed first")
    written_off = reconcile(HERE, replace(lost, members=()))
    assert written_off is not None
    assert written_off.result.teardown_proof == "written_off"
