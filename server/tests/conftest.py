"""Fixtures of the server's tests: a migrated database for each test, and a running platform on top of it.

A database is a copy of a template that is migrated once in each worker, which takes milliseconds. The platform runs
in the test's own event loop and listens on a free port of loopback, so that tests speak HTTP to it as anybody would.
"""

import asyncio
import hashlib
import os
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import pytest
import uvicorn
from argon2 import PasswordHasher

from mooring.api.connection import HttpConnection
from mooring.gateways.passwords import Passwords
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.settings import Settings
from mooring.storage.kernel.database import Database, PoolSettings
from mooring.storage.kernel.migrate import migrate, migrations
from mooring.wiring import Platform, platform, workers
from server.tests.support.postgres import make_or_drop, test_cluster_dsn
from tests.support.waiting import until

PASSWORD = "correct horse battery staple"
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak to loopback in the clear: to read the machine's authorities takes each of them 25 ms."""


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The event loop that the server itself runs on."""
    return "asyncio", {"use_uvloop": True}


def _named(dsn: str, database: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(path=f"/{database}"))


async def _make_template(dsn: str) -> str:
    """The name of a migrated database; it carries the migrations' checksum, so that a stale one is not used."""
    checksum = hashlib.sha256("".join(each.checksum for each in migrations()).encode()).hexdigest()[:12]
    name = f"template_{checksum}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{os.getpid()}"
    await make_or_drop(dsn, f'CREATE DATABASE "{name}"')
    await migrate(_named(dsn, name))
    return name


@pytest.fixture(scope="session")
def template() -> str:
    return asyncio.run(_make_template(test_cluster_dsn()))


@contextmanager
def copied_database(template: str) -> Iterator[str]:
    """The address of a copy of the template, dropped afterwards."""
    dsn, name = test_cluster_dsn(), f"test_{uuid.uuid4().hex[:16]}"
    # Files are copied, not logged page by page: on a server that need not survive a crash that is a fifth of the time.
    asyncio.run(make_or_drop(dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY'))
    yield _named(dsn, name)
    asyncio.run(make_or_drop(dsn, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture
def database_url(template: str) -> Iterator[str]:
    """The address of a database of the test's own."""
    with copied_database(template) as url:
        yield url


@pytest.fixture(scope="module")
def shared_database_url(template: str) -> Iterator[str]:
    """The address of a database that the tests of one module share, each with rows of its own."""
    with copied_database(template) as url:
        yield url


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        database_url=database_url,
        master_key_file=str(tmp_path / "keys" / "master.key"),
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        database_connections=4,
    )


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the test's own."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Both pools on a database of the test's own."""
    opened = Database(PoolSettings(database_url, 4, acquire_timeout_seconds=60.0))
    await opened.open()
    yield opened
    await opened.close()


@dataclass(frozen=True)
class Running:
    """A platform that listens, and its first admin's one-time code."""

    platform: Platform
    url: str
    code: str
    settings: Settings

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=50, verify=NO_AUTHORITIES)


class _Prompt(uvicorn.Server):
    """uvicorn looks ten times a second whether it is to end, and once more before it does; tests need not wait."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.leaving = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.leaving.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in self.servers:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(AssertionError):
            await until(lambda: not self.server_state.connections and not self.server_state.tasks, 0.1)
            return
        await super().shutdown(sockets)


@asynccontextmanager
async def running_platform(settings: Settings, *, with_workers: bool = False) -> AsyncIterator[Running]:
    """A platform that listens on a free port of loopback, and has patience with a database that others keep busy."""
    settings, telemetry = replace(settings, database_connect_timeout_seconds=60.0), Telemetry()
    async with platform(settings, settings.database_url, telemetry) as opened:
        database = opened.services.database
        database._settings = replace(database._settings, acquire_timeout_seconds=60.0)
        fast = Passwords(hasher=PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        object.__setattr__(opened.services, "passwords", fast)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the program does
        config = uvicorn.Config(
            opened.application,
            loop="none",
            http=HttpConnection,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=600,  # a client may well be held up for a minute
        )
        server = _Prompt(config)
        task = asyncio.create_task(server._serve([listening]))
        await until(lambda: server.started)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        opened.tools.addresses.append(address)
        served = Running(opened, address, opened.first_admin_code or "", settings)
        try:
            if with_workers:
                async with workers(opened, telemetry):
                    yield served
            else:
                yield served
        finally:
            await opened.services.hub.close()
            server.leaving.set()
            await task


@pytest.fixture
async def running(settings: Settings) -> AsyncIterator[Running]:
    async with running_platform(settings) as served:
        yield served


@dataclass(frozen=True)
class TenantWithAdmin:
    """A tenant with its admin's token."""

    id: str
    slug: str
    token: str
    admin_id: str


class World:
    """Makes people and places through the public API."""

    def __init__(self, running: Running, admin: httpx.AsyncClient) -> None:
        self.running = running
        self.admin = admin
        self._clients: list[httpx.AsyncClient] = [admin]

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        client = self.running.client(token)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def sign_in(self, email: str, code: str, tenant: str | None = None) -> str:
        body = {"email": email, "one_time_code": code, "new_password": PASSWORD}
        if tenant is not None:
            body["tenant"] = tenant
        answer = await self.admin.post("/api/v1/sign-in", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["token"])

    async def tenant(self, slug: str) -> TenantWithAdmin:
        body = {
            "slug": slug,
            "display_name": slug.title(),
            "first_admin": {"email": f"admin@{slug}.example", "display_name": "Admin"},
        }
        made = await self.admin.post("/api/v1/tenants", json=body)
        assert made.status_code == 201, made.text
        answer = made.json()
        token = await self.sign_in(f"admin@{slug}.example", answer["one_time_code"], slug)
        return TenantWithAdmin(answer["id"], slug, token, answer["first_admin"]["id"])

    async def project(self, tenant: TenantWithAdmin, slug: str) -> str:
        answer = await self.client(tenant.token).post(
            f"/api/v1/tenants/{tenant.id}/projects", json={"slug": slug, "display_name": slug}
        )
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def member(self, tenant: TenantWithAdmin, project_id: str | None, role: str, name: str) -> str:
        """A user with a role in a project (or in the tenant); returns its token."""
        client = self.client(tenant.token)
        email = f"{name}@{tenant.slug}.example"
        user = await client.post(f"/api/v1/tenants/{tenant.id}/users", json={"email": email, "display_name": name})
        assert user.status_code == 201, user.text
        place = f"/api/v1/tenants/{tenant.id}" if project_id is None else f"/api/v1/projects/{project_id}"
        given = await client.post(f"{place}/memberships", json={"user_id": user.json()["id"], "role": role})
        assert given.status_code == 201, given.text
        return await self.sign_in(email, user.json()["one_time_code"], tenant.slug)


@pytest.fixture
async def world(running: Running) -> AsyncIterator[World]:
    """A running platform with its admin signed in."""
    admin = running.client()
    body = {"email": "admin@mooring.local", "one_time_code": running.code, "new_password": PASSWORD}
    answer = await admin.post("/api/v1/sign-in", json=body)
    assert answer.status_code == 200, answer.text
    admin.headers["Authorization"] = f"Bearer {answer.json()['token']}"
    made = World(running, admin)
    yield made
    await made.close()
