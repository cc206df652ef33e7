"""SKUs: what is offered, and prices of which none is rewritten."""

from dataclasses import replace

import pytest

from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.sku import SKUS_MAX, Sku, SkuChange, SkuPriceSpec, SkuSpec, SkuStatus, create_sku, update_sku
from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from server.tests.support.decision_context import USER, context
from tests.support.rows import every_row

REQUESTED = SkuSpec(
    "slice", "A slice", CapacityShape.GPU_SLICE, "made-up", ("b-1", "a-1"), (4, 1), SkuPriceSpec(250, "EUR")
)
WHY = "power costs more"


def a_sku() -> Sku:
    return create_sku(context(), REQUESTED, 0).result


def test_a_sku_begins_with_its_first_price() -> None:
    decision = create_sku(context(), REQUESTED, 0)
    sku, line = decision.writes
    assert isinstance(sku, Insert)
    assert isinstance(line, Insert)
    assert (sku.row["regions"], sku.row["allowed_gpu_counts"]) == (["a-1", "b-1"], [1, 4])
    assert (line.noun, line.row["price_revision"], line.row["price_minor_per_gpu_hour"]) == ("sku_price", 1, 250)
    assert line.row["created_by"] == USER


def test_another_price_writes_a_line_and_raises_the_revision() -> None:
    decision = update_sku(context(), a_sku(), SkuChange(price_minor_per_gpu_hour=300, reason=WHY), None)
    line, change = decision.writes
    assert isinstance(line, Insert)
    assert isinstance(change, Update)
    assert (line.row["price_revision"], line.row["reason"]) == (2, WHY)
    assert change.set == {"price_minor_per_gpu_hour": 300, "price_revision": 2}
    assert decision.events[0].data["change"] == "repriced"
    assert decision.audits[0].reason == WHY


def test_a_price_does_not_change_without_a_reason() -> None:
    with pytest.raises(Refusal) as refused:
        update_sku(context(), a_sku(), SkuChange(currency="USD"), None)
    assert refused.value.details == {"path": "reason"}


def test_a_change_to_the_same_values_changes_nothing() -> None:
    same = SkuChange("A slice", ("a-1", "b-1"), (1, 4), 250, "EUR", SkuStatus.OFFERED)
    assert update_sku(context(), a_sku(), same, None).writes == ()


def test_a_sku_is_withdrawn_and_offered_again() -> None:
    gone = update_sku(context(), a_sku(), SkuChange(status=SkuStatus.WITHDRAWN), 0)
    assert (gone.result.status, gone.events[0].data["change"]) == ("withdrawn", "withdrawn")
    back = update_sku(context(), gone.result, SkuChange(status=SkuStatus.OFFERED), 1)
    assert (back.result.status, back.result.revision) == ("offered", 2)


def test_a_change_that_saw_another_revision_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        update_sku(context(), a_sku(), SkuChange(display_name="Other"), 4)
    assert refused.value.code is Code.REVISION_CONFLICT


@every_row(
    "spec",
    [
        replace(REQUESTED, slug="NO"), replace(REQUESTED, display_name=" "), replace(REQUESTED, gpu_model=""),
        replace(REQUESTED, regions=()), replace(REQUESTED, regions=("UP",)), replace(REQUESTED, allowed_gpu_counts=()),
        replace(REQUESTED, allowed_gpu_counts=(0,)), replace(REQUESTED, allowed_gpu_counts=(1025,)),
        replace(REQUESTED, price=SkuPriceSpec(-1, "EUR")), replace(REQUESTED, price=SkuPriceSpec(10**13, "EUR")),
        replace(REQUESTED, price=SkuPriceSpec(1, "eur")),
    ],
)  # fmt: skip
def test_a_sku_out_of_bounds_is_refused(spec: SkuSpec) -> None:
    with pytest.raises(Refusal) as refused:
        create_sku(context(), spec, 0)
    assert refused.value.code is Code.VALIDATION_FAILED


def test_there_are_not_more_skus_than_the_bound() -> None:
    with pytest.raises(Refusal) as refused:
        create_sku(context(), REQUESTED, SKUS_MAX)
    assert refused.value.code is Code.LIMIT_REACHED
