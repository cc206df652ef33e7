"""Migrations: from nothing, by several at once, by a user with few rights; and what is refused, with the reason."""

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
import structlog

from mooring.core.lifecycle_docs import edge_rows
from mooring.core.lifecycles import LIFECYCLES
from mooring.embedded import BinariesMissing, EmbeddedPostgres
from mooring.embedded.binaries import find_installation
from mooring.settings import Settings
from mooring.storage.kernel import migrate as migrating
from mooring.storage.kernel.database import TENANT_ROLE, Acting
from mooring.storage.kernel.migrate import Migration, MigrationRefused, migrate, migrations
from server.tests.conftest import World, running_platform
from server.tests.support.postgres import SETTINGS as FAST
from server.tests.support.postgres import make_or_drop, test_cluster_dsn

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


def changed(url: str, **parts: str) -> str:
    """The address with another database or another user."""
    split = urlsplit(url)
    if "user" in parts:
        host = split.netloc.rpartition("@")[2]
        split = split._replace(netloc=f"{parts['user']}:{parts['password']}@{host}")
    return urlunsplit(split._replace(path=f"/{parts['database']}") if "database" in parts else split)


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(url: str, statement: str, *arguments: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(url)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(statement, *arguments)
        return rows
    finally:
        await connection.close()


@pytest.fixture
async def empty() -> AsyncIterator[str]:
    """The address of a database with nothing in it."""
    async with empty_database() as url:
        yield url


@asynccontextmanager
async def empty_database(owner: str | None = None, dsn: str = "") -> AsyncIterator[str]:
    dsn, name = dsn or test_cluster_dsn(), f"empty_{uuid.uuid4().hex[:12]}"
    await make_or_drop(dsn, f"CREATE DATABASE {name}" + (f" OWNER {owner}" if owner else ""))
    yield changed(dsn, database=name)
    await make_or_drop(dsn, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other accounts may pass through, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-untouched-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
async def untouched_cluster(open_directory: Path) -> AsyncIterator[str]:
    """The address of a cluster in which nobody has ever made the tenants' role."""
    try:
        find_installation()
    except BinariesMissing as error:
        pytest.skip(str(error))
    async with EmbeddedPostgres(open_directory, log=structlog.get_logger(), settings=FAST) as server:
        yield server.dsn


@dataclass(frozen=True)
class Someone:
    """A login of the cluster with few rights, and a database of its own."""

    name: str
    url: str


@asynccontextmanager
async def someone(attributes: str, dsn: str = "") -> AsyncIterator[Someone]:
    dsn, name, password = dsn or test_cluster_dsn(), f"someone_{uuid.uuid4().hex[:12]}", uuid.uuid4().hex
    await execute(dsn, f"CREATE ROLE {name} LOGIN PASSWORD '{password}' NOSUPERUSER {attributes}")
    async with empty_database(name, dsn) as url:
        yield Someone(name, changed(url, user=name, password=password))
    await execute(dsn, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


async def shape(url: str) -> set[tuple[object, ...]]:
    """Every column and constraint that there is."""
    columns = await fetch(
        url,
        "SELECT table_name::text, column_name::text, data_type::text FROM information_schema.columns "
        "WHERE table_schema = 'public'",
    )
    constraints = await fetch(
        url,
        "SELECT conrelid::regclass::text, conname::text, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE connamespace = 'public'::regnamespace",
    )
    return {tuple(row) for row in (*columns, *constraints)}


async def test_from_an_empty_database_everything_is_applied_in_order(empty: str) -> None:
    names = tuple(each.name for each in migrations())
    assert await migrate(empty) == names
    rows = await fetch(empty, "SELECT version, name, checksum FROM schema_migration ORDER BY version")
    assert [(row["version"], row["name"]) for row in rows] == list(enumerate(names, 1))
    assert [row["checksum"] for row in rows] == [each.checksum for each in migrations()]


async def test_a_second_run_changes_nothing(empty: str) -> None:
    await migrate(empty)
    before = await shape(empty), await fetch(empty, "SELECT * FROM schema_migration")
    assert await migrate(empty) == ()
    assert (await shape(empty), await fetch(empty, "SELECT * FROM schema_migration")) == before


async def test_of_several_replicas_that_start_at_once_one_migrates(empty: str) -> None:
    applied = await asyncio.gather(*(migrate(empty) for _ in range(4)))
    assert sorted(applied, key=len) == [(), (), (), tuple(each.name for each in migrations())]


async def test_a_run_that_broke_off_is_finished_by_the_next(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each migration commits with its row: what failed left nothing, and what was before it stays."""
    ours = migrations()
    broken = replace(ours[2], sql=ours[2].sql + "\nSELECT 1 / 0;")
    monkeypatch.setattr(migrating, "migrations", lambda: (*ours[:2], broken))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty)
    rows = await fetch(empty, "SELECT name FROM schema_migration ORDER BY version")
    assert [row["name"] for row in rows] == [each.name for each in ours[:2]]
    monkeypatch.undo()
    assert await migrate(empty) == tuple(each.name for each in ours[2:])


async def test_a_migration_that_was_edited_after_it_was_applied_is_refused(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate(empty)
    ours = migrations()
    edited = replace(ours[1], sql=ours[1].sql + "\n-- a word more")
    monkeypatch.setattr(migrating, "migrations", lambda: (ours[0], edited, *ours[2:]))
    with pytest.raises(MigrationRefused, match=rf"{ours[1].name} differs from the migration"):
        await migrate(empty)


async def test_a_gap_in_the_numbers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Folder:
        """A package of migrations in which one number is left out."""

        @staticmethod
        def iterdir() -> list[object]:
            return [Entry("0001_first.sql"), Entry("0003_third.sql"), Entry("notes.txt")]

    class Entry:
        def __init__(self, name: str) -> None:
            self.name = name

        def read_text(self, encoding: str) -> str:
            return ""

    monkeypatch.setattr("mooring.storage.kernel.migrate.resources.files", lambda _: Folder())
    with pytest.raises(MigrationRefused, match="without gaps"):
        migrations()


async def test_the_lifecycles_in_the_database_follow_the_program(empty: str) -> None:
    """Edges that the core no longer has go, and new ones come, with the next start."""
    await migrate(empty)
    await execute(
        empty,
        "DELETE FROM lifecycle_edge WHERE machine = 'node' AND trigger = 'drain'",
        "INSERT INTO lifecycle_edge VALUES ('node', 'retired', 'revive', 'ready')",
    )
    await migrate(empty)
    rows = await fetch(empty, "SELECT * FROM lifecycle_edge WHERE source <> ''")
    assert {tuple(row) for row in rows} == set(edge_rows(LIFECYCLES))


async def test_a_user_who_may_make_roles_needs_no_more(untouched_cluster: str, empty: str, settings: Settings) -> None:
    """He makes the tenants' role, gives it to himself, and his platform serves tenants behind the second lock."""
    await migrate(empty)
    async with someone("CREATEROLE NOCREATEDB NOBYPASSRLS", untouched_cluster) as owner:
        assert await migrate(owner.url) == tuple(each.name for each in migrations())
        assert await migrate(owner.url) == ()
        assert await shape(owner.url) == await shape(empty)
        async with running_platform(replace(settings, database_url=owner.url)) as running:
            world = World(running, running.client())
            admin = await world.sign_in("admin@mooring.local", running.code)
            world.admin.headers["Authorization"] = f"Bearer {admin}"
            assert (await world.admin.get("/readyz")).status_code == 200
            acme, other = await world.tenant("acme"), await world.tenant("other")
            project = await world.project(acme, "train")
            for tenant, status in ((acme, 200), (other, 404)):
                answer = await world.client(tenant.token).get(f"/api/v1/projects/{project}")
                assert answer.status_code == status
            async with running.platform.services.database.connection(Acting(other.id)) as connection:
                assert await connection.fetchval("SELECT count(*) FROM project") == 0
            await world.close()
        await execute(owner.url, f"REVOKE {TENANT_ROLE} FROM CURRENT_USER")


async def test_without_the_right_to_make_roles_the_error_says_what_an_administrator_has_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unmade = f"unmade_{uuid.uuid4().hex[:12]}"
    monkeypatch.setattr(migrating, "TENANT_ROLE", unmade)
    async with someone("NOCREATEROLE") as owner:
        with pytest.raises(MigrationRefused) as refused:
            await migrate(owner.url)
        said = str(refused.value)
        assert owner.name in said
        assert f"CREATE ROLE {unmade} NOLOGIN NOBYPASSRLS; GRANT {unmade} TO {owner.name};" in said
        assert await fetch(owner.url, "SELECT 1 FROM pg_tables WHERE schemaname = 'public'") == []


async def test_a_user_who_is_not_given_the_role_gets_an_error_that_says_so() -> None:
    """The role is there, and this user can neither take it nor give it to himself."""
    async with someone("NOCREATEROLE") as owner:
        with pytest.raises(MigrationRefused, match=f"GRANT {TENANT_ROLE} TO {owner.name}"):
            await migrate(owner.url)


async def test_a_user_who_was_given_the_role_needs_no_right_to_make_any() -> None:
    async with someone("NOCREATEROLE") as owner:
        await execute(test_cluster_dsn(), f"GRANT {TENANT_ROLE} TO {owner.name}")
        assert await migrate(owner.url) == tuple(each.name for each in migrations())


async def test_a_platform_with_a_migration_missing_is_not_ready_and_says_which(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_platform(settings) as running, running.client() as client:
        assert (await client.get("/readyz")).json() == {"status": "ready", "reasons": []}
        ours = migrations()
        newer = Migration(len(ours) + 1, f"{len(ours) + 1:04}_newer.sql", "SELECT 1")
        monkeypatch.setattr(migrating, "migrations", lambda: (*ours, newer))
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["code"]) == (503, "temporarily_unavailable")
        assert answer.json()["details"] == {"reasons": [f"the migration {newer.name} is missing"]}
        assert (await client.get("/healthz")).status_code == 200
        monkeypatch.undo()
        assert (await client.get("/readyz")).status_code == 200
