"""Reads for placement and for the allocation reconciler: the snapshot of all machines, and what is due.

A few plain statements read the snapshot, not one transaction: it only proposes, and every claim is guarded by the
revisions in it. A row is due only if its next step can be taken now: a row that waits for its node is not read again
and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import asyncpg

from mooring.core.fleet.allocation import Allocation, AllocationState
from mooring.core.fleet.allocation_reconcile import AllocationSnapshot, NodeFacts, TaskFacts
from mooring.core.fleet.inventory import facts_from
from mooring.core.fleet.placement import NodeSnapshot, SlotSnapshot
from mooring.core.fleet.project_network import POOL_LABEL, NodeNeighbour, NodeNetworks, ProjectNetwork
from mooring.core.fleet.slot import Slot
from mooring.core.fleet.task import Task
from mooring.core.kernel.sealed_document import TASK_ARGUMENTS
from mooring.storage.fleet.allocation import COLUMNS
from mooring.storage.fleet.capacity_offers import INVENTORY
from mooring.storage.fleet.task import COLUMNS as TASK_COLUMNS
from mooring.storage.fleet.task import task_of
from mooring.storage.kernel.database import PLATFORM, Database
from mooring.storage.kernel.sealed_document import open_document

NODES: Final = """
SELECT n.id, n.region, n.host = 'process' AS single_project,
       CASE WHEN n.status = 'enrolled' THEN 'not ready' WHEN n.status = 'pending' THEN 'waiting for approval'
            WHEN n.status <> 'ready' THEN n.status WHEN n.cordoned_at IS NOT NULL THEN 'cordoned'
            WHEN n.unreachable_since IS NOT NULL THEN 'unreachable' WHEN n.sweep_due THEN 'waiting for a sweep'
            ELSE '' END AS refuses, n.name
  FROM node n WHERE n.status <> 'retired'"""
NODE_INVENTORIES: Final = f"SELECT n.id, n.host, n.region, {INVENTORY} FROM node n WHERE n.status = 'ready'"
SLOTS: Final = """
SELECT s.node_id, s.id, s.index, s.numa, s.gpu_model, s.status = 'free' AS free, s.revision, s.memory_bytes, s.simulated
  FROM slot s WHERE s.status <> 'quarantined'"""
SLOTS_OF_NODE: Final = f"{SLOTS} AND s.node_id = $1"
NODE: Final = f"{NODES} AND n.id = $1"
_OCCUPANTS: Final = "a.node_id, array_agg(DISTINCT a.project_id), bool_or(a.shape = 'baremetal')"
OCCUPANTS: Final = f"""
SELECT {_OCCUPANTS}
  FROM allocation a WHERE a.node_id IS NOT NULL AND a.status <> 'released' GROUP BY a.node_id"""
OCCUPANTS_OF_NODE: Final = f"""
SELECT {_OCCUPANTS} FROM allocation a WHERE a.node_id = $1 AND a.status <> 'released' GROUP BY a.node_id"""
REQUESTED: Final = f"""
SELECT {COLUMNS}, coalesce(g.same_node, false),
       (SELECT min(m.node_id) FROM allocation m
         WHERE g.same_node AND m.group_id = a.group_id AND m.node_id IS NOT NULL AND m.status <> 'released')
  FROM allocation a LEFT JOIN allocation_group g ON g.id = a.group_id
 WHERE a.status = 'requested' ORDER BY a.id LIMIT $1"""
REQUESTED_COUNT: Final = "SELECT count(*)::int, max(id) FROM allocation WHERE status = 'requested'"
STILL_REQUESTED: Final = "SELECT id FROM allocation WHERE id = ANY ($1::text[]) AND status = 'requested'"
NODE_FACTS: Final = """
SELECT n.id, n.status, n.region, n.host, n.unreachable_since, n.written_off_at,
       coalesce((n.inventory ->> 'cpus')::float8, 1), coalesce((n.inventory ->> 'memory_bytes')::bigint, 268435456),
       (SELECT count(*)::int FROM slot s WHERE s.node_id = n.id), n.labels ->> $2
  FROM node n WHERE n.id = $1"""
NETWORKS: Final = """
SELECT id, node_id, tenant_id, project_id, subnet, revision, created_at FROM project_network WHERE node_id = $1
 ORDER BY id"""
NEIGHBOURS: Final = """
SELECT a.id, a.project_id, a.name, a.address FROM allocation a
 WHERE a.node_id = $1 AND a.status <> 'released' ORDER BY a.id"""
CLEAN: Final = "r.owner = a.id AND r.clean AND r.task_type = 'sandbox.destroy'"
"""A receipt which proves that nothing of an allocation is left on its node."""
BLOCKING_MEMBER: Final = """m.status <> 'removed' AND (n.status IS DISTINCT FROM 'retired'
   OR m.status NOT IN ('failed', 'removing'))"""
"""Members that an allocation waits for: until they are closed, on a lost machine only until they are failed."""
DUE: Final = f"""
SELECT a.id FROM allocation a
  LEFT JOIN node n ON n.id = a.node_id LEFT JOIN task t ON t.id = a.task_id
 WHERE a.id > $2 AND (a.status = 'failed' OR (a.status IN ('provisioning', 'releasing')
       AND (a.blocker IS NULL OR NOT EXISTS (SELECT FROM member m WHERE m.allocation_id = a.id AND {BLOCKING_MEMBER})
            OR a.status = 'provisioning')
       AND (t.id IS NULL OR t.status IN ('succeeded', 'failed', 'cancelled', 'expired') OR n.status = 'retired'
         OR (n.unreachable_since IS NULL) <> (a.blocker IS NULL)))
       OR (a.status = 'release_failed' AND (a.retry_at IS NULL OR a.retry_at <= $1 OR n.status = 'retired')))
