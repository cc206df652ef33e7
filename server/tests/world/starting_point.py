"""What every schedule begins with: a project that may launch an app, three machines, and snapshots to go back to.

The catalogue part is made once through the public API. Everything that a schedule writes is put back from a snapshot
afterwards, so that each begins in the same world, whatever ran before: a seed gives the same run alone and among
others.
"""

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.fleet.node import NODE, NodeState, NodeTrigger
from mooring.core.kernel.decision import (
    Actor,
    AuditRecord,
    Decision,
    DecisionContext,
    Insert,
    PrincipalKind,
    StateChange,
    Write,
)
from mooring.core.kernel.ids import Prefix
from mooring.gateways.clock import VirtualClock
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Database
from mooring.storage.kernel.unit_of_work import apply
from server.tests.api.catalog.test_apps import REASON, AppPublisher
from server.tests.conftest import PASSWORD, World, running_platform
from server.tests.support.allocation_site import AllocationSite
from server.tests.support.fleet import GIB, MODEL, FleetWithAgents
from server.tests.support.launching import LIFECYCLE, RUNBOOK, Launching
from server.tests.support.lifecycle_rows import CLOCK

EPOCH: Final = datetime(2031, 1, 1, tzinfo=UTC)
SLOTS: Final = 3
MACHINES: Final = 3
OPERATOR: Final = ["runtime.claim", "runtime.report", "task.create", "secret.create", "secret.grant", "usage.report"]
COMPONENTS: Final = [
    {"key": "seed", "min_count": 1, "max_count": 5},
    {"key": "worker", "min_count": 0, "max_count": 5},
    {"key": "gate", "min_count": 0, "max_count": 5},
]
ACTIONS: Final = [
    {
        "name": "echo.remember",
        "permission": "app.web-tool.echo.remember",
        "input_schema": {"type": "object", "properties": {}},
        "output_schema": {"type": "object", "properties": {"seeds": {"type": "integer"}}, "required": ["seeds"]},
    }
]
MODES: Final = [{"operating_mode": "tenant_dedicated", "control_plane_scope": "tenant"}]
TABLES: Final = (
    "instance", "member", "operation", "operation_member", "instance_claim", "adapter_presence", "usage_record",
    "task", "task_log", "closed_owner", "receipt", "runtime_secret", "secret_grant", "secret", "allocation",
    "allocation_group", "project_network", "project_quota", "slot", "node", "closing_record", "artifact_hold",
    "attachment", "transition", "policy",
)  # fmt: skip
"""What schedules write and a snapshot has."""
TRAILS: Final = ("event", "audit", "idempotency", "delivery")
"""What schedules leave behind, of which a snapshot has nothing."""
PART_OF: Final = {
    "transition": "WHERE machine IN ('instance', 'member', 'operation', 'task', 'allocation', 'node', 'attachment')"
}
"""Of these tables a snapshot has only what schedules write."""
INDEXES: Final = """
SELECT format('DROP INDEX %s', i.indexrelid::regclass) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relnamespace = 'public'::regnamespace AND NOT i.indisunique AND NOT i.indisexclusion"""
"""Indexes that only find things faster; what must be unique stays so."""


@dataclass
class WorldMachine:
    """A simulated machine: its id and the key that its agent signs with."""

    node_id: str
    key: Ed25519PrivateKey


@dataclass
class StartingPoint:
    """The ids of what is there before any schedule begins."""

    settings: Settings
    tenant_id: str
    project_id: str
    user_id: str
    account_id: str
    sku: str
    beside_id: str  # another project of the tenant, which is attached
    machines: list[WorldMachine] = field(default_factory=list)


