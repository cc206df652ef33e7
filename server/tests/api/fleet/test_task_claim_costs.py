"""What a claim of tasks costs does not depend on what other nodes have: counted in pages and plans, not in time."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.storage.fleet import task_claim
from mooring.storage.fleet.task_claim import CLAIM, TEARDOWNS_MAX, NodeRoom
from mooring.storage.kernel.database import PLATFORM, WITH_KEPT_PLANS
from mooring.storage.kernel.pool import PooledConnection
from server.tests.support.node_site import NodeSite

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NODES = 2_000
COLUMNS = """
SELECT string_agg(attname, ', ') FROM pg_attribute
 WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''"""
COPIES = {
    "node": """jsonb_build_object(
  'id', 'nod_' || lpad(k::text, 26, '0'), 'name', 'copy-' || k, 'signing_key', '\\x' || lpad(to_hex(k), 64, '0'))""",
    "task": f"""jsonb_build_object(
  'id', 'tsk_' || lpad(k::text, 26, '0'), 'node_id', 'nod_' || lpad((1 + k % {NODES})::text, 26, '0'),
  'step', 'copy ' || k, 'fence', 1, 'first_claimed_at', r.created_at, 'lease_expires_at', r.expires_at,
  'status', CASE WHEN k % 2 = 0 THEN 'queued' ELSE 'claimed' END)""",
}


async def copy(connection: PooledConnection, noun: str, row_id: str, count: int) -> None:
    """So many copies of a row, each with an id of its own."""
    columns = await connection.fetchval(COLUMNS, noun)
    await connection.execute(
        f"""INSERT INTO {noun} ({columns})
            SELECT {", ".join(f"made.{each}" for each in columns.split(", "))}
              FROM {noun} r CROSS JOIN generate_series(1, $2::integer) k
             CROSS JOIN LATERAL jsonb_populate_record(r, {COPIES[noun]}) made WHERE r.id = $1""",
        row_id,
        count,
    )


async def pages(site: NodeSite) -> int:
    """How many pages the claim of one node touches, with the plan that serves any node."""
    now = site.clock.now()
    given = f"ARRAY['{site.agent.node_id}'], ARRAY[8], '{now}', '{now + timedelta(seconds=90)}', {TEARDOWNS_MAX}"
    async with site.services.database.connection(WITH_KEPT_PLANS) as connection:
        trying = connection.transaction()
        await trying.start()
        await connection.execute(f"PREPARE claiming (text[], integer[], timestamptz, timestamptz, integer) AS {CLAIM}")
        (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claiming ({given})")
        await connection.execute("DEALLOCATE claiming")
        await trying.rollback()
    plan: dict[str, Any] = row[0][0]["Plan"]
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


async def test_a_claim_touches_no_more_pages_beside_twenty_thousand_tasks_of_other_nodes(site: NodeSite) -> None:
    made = await site.make()
    alone = await pages(site)
    async with site.services.database.connection(PLATFORM) as connection:
        filling = connection.transaction()
        await filling.start()
        await connection.execute("SET LOCAL session_replication_role = replica")  # rows without their transitions
        await copy(connection, "node", site.agent.node_id, NODES)
        await copy(connection, "task", made.id, 10 * NODES)
        await filling.commit()
        await connection.execute("VACUUM ANALYZE node, task")
    beside = await pages(site)
    assert beside <= 2 * alone, f"{beside} pages beside {alone}"


async def test_a_claim_is_planned_once_for_all_nodes(site: NodeSite) -> None:
    database, now = site.services.database, site.clock.now()
    for _ in range(10):
        await task_claim.claim(database, [NodeRoom(site.agent.node_id, 8)], now, now + timedelta(seconds=90))
    async with database.connection(WITH_KEPT_PLANS) as connection:
        rows = await connection.fetch(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1", CLAIM
        )
    assert [tuple(row) for row in rows] == [(10, 0)]
