"""Booked hours for pages that show money: what runs is moved into the past, and is charged by the platform's own code.

A trial is minutes old, and an hour is booked after its end. Nothing is written into the ledger here: the log of an
allocation and the beginning of charging are moved, the trial's SKU gets a price, and the worker's code books every hour
since.
"""

import asyncio
from types import SimpleNamespace
from typing import cast

import asyncpg

from mooring.commands.money.charge import charge_next
from mooring.commands.money.statement import open_missing
from mooring.commands.services import Services
from mooring.embedded.cluster import ClusterLayout
from mooring.gateways.clock import SystemClock
from mooring.storage.kernel.database import Database, PoolSettings
from tests.e2e.trial_process import TrialProcess

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
WITH mine AS (SELECT DISTINCT a.price_id FROM allocation a JOIN member m ON m.allocation_id = a.id
                JOIN instance i ON i.id = m.instance_id WHERE i.name = $1),
     list AS (UPDATE price SET minor = 250 WHERE id IN (SELECT price_id FROM mine)),
     sku AS (UPDATE sku_price SET price_minor_per_gpu_hour = 250 WHERE id IN (SELECT price_id FROM mine)),
     request AS (INSERT INTO price SELECT (jsonb_populate_record(p, jsonb_build_object(
                    'id', 'prc_request', 'item', 'unit', 'item_key', 'hello/request', 'minor', 2, 'per', 1000))).*
                   FROM price p WHERE p.id IN (SELECT price_id FROM mine) LIMIT 1)
UPDATE allocation SET price_minor_per_gpu_hour = 250 WHERE price_id IN (SELECT price_id FROM mine)"""
USED = """
INSERT INTO usage_record (id, tenant_id, project_id, instance_id, record_id, unit, started_at, ended_at, quantity,
                          app_slug, correlation_id, trace_id, created_at, billing, price_id,
                          covered_by_allocation)
SELECT 'use_' || $2 || n, i.tenant_id, i.project_id, i.id, $2 || n, 'request', at, at, 1200 + 37 * n, i.app_slug,
       'made', 'made', at, 'covered', 'prc_request', true
  FROM instance i, generate_series(1, 60) n, LATERAL (SELECT now() - n * interval '1 hour' AS at) t
 WHERE i.name = $1 AND i.status <> 'stopped'"""


def book_hours(trial: TrialProcess, instance: str) -> None:
    """Let an instance of hello have run for three days, with covered usage, and book every hour since."""
    asyncio.run(_book(trial, instance))


async def _book(trial: TrialProcess, instance: str) -> None:
    dsn = ClusterLayout(trial.data / "database").dsn
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute(MOVED, instance, DAYS)
            await connection.execute(PRICED, instance)
            await connection.execute(USED, instance, instance)
            await connection.execute(BEGUN)
    finally:
        await connection.close()
    database = Database(PoolSettings(dsn, 2))
    await database.open()
    try:
        # What the workers do once a minute, done now: beside the trial's own, as any number of them may run.
        hub = SimpleNamespace(notify=lambda types: None)
        services = cast(Services, SimpleNamespace(database=database, clock=SystemClock(), hub=hub))
        while await charge_next(services):
            pass
        await open_missing(services)
    finally:
        await database.close()
