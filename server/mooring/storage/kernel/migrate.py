"""Forward-only, numbered migrations, applied under an advisory lock.

Any number of replicas may start at once: one takes the lock and migrates, the others wait and find nothing left to
do. Each migration commits together with its row in `schema_migration`, so a crash never leaves half a migration. If a
file was edited after it was applied, its checksum differs and the program refuses to start. After the SQL, the
lifecycle tables of the core are copied into `lifecycle_edge`, so the database refuses the same transitions as the
code.
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
"""The trigger under which a new row enters its lifecycle."""

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
"""Since PostgreSQL 16 a user who creates a role may grant it, but must grant it to themselves before `SET ROLE`."""

EPOCH_IS_BEHIND: Final = """
SELECT coalesce((SELECT e.tx >= (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint
                   FROM event e JOIN event_epoch p ON e.epoch = p.current
                  ORDER BY e.tx DESC LIMIT 1), false)"""

KNOWN_CLUSTER: Final = """
WITH first AS (UPDATE event_epoch SET cluster = $1 WHERE cluster IS NULL RETURNING cluster)
SELECT coalesce((SELECT cluster FROM first), (SELECT cluster FROM event_epoch))"""
RAISE_EPOCH: Final = "UPDATE event_epoch SET current = current + 1, cluster = $1 RETURNING current"


class MigrationRefused(Exception):
    """The database cannot be migrated to this version; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered SQL file."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the file, to detect edits after it was applied."""
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
        raise MigrationRefused(f"migrations must be numbered from 1 without gaps: {[each.name for each in found]}")
    return tuple(found)


async def migrate(url: str, connect_timeout_seconds: float = 60.0) -> tuple[str, ...]:
    """Migrate the database to this program's version; returns the names of the applied migrations."""
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
    """The migrations of this program that the database does not have yet; readiness reports them."""
    known = await connection.fetchval("SELECT to_regclass('schema_migration')")
    if known is None:
        return tuple(each.name for each in migrations())
    return tuple(each.name for each in _pending(await connection.fetch(APPLIED)))


def _pending(applied: list[asyncpg.Record]) -> tuple[Migration, ...]:
    known = migrations()
    applied_by_version = {row["version"]: row for row in applied}
    for migration in known:
        row = applied_by_version.get(migration.version)
        if row is not None and row["checksum"] != migration.checksum:
            raise MigrationRefused(
                f"{row['name']} differs from the migration that was applied to this database; "
                "run the version of Mooring that made this database, or restore the file"
            )
    return tuple(each for each in known if each.version not in applied_by_version)


async def _role(connection: asyncpg.Connection) -> None:
    """Create the role for row-level security. It belongs to the cluster, so several databases may create it at once."""
    try:
        if not await connection.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", TENANT_ROLE):
            await _make_role(connection)
        if not await connection.fetchval(MAY_TAKE_ROLE, TENANT_ROLE):
            await connection.execute(f"GRANT {TENANT_ROLE} TO CURRENT_USER")
    except asyncpg.InsufficientPrivilegeError as error:
        user = await connection.fetchval("SELECT current_user")
        raise MigrationRefused(
            f"the database user {user!r} may not create the role {TENANT_ROLE}, or is not a member of it; have an "
            f"administrator run once: CREATE ROLE {TENANT_ROLE} NOLOGIN NOBYPASSRLS; GRANT {TENANT_ROLE} TO {user};"
        ) from error
    await connection.execute(f"GRANT USAGE ON SCHEMA public TO {TENANT_ROLE}")


async def _make_role(connection: asyncpg.Connection) -> None:
    # Another database of this cluster may be faster; then the role exists, which is all we need.
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
    stored = {
        tuple(row) for row in await connection.fetch("SELECT machine, source, trigger, target FROM lifecycle_edge")
    }
    async with connection.transaction():
        await connection.executemany(
            "DELETE FROM lifecycle_edge WHERE (machine, source, trigger, target) = ($1, $2, $3, $4)",
            sorted(stored - wanted),
        )
        await connection.executemany("INSERT INTO lifecycle_edge VALUES ($1, $2, $3, $4)", sorted(wanted - stored))


async def _raise_epoch(connection: asyncpg.Connection) -> None:
    """Begin a new epoch after a restore into another cluster: transaction ids start again there, behind old cursors."""
    cluster = await _cluster(connection)
    if not await _is_new_cluster(connection, cluster):
        return
    async with connection.transaction():
        await connection.execute("LOCK TABLE event IN ACCESS EXCLUSIVE MODE")
        if await _is_new_cluster(connection, cluster):
            epoch = await connection.fetchval(RAISE_EPOCH, cluster)
            for table in ("event", "audit"):
                await connection.execute(f"ALTER TABLE {table} ALTER COLUMN epoch SET DEFAULT {int(epoch)}")


async def _is_new_cluster(connection: asyncpg.Connection, cluster: int | None) -> bool:
    """Whether the epoch began in another cluster; the first call records the cluster."""
    if cluster is not None:
        known = await connection.fetchval(KNOWN_CLUSTER, cluster)
        if known != cluster:
            return True
    return bool(await connection.fetchval(EPOCH_IS_BEHIND))


async def _cluster(connection: asyncpg.Connection) -> int | None:
    """The identifier of the cluster; None when the database user may not read it."""
    try:
        return int(await connection.fetchval("SELECT system_identifier FROM pg_control_system()"))
    except asyncpg.InsufficientPrivilegeError:
        return None
