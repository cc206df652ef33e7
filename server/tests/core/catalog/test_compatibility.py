"""What fits where: the table of the platform's design, and the smallest change that helps."""

from collections.abc import Iterable
from itertools import combinations
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.compatibility import (
    NETWORK,
    BlockedBy,
    Capacity,
    CapacityShape,
    Compatibility,
    Fact,
    Need,
    NeedKind,
    Offer,
    OfferChange,
    OfferChangeKind,
    ShapeWanted,
    Topology,
    apply_change,
    best_fit,
    fit,
    topology_of,
)
from mooring.core.kernel.errors import Code
from server.tests.support.manifests import (
    JUPYTER,
    KUBERNETES,
    LAUNCHABLE_OCI,
    RKE2_SINGLE,
    SLURM,
    VLLM,
    compatibility,
    launchable,
)
from tests.support.rows import every_row

BAREMETAL, GPU_SLICE = CapacityShape.BAREMETAL, CapacityShape.GPU_SLICE
ONE, ONE_NODE, NODES = Topology.ONE_ALLOCATION, Topology.ONE_NODE, Topology.SEVERAL_NODES


def offer(shape: CapacityShape, topology: Topology, gpus: int = 1, **facts: Fact) -> Offer:
    """Two allocations unless it is one, on one node or on two."""
    first = Capacity(shape, gpus, "n1", facts)
    if topology is ONE:
        return (first,)
    return first, Capacity(shape, gpus, "n1" if topology is ONE_NODE else "n2", facts)


# The table

TABLE: list[tuple[str, dict[str, Any], Topology, bool, bool]] = [
    # app, manifest, topology, fits on baremetal, fits on gpu_slice
    ("launchable oci", LAUNCHABLE_OCI, ONE, True, True),
    ("jupyter", JUPYTER, ONE, True, True),
    ("vllm single-node", VLLM, ONE, True, True),
    ("slurm single-node", SLURM, ONE, True, True),
    ("rke2 single-allocation", RKE2_SINGLE, ONE, True, True),
    ("slurm multi-allocation", SLURM, ONE_NODE, True, True),
    ("slurm multi-node across networks", SLURM, NODES, True, False),
    ("multi-node kubernetes", KUBERNETES, NODES, True, False),
]


