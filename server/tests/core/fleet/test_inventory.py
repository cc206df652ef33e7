"""What a report does to a node and its slots, and what it must not do."""

from dataclasses import replace

import pytest

from mooring.core.catalog.compatibility import CapacityShape, Compatibility, Need, NeedKind, fit
from mooring.core.fleet.inventory import Inventory, capacity_of, facts_of, reconcile_slots, report_inventory
from mooring.core.fleet.node import HostKind
from mooring.core.kernel.decision import Insert, Remove, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from server.tests.support.decision_context import NOW
from server.tests.support.node_rows import ALLOCATION, GPU, INVENTORY, NODE_ID, a_node, a_slot, as_node
from tests.support.rows import every_row


def test_the_first_report_makes_a_node_ready_and_a_slot_of_each_gpu() -> None:
    decision = report_inventory(as_node(), a_node("enrolled"), [], INVENTORY)
    move, *slots = decision.writes
    assert isinstance(move, StateChange)
    assert (move.edge.trigger, move.set["inventory"]) == ("report_ready", INVENTORY.document())
    assert [slot.row["index"] for slot in slots if isinstance(slot, Insert)] == [0, 1]
    assert (decision.result.status, decision.events[0].data["change"]) == ("ready", "ready")


def test_the_same_report_in_another_order_is_the_same() -> None:
    slots = [a_slot(0), a_slot(1)]
    again = replace(INVENTORY, gpus=tuple(reversed(INVENTORY.gpus)))
    assert report_inventory(as_node(), a_node(), slots, again).writes == ()


@every_row("status", ["ready", "draining", "drained"])
def test_another_report_changes_the_inventory_and_not_the_state(status: str) -> None:
    slots = [a_slot(0), a_slot(1)]
    decision = report_inventory(as_node(), a_node(status), slots, replace(INVENTORY, cpus=32))
    (change,) = decision.writes
    assert isinstance(change, Update)
    assert (change.id, change.revision_expected, change.set["inventory_at"]) == (NODE_ID, 5, NOW)
    assert decision.result.status == status


def test_a_retired_node_reports_in_vain() -> None:
    with pytest.raises(Refusal) as refused:
        report_inventory(as_node(), a_node("retired"), [], INVENTORY)
    assert refused.value.code is Code.ILLEGAL_TRANSITION


def test_free_slots_follow_the_report() -> None:
    made = reconcile_slots(
        as_node(), NODE_ID, [a_slot(0), a_slot(3)], [replace(GPU, model="another"), INVENTORY.gpus[1]]
    )
    changed, added, removed = made.writes
    assert isinstance(changed, Update)
    assert (changed.id, changed.set["gpu_model"]) == ("slt_0", "another")
    assert isinstance(added, Insert)
    assert (added.row["index"], added.row["status"]) == (1, "free")
    assert removed == Remove("slot", "slt_3", 7)
    assert made.findings == ()


@every_row("status", ["claimed", "cleanup_blocked", "quarantined"])
def test_no_report_frees_or_changes_a_slot_that_is_not_free(status: str) -> None:
    slot = a_slot(0, status)
    for gpus, code in (([], "gpu_missing"), ([replace(GPU, model="another")], "gpu_changed")):
        made = reconcile_slots(as_node(), NODE_ID, [slot], gpus)
        assert made.writes == ()
        (finding,) = made.findings
        assert (finding["code"], finding["slot_index"], finding["allocation_id"]) == (code, 0, slot.allocation_id)


def test_a_finding_is_kept_with_the_node_until_a_report_fits_again() -> None:
    slots = [a_slot(0, "claimed"), a_slot(1)]
    lost = report_inventory(as_node(), a_node(), slots, replace(INVENTORY, gpus=(INVENTORY.gpus[1],)))
    assert [each["code"] for each in lost.result.findings] == ["gpu_missing"]
    assert lost.events[0].data["findings"] == lost.result.findings
    back = report_inventory(as_node(), lost.result, slots, INVENTORY)
    assert back.result.findings == []


def test_another_host_is_taken_where_nobody_stands() -> None:
    other = replace(INVENTORY, host=HostKind.PROCESS)
    assert report_inventory(as_node(), a_node(), [a_slot(0), a_slot(1)], other).result.host == "process"
    kept = report_inventory(as_node(), a_node(), [a_slot(0, "claimed"), a_slot(1)], other).result
    assert (kept.host, [each["code"] for each in kept.findings]) == ("simulated", ["host_changed"])


