"""Fixtures of the server's tests: a migrated database, and a running platform on top of it.

There are two platforms. `shared_platform` serves all tests of a module that names it; each test makes tenants of its
own there, and row-level security keeps them apart. `private_platform` has a database for one test. All other fixtures
(`running`, `world`, `settings`, `database_url`, `database`, `connection`) belong to the shared platform if the test or
its module uses it, and to a private one otherwise.

A database is a copy of a template that is migrated once in each worker, which takes milliseconds. The platform runs
in the test's own event loop and listens on a free port of loopback, so that tests speak HTTP to it as anybody would.
"""

import asyncio
import hashlib
import itertools
import os
import socket
import ssl
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
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
from server.tests.support.loopback_egress import loopback_egress
from server.tests.support.postgres import make_or_drop, test_cluster_dsn
from server.tests.support.root_key import ROOT_KEY
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


@cache
def _template() -> str:
    """Made once in a process: `tests/parity` has these fixtures too, and pytest would make the template for each."""
    return asyncio.run(_make_template(test_cluster_dsn()))


@pytest.fixture(scope="session")
def template() -> str:
    return _template()


@contextmanager
def copied_database(template: str) -> Iterator[str]:
    """The address of a copy of the template, dropped afterwards."""
    dsn, name = test_cluster_dsn(), f"test_{uuid.uuid4().hex[:16]}"
    # Files are copied, not logged page by page: on a server that need not survive a crash that is a fifth of the time.
    asyncio.run(make_or_drop(dsn, f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY'))
    yield _named(dsn, name)
    asyncio.run(make_or_drop(dsn, f'DROP DATABASE "{name}" WITH (FORCE)'))


@pytest.fixture(scope="module")
def shared_database_url(template: str) -> Iterator[str]:
    """The address of a database that the tests of one module share, each with rows of its own."""
    with copied_database(template) as url:
        yield url


@pytest.fixture
def private_database_url(template: str) -> Iterator[str]:
    """The address of a database for one test."""
    with copied_database(template) as url:
        yield url


def _is_shared(request: pytest.FixtureRequest) -> bool:
    """Whether the test runs on its module's platform; one that asks for a private platform does not."""
    return "shared_platform" in request.fixturenames and "private_platform" not in request.fixturenames


@pytest.fixture
def database_url(request: pytest.FixtureRequest) -> str:
    """The address of the test's database."""
    return str(request.getfixturevalue("shared_database_url" if _is_shared(request) else "private_database_url"))


def _settings(database_url: str, directory: Path) -> Settings:
    return Settings(
        database_url=database_url,
        master_key_file=str(directory / "keys" / "master.key"),
        listen_port=0,  # the relay takes a free port, as the API does
        rate_limit_per_second=100_000,
        rate_limit_burst=100_000,
        sign_in_limit_per_minute=100_000,
        database_connections=4,
        root_key=ROOT_KEY,
    )


@pytest.fixture
def settings(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Settings:
    """The settings of the test's platform; a module may override them for its private platforms."""
    if _is_shared(request):
        shared: Running = request.getfixturevalue("shared_platform")
        return shared.settings
    return _settings(database_url, tmp_path)


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the test's database."""
    opened = await asyncpg.connect(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """Both pools of connections to the test's database."""
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
    _admin_tokens: list[str] = field(default_factory=list)

    async def admin_token(self) -> str:
        """The token of the platform's first admin, who signs in once."""
        if not self._admin_tokens:
            body = {"email": "admin@mooring.local", "one_time_code": self.code, "new_password": PASSWORD}
            async with self.client() as client:
                answer = await client.post("/api/v1/sign-in", json=body)
            assert answer.status_code == 200, answer.text
            self._admin_tokens.append(str(answer.json()["token"]))
        return self._admin_tokens[0]

    def client(self, token: str | None = None, *, address: str | None = None) -> httpx.AsyncClient:
        """A caller, with an address of its own if it is named; all of 127.0.0.0/8 is this machine."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        over = None if address is None else httpx.AsyncHTTPTransport(local_address=address, verify=NO_AUTHORITIES)
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=50, verify=NO_AUTHORITIES, transport=over)


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
async def running_platform(
    settings: Settings, *, with_workers: bool = False, dials_loopback: bool = True
) -> AsyncIterator[Running]:
    """A platform that listens on a free port of loopback, and has patience with a database that others keep busy.

    The receivers of webhooks in tests are on loopback, which no setting allows, so the dialer is one that may.
    """
    settings, telemetry = replace(settings, database_connect_timeout_seconds=60.0), Telemetry()
    async with platform(settings, settings.database_url, telemetry) as opened:
        database = opened.services.database
        database._settings = replace(database._settings, acquire_timeout_seconds=60.0)
        fast = Passwords(hasher=PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
        object.__setattr__(opened.services, "passwords", fast)
        loopback_dialer = loopback_egress(settings)
        if dials_loopback:
            object.__setattr__(opened.services, "outbound", loopback_dialer)
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as the program does
        config = uvicorn.Config(
            opened.application,
            loop="none",
            http=HttpConnection,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=settings.trusted_proxies or None,
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
            await loopback_dialer.close()


@pytest.fixture(scope="module")
async def shared_platform(
    anyio_backend: object,  # named here too, so that a test without async can be the first of its module
    shared_database_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Running]:
    """One platform for the tests of a module: those that look only at tenants, nodes and apps that they made."""
    async with running_platform(_settings(shared_database_url, tmp_path_factory.mktemp("shared"))) as served:
        yield served


@pytest.fixture
async def private_platform(settings: Settings) -> AsyncIterator[Running]:
    """A platform on a database of the test's own: for tests that look at, or change, what concerns all tenants."""
    async with running_platform(settings) as served:
        yield served


@pytest.fixture
def running(request: pytest.FixtureRequest) -> Running:
    """The test's platform."""
    running: Running = request.getfixturevalue("shared_platform" if _is_shared(request) else "private_platform")
    return running


@dataclass(frozen=True)
class TenantWithAdmin:
    """A tenant with its admin's token."""

    id: str
    slug: str
    token: str
    admin_id: str


class World:
    """Makes people and places through the public API.

    On a shared platform `suffix` makes the slugs of this test's tenants unique; `TenantWithAdmin.slug` has the result.
    """

    def __init__(self, running: Running, admin: httpx.AsyncClient, suffix: str = "") -> None:
        self.running = running
        self.admin = admin
        self.suffix = suffix
        self._clients: list[httpx.AsyncClient] = [admin]

    def client(self, token: str | None = None, *, address: str | None = None) -> httpx.AsyncClient:
        client = self.running.client(token, address=address)
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

    async def tenant(self, name: str) -> TenantWithAdmin:
        slug = name + self.suffix
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


_WORLDS = itertools.count(1)


@pytest.fixture
async def world(request: pytest.FixtureRequest, running: Running) -> AsyncIterator[World]:
    """The test's platform with its admin signed in."""
    services = running.platform.services
    before = {each.name: getattr(services, each.name) for each in fields(services)}
    suffix = f"-{next(_WORLDS)}" if _is_shared(request) else ""
    made = World(running, running.client(await running.admin_token()), suffix)
    yield made
    await made.close()
    for name, part in before.items():  # such as the clock, which a test may have replaced
        object.__setattr__(services, name, part)
