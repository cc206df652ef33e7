"""Server processes as an operator starts them: `python -m mooring <command>` with an environment.

A `ServerGroup` starts them, waits for the line that says where they listen, and stops all of them at the end of a test.
The standard error of a process is kept beside its other files and is shown when the process did not start.
"""

import asyncio
import ctypes
import itertools
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.tests.support.http_wire import BROKEN, WireClient
from tests.support.waiting import linger

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
LISTENS = "Mooring listens on "
START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 60.0
PASSWORD = "correct horse battery staple"
FIRST_ADMIN = "admin@mooring.local"
GENEROUS = {
    "MOORING_LISTEN_PORT": "0",
    "MOORING_RATE_LIMIT_PER_SECOND": "100000",
    "MOORING_RATE_LIMIT_BURST": "100000",
    "MOORING_SIGN_IN_LIMIT_PER_MINUTE": "100000",
    "MOORING_KEEP_ALIVE_SECONDS": "600",
    "MOORING_DATABASE_CONNECTIONS": "4",
    "MOORING_DATABASE_CONNECT_TIMEOUT_SECONDS": "60",
}


def end_with_parent() -> None:
    """Called in a new process: it is killed when its parent ends, however that happens."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass
class ServerProcess:
    """One process; `url` is empty for one that does not listen."""

    process: asyncio.subprocess.Process
    url: str
    code_path: Path
    log_path: Path

    @property
    def code(self) -> str | None:
        """The first admin's one-time code, if this process made that admin."""
        return self.code_path.read_text().strip() if self.code_path.exists() else None

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self) -> int:
        """The exit code, once it is over."""
        async with asyncio.timeout(END_SECONDS_MAX):
            return await self.process.wait()

    async def kill(self) -> None:
        """`kill -9`, and wait until it is gone."""
        self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL


class ServerGroup:
    """The processes of one test."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = environment
        self._numbers = itertools.count(1)
        self._all: list[ServerProcess] = []

    async def begin(self, command: str, *arguments: str, **environment: str) -> ServerProcess:
        """Start a process and do not wait for it."""
        number = next(self._numbers)
        code_path, log_path = self._directory / f"code-{number}", self._directory / f"log-{number}"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        keys = self._directory / "keys" / "master.key"
        own = {"MOORING_MASTER_KEY_FILE": str(keys), "MOORING_FIRST_ADMIN_CODE_FILE": str(code_path)}
        with log_path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "mooring",
                command,
                *arguments,
                env=inherited | GENEROUS | own | self._environment | environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                preexec_fn=end_with_parent,
            )
        served = ServerProcess(process, "", code_path, log_path)
        self._all.append(served)
        return served

    async def start(self, command: str, *arguments: str, **environment: str) -> ServerProcess:
        """Start a process and wait until it listens."""
        return await listening(await self.begin(command, *arguments, **environment))

    async def close(self) -> None:
        """End whatever is left."""
        for served in self._all:
            if served.process.returncode is None:
                served.send(signal.SIGKILL)
            await served.process.wait()


async def listening(served: ServerProcess) -> ServerProcess:
    """Wait until a process says where it listens."""
    assert served.process.stdout is not None
    async with asyncio.timeout(START_SECONDS_MAX):
        line = (await served.process.stdout.readline()).decode()
    assert line.startswith(LISTENS), f"it did not start: {line}{served.log}"
    served.url = line.removeprefix(LISTENS).strip()
    return served


async def persist(
    caller: WireClient, method: str, path: str, body: object = None, *, key: str
) -> tuple[Any, list[int]]:
    """What a client does that means it: repeat under one Idempotency-Key until it is done.

    Returns the answer's body and the statuses that came before it (0: the connection broke). Nothing but a broken
    connection and 503 `temporarily_unavailable` may come before it.
    """
    before: list[int] = []
    async with asyncio.timeout(180):
        while True:
            try:
                answer = await caller.call(method, path, body, {"Idempotency-Key": key})
            except BROKEN:
                before.append(0)
                await linger(0.02)
                continue
            if answer.status < 400:
                return answer.json if answer.body else None, before
            assert (answer.status, answer.code) == (503, "temporarily_unavailable"), answer.body
            before.append(answer.status)
            await linger(0.02)


async def sign_in(url: str, email: str, code: str, tenant: str | None = None) -> str:
    """The token of somebody who signs in with a one-time code."""
    body = {"email": email, "one_time_code": code, "new_password": PASSWORD}
    if tenant is not None:
        body["tenant"] = tenant
    async with WireClient(url) as caller:
        return str((await caller.post("/api/v1/sign-in", body, status=200))["token"])


async def sign_in_first_admin(served: ServerProcess) -> str:
    """The token of the first platform admin, whom this process made."""
    assert served.code is not None, "another process made the first admin"
    return await sign_in(served.url, FIRST_ADMIN, served.code)


@dataclass(frozen=True)
class ProcessTenant:
    """A tenant and its admin's token."""

    id: str
    slug: str
    token: str
    admin_id: str

    @property
    def path(self) -> str:
        return f"/api/v1/tenants/{self.id}"


async def make_tenant(url: str, admin_token: str, slug: str) -> ProcessTenant:
    """A tenant, made by the platform's admin, whose own admin has signed in."""
    email = f"admin@{slug}.example"
    first_admin = {"email": email, "display_name": "Admin"}
    body = {"slug": slug, "display_name": slug.title(), "first_admin": first_admin}
    async with WireClient(url, admin_token) as admin:
        made = await admin.post("/api/v1/tenants", body)
    token = await sign_in(url, email, made["one_time_code"], slug)
    return ProcessTenant(made["id"], slug, token, made["first_admin"]["id"])


async def make_project(url: str, tenant: ProcessTenant, slug: str) -> str:
    """The id of a new project."""
    async with WireClient(url, tenant.token) as admin:
        return str((await admin.post(f"{tenant.path}/projects", {"slug": slug, "display_name": slug}))["id"])


async def make_account(url: str, tenant: ProcessTenant, project_id: str, name: str) -> str:
    """The id of a new service account."""
    async with WireClient(url, tenant.token) as admin:
        path = f"/api/v1/projects/{project_id}/service-accounts"
        return str((await admin.post(path, {"name": name, "actions": ["project.read"]}))["id"])
