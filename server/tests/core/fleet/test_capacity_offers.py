"""What a project could get: SKUs and machines that policy allows, occupied now or not."""

from typing import Any

from mooring.core.catalog.compatibility import (
    Capacity,
    CapacityShape,
    Compatibility,
    Need,
    NeedKind,
    ShapeWanted,
    best_fit,
)
from mooring.core.catalog.policy import Layer, LayerRules, NameRules, PolicyChain, PolicyRules
from mooring.core.fleet.allocation import SkuTerms
from mooring.core.fleet.capacity_offers import (
    TOGETHER_MAX,
    HeldCapacity,
    MachineKind,
    ProjectCapacity,
    possible_for,
)
from tests.support.rows import every_row


def terms(slug: str = "slice", shape: str = "gpu_slice", **other: Any) -> SkuTerms:
    said: dict[str, Any] = {
        "id": f"sku_{slug}",
        "slug": slug,
        "shape": shape,
        "gpu_model": "h100",
        "regions": ["north"],
        "allowed_gpu_counts": [1, 2, 4],
        "price_minor_per_gpu_hour": 0,
        "currency": "EUR",
        "price_revision": 1,
        "status": "offered",
    }
    return SkuTerms(**said | other)


def kind(gpus: int = 8, machines: int = 3, **facts: Any) -> MachineKind:
    return MachineKind("north", "h100", gpus, gpus, machines, facts)


def had(*kinds: MachineKind, skus: tuple[SkuTerms, ...] = (), chain: PolicyChain | None = None) -> ProjectCapacity:
    return ProjectCapacity(possible=possible_for(skus or (terms(),), kinds, chain or PolicyChain(())))


RDMA = Need("rdma", NeedKind.EQUALS, True)


@every_row(
    ("app", "fits"),
    [
        (Compatibility(min_gpu_count=4), True),
        (Compatibility(min_gpu_count=5), False),  # the largest slice has four
        (Compatibility(min_gpu_count=8, members_max=2), True),  # two slices of one machine
        (Compatibility(min_gpu_count=9, members_max=4), False),  # slices stay on one machine
        (Compatibility(needs=(RDMA,)), False),
        (Compatibility(requires_capacity_shape=ShapeWanted.BAREMETAL), False),
        (Compatibility(requires_exclusive_node=True), False),
    ],
)
def test_an_app_fits_what_could_be_asked_for(app: Compatibility, fits: bool) -> None:
    found = best_fit(app, had(kind()).offers_for(app))
    assert found is not None
    assert found.fits is fits


def test_whole_machines_are_joined_for_an_app_of_several_nodes() -> None:
    whole = had(kind(machines=3), skus=(terms("whole", "baremetal", allowed_gpu_counts=[8]),))
    for gpus, fits in ((24, True), (25, False)):
        app = Compatibility(min_gpu_count=gpus, multi_node=True, members_max=16)
        found = best_fit(app, whole.offers_for(app))
        assert found is not None
        assert found.fits is fits
    alone = Compatibility(min_gpu_count=16, members_max=16)
    assert not any(len(offer) > 1 for offer in whole.offers_for(alone))


def test_a_whole_machine_is_sold_whole_or_not_at_all() -> None:
    sku = terms("whole", "baremetal", allowed_gpu_counts=[4])
    assert possible_for((sku,), (kind(gpus=8),), PolicyChain(())) == ()
    mixed = MachineKind("north", "h100", 4, 8, 1)
    assert possible_for((sku,), (mixed,), PolicyChain(())) == ()


def test_only_what_policy_allows_is_offered() -> None:
    layer = LayerRules(Layer.PROJECT, PolicyRules(skus=NameRules(deny=("slice",))))
    app = Compatibility()
    assert had(kind(), chain=PolicyChain((layer,))).offers_for(app) == ()
    elsewhere = LayerRules(Layer.TENANT, PolicyRules(regions=NameRules(allow=("south",))))
    assert had(kind(), chain=PolicyChain((elsewhere,))).offers_for(app) == ()
    assert best_fit(app, ()) is None


def test_a_fleet_of_many_kinds_is_as_few_offers_as_the_app_can_tell_apart() -> None:
    fleet = had(*(kind(machines=1, serial=number, rdma=number % 2 == 0) for number in range(1000)))
    plain = Compatibility()
    assert len(fleet.offers_for(plain)) == 1
    asking = Compatibility(needs=(RDMA,))
    assert len(fleet.offers_for(asking)) == 2
    found = best_fit(asking, fleet.offers_for(asking))
    assert found is not None
    assert found.fits


def test_what_the_project_has_is_offered_alone_together_and_not_where_somebody_stands_in_it() -> None:
    one, two, far = (Capacity(CapacityShape.BAREMETAL, 4, node) for node in ("a", "a", "b"))
    capacity = ProjectCapacity((HeldCapacity(one), HeldCapacity(two), HeldCapacity(far)))
    assert capacity.offers_for(Compatibility()) == ((one,), (two,), (far,))
    spread = Compatibility(multi_node=True, members_max=3)
    assert capacity.offers_for(spread) == ((one,), (two,), (far,), (one, two), (one, two, far))
    taken = ProjectCapacity((HeldCapacity(one, occupied=True),))
    assert taken.offers_for(Compatibility()) == ()
    assert taken.offers_for(Compatibility(shares_allocation=True)) == ((one,),)
    many = ProjectCapacity(tuple(HeldCapacity(one) for _ in range(TOGETHER_MAX * 2)))
    assert max(len(offer) for offer in many.offers_for(spread)) == TOGETHER_MAX


def test_one_sku_alone_may_be_asked_about() -> None:
    capacity = had(kind(), skus=(terms("small", allowed_gpu_counts=[1]), terms("large", allowed_gpu_counts=[8])))
    app = Compatibility(min_gpu_count=8)
    for sku, fits in (("small", False), ("large", True)):
        found = best_fit(app, capacity.offers_for(app, sku))
        assert found is not None
        assert found.fits is fits
    assert capacity.offers_for(app, "none") == ()
