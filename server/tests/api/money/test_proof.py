"""Every law of the ledger holds after charging, and is found broken when it is broken on purpose."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from mooring.core.money.charge import HOUR
from mooring.core.money.proof import SENTENCES, Difference
from mooring.core.pricing.price import Item, PriceSpec, create_price
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.money import ledger_law
from mooring.storage.money.proof import LAWS
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import context
from server.tests.support.proving import InTransaction, broken, proof

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

USED = """
INSERT INTO usage_record (id, tenant_id, project_id, instance_id, record_id, unit, started_at, ended_at, quantity,
                          app_slug, correlation_id, trace_id, created_at, billing, price_id, covered_by_allocation)
VALUES ($1, $2, $3, 'ins_1', $1, 'token_out', $4, $4, $5, 'my-app', 'cor_1', 'trace', $4, $6, $7, $6 = 'covered')"""
ONE_HOUR = "(SELECT max(hour) FROM rated_usage)"

SABOTAGE: dict[str, tuple[str, str]] = {
    "an entry is made larger": ("balanced", "UPDATE ledger_entry SET amount = amount + 1 WHERE account = 'revenue'"),
    "a transaction loses its entries": ("balanced", "DELETE FROM ledger_entry"),
    "an entry moves to another project": ("no_stray_entry", "UPDATE ledger_entry SET project_id = 'prj_x'"),
    "a trigger is switched off": (
        "append_only",
        "ALTER TABLE ledger_entry DISABLE TRIGGER ledger_entry_is_append_only",
    ),
    "a trigger is dropped": ("append_only", "DROP TRIGGER price_is_never_emptied ON price"),
    "both entries are made larger": (
        "booked_as_rated",
        "UPDATE ledger_entry SET amount = amount + sign(amount) * 7",
    ),
    "a line names another price": (
        "one_price",
        "UPDATE rated_usage SET price_id = (SELECT min(id) FROM price) WHERE source = 'allocation'",
    ),
    "a line names another hour": (
        "one_price",
        f"UPDATE rated_usage SET hour = hour - interval '9 days' WHERE hour = {ONE_HOUR}",
    ),
    "a charge is booked twice": (
        "charged_once",
        """ALTER TABLE ledger_transaction DROP CONSTRAINT ledger_transaction_once;
           INSERT INTO ledger_transaction SELECT (jsonb_populate_record(t, '{"id": "ltx_again"}')).*
             FROM ledger_transaction t LIMIT 1""",
    ),
    "a correction names nothing": (
        "correction_points",
        """ALTER TABLE ledger_transaction DROP CONSTRAINT ledger_transaction_first_is_a_charge;
           UPDATE ledger_transaction SET kind = 'correction', corrects_id = 'ltx_gone'""",
    ),
    "covered usage costs something": (
        "covered_is_free",
        """ALTER TABLE rated_usage DROP CONSTRAINT rated_usage_covered_costs_nothing;
           UPDATE rated_usage SET amount = 1 WHERE billing = 'covered'""",
    ),
    "the release came before a charged hour": (
        "nothing_after_release",
        """INSERT INTO transition (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at,
                                   correlation_id)
           SELECT machine, subject_id, generation + 1, tenant_id, target, 'release', 'releasing', occurred_at, 'cor_1'
             FROM transition WHERE machine = 'allocation' AND target = 'active'""",
    ),
    "the allocation never was active": (
        "nothing_after_release",
        "DELETE FROM transition WHERE machine = 'allocation' AND target = 'active'",
    ),
    "the plan showed another price": (
        "plan_names_the_price",
        "UPDATE allocation SET price_minor_per_gpu_hour = price_minor_per_gpu_hour - 1",
    ),
    "an hour is left out": (
        "no_hour_left_out",
        f"DELETE FROM billing_hour WHERE hour = {ONE_HOUR} - interval '1 hour'",
    ),
    "a usage record is stored twice": (
        "usage_once",
        """ALTER TABLE usage_record DROP CONSTRAINT IF EXISTS usage_record_taken;
           DROP INDEX IF EXISTS usage_record_taken;
           INSERT INTO usage_record SELECT (jsonb_populate_record(u, '{"id": "use_again"}')).*
             FROM usage_record u LIMIT 1""",
    ),
    "a line is missing": (
        f"rerated/{Difference.MISSING}",
        f"DELETE FROM rated_usage WHERE source = 'allocation' AND hour = {ONE_HOUR}",
    ),
    "a usage record is not rated": (
        f"rerated/{Difference.MISSING}",
        "DELETE FROM rated_usage WHERE source = 'usage' AND billing = 'charged'",
    ),
    "a line is of something that does not exist": (
        f"rerated/{Difference.WRONG_SOURCE}",
        f"""INSERT INTO rated_usage SELECT (jsonb_populate_record(r, '{{"id": "rtu_x", "source_id": "alc_x"}}')).*
              FROM rated_usage r WHERE r.hour = {ONE_HOUR} AND r.source = 'allocation'""",
    ),
    "a line is of another project": (
        f"rerated/{Difference.WRONG_ATTRIBUTION}",
        "UPDATE rated_usage SET project_id = 'prj_x' WHERE source = 'allocation'",
    ),
    "a line is at another price": (
        f"rerated/{Difference.WRONG_ATTRIBUTION}",
        "UPDATE rated_usage SET price_id = (SELECT min(id) FROM price) WHERE source = 'allocation'",
    ),
    "a line is booked again": (
        f"rerated/{Difference.DUPLICATE}",
        """INSERT INTO rated_usage SELECT (jsonb_populate_record(r, '{"id": "rtu_x", "revision": 1}')).*
             FROM rated_usage r WHERE r.source = 'usage' AND r.billing = 'charged' LIMIT 1""",
    ),
    "an amount is wrong by one": (
        f"rerated/{Difference.WRONG_AMOUNT}",
        "UPDATE rated_usage SET amount = amount + 1 WHERE source = 'usage' AND billing = 'charged'",
    ),
    "a shadow amount is wrong": (
        f"rerated/{Difference.WRONG_AMOUNT}",
        "UPDATE rated_usage SET shadow_amount = shadow_amount + 1 WHERE billing = 'covered'",
    ),
    "a price was changed after it was used": (
        f"rerated/{Difference.WRONG_AMOUNT}",
        "UPDATE price SET minor = minor + 1 WHERE item = 'unit'",
    ),
    "GPU-seconds are billed that nobody held": (
        "gpu_seconds",
        "UPDATE rated_usage SET quantity = quantity + 1 WHERE source = 'allocation'",
    ),
    "an interval has a gap": (
        "no_gap",
        f"""UPDATE rated_usage SET started_at = started_at + interval '1 second'
             WHERE source = 'allocation' AND hour = {ONE_HOUR}""",
    ),
    "two intervals overlap": (
        "no_gap",
        f"""UPDATE rated_usage SET started_at = started_at - interval '1 second'
             WHERE source = 'allocation' AND hour = {ONE_HOUR}""",
    ),
    "a full hour costs more than the plan showed": (
        "plan_price",
        f"UPDATE rated_usage SET amount = amount + 1 WHERE source = 'allocation' AND hour = {ONE_HOUR}",
    ),
}


@pytest.fixture
async def site(world: World) -> AllocationSite:
    """Two GPUs that run for hours, charged and covered usage, and everything charged."""
    site = await make_site(world)
    database = site.fleet.database
    await site.fleet.node(4)
    await site.active(await site.fleet.sku(), gpu_count=2)
    spec = PriceSpec(None, Item.UNIT, "my-app/token_out", "EUR", 7, per=1000, included=10, reason="tokens are priced")
    price = create_price(context(), spec)
    await apply(database, PLATFORM, context(), price)
    async with database.connection(PLATFORM) as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for name, billing in (("use_1", "charged"), ("use_2", "covered"), ("use_3", "charged")):
            values = (site.tenant.id, site.project_id, datetime.now(UTC), Decimal("123.25"), billing, price.result.id)
            await connection.execute(USED, name, *values)
    site.later(5 * HOUR)
    await ChargeWorker(world.running.platform.services).tick()
    return site


async def sabotaged(site: AllocationSite, statement: str) -> dict[str, Any]:
    """What a proof finds after this was done behind the back of all triggers; it is undone afterwards."""
    async with site.fleet.database.connection(PLATFORM) as connection:
        change = connection.transaction()
        await change.start()
        try:
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(statement)
            found = await proof(InTransaction(connection))
        finally:
            await change.rollback()
    result: dict[str, Any] = dict(broken(found))
    for name, count in found["rerated"].counts.items():
        if count:
            result[f"rerated/{name}"] = count
    return result


async def test_every_law_is_found_broken_when_it_is_broken_on_purpose(site: AllocationSite) -> None:
    assert broken(await proof(site.fleet.database)) == {}
    unseen = {name: law for name, (law, statement) in SABOTAGE.items() if law not in await sabotaged(site, statement)}
    assert unseen == {}
    tried = {law.partition("/")[0] for law, _ in SABOTAGE.values()}
    assert tried == {law.key for law in ledger_law.LAWS} | set(SENTENCES)
    classes = {law.partition("/")[2] for law, _ in SABOTAGE.values()} - {""}
    assert classes == set(Difference)
    assert broken(await proof(site.fleet.database)) == {}


async def test_the_platform_and_each_tenant_prove_the_ledger_page_by_page(site: AllocationSite) -> None:
    async def proven(client: Any, path: str) -> dict[str, int]:
        checked: dict[str, int] = {}
        cursor: str | None = ""
        while cursor is not None:
            answer = await client.get(f"{path}/billing/proof", params={"cursor": cursor} if cursor else {})
            assert answer.status_code == 200, answer.text
            for each in answer.json()["items"]:
                assert each["broken"] == 0, each
                checked[each["law"]] = checked.get(each["law"], 0) + each["checked"]
            cursor = answer.json()["next_cursor"]
        return checked

    whole = await proven(site.world.admin, "/api/v1/platform")
    other = await site.world.tenant("other")
    mine = await proven(site.client, f"/api/v1/tenants/{site.tenant.id}")
    theirs = await proven(site.world.client(other.token), f"/api/v1/tenants/{other.id}")
    assert set(whole) == {law.key for law in LAWS} | set(SENTENCES)
    assert mine["rerated"] == whole["rerated"] >= 6  # four hours of the allocation at least, and three records
    assert mine["gpu_seconds"] == whole["gpu_seconds"] >= 2 * 3 * 3600
    assert (theirs["rerated"], theirs["balanced"], theirs["gpu_seconds"]) == (0, 0, 0)
    assert (await site.client.get("/api/v1/platform/billing/proof")).status_code == 403
    foreign = await site.client.get(f"/api/v1/tenants/{other.id}/billing/proof")
    assert foreign.status_code == 404
    wrong = await site.world.admin.get("/api/v1/platform/billing/proof", params={"cursor": "cDF8YmlsbGluZ19wcm9vZnx4"})
    assert wrong.json()["code"] == "cursor_invalid"
