"""Reads what a batch of meter events, or a report of readings, is checked against; and the laws of their tables."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import asyncpg

from mooring.core.money.meter_event import MeterEvent
from mooring.core.pricing.meter import Meter
from mooring.core.pricing.price import Price
from mooring.core.runtime.instance import Instance
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.money.law import Law
from mooring.storage.pricing import meter as meters
from mooring.storage.pricing import price as prices
from mooring.storage.runtime.instance import INSTANCE_COLUMNS, INSTANCE_NAMES

INSTANCES: Final = f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.project_id = $1 AND i.id = ANY ($2::text[])"
MEMBERS: Final = """
SELECT m.instance_id, m.id, m.component_key FROM member m
 WHERE m.id = ANY ($2::text[]) AND m.instance_id = ANY ($1::text[])"""
ATTACHED: Final = """
SELECT DISTINCT t.instance_id, t.project_id FROM attachment t
 WHERE t.instance_id = ANY ($1::text[]) AND t.project_id = ANY ($2::text[]) AND t.activated_at IS NOT NULL"""
METERS: Final = f"SELECT {meters.COLUMNS} FROM meter m WHERE m.app_slug = ANY ($1::text[])"
PRICES: Final = f"""
SELECT {prices.COLUMNS} FROM price p
 WHERE p.item = 'unit' AND split_part(p.item_key, '/', 1) = ANY ($1::text[])"""
STORED: Final = """
SELECT u.record_id, u.event_source, u.event_id, u.instance_id, u.unit, u.quantity, u.started_at, u.ended_at,
       u.attached_project_id, u.member_id, u.component
  FROM usage_record u WHERE u.usage_source = 'meter_event' AND u.record_id = ANY ($1::text[])
UNION ALL
SELECT l.record_id, l.event_source, l.event_id, l.instance_id, l.unit, l.quantity, l.started_at, l.ended_at,
       l.attached_project_id, l.member_id, l.component
  FROM late_usage l WHERE l.record_id = ANY ($1::text[])"""

LAWS: Final = (
    Law(
        "meter_event_once",
        "each meter event is one usage record",
        "SELECT count(*) FROM usage_record WHERE usage_source = 'meter_event'",
        """SELECT 'event ' || u.event_source || ' ' || u.event_id || ' is stored ' || count(*) || ' times'
             FROM usage_record u WHERE u.usage_source = 'meter_event'
            GROUP BY u.project_id, u.event_source, u.event_id HAVING count(*) > 1
            ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "meter_batch_adds_up",
        "a batch has as many usage records and late events as it accepted",
        "SELECT count(*) FROM meter_batch",
        """SELECT 'batch ' || b.id || ' accepted ' || b.accepted || ' and ' || b.late || ' late, and has '
                  || coalesce(u.stored, 0) || ' and ' || coalesce(l.stored, 0)
             FROM meter_batch b
             LEFT JOIN (SELECT batch_id, count(*) AS stored FROM usage_record WHERE batch_id IS NOT NULL
                         GROUP BY batch_id) u ON u.batch_id = b.id
             LEFT JOIN (SELECT batch_id, count(*) AS stored, count(*) FILTER (WHERE status = 'accepted') AS accepted
                          FROM late_usage GROUP BY batch_id) l ON l.batch_id = b.id
            WHERE coalesce(u.stored, 0) <> b.accepted + coalesce(l.accepted, 0) OR coalesce(l.stored, 0) <> b.late
            ORDER BY b.id LIMIT 1""",
    ),
    Law(
        "late_usage_is_resolved_once",
        "accepted late usage is one usage record of the same event and quantity, and other late usage is none",
        "SELECT count(*) FROM late_usage",
        """SELECT 'late usage ' || l.id || ' is ' || l.status || ', its usage record ' || coalesce(u.id, 'missing')
             FROM late_usage l
             LEFT JOIN usage_record u ON u.usage_source = 'meter_event' AND u.record_id = l.record_id
            WHERE (l.status = 'accepted') <> (u.id IS NOT NULL)
               OR (u.id, u.quantity, u.unit, u.instance_id)
                  IS DISTINCT FROM (l.usage_record_id, l.quantity, l.unit, l.instance_id) AND l.status = 'accepted'
            ORDER BY l.id LIMIT 1""",
    ),
)


async def instances(
    reader: RowReader, acting: Acting, project_id: str, instance_ids: Collection[str]
) -> list[Instance]:
    """Those of these instances that the project has."""
    rows = await reader.fetch(acting, INSTANCES, project_id, sorted(instance_ids))
    return [Instance(**dict(zip(INSTANCE_NAMES, row, strict=True))) for row in rows]


async def components(
    reader: RowReader, acting: Acting, instance_ids: Sequence[str], member_ids: Collection[str]
) -> Mapping[str, dict[str, str]]:
    """The component of each of these members, by instance and member."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    if member_ids:
        for row in await reader.fetch(acting, MEMBERS, list(instance_ids), sorted(member_ids)):
            found[row["instance_id"]][row["id"]] = row["component_key"]
    return found


async def attached_projects(
    reader: RowReader, acting: Acting, instance_ids: Sequence[str], project_ids: Collection[str]
) -> Mapping[str, set[str]]:
    """Which of these projects are, or were, attached to each of the instances."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    if project_ids:
        for row in await reader.fetch(acting, ATTACHED, list(instance_ids), sorted(project_ids)):
            found[row["instance_id"]].add(row["project_id"])
    return found


async def meters_of(reader: RowReader, acting: Acting, apps: Collection[str]) -> Mapping[str, dict[str, Meter]]:
    """The meters of these apps, by app and unit."""
    found: defaultdict[str, dict[str, Meter]] = defaultdict(dict)
    for row in await reader.fetch(acting, METERS, sorted(apps)):
        found[row["app_slug"]][row["unit"]] = Meter(*row)
    return found


async def prices_of(reader: RowReader, acting: Acting, apps: Collection[str]) -> Mapping[str, dict[str, list[Price]]]:
    """The prices of these apps' units that the session sees, by app and unit."""
    found: defaultdict[str, dict[str, list[Price]]] = defaultdict(dict)
    for row in await reader.fetch(acting, PRICES, sorted(apps)):
        app, _, unit = row["item_key"].partition("/")
        found[app].setdefault(unit, []).append(Price(*row))
    return found


async def stored(reader: RowReader, acting: Acting, keys: Sequence[str]) -> dict[str, MeterEvent]:
    """What is stored of these events, as usage or in the queue of late usage, by key."""
    return {row["record_id"]: _event(row) for row in await reader.fetch(acting, STORED, list(keys))}


def _event(row: asyncpg.Record) -> MeterEvent:
    values: tuple[Any, ...] = tuple(row)[1:]
    return MeterEvent(*values)
