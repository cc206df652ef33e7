"""Statements over the API: the month as a preview, its lines and sums, and the close by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from mooring.core.money.charge import HOUR, RatedLine, hour_of, month_of
from mooring.core.money.ledger import BookedHour, Booking, book
from mooring.core.money.statement_line import GroupBy
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from mooring.workers.charge import ChargeWorker
from mooring.workers.statement import StatementWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import context

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def site(world: World) -> AllocationSite:
    """A tenant whose allocation was charged for some hours, with covered usage beside it."""
    made = await make_site(world)
    await made.fleet.node(4)
    await made.active(await made.fleet.sku(), gpu_count=2)
    made.later(3 * HOUR)
    services = world.running.platform.services
    await ChargeWorker(services).tick()
    now = datetime.now(UTC)
    ids = (made.tenant.id, made.project_id, "usage", "use_none", None, None, "job_hour", "covered")
    covered = RatedLine(*ids, now, now, 5 * 10**6, 0)
    due = Booking(made.tenant.id, (), (covered,))
    await apply(made.fleet.database, PLATFORM, context(), book(context(), hour_of(now), BookedHour((), {}), due))
    await StatementWorker(services).tick()
    made.later(timedelta(0))
    return made


async def got(client: httpx.AsyncClient, path: str, **query: Any) -> Any:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def listed(client: httpx.AsyncClient, path: str, **query: Any) -> list[Any]:
    """All items of a list, one for each page."""
    items, cursor = [], None
    while True:
        page = await got(client, path, limit=1, **query, **({"cursor": cursor} if cursor else {}))
        items += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            return items


async def test_a_month_is_a_preview_with_lines_that_add_up(site: AllocationSite) -> None:
    client, path = site.world.client(site.tenant.token), f"/api/v1/tenants/{site.tenant.id}/statements"
    (statement,) = await listed(client, path)
    assert (statement["status"], statement["preview"], statement["digest"]) == ("open", True, None)
    assert statement["month"] == f"{datetime.now(UTC):%Y-%m}"
    one = f"{path}/{statement['id']}"
    assert (await got(client, one))["amount_micro"] == statement["amount_micro"] > 0
    lines = await listed(client, f"{one}/lines")
    assert sum(line["amount_micro"] for line in lines) == statement["amount_micro"]
    charged = [line for line in lines if line["billing"] == "charged"]
    assert {(line["gpu_count"], line["price_minor"], line["list_minor"]) for line in charged} == {(2, 250, 250)}
    assert all(line["sku_slug"] and line["project_slug"] and line["allocation_name"] for line in charged)
    for group_by in GroupBy:
        groups = await listed(client, f"{one}/breakdown", group_by=group_by.value)
        assert sum(group["amount_micro"] for group in groups) == statement["amount_micro"], group_by
        assert sum(group["line_count"] for group in groups) == len(lines), group_by
        assert [(group["unit"], group["quantity_micro"]) for group in groups if group["billing"] == "covered"] == [
            ("job_hour", 5 * 10**6)
        ], group_by


async def test_a_cursor_of_one_breakdown_is_refused_by_another(site: AllocationSite) -> None:
    client, path = site.world.client(site.tenant.token), f"/api/v1/tenants/{site.tenant.id}/statements"
    (statement,) = await listed(client, path)
    first = await got(client, f"{path}/{statement['id']}/breakdown", limit=1, group_by="project")
    other = {"group_by": "unit", "cursor": first["next_cursor"]}
    answer = await client.get(f"{path}/{statement['id']}/breakdown", params=other)
    assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid")


async def test_an_admin_of_the_platform_closes_a_month_by_hand_once_it_is_charged(site: AllocationSite) -> None:
    client, admin = site.world.client(site.tenant.token), site.world.admin
    path = f"/api/v1/tenants/{site.tenant.id}/statements"
    (statement,) = await listed(admin, "/api/v1/platform/statements", status="open")
    assert statement["tenant_id"] == site.tenant.id
    close = f"{path}/{statement['id']}/close"
    assert (await client.post(close)).status_code == 403
    early = await admin.post(close)
    assert (early.status_code, early.json()["code"]) == (409, "conflict")
    end = (month_of(datetime.now(UTC)) + timedelta(days=32)).replace(day=1)
    insert = "INSERT INTO billing_hour VALUES ($1, $2)"
    await site.fleet.database.fetch(PLATFORM, insert, end - HOUR, datetime.now(UTC))
    frozen = await admin.post(close)
    assert (frozen.status_code, frozen.json()["status"]) == (200, "closing")
    again = await admin.post(close)
    assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")
    site.later(end - datetime.now(UTC))
    await StatementWorker(site.world.running.platform.services).tick()
    site.later(timedelta(0))
    closed = await got(client, f"{path}/{statement['id']}")
    assert (closed["status"], closed["preview"], closed["previous_digest"]) == ("closed", False, None)
    assert closed["amount_micro"] == statement["amount_micro"]
    assert closed["line_count"] == len(await listed(client, f"{path}/{statement['id']}/lines"))
    events = await got(client, f"/api/v1/tenants/{site.tenant.id}/events", limit=500)
    (event,) = [each for each in events["items"] if each["type"] == "billing.statement.closed"]
    assert event["data"]["digest"] == closed["digest"]


async def test_a_tenant_finds_no_statement_of_another(site: AllocationSite) -> None:
    other = await site.world.tenant("other")
    theirs, own = f"/api/v1/tenants/{site.tenant.id}/statements", f"/api/v1/tenants/{other.id}/statements"
    (statement,) = await listed(site.world.client(site.tenant.token), theirs)
    client = site.world.client(other.token)
    assert await listed(client, own) == []
    for path in (theirs, f"{theirs}/{statement['id']}", *(f"{own}/{statement['id']}{rest}" for rest in ("", "/lines"))):
        assert (await client.get(path)).status_code == 404, path
