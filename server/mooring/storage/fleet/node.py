"""Nodes, as they are read.

Nodes are the platform's: a tenant's session may not even look. Whoever reads for a caller asks as that caller, so that
the database refuses what a check of the API let through by mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.fleet.node import Node
from mooring.storage.kernel.database import PLATFORM, Acting, Database

_COLUMNS: Final = """n.id, n.name, n.host, n.region, n.labels, n.signing_key, n.sealing_key, n.status, n.generation,
       n.revision, n.created_at, n.inventory, n.inventory_at, n.findings, n.health, n.last_seen_at, n.unreachable_since,
       n.sweep_due, n.previous_node_id, n.retired_at, n.retirement_reason, n.written_off_at, n.may_be_left"""
LIVE: Final = "a.status NOT IN ('requested', 'released')"
"""An allocation that has its place on a node, or owes it a look."""

FIND: Final = f"SELECT {_COLUMNS} FROM node n WHERE n.id = $1"
FIND_ALL: Final = f"SELECT {_COLUMNS} FROM node n WHERE n.id = ANY ($1::text[])"
BY_RETIRED_KEY: Final = f"""
SELECT {_COLUMNS} FROM node n WHERE n.signing_key = $1 AND n.status = 'retired' ORDER BY n.id DESC LIMIT 1"""
LIST: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.id > $1 AND ($2::text IS NULL OR n.status = $2) AND ($3::text IS NULL OR n.region = $3)
   AND ($4::boolean IS NULL OR (n.unreachable_since IS NULL AND n.last_seen_at IS NOT NULL) = $4)
 ORDER BY n.id LIMIT $5"""
ALLOCATIONS: Final = f"SELECT a.id FROM allocation a WHERE a.node_id = $1 AND {LIVE} ORDER BY a.id LIMIT $2"
COUNTS: Final = f"""
SELECT n.id,
       (SELECT count(*) FROM slot s WHERE s.node_id = n.id) AS slots,
       (SELECT count(*) FROM slot s WHERE s.node_id = n.id AND s.status = 'free') AS free,
       (SELECT count(*) FROM allocation a WHERE a.node_id = n.id AND {LIVE}) AS allocations
  FROM node n WHERE n.id = ANY ($1::text[])"""
SILENT: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.unreachable_since IS NULL AND n.status <> 'retired'
   AND n.last_seen_at < now() - make_interval(secs => $1::float8)
 ORDER BY n.id LIMIT $2"""
HEARD: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.unreachable_since IS NOT NULL AND n.status <> 'retired'
   AND n.last_seen_at >= now() - make_interval(secs => $1::float8)
 ORDER BY n.id LIMIT $2"""
EMPTIED: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.status = 'draining' AND NOT EXISTS (SELECT FROM allocation a WHERE a.node_id = n.id AND {LIVE})
   AND NOT EXISTS (SELECT FROM slot s WHERE s.node_id = n.id AND s.status IN ('claimed', 'cleanup_blocked'))
 ORDER BY n.id LIMIT $1"""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes a list shows."""

    status: str | None = None
    region: str | None = None
    reachable: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeUsageCounts:
    """What stands on a node."""

    slots: int = 0
    free: int = 0
    allocations: int = 0


async def find(database: Database, node_id: str, *, acting: Acting = PLATFORM) -> Node | None:
    """One node; a retired one stays readable."""
    row = await database.fetchrow(acting, FIND, node_id)
    return None if row is None else node_of(row)


async def find_all(database: Database, node_ids: Sequence[str]) -> list[Node]:
    """These nodes, for the platform itself."""
    return [node_of(row) for row in await database.fetch(PLATFORM, FIND_ALL, list(node_ids))]


async def by_retired_key(database: Database, signing_key: bytes) -> Node | None:
    """The node that had this key until it was retired."""
    row = await database.fetchrow(PLATFORM, BY_RETIRED_KEY, signing_key)
    return None if row is None else node_of(row)


async def page(database: Database, acting: Acting, wanted: NodeFilter, after: str, limit: int) -> list[Node]:
    """The next nodes of a list."""
    rows = await database.fetch(acting, LIST, after, wanted.status, wanted.region, wanted.reachable, limit)
    return [node_of(row) for row in rows]


async def allocation_ids(database: Database, acting: Acting, node_id: str, limit: int) -> list[str]:
    """The allocations that have their place on a node, the first of them."""
    return [row["id"] for row in await database.fetch(acting, ALLOCATIONS, node_id, limit)]


async def counts(database: Database, acting: Acting, node_ids: Sequence[str]) -> dict[str, NodeUsageCounts]:
    """What stands on each of these nodes."""
    rows = await database.fetch(acting, COUNTS, list(node_ids))
    return {row["id"]: NodeUsageCounts(row["slots"], row["free"], row["allocations"]) for row in rows}


async def silent(database: Database, seconds: float, limit: int) -> list[Node]:
    """Nodes that were not heard of for so long, by the database's clock, and are not marked so."""
    return [node_of(row) for row in await database.fetch(PLATFORM, SILENT, seconds, limit)]


async def heard(database: Database, seconds: float, limit: int) -> list[Node]:
    """Nodes that are marked as unreachable and were heard of since."""
    return [node_of(row) for row in await database.fetch(PLATFORM, HEARD, seconds, limit)]


async def emptied(database: Database, limit: int) -> list[Node]:
    """Draining nodes on which nothing is left."""
    return [node_of(row) for row in await database.fetch(PLATFORM, EMPTIED, limit)]


def node_of(row: asyncpg.Record) -> Node:
    """The node of a row."""
    return Node(*row)