UNION
SELECT a.id FROM node n CROSS JOIN LATERAL (
   SELECT a.id, a.blocker FROM allocation a
    WHERE a.node_id = n.id AND a.id > $2 AND a.status = 'active' OFFSET 0) a  -- starts from the few nodes
 WHERE (n.status = 'retired' OR n.unreachable_since IS NOT NULL) AND (n.status = 'retired' OR a.blocker IS NULL)
UNION
SELECT a.id FROM allocation a JOIN node n ON n.id = a.node_id
 WHERE a.id > $2 AND a.status = 'active' AND a.blocker IS NOT NULL AND n.unreachable_since IS NULL
UNION
SELECT a.id FROM allocation a JOIN receipt r ON r.allocation_id = a.id AND {CLEAN}
 WHERE a.id > $2 AND a.status IN ('releasing', 'release_failed')
 ORDER BY 1 LIMIT $3"""
NEXT_RETRY: Final = "SELECT min(retry_at) FROM allocation WHERE status = 'release_failed'"
SNAPSHOTS: Final = f"""
SELECT {COLUMNS},
       n.id AS n_id, n.status AS n_status, n.region AS n_region, n.host AS n_host, n.unreachable_since AS n_unreachable,
       n.written_off_at AS n_written_off,
       t.id AS t_id, t.type AS t_type, t.status AS t_status, t.first_claimed_at IS NOT NULL AS t_claimed,
       t.arguments AS t_arguments, t.result AS t_result, t.failure_code AS t_code, t.failure_detail AS t_detail,
       (SELECT r.id FROM receipt r WHERE r.task_id = a.task_id) AS r_id,
       (SELECT min(r.id) FROM receipt r WHERE r.allocation_id = a.id AND {CLEAN}) AS r_clean,
       w.started, w.creates, w.destroys,
       ARRAY(SELECT m.name FROM member m WHERE m.allocation_id = a.id AND {BLOCKING_MEMBER} ORDER BY m.id) AS members
  FROM allocation a LEFT JOIN node n ON n.id = a.node_id LEFT JOIN task t ON t.id = a.task_id
 CROSS JOIN LATERAL (
   SELECT coalesce(bool_or(k.first_claimed_at IS NOT NULL), false) AS started,
          count(*) FILTER (WHERE k.type = 'sandbox.create')::int AS creates,
          count(*) FILTER (WHERE k.type = 'sandbox.destroy')::int AS destroys
     FROM task k WHERE k.allocation_id = a.id) w
 WHERE a.id = ANY ($1::text[]) ORDER BY a.id"""
QUEUED: Final = f"""
SELECT {TASK_COLUMNS} FROM task t
 WHERE t.allocation_id = ANY ($1::text[]) AND t.status = 'queued' ORDER BY t.id"""
HELD: Final = """
SELECT id, node_id, index, numa, gpu_model, memory_bytes, simulated, status, allocation_id, revision, created_at
  FROM slot WHERE allocation_id = ANY ($1::text[]) ORDER BY node_id, index"""

_WIDTH: Final = len(Allocation.__slots__)


@dataclass(frozen=True, slots=True)
class UnplacedAllocation:
    """An allocation without a place, and the node of its group if it must go there."""

    allocation: Allocation
    same_node: bool
    node_id: str | None


async def snapshot(database: Database, *, with_facts: bool) -> list[NodeSnapshot]:
    """All machines that are not retired; with their facts if a request asks about any."""
    slots, used = await database.fetch(PLATFORM, SLOTS), await database.fetch(PLATFORM, OCCUPANTS)
    nodes = _nodes(await database.fetch(PLATFORM, NODES), slots, used)
    if not with_facts:
        return nodes
    rows = await database.fetch(PLATFORM, NODE_INVENTORIES)
    facts = {node_id: facts_from(host, region, inventory) for node_id, host, region, inventory in rows}
    return [replace(each, facts=facts.get(each.id, {})) for each in nodes]


async def node_snapshot(database: Database, node_id: str) -> NodeSnapshot | None:
    """One machine; None if it is retired."""
    slots = await database.fetch(PLATFORM, SLOTS_OF_NODE, node_id)
    used = await database.fetch(PLATFORM, OCCUPANTS_OF_NODE, node_id)
    nodes = _nodes(await database.fetch(PLATFORM, NODE, node_id), slots, used)
    return nodes[0] if nodes else None


def _nodes(
    node_rows: Sequence[asyncpg.Record], slot_rows: Sequence[asyncpg.Record], occupant_rows: Sequence[asyncpg.Record]
) -> list[NodeSnapshot]:
    slots: dict[str, list[SlotSnapshot]] = {}
    for row in slot_rows:
        slots.setdefault(row[0], []).append(SlotSnapshot(*row[1:]))
    used = {row[0]: (frozenset(row[1]), bool(row[2])) for row in occupant_rows}
    nodes = []
    for node_id, region, single, refuses, name in node_rows:
        projects, exclusive = used.get(node_id, (frozenset[str](), False))
        nodes.append(
            NodeSnapshot(
                node_id,
                region,
                tuple(slots.get(node_id, ())),
                refuses,
                projects=projects,
                exclusive=exclusive,
                single_project=single,
                name=name,
            )
        )
    return nodes


async def requested(database: Database, limit: int) -> list[UnplacedAllocation]:
    """The allocations that wait for a place, the oldest first."""
    rows = await database.fetch(PLATFORM, REQUESTED, limit)
    return [UnplacedAllocation(_allocation(row), row[_WIDTH], row[_WIDTH + 1]) for row in rows]


async def requested_mark(database: Database) -> tuple[int, str]:
    """How many wait for a place, and the newest of them: a different mark means that the set has changed."""
    row = await database.fetchrow(PLATFORM, REQUESTED_COUNT)
    return (0, "") if row is None else (row[0], row[1] or "")


async def still_requested(database: Database, allocation_ids: Sequence[str]) -> set[str]:
    """Those of the allocations that are still not placed."""
    return {row[0] for row in await database.fetch(PLATFORM, STILL_REQUESTED, list(allocation_ids))}


async def node_facts(database: Database, node_id: str) -> NodeFacts | None:
    """The facts about a node that a sandbox on it needs."""
    row = await database.fetchrow(PLATFORM, NODE_FACTS, node_id, POOL_LABEL)
    return None if row is None else NodeFacts(*row)


async def networks(database: Database, node_id: str) -> NodeNetworks:
    """The networks of a node and the allocations in them."""
    networks = await database.fetch(PLATFORM, NETWORKS, node_id)
    allocations = await database.fetch(PLATFORM, NEIGHBOURS, node_id)
    return NodeNetworks(
        tuple(ProjectNetwork(*row) for row in networks), tuple(NodeNeighbour(*row) for row in allocations)
    )


async def due(database: Database, now: datetime, after: str, limit: int) -> list[str]:
    """The allocations that have a next step now, in the order of their ids, after this one."""
    return [row[0] for row in await database.fetch(PLATFORM, DUE, now, after, limit)]


async def next_retry(database: Database) -> datetime | None:
    """When the next teardown is retried; None when none is waiting."""
    moment: datetime | None = await database.fetchval(PLATFORM, NEXT_RETRY)
    return moment


async def allocation_snapshots(database: Database, allocation_ids: Sequence[str]) -> list[AllocationSnapshot]:
    """These allocations with everything that decides their next step."""
    found = [_snapshot_of(row) for row in await database.fetch(PLATFORM, SNAPSHOTS, list(allocation_ids))]
    releasing = [each for each in found if each.allocation.status == AllocationState.RELEASING]
    if not releasing:
        return found
    held: dict[str, list[Slot]] = {}
    for row in await database.fetch(PLATFORM, HELD, [each.allocation.id for each in releasing]):
        slot = Slot(*row)
        held.setdefault(str(slot.allocation_id), []).append(slot)
    queued = await _queued(database, [each.allocation.id for each in releasing if not each.started])
    return [
        replace(each, slots=tuple(held.get(each.allocation.id, ())), queued=tuple(queued.get(each.allocation.id, ())))
        for each in found
    ]


async def _queued(database: Database, ids: Sequence[str]) -> dict[str, list[Task]]:
    """Queued tasks of allocations that no agent has started anything for: these are cancelled with the release."""
    queued: dict[str, list[Task]] = {}
    for row in await database.fetch(PLATFORM, QUEUED, list(ids)) if ids else ():
        task = task_of(row)
        queued.setdefault(task.allocation_id, []).append(task)
    return queued


def _snapshot_of(row: asyncpg.Record) -> AllocationSnapshot:
    allocation = _allocation(row)
    node = None
    if row["n_id"] is not None:
        node = NodeFacts(
            row["n_id"], row["n_status"], row["n_region"], row["n_host"], row["n_unreachable"], row["n_written_off"]
        )
    task = None
    if row["t_id"] is not None:
        task = TaskFacts(
            row["t_id"],
            row["t_type"],
            row["t_status"],
            row["t_claimed"],
            open_document(row["t_arguments"], TASK_ARGUMENTS, allocation.tenant_id, row["t_id"]),
            row["t_result"],
            row["t_code"],
            row["t_detail"],
        )
    return AllocationSnapshot(
        allocation=allocation,
        node=node,
        task=task,
        receipt_id=row["r_id"],
        clean_receipt_id=row["r_clean"],
        started=row["started"],
        tasks_made=row["creates" if allocation.status == AllocationState.PROVISIONING else "destroys"],
        members=tuple(row["members"]),
    )


def _allocation(row: asyncpg.Record) -> Allocation:
    return Allocation(*row[:_WIDTH])