@every_row(("name", "manifest", "topology", "baremetal", "gpu_slice"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_of_the_design_is_reproduced(
    name: str, manifest: dict[str, Any], topology: Topology, baremetal: bool, gpu_slice: bool
) -> None:
    app = compatibility(manifest)

    assert fit(app, offer(BAREMETAL, topology)).fits is baremetal, name
    assert fit(app, offer(GPU_SLICE, topology)).fits is gpu_slice, name


@every_row("manifest", [SLURM, KUBERNETES], ids=["slurm", "kubernetes"])
def test_a_cluster_of_slices_across_nodes_is_blocked_by_its_network(manifest: dict[str, Any]) -> None:
    found = fit(compatibility(manifest), offer(GPU_SLICE, NODES))

    assert [blocker.rule for blocker in found.blockers] == [BlockedBy.SLICE_NETWORK]
    assert found.because == "slice networking does not span allocations on different nodes"
    assert found.smallest_change == "single-node topology"


def test_topology_follows_from_the_nodes() -> None:
    assert [topology_of(offer(GPU_SLICE, topology)) for topology in Topology] == list(Topology)
    assert NETWORK == {BAREMETAL: NODES, GPU_SLICE: ONE_NODE}


# The smallest change


@every_row(
    ("asked", "given", "change"),
    [
        ({"min_gpu_count": 2}, offer(GPU_SLICE, ONE, 1), "1 more GPU"),
        ({"min_gpu_count": 8}, offer(GPU_SLICE, ONE, 1), "7 more GPUs"),
        ({"requires_exclusive_node": True}, offer(GPU_SLICE, ONE), "an exclusive node"),
        ({"requires_capacity_shape": "baremetal"}, offer(GPU_SLICE, ONE), "a baremetal allocation"),
        ({"requires_capacity_shape": "gpu_slice"}, offer(BAREMETAL, ONE), "a gpu_slice allocation"),
        ({}, offer(BAREMETAL, NODES), "a single allocation"),
        ({}, offer(GPU_SLICE, NODES), "a single allocation"),
        (
            {"min_gpu_count": 2, "requires_exclusive_node": True},
            offer(GPU_SLICE, ONE),
            "1 more GPU and an exclusive node",
        ),
        ({"needs": [{"fact": "rdma", "equals": True}]}, offer(GPU_SLICE, ONE), "a node with rdma"),
        (
            {"needs": [{"fact": "gpu_memory_gib", "at_least": 80}]},
            offer(GPU_SLICE, ONE, gpu_memory_gib=40),
            "a node with at least 80 gpu_memory_gib",
        ),
        (
            {"needs": [{"fact": "gpu", "one_of": ["h100", "h200"]}], "min_gpu_count": 2},
            offer(GPU_SLICE, ONE, gpu="a100"),
            "1 more GPU and a node with gpu h100 or h200",
        ),
    ],
)  # fmt: skip
def test_the_smallest_change_is_named(asked: dict[str, Any], given: Offer, change: str) -> None:
    assert fit(compatibility(launchable(compatibility=asked)), given).smallest_change == change


def test_members_of_one_node_are_kept_there() -> None:
    found = fit(Compatibility(members_max=4), offer(BAREMETAL, NODES))

    assert [blocker.rule for blocker in found.blockers] == [BlockedBy.SINGLE_NODE]
    assert found.smallest_change == "single-node topology"


def test_one_change_that_removes_two_blockers_is_found() -> None:
    # An exclusive node is baremetal, whose network spans nodes: nothing has to move together.
    found = fit(Compatibility(requires_exclusive_node=True, multi_node=True, members_max=9), offer(GPU_SLICE, NODES))

    assert {blocker.rule for blocker in found.blockers} == {BlockedBy.EXCLUSIVE_NODE, BlockedBy.SLICE_NETWORK}
    assert found.smallest_change == "an exclusive node"


def test_a_change_that_brings_the_next_blocker_is_followed_by_what_removes_it() -> None:
    slices = Compatibility(requires_capacity_shape=ShapeWanted.GPU_SLICE, multi_node=True, members_max=9)
    found = fit(slices, offer(BAREMETAL, NODES))

    assert found.smallest_change == "a gpu_slice allocation and single-node topology"


def test_what_contradicts_itself_is_blocked_without_a_change() -> None:
    never = Compatibility(requires_capacity_shape=ShapeWanted.GPU_SLICE, requires_exclusive_node=True)
    twice = Compatibility(needs=(Need("rdma", NeedKind.EQUALS, True), Need("rdma", NeedKind.EQUALS, False)))
    for app in (never, twice):
        found = fit(app, offer(GPU_SLICE, ONE))
        assert not found.fits
        assert found.smallest_change == "none: the app's requirements contradict each other"


def test_coming_together_on_the_node_that_has_what_is_needed_is_enough() -> None:
    app = Compatibility(members_max=3, needs=(Need("rdma", NeedKind.EQUALS, True),))
    mixed = (Capacity(BAREMETAL, 1, "n1"), Capacity(BAREMETAL, 1, "n2", {"rdma": True}))

    assert fit(app, mixed).smallest_change == "single-node topology"


# Needs


@every_row(
    ("need", "fact", "met"),
    [
        (Need("f", NeedKind.EQUALS, True), True, True),
        (Need("f", NeedKind.EQUALS, True), 1, False),
        (Need("f", NeedKind.EQUALS, 1), True, False),
        (Need("f", NeedKind.EQUALS, "12"), 12, False),
        (Need("f", NeedKind.EQUALS, False), False, True),
        (Need("f", NeedKind.EQUALS, False), None, False),
        (Need("f", NeedKind.AT_LEAST, 80), 80, True),
        (Need("f", NeedKind.AT_LEAST, 80), 79.5, False),
        (Need("f", NeedKind.AT_LEAST, 80), "90", False),
        (Need("f", NeedKind.AT_LEAST, 0), True, False),
        (Need("f", NeedKind.ONE_OF, ("a", "b")), "b", True),
        (Need("f", NeedKind.ONE_OF, ("a", "b")), "c", False),
        (Need("f", NeedKind.PRESENT, True), "munge-0.5.15", True),
        (Need("f", NeedKind.PRESENT, True), 0, True),
        (Need("f", NeedKind.PRESENT, True), False, False),
        (Need("f", NeedKind.PRESENT, True), None, False),
    ],
)
def test_a_need_is_met_by_a_fact_of_its_kind(need: Need, fact: Fact | None, met: bool) -> None:
    assert need.met_by({} if fact is None else {"f": fact}) is met


def test_every_node_has_to_meet_a_need() -> None:
    app = Compatibility(members_max=2, multi_node=True, needs=(Need("rdma", NeedKind.EQUALS, True),))
    mixed = (Capacity(BAREMETAL, 1, "n1", {"rdma": True}), Capacity(BAREMETAL, 1, "n2"))

    assert fit(app, mixed).smallest_change == "a node with rdma"
    assert fit(app, offer(BAREMETAL, NODES, rdma=True)).fits


# Properties


def drawn_need(chance: Random, fact: str) -> Need:
    if fact in "ab":
        return Need(fact, NeedKind.EQUALS, chance.choice((True, False, 0, 1, 2, "x")))
    if fact in "cd":
        return Need(fact, NeedKind.AT_LEAST, chance.randint(0, 3))
    return Need(fact, NeedKind.ONE_OF, tuple(chance.sample(range(4), chance.randint(1, 3))))


def drawn_app(chance: Random) -> Compatibility:
    wanted = chance.choice(tuple(ShapeWanted))
    exclusive = wanted is not ShapeWanted.GPU_SLICE and chance.random() < 0.5
    needs = tuple(drawn_need(chance, fact) for fact in chance.sample("abcde", chance.randint(0, 3)))
    gpus, spread = chance.randint(0, 4), chance.random() < 0.5
    return Compatibility(wanted, gpus, exclusive, spread, needs, members_max=chance.randint(1, 3))


def drawn_offer(chance: Random) -> Offer:
    values = (True, False, 0, 1, 2, 3)
    facts: dict[str, dict[str, Fact]] = {
        node: {fact: chance.choice(values) for fact in chance.sample("abcde", chance.randint(0, 4))}
        for node in ("n1", "n2", "n3")
    }
    nodes = [chance.choice(tuple(facts)) for _ in range(chance.randint(1, 3))]
    return tuple(Capacity(chance.choice(tuple(CapacityShape)), chance.randint(0, 3), n, facts[n]) for n in nodes)


def after(changes: Iterable[OfferChange], given_: Offer) -> Offer:
    for change in changes:
        given_ = apply_change(change, given_)
    return given_


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_the_change_that_is_named_makes_it_fit_and_no_part_of_it_does(seed: int) -> None:
    chance = Random(seed)
    for _ in range(20):
        app, given_ = drawn_app(chance), drawn_offer(chance)
        found = fit(app, given_)

        assert fit(app, after(found.changes, given_)).fits, (app, given_)
        assert found.fits is (found.changes == ())
        if found.changes:
            for fewer in combinations(found.changes, len(found.changes) - 1):
                assert not fit(app, after(fewer, given_)).fits, (app, given_, fewer)


@settings(max_examples=10)
@given(st.integers(0, 2**32))
def test_the_order_of_the_allocations_does_not_matter(seed: int) -> None:
    chance = Random(seed)
    for _ in range(20):
        app, given_ = drawn_app(chance), drawn_offer(chance)
        one, other = fit(app, given_), fit(app, given_[::-1])

        assert {blocker.rule for blocker in one.blockers} == {blocker.rule for blocker in other.blockers}
        assert one.smallest_change == other.smallest_change, (app, given_)


# Offers


def test_the_best_offer_is_one_that_fits_or_the_one_that_needs_least() -> None:
    app = Compatibility(min_gpu_count=4)
    small, near, enough = (offer(GPU_SLICE, ONE, gpus) for gpus in (1, 3, 4))

    assert best_fit(app, ()) is None
    assert best_fit(app, (small, enough, near)) == fit(app, enough)
    best = best_fit(app, (small, near))
    assert best is not None
    assert best.smallest_change == "1 more GPU"


def test_an_offer_without_an_allocation_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="at least one allocation"):
        fit(Compatibility(), ())


def test_a_refusal_names_every_blocker_and_the_change() -> None:
    assert fit(Compatibility(), offer(GPU_SLICE, ONE)).refusal() is None
    refusal = fit(Compatibility(min_gpu_count=2, requires_exclusive_node=True), offer(GPU_SLICE, ONE)).refusal()

    assert refusal is not None
    assert refusal.code is Code.INCOMPATIBLE
    assert refusal.details["smallest_change"] == "1 more GPU and an exclusive node"
    assert isinstance(refusal.details["blockers"], list)
    assert [each["rule"] for each in refusal.details["blockers"]] == ["exclusive_node", "gpu_count"]
    assert refusal.detail.endswith("what would help: 1 more GPU and an exclusive node")


def test_every_kind_of_change_has_a_text_and_an_effect() -> None:
    given_ = offer(GPU_SLICE, NODES)
    for kind in OfferChangeKind:
        if kind is not OfferChangeKind.FACT:
            change = next(
                remedy
                for app in (
                    Compatibility(min_gpu_count=9),
                    Compatibility(ShapeWanted.BAREMETAL),
                    Compatibility(),
                    Compatibility(members_max=2),
                    Compatibility(requires_exclusive_node=True),
                    Compatibility(ShapeWanted.GPU_SLICE),
                )
                for shape in CapacityShape
                for blocker in fit(app, offer(shape, NODES)).blockers
                for remedy in blocker.remedies
                if remedy.kind is kind
            )
            assert str(change)
            assert apply_change(change, given_) != given_ or kind is OfferChangeKind.GPU_SLICE
