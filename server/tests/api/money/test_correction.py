"""Corrections by hand: double entries that name what they correct, with a reason, and never more than was charged."""

from typing import Any

import pytest

from mooring.commands.money.charge import settle
from mooring.core.money.charge import HOUR
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.workers.charge import ChargeWorker
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.proving import broken, proof

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PATH = "/api/v1/platform/billing/corrections"
HOURLY = 500 * 10**6  # two GPUs at 2.50 each, in millionths of a cent
REASON = "the node was slow for half of the hour"


@pytest.fixture
async def site(world: World) -> AllocationSite:
    site = await make_site(world)
    await site.fleet.node(4)
    await site.active(await site.fleet.sku(), gpu_count=2)
    site.later(4 * HOUR)
    await ChargeWorker(world.running.platform.services).tick()
    return site


async def correct(site: AllocationSite, status: int, **body: Any) -> Any:
    answer = await site.world.admin.post(PATH, json={"reason": REASON, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_credit_is_a_transaction_of_its_own_that_the_worker_leaves_alone(site: AllocationSite) -> None:
    database = site.fleet.database
    row = await database.fetchrow(
        PLATFORM, "SELECT id, hour, price_id FROM ledger_transaction ORDER BY hour DESC LIMIT 1"
    )
    assert row is not None
    made = await correct(site, 201, transaction_id=row["id"], micro=-HOURLY // 4)
    assert (made["corrects_id"], made["amount"], made["reason"]) == (row["id"], "-125000000", REASON)
    assert made["corrected_by"].startswith("usr_")
    entries = "SELECT account, amount::bigint FROM ledger_entry WHERE transaction_id = $1 ORDER BY line"
    assert [tuple(each) for each in await database.fetch(PLATFORM, entries, made["id"])] == [
        ("receivable", -125_000_000),
        ("revenue", 125_000_000),
    ]
    # The worker looks at the hour again and books nothing; nor does a proof miss anything.
    assert await settle(site.world.running.platform.services, row["hour"])
    owed = "SELECT sum(amount) FROM ledger_entry e JOIN ledger_transaction t ON t.id = e.transaction_id"
    owed += " WHERE e.account = 'receivable' AND t.hour = $1"
    assert await database.fetchval(PLATFORM, owed, row["hour"]) == HOURLY - HOURLY // 4
    assert broken(await proof(database)) == {}
    # The tenant reads it among its own events and in its own audit trail.
    seen = "SELECT count(*) FROM event WHERE type = 'billing.correction.booked' AND subject_id = $1"
    assert await database.fetchval(Acting(site.tenant.id), seen, made["id"]) == 1
    audited = "SELECT reason FROM audit WHERE action = 'billing.correct' AND subject_id = $1"
    assert await database.fetchval(Acting(site.tenant.id), audited, made["id"]) == REASON
    # A correction can be corrected; nobody gets back more than is owed.
    await correct(site, 201, transaction_id=made["id"], micro=25_000_000)
    refused = await correct(site, 409, transaction_id=row["id"], micro=-HOURLY)
    assert refused["details"]["owed_micro"] == 400_000_000
    assert broken(await proof(database)) == {}


async def test_an_invalid_correction_is_refused(site: AllocationSite) -> None:
    known = str(await site.fleet.database.fetchval(PLATFORM, "SELECT min(id) FROM ledger_transaction"))
    await correct(site, 422, transaction_id=known, micro=0)
    await correct(site, 422, transaction_id=known, micro=-1, reason="too short")
    await correct(site, 404, transaction_id="ltx_" + "0" * 26, micro=-1)
    body = {"transaction_id": known, "micro": -1, "reason": REASON}
    assert (await site.client.post(PATH, json=body)).status_code == 403
    by_hand = """INSERT INTO ledger_transaction SELECT (jsonb_populate_record(t,
        '{"id": "ltx_x", "kind": "charge", "correction_reason": "a charge that somebody invented"}')).*
        FROM ledger_transaction t LIMIT 1"""
    with pytest.raises(Exception, match="ledger_transaction_by_hand_is_explained"):
        async with site.fleet.database.connection(PLATFORM) as connection:
            await connection.execute(by_hand)
