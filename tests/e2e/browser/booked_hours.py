"""Booked hours for pages that show money: what runs is moved into the past, and the platform's own worker charges it.

A trial is minutes old, and an hour is booked after its end. Nothing is written into the ledger here: the log of an
allocation and the beginning of charging are moved, the trial's SKU gets a price, and the worker books every hour since.
"""

import asyncio
import time

import asyncpg

from mooring.embedded.cluster import ClusterLayout
from tests.e2e.trial_process import TrialProcess

BOOKED_SECONDS_MAX = 240.0  # two workers look once a minute
DAYS = 3
MOVED = """
WITH mine AS (SELECT m.id, m.instance_id, m.allocation_id FROM member m JOIN instance i ON i.id = m.instance_id
               WHERE i.name = $1),
     log AS (UPDATE transition t SET occurred_at = occurred_at - make_interval(days => $2)
              WHERE machine = 'allocation' AND subject_id IN (SELECT allocation_id FROM mine)),
     members AS (UPDATE member SET created_at = created_at - make_interval(days => $2)
                  WHERE id IN (SELECT id FROM mine)),
     allocations AS (UPDATE allocation SET created_at = created_at - make_interval(days => $2),
                            activated_at = activated_at - make_interval(days => $2)
                      WHERE id IN (SELECT allocation_id FROM mine))
UPDATE instance SET created_at = created_at - make_interval(days => $2) WHERE id IN (SELECT instance_id FROM mine)"""
BEGUN = """
DELETE FROM billing_hour WHERE hour > (SELECT min(hour) FROM billing_hour);
UPDATE billing_hour SET hour = date_trunc('hour', now(), 'UTC') - interval '80 hours'"""
PRICED = """
WITH mine AS (SELECT DISTINCT a.id, a.price_id FROM allocation a JOIN member m ON m.allocation_id = a.id
                JOIN instance i ON i.id = m.instance_id WHERE i.name = $1),
     list AS (UPDATE price SET minor = 250 WHERE id IN (SELECT price_id FROM mine)),
     sku AS (UPDATE sku_price SET price_minor_per_gpu_hour = 250 WHERE id IN (SELECT price_id FROM mine)),
     request AS (INSERT INTO price SELECT (jsonb_populate_record(p, jsonb_build_object(
                    'id', 'prc_request', 'item', 'unit', 'item_key', 'hello/request', 'minor', 2, 'per', 1000))).*
                   FROM price p WHERE p.id IN (SELECT price_id FROM mine) LIMIT 1)
UPDATE allocation SET price_minor_per_gpu_hour = 250 WHERE id IN (SELECT id FROM mine)"""
USED = """
INSERT INTO usage_record (id, tenant_id, project_id, instance_id, record_id, unit, started_at, ended_at, quantity,
                          app_slug, correlation_id, trace_id, created_at, billing, price_id,
                          covered_by_allocation)
SELECT 'use_' || $2 || n, i.tenant_id, i.project_id, i.id, $2 || n, 'request', at, at, 1200 + 37 * n, i.app_slug,
       'made', 'made', at, 'covered', 'prc_request', true
  FROM instance i, generate_series(1, 60) n, LATERAL (SELECT now() - n * interval '1 hour' AS at) t
 WHERE i.name = $1 AND i.status <> 'stopped'"""
CHARGED = """
SELECT (SELECT max(hour) FROM billing_hour) + interval '2 hours 150 seconds' > now()
       AND EXISTS (SELECT FROM statement)"""


def book_hours(trial: TrialProcess, instance: str) -> None:
    """Let an instance of hello have run for three days, with covered usage, and wait until it is booked."""
    asyncio.run(_book(trial, instance))


async def _book(trial: TrialProcess, instance: str) -> None:
    connection = await asyncpg.connect(ClusterLayout(trial.data / "database").dsn)
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(MOVED, instance, DAYS)
            await connection.execute(PRICED, instance)
            await connection.execute(USED, instance, instance)
            await connection.execute(BEGUN)
        until = time.monotonic() + BOOKED_SECONDS_MAX
        while not await connection.fetchval(CHARGED):
            if time.monotonic() > until:
                raise AssertionError("the worker did not book the hours, or opened no statement")
            await asyncio.sleep(0.5)
    finally:
        await connection.close()
