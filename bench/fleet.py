"""A fleet for the bench: simulated nodes that have joined, each with a token and an active allocation.

Joining is not measured, so the rows are copied into the database: nodes and allocations with every transition that
leads to their state, and tokens by their hashes. The result is the same as if each node had joined by itself; polls,
claims and reports then use only the public API.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.fleet.allocation import ALLOCATION, AllocationState, AllocationTrigger
from mooring.core.fleet.node import NODE, NodeState, NodeTrigger
from mooring.core.identity.platform_key import TASK_SIGNING, audience_of, encoded
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import AnyLifecycle
from mooring.gateways.clock import SystemClock
from mooring.gateways.passwords import digest
from mooring.storage.kernel.unit_of_work import BIRTH

TOKEN_LIFETIME = timedelta(minutes=30)
RAW = (Encoding.Raw, PublicFormat.Raw)
SHARED = "gpu_slice"
"""The shape of an allocation that leaves its node to others too."""
INVENTORY = {
    "agent_version": "bench", "host": "simulated", "cpus": 64, "memory_bytes": 1 << 40, "numa": [], "gpus": [],
    "facts": {"simulated": True}, "addresses": [], "limits": {},
}  # fmt: skip
NODE_WAY = (NODE.step(NodeState.ENROLLED, NodeTrigger.REPORT_READY),)
ALLOCATION_WAY = (
    ALLOCATION.step(AllocationState.REQUESTED, AllocationTrigger.PROVISION),
    ALLOCATION.step(AllocationState.PROVISIONING, AllocationTrigger.ACTIVATE),
)


@dataclass(frozen=True)
class FleetMember:
    """One simulated node of the fleet."""

    node_id: str
    token: str
    allocation_id: str


@dataclass(frozen=True)
class JoinedFleet:
    """All nodes, and the platform keys they trust."""

    members: list[FleetMember]
    audience: str
    pinned: dict[str, str]


async def join(dsn: str, count: int, home: tuple[str, str], shape: str = "baremetal") -> JoinedFleet:
    """Write so many joined nodes, each with an allocation of this tenant's project."""
    clock = SystemClock()
    members = [
        FleetMember(clock.mint(Prefix.NODE), secrets.token_urlsafe(32), clock.mint(Prefix.ALLOCATION))
        for _ in range(count)
    ]
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await _copy(connection, "transition", _transitions(members, home[0]))
            await _copy(connection, "node", _nodes(members))
            await _copy(connection, "token", _tokens(members, clock))
            await _copy(connection, "allocation", _allocations(members, home, shape))
        await connection.execute("ANALYZE")
        keys = await connection.fetch(
            "SELECT id, public_key FROM platform_key WHERE purpose = $1 ORDER BY created_at", TASK_SIGNING
        )
    finally:
        await connection.close()
    pinned = {key["id"]: encoded(key["public_key"]) for key in keys}
    return JoinedFleet(members, audience_of(keys[0]["id"]), pinned)


async def move_in(
    connection: "asyncpg.Connection[Any]", node_id: str, homes: Sequence[tuple[str, str]]
) -> list[FleetMember]:
    """Write an allocation on an existing node for each tenant and project; returns them in this order."""
    clock = SystemClock()
    members = [FleetMember(node_id, "", clock.mint(Prefix.ALLOCATION)) for _ in homes]
    async with connection.transaction():
        for each, home in zip(members, homes, strict=True):
            rows = _transitions([each], home[0])
            await _copy(connection, "transition", [row for row in rows if row["machine"] == ALLOCATION.name])
            await _copy(
                connection,
                "allocation",
                [{**row, "name": row["id"].replace("_", "-")} for row in _allocations([each], home, SHARED)],
            )
    return members


async def _copy(connection: "asyncpg.Connection[Any]", table: str, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        records = [tuple(row.values()) for row in rows]
        await connection.copy_records_to_table(table, records=records, columns=list(rows[0]))


def _transitions(members: Sequence[FleetMember], tenant_id: str) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    rows = []
    for each in members:
        for machine, subject, tenant, way in (
            (NODE, each.node_id, "platform", NODE_WAY),
            (ALLOCATION, each.allocation_id, tenant_id, ALLOCATION_WAY),
        ):
            for generation, (source, trigger, target) in enumerate(_steps(machine, way)):
                rows.append(
                    {
                        "machine": machine.name,
                        "subject_id": subject,
                        "generation": generation,
                        "tenant_id": tenant,
                        "source": source,
                        "trigger": trigger,
                        "target": target,
                        "occurred_at": now,
                        "correlation_id": "bench",
                    }
                )
    return rows


def _steps(machine: AnyLifecycle, way: Sequence[Any]) -> list[tuple[str, str, str]]:
    birth = ("", BIRTH, str(machine.initial.value))
    return [birth, *((edge.source.value, edge.trigger.value, edge.target.value) for edge in way)]


def _nodes(members: Sequence[FleetMember]) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [
        {
            "id": each.node_id,
            "status": NodeState.READY.value,
            "generation": len(NODE_WAY),
            "created_at": now,
            "name": f"simulated-{number}",
            "host": "simulated",
            "region": "bench",
            "signing_key": Ed25519PrivateKey.generate().public_key().public_bytes(*RAW),
            "sealing_key": X25519PrivateKey.generate().public_key().public_bytes(*RAW),
            "inventory": json.dumps(INVENTORY),
            "inventory_at": now,
            "last_seen_at": now,
        }
        for number, each in enumerate(members)
    ]


def _tokens(members: Sequence[FleetMember], clock: SystemClock) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [
        {
            "id": clock.mint(Prefix.TOKEN),
            "hash": digest(each.token),
            "kind": "node",
            "node_id": each.node_id,
            "created_at": now,
            "expires_at": now + TOKEN_LIFETIME,
        }
        for each in members
    ]


def _allocations(members: Sequence[FleetMember], home: tuple[str, str], shape: str) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    tenant_id, project_id = home
    return [
        {
            "id": each.allocation_id,
            "tenant_id": tenant_id,
            "project_id": project_id,
            "node_id": each.node_id,
            "status": AllocationState.ACTIVE.value,
            "generation": len(ALLOCATION_WAY),
            "created_at": now,
            "name": f"simulated-{number}",
            "shape": shape,
            "sku_slug": "bench",
            "gpu_model": "simulated",
            "gpu_count": 0,
            "regions": ["bench"],
            "price_minor_per_gpu_hour": 0,
            "currency": "EUR",
            "price_revision": 1,
            "deadline_at": now + TOKEN_LIFETIME,
            "region": "bench",
            "host": "simulated",
            "placed_at": now,
            "activated_at": now,
            "correlation_id": "bench",
            "trace_id": "0" * 32,
        }
        for number, each in enumerate(members)
    ]
