"""Forward-only, numbered migrations, applied under an advisory lock.

Any number of replicas may start at once: one takes the lock and migrates, the others wait for it and find nothing
left to do. Each migration commits together with its row in `schema_migration`, so that a crash leaves whole
migrations only. A migration that was applied and later edited is refused by its checksum. After the SQL, the
lifecycle tables of the core are written into `lifecycle_edge`: the database refuses what the code's tables refuse.
"""

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg

from mooring.core.lifecycle_docs import birth_rows, edge_rows
from mooring.core.lifecycles import LIFECYCLES
from mooring.storage.kernel.database import TENANT_ROLE

LOCK_KEY: Final = 0x4D6F6F72  # "Moor"
NAME: Final = re.compile(r"^(\d{4})_[a-z0-9_]+\.sql$")
BIRTH: Final = "birth"
"""The trigger of a lifecycle's first row."""

LEDGER: Final = """
CREATE TABLE IF NOT EXISTS schema_migration (
  version integer PRIMARY KEY,
  name text NOT NULL,
  checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)"""
APPLIED: Final = "SELECT version, name, checksum FROM schema_migration ORDER BY version"

MAY_TAKE_ROLE: Final = """
SELECT pg_has_role(current_user, $1,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)"""
"""Since PostgreSQL 16 whoever makes a role may give it away, and may not take it before he has given it to himself."""

EPOCH_IS_BEHIND: Final = """
SELECT coalesce((SELECT e.tx >= (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint
                   FROM event e JOIN event_epoch p ON e.epoch = p.current
                  ORDER BY e.tx DESC LIMIT 1), false)"""

KNOWN_CLUSTER: Final = """
WITH first AS (UPDATE event_epoch SET cluster = $1 WHERE cluster IS NULL RETURNING cluster)
SELECT coalesce((SELECT cluster FROM first), (SELECT cluster FROM event_epoch))"""
RAISE_EPOCH: Final = "UPDATE event_epoch SET current = current + 1, cluster = $1 RETURNING current"


class MigrationRefused(Exception):
    """The database cannot be brought to this version; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file, so that an edited one is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """All migrations that this program knows, in order."""
    found = []
    for entry in resources.files("mooring.storage.migrations").iterdir():
        match = NAME.match(entry.name)
        if match:
            found.append(Migration(int(match[1]), entry.name, entry.read_text(encoding="utf-8")))
    found.sort(key=lambda each: each.version)
    if [each.version for each in found] != list(range(1, len(found) + 1)):
        raise MigrationRefused(f"migrations are numbered without gaps from 1: {[each.name for each in found]}")
    return tuple(found)


async def migrate(url: str, connect_timeout_seconds: float = 60.0) -> tuple[str, ...]:
    """Bring the database to this program's version; returns the names of what was applied."""
    connection = await asyncpg.connect(url, timeout=connect_timeout_seconds)
    try:
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
        await _role(connection)
        await connection.execute(LEDGER)
        pending = _pending(await connection.fetch(APPLIED))
        for migration in pending:
            await _apply(connection, migration)
        await _write_lifecycles(connection)
        await _raise_epoch(connection)
        return tuple(each.name for each in pending)
    finally:
        await connection.close()


async def missing(connection: asyncpg.Connection) -> tuple[str, ...]:
    """The migrations that this program has and the database lacks: why it is not ready."""
    known = await connection.fetchval("SELECT to_regclass('schema_migration')")
    if known is None:
        return tuple(each.name for each in migrations())
    return tuple(each.name for each in _pending(await connection.fetch(APPLIED)))


def _pending(applied: list[asyncpg.Record]) -> tuple[Migration, ...]:
    ours = migrations()
    done = {row["version"]: row for row in applied}
    for migration in ours:
        row = done.get(migration.version)
        if row is not None and row["checksum"] != migration.checksum:
            raise MigrationRefused(
                f"{row['name']} was applied with other contents than this program has; "
                "run the version of Mooring that made this database, or restore the file"
            )
    return tuple(each for each in ours if each.version not in done)


async def _role(connection: asyncpg.Connection) -> None:
    """The role of the second lock belongs to the cluster; several databases may make it at once."""
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", TENANT_ROLE):
            await _make_role(connection)
        if not await connection.fetchval(MAY_TAKE_ROLE, TENANT_ROLE):
            await connection.execute(f"GRANT {TENANT_ROLE} TO CURRENT_USER")
    except asyncpg.InsufficientPrivilegeError as error:
        user = await connection.fetchval("SELECT current_user")
        raise MigrationRefused(
            f"the database user {user!r} may not make the role {TENANT_ROLE}, or was not given it; have an "
            f"administrator run once: CREATE ROLE {TENANT_ROLE} NOLOGIN NOBYPASSRLS; GRANT {TENANT_ROLE} TO {user};"
        ) from error
    await connection.execute(f"GRANT USAGE ON SCHEMA public TO {TENANT_ROLE}")


async def _make_role(connection: asyncpg.Connection) -> None:
    # Another database of this cluster may be faster: then the role is there, which is all we want.
    with suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        await connection.execute(f"CREATE ROLE {TENANT_ROLE} NOLOGIN NOBYPASSRLS")


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(migration.sql)
        await connection.execute(
            "INSERT INTO schema_migration (version, name, checksum) VALUES ($1, $2, $3)",
            migration.version,
            migration.name,
            migration.checksum,
        )


async def _write_lifecycles(connection: asyncpg.Connection) -> None:
    wanted = {(machine, "", BIRTH, initial) for machine, initial in birth_rows(LIFECYCLES)} | set(edge_rows(LIFECYCLES))
    there = {
        tuple(row) for row in await connection.fetch("SELECT machine, source, trigger, target FROM lifecycle_edge")
    }
    async with connection.transaction():
        await connection.executemany(
            "DELETE FROM lifecycle_edge WHERE (machine, source, trigger, target) = ($1, $2, $3, $4)",
            sorted(there - wanted),
        )
        await connection.executemany("INSERT INTO lifecycle_edge VALUES ($1, $2, $3, $4)", sorted(wanted - there))


async def _raise_epoch(connection: asyncpg.Connection) -> None:
    """In a restored cluster transaction ids count anew, and cursors of the old one may lie ahead: begin a new epoch."""
    cluster = await _cluster(connection)
    if not await _is_elsewhere(connection, cluster):
        return
    async with connection.transaction():
        await connection.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
        if await _is_elsewhere(connection, cluster):
            epoch = await connection.fetchval(RAISE_EPOCH, cluster)
            for table in ("event", "audit"):
                await connection.execute(f"ALTER TABLE {table} ALTER COLUMN epoch SET DEFAULT {int(epoch)}")


async def _is_elsewhere(connection: asyncpg.Connection, cluster: int | None) -> bool:
    """Whether this is not the cluster in which the epoch began; the first one is written down."""
    if cluster is not None:
        known = await connection.fetchval(KNOWN_CLUSTER, cluster)
        if known != cluster:
            return True
    return bool(await connection.fetchval(EPOCH_IS_BEHIND))


async def _cluster(connection: asyncpg.Connection) -> int | None:
    """What tells one cluster from another, where the database's user may read it."""
    try:
        return int(await connection.fetchval("SELECT system_identifier FROM pg_control_system()"))
    except asyncpg.InsufficientPrivilegeError:
        return None
