"""The platform that is measured: one throwaway PostgreSQL, one server process on it, and tenants.

PostgreSQL runs with the settings of the embedded default: it is durable, every commit reaches the disk. The server is
the program itself in one process with its default settings, but for the limits on how much one caller may send, on how
long a connection may be silent and on how long making one to the database may take. All that is measured is made by the
public API: tenants, a personal access token of each one's admin, and projects.
"""

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import structlog

from mooring.embedded import EmbeddedPostgres
from mooring.embedded.binaries import Installation, find_installation

PASSWORD = "correct horse battery staple"
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LISTENS = re.compile(r"Mooring listens on http://([0-9.]+):(\d+)")
UNLIMITED = {
    "MOORING_RATE_LIMIT_PER_SECOND": "1000000",
    "MOORING_RATE_LIMIT_BURST": "1000000",
    "MOORING_METER_EVENTS_PER_SECOND": "1000000",
    "MOORING_STREAMS_PER_PRINCIPAL": "10000",
    "MOORING_KEEP_ALIVE_SECONDS": "600",
    "MOORING_DATABASE_CONNECT_TIMEOUT_SECONDS": "60",
}


@dataclass(frozen=True)
class BenchTenant:
    """A tenant with the token of its admin and its projects."""

    id: str
    admin_id: str
    token_id: str
    token: str
    projects: tuple[str, ...]


@dataclass(frozen=True)
class BenchPlatform:
    """The running server and database, and their tenants."""

    host: str
    port: int
    dsn: str
    connections: int
    installation: Installation
    directory: Path
    server_pid: int
    postmaster_pid: int
    tenants: tuple[BenchTenant, ...]

    @property
    def url(self) -> str:
        """The address of the API."""
        return f"http://{self.host}:{self.port}"


class BenchPlatformFailed(Exception):
    """The server or the database did not start."""


@asynccontextmanager
async def running_platform(connections: int, *, tenants: int | None = None) -> AsyncIterator[BenchPlatform]:
    """Start the platform and remove it at the end; by default it has twice as many tenants as connections."""
    # Not in memory: a commit that reaches no disk would flatter both sides, and unequally.
    with tempfile.TemporaryDirectory(prefix="mooring-bench-", dir="/var/tmp") as name:
        directory = Path(name)
        os.chmod(directory, 0o711)  # the account that PostgreSQL runs as passes through
        silent = structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=_only_warnings())
        async with (
            EmbeddedPostgres(directory / "data", log=silent) as postgres,
            _server(directory, postgres.dsn, connections) as (process, host, port),
        ):
            code = await asyncio.to_thread((directory / "code").read_text)
            yield BenchPlatform(
                host=host,
                port=port,
                dsn=postgres.dsn,
                connections=connections,
                installation=find_installation(),
                directory=directory,
                server_pid=process.pid,
                postmaster_pid=int(postgres.postmaster_pid or 0),
                tenants=await _seed(f"http://{host}:{port}", code.strip(), connections, tenants or 2 * connections),
            )


def _only_warnings() -> type[structlog.typing.BindableLogger]:
    return structlog.make_filtering_bound_logger(30)


@asynccontextmanager
async def _server(
    directory: Path, dsn: str, connections: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, int]]:
    """Run the server as a process; its log goes to a file, as it would to a collector."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MOORING_", "OTEL_"))}
    environment |= UNLIMITED | {
        "MOORING_DATABASE_URL": dsn,
        "MOORING_DATABASE_CONNECTIONS": str(connections),
        "MOORING_MASTER_KEY_FILE": str(directory / "keys" / "master.key"),
        "MOORING_FIRST_ADMIN_CODE_FILE": str(directory / "code"),
        "MOORING_LISTEN_PORT": "0",
    }
    with (directory / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "mooring", "serve", env=environment, stdout=asyncio.subprocess.PIPE, stderr=log
        )
    try:
        host, port = await asyncio.wait_for(_address(process), START_SECONDS_MAX)
        yield process, host, port
    except (TimeoutError, BenchPlatformFailed) as error:
        said = (directory / "server.log").read_text(errors="replace")[-2000:]
        raise BenchPlatformFailed(f"the server did not start: {error}\n{said}") from error
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_SECONDS_MAX)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _address(process: asyncio.subprocess.Process) -> tuple[str, int]:
    if process.stdout is None:
        raise BenchPlatformFailed("the server has no output")
    async for line in process.stdout:
        found = LISTENS.search(line.decode())
        if found:
            return found[1], int(found[2])
    raise BenchPlatformFailed(f"it ended with exit code {await process.wait()}")


async def _seed(url: str, code: str, connections: int, tenants: int) -> tuple[BenchTenant, ...]:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {"email": "admin@mooring.local", "one_time_code": code, "new_password": PASSWORD}
        client.headers["Authorization"] = f"Bearer {(await _post(client, '/sign-in', body))['token']}"
        # Twice as many tenants as connections: the worst that can happen to the second lock.
        first = await _tenant(client, "tenant-0", connections)
        return (first, *[await _tenant(client, f"tenant-{number}", 1) for number in range(1, tenants)])


async def _tenant(platform: httpx.AsyncClient, slug: str, projects: int) -> BenchTenant:
    email = f"admin@{slug}.example"
    first_admin = {"email": email, "display_name": "Admin"}
    made = await _post(platform, "/tenants", {"slug": slug, "display_name": slug.title(), "first_admin": first_admin})
    async with httpx.AsyncClient(base_url=platform.base_url, timeout=60) as client:
        body = {"tenant": slug, "email": email, "one_time_code": made["one_time_code"], "new_password": PASSWORD}
        client.headers["Authorization"] = f"Bearer {(await _post(client, '/sign-in', body))['token']}"
        token = await _post(client, "/tokens", {"name": "bench"})
        ids = []
        for number in range(projects):
            body = {"slug": f"project-{number}", "display_name": f"Project {number}"}
            ids.append(str((await _post(client, f"/tenants/{made['id']}/projects", body))["id"]))
    admin = msgspec.convert(made["first_admin"], dict[str, object])
    return BenchTenant(str(made["id"]), str(admin["id"]), str(token["id"]), str(token["token"]), tuple(ids))


async def _post(client: httpx.AsyncClient, path: str, body: Mapping[str, object]) -> dict[str, object]:
    answer = await client.post(f"/api/v1{path}", json=body)
    if answer.status_code not in (200, 201):
        raise BenchPlatformFailed(f"POST {path} was answered {answer.status_code}: {answer.text[:500]}")
    found: dict[str, object] = answer.json()
    return found
