"""SKUs: kept by the platform's admins, read by everybody, with prices of which none is ever rewritten."""

import asyncio

import asyncpg
import pytest

from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

SKUS = "/api/v1/skus"
KEPT = "/api/v1/platform/skus"
SLICE = {
    "slug": "slice", "display_name": "A slice", "shape": "gpu_slice", "gpu_model": "made-up",
    "regions": ["south", "north"], "allowed_gpu_counts": [4, 1, 2], "price_minor_per_gpu_hour": 250, "currency": "EUR",
}  # fmt: skip


def a_slice(world: World) -> dict[str, object]:
    """The slice under a name that no other test has taken."""
    return SLICE | {"slug": f"slice{world.suffix}"}


@pytest.mark.usefixtures("private_platform")
async def test_what_an_admin_offers_everybody_reads(world: World) -> None:
    made = await world.admin.post(KEPT, json=SLICE)
    assert made.status_code == 201, made.text
    tenant = await world.tenant("acme")
    client = world.client(tenant.token)
    seen = (await client.get(f"{SKUS}/{made.json()['id']}")).json()
    assert seen == made.json() | {"allowed_actions": []}
    assert (seen["regions"], seen["allowed_gpu_counts"], seen["status"]) == (["north", "south"], [1, 2, 4], "offered")
    assert [each["id"] for each in (await client.get(f"{SKUS}?region=north&shape=gpu_slice")).json()["items"]] == [
        seen["id"]
    ]
    assert (await client.get(f"{SKUS}?region=west")).json()["items"] == []
    assert (await client.post(KEPT, json=SLICE | {"slug": "other"})).status_code == 403
    assert (await world.client().get(SKUS)).status_code == 401


async def test_another_price_is_a_further_line_of_the_history(world: World) -> None:
    sku = (await world.admin.post(KEPT, json=a_slice(world))).json()
    refused = await world.admin.patch(f"{KEPT}/{sku['id']}", json={"price_minor_per_gpu_hour": 300})
    assert (refused.status_code, refused.json()["details"]["path"]) == (422, "reason")
    change = {"price_minor_per_gpu_hour": 300, "reason": "power costs more"}
    answer = await world.admin.patch(f"{KEPT}/{sku['id']}", json=change)
    assert (answer.status_code, answer.json()["price_revision"]) == (200, 2)
    same = await world.admin.patch(f"{KEPT}/{sku['id']}", json=change)
    assert same.json() == answer.json()
    lines = (await world.admin.get(f"{SKUS}/{sku['id']}/prices")).json()["items"]
    assert [(each["price_revision"], each["price_minor_per_gpu_hour"], each["reason"]) for each in lines] == [
        (1, 250, "the first price"),
        (2, 300, "power costs more"),
    ]


async def test_no_price_is_rewritten_and_none_is_charged_that_is_not_written_down(world: World) -> None:
    assert (await world.admin.post(KEPT, json=a_slice(world))).status_code == 201
    database = world.running.platform.services.database
    for statement in ("UPDATE sku_price SET price_minor_per_gpu_hour = 1", "DELETE FROM sku_price"):
        with pytest.raises(asyncpg.CheckViolationError, match="never changed"):
            await database.fetchval(PLATFORM, statement)
    with pytest.raises(asyncpg.CheckViolationError, match="stands in the history"):
        await database.fetchval(PLATFORM, "UPDATE sku SET price_minor_per_gpu_hour = 1")


async def test_of_two_who_change_a_price_at_once_each_has_a_line(world: World) -> None:
    sku = (await world.admin.post(KEPT, json=a_slice(world))).json()
    path, why = f"{KEPT}/{sku['id']}", "a race of two admins"
    prices = [{"price_minor_per_gpu_hour": 1000 + number, "reason": why} for number in range(6)]
    answers = await asyncio.gather(*(world.admin.patch(path, json=price) for price in prices))
    assert {answer.status_code for answer in answers} == {200}
    lines = (await world.admin.get(f"{SKUS}/{sku['id']}/prices")).json()["items"]
    assert [each["price_revision"] for each in lines] == list(range(1, 8))
    last = (await world.admin.get(f"{SKUS}/{sku['id']}")).json()
    assert last["price_minor_per_gpu_hour"] == lines[-1]["price_minor_per_gpu_hour"]


async def test_a_change_that_saw_something_older_is_refused(world: World) -> None:
    sku = (await world.admin.post(KEPT, json=a_slice(world))).json()
    path = f"{KEPT}/{sku['id']}"
    first = await world.admin.patch(path, json={"status": "withdrawn", "revision": 0})
    assert (first.status_code, first.json()["status"]) == (200, "withdrawn")
    late = await world.admin.patch(path, json={"status": "offered", "revision": 0})
    assert (late.status_code, late.json()["code"]) == (409, "revision_conflict")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slug", "No Slug"), ("price_minor_per_gpu_hour", -1), ("price_minor_per_gpu_hour", 1.5), ("currency", "euro"),
        ("regions", []), ("allowed_gpu_counts", []), ("allowed_gpu_counts", [0]), ("shape", "cube"), ("gpu_model", ""),
        ("regions", ["UP"]), ("unknown", 1),
    ],
)  # fmt: skip
async def test_a_sku_out_of_bounds_is_refused(world: World, field: str, value: object) -> None:
    answer = await world.admin.post(KEPT, json=SLICE | {field: value})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_a_slug_is_one_skus(world: World) -> None:
    assert (await world.admin.post(KEPT, json=a_slice(world))).status_code == 201
    again = await world.admin.post(KEPT, json=a_slice(world))
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
