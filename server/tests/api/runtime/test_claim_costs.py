"""What a claim costs does not depend on how many instances there are: counted in pages, not in time."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime.claim import CLAIM
from server.tests.support.adapter_site import AdapterSite

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

FILL = """
INSERT INTO instance_claim
  (instance_id, tenant_id, project_id, service_account_id, holder, fence, claimed_at, expires_at, wanted)
SELECT 'ins_' || lpad(n::text, 26, '0'), 'ten', 'prj', $1, CASE WHEN n % 3 > 0 THEN 'other' END, 1,
       CASE WHEN n % 3 > 0 THEN now() END, CASE WHEN n % 3 > 0 THEN now() + interval '1 day' END, n % 3 > 0
  FROM generate_series($2::integer, $3::integer) n"""


async def pages(site: AdapterSite) -> int:
    """How many pages one claim touches, with ten instances held and room for ten."""
    now = site.clock.now()
    held = [f"ins_{each:026}" for each in range(1, 11)]
    arguments = (
        site.account.id,
        "me",
        held,
        [1] * 10,
        now,
        now + timedelta(seconds=30),
        now + timedelta(seconds=45),
        10,
    )
    async with site.services.database.connection(PLATFORM) as connection:
        trying = connection.transaction()
        await trying.start()
        (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {CLAIM}", *arguments)
        await trying.rollback()
    plan: dict[str, Any] = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_a_claim_touches_no_more_pages_among_a_hundred_thousand_instances(site: AdapterSite) -> None:
    """Two thirds of them are held by others, and one third has nothing for an adapter to do."""
    for _ in range(3):
        await site.launch(0)
    counted = []
    for first, last in ((1, 1_000), (1_001, 100_000)):
        async with site.services.database.connection(PLATFORM) as connection:
            filling = connection.transaction()
            await filling.start()
            await connection.execute("SET LOCAL session_replication_role = replica")  # rows without their instances
            await connection.execute(FILL, site.account.id, first, last)
            await filling.commit()
            await connection.execute("VACUUM ANALYZE instance_claim")
        await pages(site)
        counted.append(await pages(site))
    assert counted[1] <= 2 * counted[0], counted
    adapter = site.adapter()
    assert len((await adapter.poll())["claims"]) == 3
