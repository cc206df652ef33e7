"""Placement: what is chosen, what is never chosen, and that something is chosen exactly when something fits."""

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.compatibility import CapacityShape, Need, NeedKind
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, PlacementRequest, Plan, SlotSnapshot
from mooring.core.fleet.placement_explanation import AllowedChoices, explain
from tests.support.rows import every_row

SLICE, WHOLE = CapacityShape.GPU_SLICE, CapacityShape.BAREMETAL


def node(name: str, free: str = "1111", *, numa: int = 2, **changed: object) -> NodeSnapshot:
    """A machine whose slots are free (1) or not (0), so many in each NUMA domain."""
    slots = tuple(
        SlotSnapshot(f"{name}-{index}", index, index // numa, "h100", letter == "1")
        for index, letter in enumerate(free)
    )
    busy = frozenset({"other"}) if "0" in free else frozenset[str]()
    return replace(NodeSnapshot(name, "eu-1", slots, projects=busy), **changed)  # type: ignore[arg-type]


def request(count: int, name: str = "r", shape: CapacityShape = SLICE, **changed: object) -> PlacementRequest:
    return replace(PlacementRequest(name, "p1", shape, "h100", count), **changed)  # type: ignore[arg-type]


def chosen(plan: Plan | None) -> list[tuple[str, list[int]]] | None:
    return None if plan is None else [(pick.node_id, [slot.index for slot in pick.slots]) for pick in plan]


def test_a_slice_lies_in_one_numa_domain_where_it_can() -> None:
    board = PlacementBoard([node("a", "1010"), node("b", "0011")])
    assert chosen(board.place([request(2)])) == [("b", [2, 3])]


def test_a_machine_in_use_is_taken_before_an_idle_one() -> None:
    board = PlacementBoard([node("a", "1111"), node("b", "0111")])
    assert chosen(board.place([request(2)])) == [("b", [2, 3])]


def test_the_machine_with_the_least_left_over_is_taken() -> None:
    board = PlacementBoard(
        [node("a", "01111111", numa=4), node("b", "00001100", numa=4), node("c", "00001110", numa=4)]
    )
    assert chosen(board.place([request(2)])) == [("b", [4, 5])]


def test_a_single_gpu_comes_from_the_domain_that_is_broken_already() -> None:
    assert chosen(PlacementBoard([node("a", "0111")]).place([request(1)])) == [("a", [1])]


def test_a_slice_spans_domains_when_it_must() -> None:
    assert chosen(PlacementBoard([node("a", "0111")]).place([request(3)])) == [("a", [1, 2, 3])]


def test_baremetal_takes_a_whole_idle_machine_of_that_size() -> None:
    board = PlacementBoard([node("a", "0111"), node("b", "11"), node("c"), node("d")])
    assert chosen(board.place([request(4, shape=WHOLE)])) == [("c", [0, 1, 2, 3])]
    assert board.place([request(3, shape=WHOLE)]) is None


def test_a_machine_without_gpus_is_taken_whole_and_once() -> None:
    board = PlacementBoard([NodeSnapshot("a", "eu-1")])
    requested = replace(request(0, shape=WHOLE), gpu_model="")
    plan = board.place([requested])
    assert plan is not None
    board.claim(plan)
    assert board.place([requested]) is None


@every_row(
    "closed",
    [
        {"refuses": "draining"}, {"exclusive": True}, {"region": "us-1"},
        {"single_project": True, "projects": frozenset({"other"})},
    ],
)  # fmt: skip
def test_a_machine_that_takes_nothing_is_not_taken(closed: dict[str, object]) -> None:
    board = PlacementBoard([replace(node("a"), **closed)])  # type: ignore[arg-type]
    assert board.place([request(1, regions=("eu-1",))]) is None
    assert board.place([request(1, regions=("eu-1",), node_id="a")]) is None


def test_a_machine_that_takes_one_project_takes_more_of_the_same() -> None:
    board = PlacementBoard([node("a", "0111", single_project=True, projects=frozenset({"p1"}))])
    assert board.place([request(1)]) is not None
    assert board.place([request(1, project_id="p2")]) is None


def test_an_idle_machine_that_takes_one_project_is_the_first_ones() -> None:
    board = PlacementBoard([node("a", single_project=True)])
    plan = board.place([request(1)])
    assert plan is not None
    board.claim(plan)
    assert board.place([request(1, project_id="p2")]) is None
    assert chosen(board.place([request(1)])) == [("a", [1])]


def test_a_need_is_asked_of_the_machines_facts() -> None:
    need = (Need("rdma", NeedKind.EQUALS, True),)
    board = PlacementBoard([node("a"), node("b", facts={"rdma": True})], facts=["rdma"])
    assert chosen(board.place([request(1, needs=need)])) == [("b", [0])]
    assert chosen(board.place([request(1)])) == [("a", [0])]
    with pytest.raises(ValueError, match="was built without the fact"):
        PlacementBoard([node("a")]).place([request(1, needs=need)])


def test_a_group_stays_on_one_machine_or_is_not_placed() -> None:
    board = PlacementBoard([node("a", "0011"), node("b", "0111"), node("c", "1000")])
    assert chosen(board.place([request(1, "x"), request(2, "y")])) == [("b", [1]), ("b", [2, 3])]
    assert board.place([request(2, "x"), request(2, "y")]) is None
    assert board.place([request(4, "x", WHOLE), request(4, "y", WHOLE)]) is None


def test_a_late_member_of_a_group_goes_to_the_groups_machine() -> None:
    board = PlacementBoard([node("a", "1111"), node("b", "0111")])
    assert chosen(board.place([request(2, node_id="a")])) == [("a", [0, 1])]
    assert board.place([request(2, node_id="gone")]) is None
    assert board.place([request(1, "x", node_id="a"), request(1, "y", node_id="b")]) is None


def test_members_of_a_group_may_ask_for_different_models() -> None:
    mixed = NodeSnapshot("m", "eu-1", (SlotSnapshot("m0", 0, 0, "h100", True), SlotSnapshot("m1", 1, 0, "l4", True)))
    board = PlacementBoard([node("a"), mixed])
    other = request(1, "y", gpu_model="l4")
    assert chosen(board.place([request(1, "x"), other])) == [("m", [0]), ("m", [1])]
    assert board.place([request(2, "x"), other]) is None


# Properties -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnNode:
    free: str
    numa: int
    region: str
    refuses: str
    single_project: bool


@dataclass(frozen=True)
class DrawnRequest:
    shape: CapacityShape
    count: int
    regions: tuple[str, ...] | None
    project_id: str


machines = st.lists(
    st.builds(
        DrawnNode,
        st.text("01", min_size=0, max_size=4),
        st.sampled_from([1, 2, 4]),
        st.sampled_from(["eu-1", "us-1"]),
        st.sampled_from(["", "", "", "draining"]),
        st.booleans(),
    ),
    max_size=4,
)
drawn_requests = st.lists(
    st.builds(
        DrawnRequest,
        st.sampled_from([SLICE, SLICE, WHOLE]),
        st.integers(1, 4),
        st.sampled_from([None, ("eu-1",), ("us-1",)]),
        st.sampled_from(["p1", "p2"]),
    ),
    max_size=6,
)


def fleet(drawn: list[DrawnNode]) -> list[NodeSnapshot]:
    return [
        node(
            f"n{number}",
            each.free,
            numa=each.numa,
            region=each.region,
            refuses=each.refuses,
            single_project=each.single_project,
        )
        for number, each in enumerate(drawn)
    ]


def asked(drawn: list[DrawnRequest]) -> list[PlacementRequest]:
    return [
        request(each.count, f"r{number}", each.shape, regions=each.regions, project_id=each.project_id)
        for number, each in enumerate(drawn)
    ]


def run(nodes: list[NodeSnapshot], requests: list[PlacementRequest]) -> list[Plan | None]:
    board, plans = PlacementBoard(nodes), []
    for each in requests:
        plan = board.place([each])
        plans.append(plan)
        if plan is not None:
            board.claim(plan)
    return plans


@given(machines, drawn_requests)
@settings(max_examples=400, deadline=None)
def test_nothing_is_given_twice_and_nothing_that_is_blocked(drawn: list[DrawnNode], wanted: list[DrawnRequest]) -> None:
    nodes = {each.id: each for each in fleet(drawn)}
    taken: set[str] = set()
    whole: set[str] = set()
    users: dict[str, set[str]] = {name: set(each.projects) for name, each in nodes.items()}
    for plan in run(list(nodes.values()), asked(wanted)):
        for pick in plan or ():
            there, ids = nodes[pick.node_id], {slot.id for slot in pick.slots}
            assert not there.refuses
            assert pick.request.regions is None or there.region in pick.request.regions
            assert len(ids) == pick.request.gpu_count
            assert all(slot.free for slot in pick.slots)
            assert ids <= {slot.id for slot in there.slots}
            assert not ids & taken
            assert there.id not in whole
            if pick.request.shape is WHOLE:
                assert ids == {slot.id for slot in there.slots}
                assert not users[there.id]
                whole.add(there.id)
            if there.single_project:
                assert users[there.id] <= {pick.request.project_id}
            users[there.id].add(pick.request.project_id)
            taken |= ids


@given(machines, drawn_requests)
@settings(max_examples=200, deadline=None)
def test_the_same_snapshot_gives_the_same_plans_in_whatever_order_it_is_read(
    drawn: list[DrawnNode], wanted: list[DrawnRequest]
) -> None:
    nodes, requests = fleet(drawn), asked(wanted)
    assert run(nodes, requests) == run(list(reversed(nodes)), requests)


def brute_force(nodes: list[NodeSnapshot], group: list[PlacementRequest]) -> bool:
    """Whether any machine has room, found by trying every choice of slots."""
    for there in nodes:
        first = group[0]
        if there.refuses or there.exclusive or (first.regions is not None and there.region not in first.regions):
            continue
        if there.single_project and there.projects - {first.project_id}:
            continue
        if first.shape is WHOLE:
            idle = not there.projects and all(slot.free for slot in there.slots)
            if len(group) == 1 and idle and len(there.slots) == first.gpu_count:
                return True
            continue
        free = [slot.id for slot in there.slots if slot.free]
        if _shared_out(free, [each.gpu_count for each in group]):
            return True
    return False


def _shared_out(free: list[str], counts: list[int]) -> bool:
    if not counts:
        return True
    return any(
        _shared_out([each for each in free if each not in picked], counts[1:])
        for picked in itertools.combinations(free, counts[0])
    )


@given(
    machines,
    st.sampled_from([SLICE, WHOLE]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.sampled_from([None, ("eu-1",)]),
)
@settings(max_examples=600, deadline=None)
def test_it_fits_exactly_when_some_choice_of_slots_fits(
    drawn: list[DrawnNode],
    shape: CapacityShape,
    counts: list[int],
    regions: tuple[str, ...] | None,
) -> None:
    nodes = fleet(drawn)
    group = [request(count, f"r{number}", shape, regions=regions) for number, count in enumerate(counts)]
    assert (PlacementBoard(nodes).place(group) is not None) == brute_force(nodes, group)


# Explanations -----------------------------------------------------------------------------------------------------


def test_it_says_how_many_gpus_are_missing_on_one_machine() -> None:
    said = explain(
        PlacementBoard([node("a", "0111"), node("b", "0011")]), [request(4, regions=("eu-1",))], AllowedChoices()
    )
    assert not said.fits
    assert said.smallest_change == "1 more GPU on one machine"
    assert [(each.region, each.machines) for each in said.classes] == [("eu-1", 2)]
    assert "at most 3 are free on one, 5 in all" in said.because


def test_it_names_a_region_that_was_seen_to_have_room() -> None:
    board = PlacementBoard([node("a", "0001"), node("b", region="eu-2"), node("c", region="us-1")])
    choices = AllowedChoices(regions=("us-1",))
    said = explain(board, [request(2, regions=("eu-1",))], choices)
    assert said.smallest_change == "region us-1 has 4 free", "eu-2 has room as well, but is not allowed"


def test_it_asks_for_an_idle_machine() -> None:
    said = explain(
        PlacementBoard([node("a", "0111"), node("b", exclusive=True)]), [request(4, shape=WHOLE)], AllowedChoices()
    )
    assert said.smallest_change == "an idle machine"
    assert "none of 2 machines of 4 GPUs is idle: 2 in use" in said.because


def test_it_names_the_machines_that_take_nothing() -> None:
    said = explain(
        PlacementBoard([node("a", refuses="draining"), node("b", refuses="unreachable")]),
        [request(1)],
        AllowedChoices(),
    )
    assert said.because == "eu-1: no machine takes it now (1 draining, 1 unreachable)"
    assert said.smallest_change == "a machine that is not draining"


def test_fewer_gpus_are_proposed_in_counts_that_the_sku_has() -> None:
    said = explain(PlacementBoard([node("a", "0011")]), [request(4)], AllowedChoices(gpu_counts=(1, 2, 4)))
    assert said.smallest_change == "2 GPUs in place of 4"


def test_machines_of_another_size_are_named() -> None:
    said = explain(PlacementBoard([node("a")]), [request(8, shape=WHOLE)], AllowedChoices())
    assert said.because == "eu-1: its machines have 4 GPUs, not 8"


def test_it_says_when_there_is_no_such_machine() -> None:
    said = explain(PlacementBoard([]), [request(1)], AllowedChoices())
    assert (said.because, said.smallest_change) == ("the fleet has no machine with h100", "a machine with h100")


def test_whole_machines_that_should_be_one_contradict_themselves() -> None:
    said = explain(PlacementBoard([node("a")]), [request(4, "x", WHOLE), request(4, "y", WHOLE)], AllowedChoices())
    assert said.smallest_change == "a group without same_node"


def test_what_fits_is_said_to_fit() -> None:
    assert explain(PlacementBoard([node("a")]), [request(4)], AllowedChoices()).fits


@given(machines, st.sampled_from([SLICE, WHOLE]), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_every_refusal_has_a_reason_and_a_change(drawn: list[DrawnNode], shape: CapacityShape, count: int) -> None:
    nodes = fleet(drawn)
    requested = request(count, shape=shape, regions=("eu-1",))
    said = explain(PlacementBoard(nodes), [requested], AllowedChoices(regions=("us-1",), gpu_counts=(1, 2)))
    assert said.fits == brute_force(nodes, [requested])
    if not said.fits:
        assert said.because
        assert said.smallest_change
    if said.smallest_change.startswith("region us-1"):
        assert brute_force(nodes, [replace(requested, regions=("us-1",))])
