"""A plan knows the machines: what it promises is placed, and what no machine could hold is refused."""

import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from mooring.core.catalog.compatibility import Capacity, CapacityShape, Fact
from mooring.core.fleet.capacity_offers import MachineKind
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, SlotSnapshot
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.instance_launch import OperationBounds, create_instance, request_capacity
from mooring.core.runtime.instance_snapshot import ClaimWatch
from mooring.core.runtime.launch import evaluate, require
from mooring.core.runtime.launch_plan import plan_launch
from mooring.core.runtime.launch_snapshot import EvaluationPurpose, LaunchSnapshot, PlacementSpec, TargetAllocation
from mooring.storage.fleet.placement import UnplacedAllocation
from mooring.workers.allocation_reconciler import units_of
from server.tests.support.decision_context import NOW, context
from server.tests.support.launch_rows import SCHEMA, WHOLE, launch, standing, wished
from server.tests.support.manifests import launchable
from tests.support.rows import every_row

MODEL: Final = "h100-80g"
CASES: Final = 300
SEED: Final = 20_262


def cluster(needs: list[dict[str, Any]] | None = None, *, multi_node: bool = False) -> dict[str, Any]:
    """An app of up to eight members."""
    return launchable(
        version="2.1.0",
        config_schema=SCHEMA,
        components=[{"key": "hand", "min_count": 1, "max_count": 8}],
        compatibility={"needs": needs or [], "multi_node": multi_node},
    )


def asked(document: dict[str, Any], machines: list[MachineKind], *, members: int, gpus: int = 4) -> LaunchSnapshot:
    """A launch of so many members on these machines."""
    kinds = [Capacity(CapacityShape.GPU_SLICE, each.gpus, facts=each.facts) for each in machines]
    facts = launch(document, machines=machines, kinds={"h100": kinds} if kinds else {})
    return wished(facts, topology={"hand": members}, placement=PlacementSpec(sku="h100", gpu_count=gpus))


def machine(gpus: int, count: int = 1, facts: Mapping[str, Fact] | None = None) -> MachineKind:
    return MachineKind("eu-1", MODEL, gpus, gpus, count, {"gpu_model": MODEL, **(facts or {})})


def node(name: str, free: str, **changes: Any) -> NodeSnapshot:
    """A machine whose slots are free (1) or not (0)."""
    slots = tuple(SlotSnapshot(f"{name}-{at}", at, 0, MODEL, each == "1") for at, each in enumerate(free))
    busy = frozenset({"another"}) if "0" in free else frozenset[str]()
    return replace(NodeSnapshot(name, "eu-1", slots, projects=busy, name=f"host-{name}"), **changes)


NEEDS: Final = [{"fact": "rdma", "equals": True}]


@every_row(
    ("facts", "said"),
    [
        (asked(cluster(), [machine(16)], members=5), "20 GPUs on one machine"),
        (asked(cluster(), [], members=1), f"no machine with {MODEL}"),
        (asked(cluster(), [machine(2, 9)], members=1), "4 GPUs on one machine"),
        (asked(cluster(NEEDS), [machine(16), machine(2, facts={"rdma": True})], members=1), "without rdma"),
        (asked(cluster(NEEDS), [machine(16)], members=1), "it needs rdma"),
    ],
)
def test_what_no_machine_could_hold_even_if_idle_is_refused(facts: LaunchSnapshot, said: str) -> None:
    plan = plan_launch(facts)
    assert [each.code for each in plan.refusals] == [Code.INCOMPATIBLE]
    assert said in plan.refusals[0].detail
    with pytest.raises(Refusal, match="what would help"):
        create_instance(context(), facts, OperationBounds())


def test_what_machines_could_hold_waits_for_them() -> None:
    facts = asked(cluster(), [machine(16)], members=4)
    busy = plan_launch(replace(facts, fleet=[node("a", "1" * 15 + "0")]))
    assert (busy.launchable, busy.placement and busy.placement.fits) == (True, False)
    assert busy.placement is not None
    assert "16 GPUs on one machine are requested together, at most 15 are free on one" in busy.placement.because
    free = plan_launch(replace(facts, fleet=[node("a", "1" * 16)]))
    assert free.placement is not None
    assert free.placement.fits


def test_each_whole_machine_is_counted_once() -> None:
    document = cluster(multi_node=True) | {"artifact_kind": "controller"}
    facts = replace(asked(document, [machine(8, 2)], members=3, gpus=8), terms=WHOLE)
    facts = wished(facts, placement=PlacementSpec(sku="whole", gpu_count=8))
    (refusal,) = evaluate(facts).refusals
    assert "2 of 3 fit" in refusal.detail
    assert not evaluate(wished(facts, topology={"hand": 2})).refusals


