"""Prices and meters: the platform sets them, and a tenant reads the list and its own contract."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.gateways.clock import SystemClock
from server.tests.conftest import World

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

PRICES = "/api/v1/platform/prices"
METERS = "/api/v1/platform/meters"


def price(world: World, **changed: Any) -> dict[str, Any]:
    """A price of a unit of an app that no other test uses."""
    item = {"item": "unit", "item_key": f"writer{world.suffix}/token_out"}
    return item | {"currency": "EUR", "minor": 250, "per": 1_000_000, "reason": "a price for a test"} | changed


async def listed(world: World, token: str | None, path: str) -> list[tuple[str, int]]:
    """Book and amount of the prices of this test's unit."""
    client = world.admin if token is None else world.client(token)
    asked = f"{path}{'&' if '?' in path else '?'}item_key=writer{world.suffix}/token_out"
    answer = await client.get(f"/api/v1{asked}")
    assert answer.status_code == 200, answer.text
    return [(each["book"], each["minor"]) for each in answer.json()["items"]]


async def test_a_tenant_reads_the_list_and_its_own_contract_only(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    project_id = await world.project(acme, "train")
    for body in (price(world), price(world, tenant_id=acme.id, minor=200), price(world, tenant_id=other.id, minor=1)):
        made = await world.admin.post(PRICES, json=body)
        assert made.status_code == 201, made.text
    assert await listed(world, None, "/platform/prices") == [("list", 250), ("contract", 200), ("contract", 1)]
    assert await listed(world, acme.token, f"/tenants/{acme.id}/prices") == [("list", 250), ("contract", 200)]
    assert await listed(world, acme.token, f"/tenants/{acme.id}/prices?current=true") == [("contract", 200)]
    assert await listed(world, acme.token, f"/projects/{project_id}/prices?current=true") == [("contract", 200)]
    assert await listed(world, other.token, f"/tenants/{other.id}/prices") == [("list", 250), ("contract", 1)]
    refused = await world.client(acme.token).post(PRICES, json=price(world))
    assert refused.status_code == 403


async def test_of_two_prices_the_later_one_holds_and_none_is_backdated(world: World) -> None:
    now = SystemClock().now()
    later = {"minor": 300, "valid_from": (now + timedelta(days=1)).isoformat()}
    assert (await world.admin.post(PRICES, json=price(world))).status_code == 201
    made = await world.admin.post(PRICES, json=price(world, **later, tiers=[{"above": 10, "minor": 1}], included=5))
    assert (made.json()["included"], made.json()["tiers"]) == (5, [{"above": 10, "minor": 1}])
    assert await listed(world, None, "/platform/prices?current=true") == [("list", 250)]
    refusals: dict[str, dict[str, Any]] = {
        "valid_from": {"valid_from": (now - timedelta(days=1)).isoformat()},
        "existing_from": {"existing_from": (now + timedelta(days=6)).isoformat()},
        "item_key": {"item_key": "writer"},
        "tiers": {"tiers": [{"above": 2, "minor": 1}, {"above": 1, "minor": 1}]},
    }
    for path, changed in refusals.items():
        refused = await world.admin.post(PRICES, json=price(world, **changed))
        assert (refused.status_code, refused.json()["details"]["path"]) == (422, path)
    same = await world.admin.post(PRICES, json=price(world, **later))
    assert (same.status_code, same.json()["code"]) == (409, "name_taken")
    unknown = await world.admin.post(PRICES, json=price(world, tenant_id="ten_" + "0" * 26))
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
    no_sku = await world.admin.post(PRICES, json=price(world, item="sku", item_key="sku_" + "0" * 26, per=3600))
    assert (no_sku.status_code, no_sku.json()["code"]) == (404, "not_found")


async def test_a_unit_is_charged_only_with_a_list_price(world: World) -> None:
    path = f"{METERS}/writer{world.suffix}/token_out"
    refused = await world.admin.put(path, json={"billing": "charged"})
    assert (refused.status_code, refused.json()["details"]["path"]) == (422, "billing")
    assert (await world.admin.post(PRICES, json=price(world))).status_code == 201
    made = await world.admin.put(path, json={"billing": "charged"})
    assert (made.status_code, made.json()["billing"], made.json()["status"]) == (200, "charged", "enabled")
    again = await world.admin.put(path, json={"billing": "charged"})
    assert again.json() == made.json()
    disabled = await world.admin.put(path, json={"billing": "charged", "status": "disabled"})
    assert (disabled.json()["status"], disabled.json()["revision"]) == ("disabled", 1)
    found = (await world.admin.get(METERS, params={"limit": 500})).json()["items"]
    assert [each["status"] for each in found if each["id"] == made.json()["id"]] == ["disabled"]
    odd = await world.admin.put(f"{METERS}/writer{world.suffix}/Token", json={"billing": "informative"})
    assert (odd.status_code, odd.json()["details"]["path"]) == (422, "unit")
