"""Fixtures of the tests of processes: databases, directories that other accounts may pass through, fleets."""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from mooring.embedded.cluster import ClusterLayout
from mooring.embedded.processes import account_for, wait_until_gone
from server.tests.support.aftermath import Outcome
from server.tests.support.doomed_server import FILES, DoomedServer, first_people
from server.tests.support.mutations import MutationSubjects
from server.tests.support.postgres import make_or_drop, test_cluster_dsn
from server.tests.support.server_process import ServerGroup


async def execute(dsn: str, statement: str) -> None:
    """Run one statement on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def named(dsn: str, database: str) -> str:
    """The same server, another database."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


@contextlib.contextmanager
def new_database(template: str) -> Iterator[str]:
    """The address of a database that goes again; `template0` gives an empty one."""
    dsn, name = test_cluster_dsn(), f"process_{uuid.uuid4().hex[:16]}"
    asyncio.run(make_or_drop(dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    yield named(dsn, name)
    asyncio.run(make_or_drop(dsn, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def empty_database_url() -> Iterator[str]:
    with new_database("template0") as url:
        yield url


@pytest.fixture(scope="module")
def module_database_url(template: str) -> Iterator[str]:
    with new_database(template) as url:
        yield url


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty directory that other accounts may pass through, unlike pytest's own."""
    path = Path(tempfile.mkdtemp(prefix="mooring-processes-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        for cluster in (ClusterLayout(each) for each in path.iterdir()):
            if cluster.cluster.exists():  # a server that was killed leaves a database that is still ending
                wait_until_gone(cluster.cluster_name(), account_for(cluster.cluster), timeout_seconds=30)
        shutil.rmtree(path)


@pytest.fixture
async def fleet(database_url: str, tmp_path: Path) -> AsyncIterator[ServerGroup]:
    """Processes on a migrated database of the test's own."""
    made = ServerGroup(tmp_path, {"MOORING_DATABASE_URL": database_url})
    yield made
    await made.close()


@dataclass
class Killing:
    """A server that dies on request, the things to ask of it, and how each kind of request goes undisturbed."""

    server: DoomedServer
    subjects: MutationSubjects
    connection: asyncpg.Connection
    undisturbed: dict[str, Outcome]


@pytest.fixture(scope="module")
async def killing(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Killing]:
    directory = tmp_path_factory.mktemp("killing")
    server = await DoomedServer.open(directory, module_database_url)
    connection = await asyncpg.connect(module_database_url)
    try:
        admin_token, tenant = await first_people(server, directory)
        subjects = MutationSubjects(server.url, connection, admin_token=admin_token, tenant=tenant)
        await subjects.open(directory / FILES)
        await subjects.instances.open(module_database_url, directory / "keys" / "master.key")
        yield Killing(server, subjects, connection, {})
    finally:
        await subjects.instances.close()
        await connection.close()
        await server.close()