async def make_starting_point(url: str, keys: Path) -> StartingPoint:
    """A tenant, a project, an app with two versions, an entitlement and a SKU, through the public API."""
    settings = Settings(
        database_url=url,
        master_key_file=str(keys / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        database_connections=4,
    )
    async with running_platform(settings) as running:
        admin = running.client()
        body = {"email": "admin@mooring.local", "one_time_code": running.code, "new_password": PASSWORD}
        answer = await admin.post("/api/v1/sign-in", json=body)
        assert answer.status_code == 200, answer.text
        admin.headers["Authorization"] = f"Bearer {answer.json()['token']}"
        world = World(running, admin)
        publisher = await _publisher(world)
        fleet = FleetWithAgents(running.platform.services.database)
        made = Launching(
            publisher,
            AllocationSite(world, publisher.tenant, publisher.project_id, publisher.client, fleet),
            await fleet.sku(),
        )
        await publisher.artifact("active")
        parts: dict[str, Any] = {
            "lifecycle": LIFECYCLE | {"attach": {"supported": True}},
            "operating_modes": MODES,
            "components": COMPONENTS,
            "actions": ACTIONS,
            "runbook": RUNBOOK,
            "compatibility": {"multi_node": True},
            "usage_units": [{"unit": "ready_members", "title": "Members"}],
            "required_actions": OPERATOR[:2],
            "artifact_kind": "controller",
        }
        for number in ("1.0.0", "1.1.0"):
            await publisher.moved(await publisher.publish(number, **parts), "stage", "canary", "activate")
        await made.site.post(
            "/entitlements", {"app_id": publisher.app["id"], "reason": REASON, "agreed_actions": OPERATOR}, 201
        )
        beside = await world.project(publisher.tenant, "beside")
        account = await made.site.post("/service-accounts", {"name": "operator", "actions": OPERATOR}, 201)
        await world.close()
        return StartingPoint(
            settings,
            publisher.tenant.id,
            publisher.project_id,
            publisher.tenant.admin_id,
            account["id"],
            made.sku,
            beside,
            await _machines(running.platform.services.database),
        )


async def _publisher(world: World) -> AppPublisher:
    tenant = await world.tenant("acme")
    client = world.client(tenant.token)
    body = {"slug": "web-tool", "display_name": "Web tool", "category": "tool", "description": "Shows things"}
    app = await client.post(f"/api/v1/tenants/{tenant.id}/apps", json=body)
    assert app.status_code == 201, app.text
    publisher = AppPublisher(world, tenant, client, await world.project(tenant, "train"), app.json())
    source = {
        "id": CLOCK.mint(Prefix.ARTIFACT_SOURCE),
        "tenant_id": tenant.id,
        "name": "any",
        "created_at": CLOCK.now(),
        "pattern": "oci://registry.example/*",
    }
    await publisher.write(Insert("artifact_source", source))
    return publisher


async def _machines(database: Database) -> list[WorldMachine]:
    """Machines that are ready, the same ones in every world."""
    clock, machines = VirtualClock(EPOCH, 0), list[WorldMachine]()
    for number in range(MACHINES):
        key = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"machine {number}".encode()).digest())
        signing = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        node_id = clock.mint(Prefix.NODE)
        row = {
            "id": node_id,
            "created_at": EPOCH,
            "name": f"machine-{number}",
            "host": "simulated",
            "region": "local",
            "signing_key": signing,
            "sealing_key": b"s" * 32,
        }
        slots = [
            Insert(
                "slot",
                {
                    "id": clock.mint(Prefix.SLOT),
                    "node_id": node_id,
                    "index": index,
                    "numa": 0,
                    "gpu_model": MODEL,
                    "memory_bytes": 80 * GIB,
                    "simulated": True,
                    "created_at": EPOCH,
                },
            )
            for index in range(SLOTS)
        ]
        edge = NODE.step(NodeState.ENROLLED, NodeTrigger.REPORT_READY)
        inventory = {"cpus": 16, "memory_bytes": 64 * GIB, "facts": {}}
        columns = {"inventory": inventory, "inventory_at": EPOCH, "last_seen_at": EPOCH}
        moved: tuple[Write, ...] = (StateChange("node", node_id, NODE, edge, 0, None, columns), *slots)
        born: tuple[Write, ...] = (Insert("node", row, (NODE,)),)
        for writes in (born, moved):
            context = DecisionContext(
                Actor(PrincipalKind.SYSTEM, "system"), EPOCH, clock.mint(Prefix.CORRELATION), "a" * 32, clock.mint
            )
            audited = AuditRecord("test", "test", None, None)
            await apply(database, PLATFORM, context, Decision(result=None, writes=writes, audits=(audited,)))
        machines.append(WorldMachine(node_id, key))
    return machines


class Snapshots:
    """Copies of all that schedules write, in schemas of their own; a snapshot is put back in one round trip."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._columns: dict[str, str] = {}

    @classmethod
    async def open(cls, url: str) -> "Snapshots":
        """Over a connection of its own, whose writes no trigger sees."""
        connection = await asyncpg.connect(url, server_settings={"session_replication_role": "replica"})
        name = await connection.fetchval("SELECT current_database()")
        # The tables are tiny, so that planning takes longer than doing: statements of one text are planned once.
        for setting in ("plan_cache_mode = force_generic_plan", "track_activities = off", "track_counts = off"):
            await connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
        # A dozen rows are found as fast without an index, and every write of a task would keep 18 of them.
        for (drop,) in await connection.fetch(INDEXES):
            await connection.execute(drop)
        # Nobody has a webhook here, so that there is nothing to fan out to.
        assert not await connection.fetchval("SELECT EXISTS (SELECT FROM webhook)")
        await connection.execute("ALTER TABLE event DISABLE TRIGGER event_fans_out")
        # Each schedule begins without the audit rows of the one before.
        await connection.execute("ALTER TABLE audit DISABLE TRIGGER append_only")
        made = cls(connection)
        for table in TABLES:
            rows = await connection.fetch(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1 "
                "AND is_generated = 'NEVER' AND is_identity = 'NO' ORDER BY ordinal_position",
                table,
            )
            made._columns[table] = ", ".join(f'"{row[0]}"' for row in rows)
        return made

    async def save(self, name: str) -> None:
        """Keep the world as it is now under this name."""
        await self._connection.execute(f"CREATE SCHEMA {name}")
        parts = [f'DELETE FROM "{table}"' for table in TRAILS]
        for table in TABLES:
            columns, part = self._columns[table], PART_OF.get(table, "")
            await self._connection.execute(
                f'CREATE TABLE {name}.{table} AS SELECT {columns} FROM public."{table}" {part}'
            )
            parts.append(f'DELETE FROM "{table}" {part}')
            if await self._connection.fetchval(f"SELECT EXISTS (SELECT FROM {name}.{table})"):
                parts.append(f'INSERT INTO "{table}" ({columns}) SELECT * FROM {name}.{table}')
        # As a function, so that its statements are planned once.
        body = "; ".join(parts)
        await self._connection.execute(
            f"CREATE FUNCTION {name}.restore() RETURNS void LANGUAGE plpgsql AS $$ BEGIN {body}; END $$"
        )

    async def restore(self, name: str) -> None:
        """The world is again as it was."""
        await self._connection.fetchval(f"SELECT {name}.restore()")

    async def tidy(self) -> None:
        """Give back the room of what was deleted."""
        for table in (*TABLES, *TRAILS):
            await self._connection.execute(f'VACUUM ANALYZE "{table}"')

    async def close(self) -> None:
        """End the connection."""
        await self._connection.close()
