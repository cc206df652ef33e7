"""Reads nodes.

Nodes belong to the platform, and a tenant's database session cannot read them. A read for a caller runs with that
caller's rights, so that the database refuses what a check of the API let through by mistake.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from mooring.core.fleet.node import Node
from mooring.storage.kernel.database import PLATFORM, Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = """n.id, n.name, n.host, n.region, n.labels, n.signing_key, n.sealing_key, n.status, n.generation,
       n.revision, n.created_at, n.inventory, n.inventory_at, n.findings, n.health, n.last_seen_at, n.unreachable_since,
       n.sweep_due, n.previous_node_id, n.retired_at, n.retirement_reason, n.written_off_at, n.may_be_left,
       n.approval, n.expects, n.baseline, n.attested_at, n.cordoned_at, n.cordon_reason"""
LIVE: Final = "a.status NOT IN ('requested', 'released')"
"""An allocation that is placed on a node and not released yet."""

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
       (SELECT count(*) FROM allocation a WHERE a.node_id = n.id AND {LIVE}) AS allocations,
       ARRAY(SELECT CASE WHEN s.status <> 'claimed' THEN s.status WHEN a.status = 'active' THEN 'in_use' ELSE 'held' END
               FROM slot s LEFT JOIN allocation a ON a.id = s.allocation_id
              WHERE s.node_id = n.id ORDER BY s.index) AS uses
  FROM node n WHERE n.id = ANY ($1::text[])"""
SILENT: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.unreachable_since IS NULL AND n.status <> 'retired'
   AND n.last_seen_at < now() - make_interval(secs => $1::float8)
 ORDER BY n.id LIMIT $2"""
RETURNED: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.unreachable_since IS NOT NULL AND n.status <> 'retired'
   AND n.last_seen_at >= now() - make_interval(secs => $1::float8)
 ORDER BY n.id LIMIT $2"""
EMPTIED: Final = f"""
SELECT {_COLUMNS} FROM node n
 WHERE n.status = 'draining' AND NOT EXISTS (SELECT FROM allocation a WHERE a.node_id = n.id AND {LIVE})
   AND NOT EXISTS (SELECT FROM slot s WHERE s.node_id = n.id AND s.status IN ('claimed', 'cleanup_blocked'))
 ORDER BY n.id LIMIT $1"""

TO_ATTEST: Final = f"""
SELECT {_COLUMNS} FROM node n WHERE n.status = 'pending' AND n.attested_at IS NULL ORDER BY n.id LIMIT $1"""


@dataclass(frozen=True, slots=True)
class NodeFilter:
    """Which nodes a list shows."""

    status: str | None = None
    region: str | None = None
    reachable: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeUsageCounts:
    """How many slots and allocations a node has, and what each slot is used for."""

    slots: int = 0
    free: int = 0
    allocations: int = 0
    uses: tuple[str, ...] = ()


async def find(database: Database, node_id: str, *, acting: Acting = PLATFORM) -> Node | None:
    """One node; a retired one is found too."""
    row = await database.fetchrow(acting, FIND, node_id)
    return None if row is None else node_of(row)


async def find_all(database: Database, node_ids: Sequence[str]) -> list[Node]:
    """These nodes, with the platform's rights."""
    return [node_of(row) for row in await database.fetch(PLATFORM, FIND_ALL, list(node_ids))]


async def by_retired_key(database: Database, signing_key: bytes) -> Node | None:
    """The node that had this key until it was retired."""
    row = await database.fetchrow(PLATFORM, BY_RETIRED_KEY, signing_key)
    return None if row is None else node_of(row)


async def page(database: Database, acting: Acting, wanted: NodeFilter, window: PageWindow) -> list[Node]:
    filters = (wanted.status, wanted.region, wanted.reachable)
    rows = await database.fetch(acting, LIST, window.after, *filters, window.limit)
    return [node_of(row) for row in rows]


async def allocation_ids(database: Database, acting: Acting, node_id: str, limit: int) -> list[str]:
    """The first allocations that are placed on a node."""
    return [row["id"] for row in await database.fetch(acting, ALLOCATIONS, node_id, limit)]


async def counts(database: Database, acting: Acting, node_ids: Sequence[str]) -> dict[str, NodeUsageCounts]:
    rows = await database.fetch(acting, COUNTS, list(node_ids))
    return {
        row["id"]: NodeUsageCounts(row["slots"], row["free"], row["allocations"], tuple(row["uses"])) for row in rows
    }


async def silent(database: Database, seconds: float, limit: int) -> list[Node]:
    """Reachable nodes without a heartbeat for so long, by the database's clock."""
    return [node_of(row) for row in await database.fetch(PLATFORM, SILENT, seconds, limit)]


async def returned(database: Database, seconds: float, limit: int) -> list[Node]:
    """Unreachable nodes that sent a heartbeat within the last `seconds`."""
    return [node_of(row) for row in await database.fetch(PLATFORM, RETURNED, seconds, limit)]


async def emptied(database: Database, limit: int) -> list[Node]:
    """Draining nodes without allocations and held slots."""
    return [node_of(row) for row in await database.fetch(PLATFORM, EMPTIED, limit)]


async def to_attest(database: Database, limit: int) -> list[Node]:
    """Nodes that wait for approval and whose inventory the attestation command has not seen."""
    return [node_of(row) for row in await database.fetch(PLATFORM, TO_ATTEST, limit)]


def node_of(row: asyncpg.Record) -> Node:
    return Node(*row)