@every_row(
    "wrong",
    [
        {"cpus": -1}, {"memory_bytes": 2**61}, {"agent_version": ""}, {"addresses": ("nowhere",)},
        {"facts": {"A": True}}, {"facts": {"a": float("inf")}}, {"facts": {"a": float("nan")}},
        {"facts": {"a": "x" * 201}}, {"limits": {f"l{number}": 1 for number in range(201)}}, {"gpus": (GPU, GPU)},
        {"gpus": (replace(GPU, index=-1),)}, {"gpus": (replace(GPU, model="a\x00b"),)},
        {"gpus": tuple(replace(GPU, index=number) for number in range(129))},
    ],
)  # fmt: skip
def test_a_report_out_of_bounds_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Refusal) as refused:
        report_inventory(as_node(), a_node(), [], replace(INVENTORY, **wrong))  # type: ignore[arg-type]
    assert refused.value.code is Code.VALIDATION_FAILED


def test_compatibility_asks_the_facts_of_a_node() -> None:
    reported = replace(INVENTORY, facts={"rdma": True, "host": "a lie", "gpu_count": 99})
    node = a_node(inventory=reported.document())
    assert facts_of(node) == {
        "rdma": True,
        "host": "simulated",
        "region": "local",
        "cpus": 16,
        "memory_gib": 64,
        "gpu_count": 2,
        "simulated_gpus": True,
        "gpu_memory_gib": 80,
        "gpu_model": "made-up",
    }
    offer = (capacity_of(node, CapacityShape.GPU_SLICE, 1),)
    wanted = Compatibility(needs=(Need("rdma", NeedKind.EQUALS, True), Need("gpu_memory_gib", NeedKind.AT_LEAST, 80)))
    assert fit(wanted, offer).fits
    assert not fit(Compatibility(needs=(Need("gpu_memory_gib", NeedKind.AT_LEAST, 81),)), offer).fits


def test_a_node_that_has_not_reported_has_no_gpu() -> None:
    assert facts_of(a_node("enrolled"))["gpu_count"] == 0
    assert report_inventory(as_node(), a_node("enrolled"), [], Inventory("1", HostKind.PROCESS, 1, 1)).result.host == (
        "process"
    )


def test_whose_a_slot_was_is_in_the_finding() -> None:
    (finding,) = reconcile_slots(as_node(), NODE_ID, [a_slot(0, "claimed")], []).findings
    assert finding["allocation_id"] == ALLOCATION


def test_a_held_index_with_another_device_behind_it_is_flagged_and_nothing_is_mapped_again() -> None:
    before = replace(INVENTORY, facts={"gpu.0.id": "GPU-a", "gpu.1.id": "GPU-b"})
    swapped = replace(INVENTORY, facts={"gpu.0.id": "GPU-b", "gpu.1.id": "GPU-a"})
    node = a_node(inventory=before.document())
    decision = report_inventory(as_node(), node, [a_slot(0, "claimed"), a_slot(1)], swapped)
    assert [(each["code"], each["slot_index"]) for each in decision.result.findings] == [("gpu_changed", 0)]
    assert [type(write) for write in decision.writes] == [Update], "the node's row alone: no slot"
    again = report_inventory(as_node(), decision.result, [a_slot(0, "claimed"), a_slot(1)], swapped)
    assert again.writes == (), "the finding stays"
    back = report_inventory(as_node(), decision.result, [a_slot(0, "claimed"), a_slot(1)], before)
    assert back.result.findings == []


@every_row(
    ("change", "codes"),
    [
        ({}, []),
        ({"cpus": 17}, []),
        ({"cpus": 15}, ["cpus_lost"]),
        ({"memory_bytes": 63 * 2**30}, []),
        ({"memory_bytes": 60 * 2**30}, ["memory_lost"]),
        ({"gpus": (GPU,)}, ["gpus_lost"]),
        ({"gpus": (GPU, replace(GPU, index=1, model="another"))}, ["gpus_lost"]),
        ({"facts": {"machine": "b"}}, ["machine_changed"]),
        ({"facts": {}}, []),
        ({"addresses": ("192.0.2.9",)}, ["addresses_changed"]),
        ({"addresses": ("192.0.2.9", "192.0.2.7")}, []),
    ],
)
def test_what_a_machine_lost_is_a_finding(change: dict[str, object], codes: list[str]) -> None:
    before = replace(INVENTORY, facts={"machine": "a"}, addresses=("192.0.2.7",))
    now = replace(before, **change)  # type: ignore[arg-type]
    free = [a_slot(index) for index in range(2)]
    decided = report_inventory(as_node(), a_node(inventory=before.document()), free, now)
    assert [each["code"] for each in decided.result.findings] == codes