def test_the_shapes_of_a_plan_fit_only_where_machines_could_hold_all_members() -> None:
    plan = plan_launch(asked(cluster(), [machine(16)], members=5))
    fits = {each.gpu_count: each.fits for each in plan.shapes if each.sku == "h100"}
    assert fits == {1: True, 2: True, 4: False, 8: False}


def test_what_a_plan_places_is_placed_by_the_worker_in_three_hundred_random_fleets() -> None:
    chance = random.Random(SEED)
    outcomes = {True: 0, False: 0}
    for _ in range(CASES):
        needs = chance.choice([None, NEEDS])
        fleet = [
            node(
                name,
                "".join(chance.choice("1110") for _ in range(chance.choice((4, 8, 16)))),
                refuses=chance.choice(["", "", "", "draining"]),
                facts={"rdma": chance.random() < 0.5},
            )
            for name in "abcd"[: chance.randint(1, 4)]
        ]
        kinds = [machine(len(each.slots), facts=each.facts) for each in fleet]
        facts = asked(cluster(needs), kinds, members=chance.randint(1, 6), gpus=chance.choice((1, 2, 4)))
        plan = plan_launch(replace(facts, fleet=fleet))
        if not plan.launchable:
            assert plan.placement is None or not plan.placement.fits, "an idle fleet holds at least what it holds now"
            continue
        evaluation = evaluate(facts)
        rows = request_capacity(context(), facts, evaluation, evaluation.members).result
        board = PlacementBoard(fleet, ["rdma"])
        units = units_of([UnplacedAllocation(each, True, None) for each in rows])
        placed = all(board.place(unit.requests()) is not None for unit in units)
        assert plan.placement is not None
        assert plan.placement.fits is placed
        outcomes[placed] += 1
    assert min(outcomes.values()) > CASES // 10, outcomes


def grown(home: NodeSnapshot | None, *, gpus: int, **changes: Any) -> LaunchSnapshot:
    """One more member of a cluster in one named allocation of four GPUs."""
    current = TargetAllocation(standing(node_id="nod_1", gpu_count=4), {"gpu_model": MODEL, **changes})
    return replace(
        asked(cluster(NEEDS if changes else None), [machine(16)], members=2, gpus=gpus),
        purpose=EvaluationPurpose.ADD,
        adding=1,
        current_allocations=[current],
        home=home,
    )


def test_a_slice_that_is_added_to_a_named_allocation_goes_to_its_node() -> None:
    facts = grown(node("nod_1", "00001111"), gpus=4, rdma=True)
    evaluation = evaluate(facts)
    require(evaluation)
    (row,) = request_capacity(context(), facts, evaluation, 1).result
    assert (row.wanted_node_id, row.group_id, row.needs) == ("nod_1", None, NEEDS)
    (unit,) = units_of([UnplacedAllocation(row, False, None)])
    mine = {"facts": {"rdma": True}}
    board = PlacementBoard([node("aaa", "1" * 16, **mine), node("nod_1", "00001111", **mine)], ["rdma"])
    plan = board.place(unit.requests())
    assert plan is not None
    assert plan[0].node_id == "nod_1"


@every_row(
    ("home", "gpus", "said"),
    [
        (node("nod_1", "0000"), 1, "node host-nod_1, which is full: 1 GPU requested, 0 free there"),
        (node("nod_1", "00000000"), 8, "node host-nod_1, which is full: 8 GPUs requested, 4 free there"),
        (None, 1, "is retired"),
    ],
)
def test_a_node_that_could_never_take_one_more_slice_is_named(home: NodeSnapshot | None, gpus: int, said: str) -> None:
    (refusal,) = evaluate(grown(home, gpus=gpus)).refusals
    assert refusal.code is Code.INCOMPATIBLE
    assert said in refusal.detail


@every_row(
    ("seen_seconds_ago", "listening"),
    [(None, False), (10, True), (89, True), (91, False)],
)
def test_a_plan_says_whether_an_adapter_listens_and_when_one_was_last_seen(
    seen_seconds_ago: int | None, listening: bool
) -> None:
    seen_at = None if seen_seconds_ago is None else NOW - timedelta(seconds=seen_seconds_ago)
    facts = launch(adapter=ClaimWatch(adapter_seen_at=seen_at), claim_lease=timedelta(seconds=45))
    adapter = plan_launch(facts).adapter
    assert adapter is not None
    assert (adapter.listening, adapter.last_seen_at) == (listening, seen_at)
    assert plan_launch(replace(facts, account=None)).adapter is None


def test_needs_that_would_fill_the_database_are_refused() -> None:
    long = [{"fact": f"fact_{each}", "one_of": ["x" * 150] * 5} for each in range(12)]
    machines = [machine(16, facts={f"fact_{each}": "x" * 150 for each in range(12)})]
    (refusal,) = evaluate(asked(cluster(long), machines, members=1)).refusals
    assert refusal.code is Code.LIMIT_REACHED
