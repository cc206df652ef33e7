"""Drives the server that dies on request (`doomed.py`): start it, kill it, start it again on the same address."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from server.tests.support.root_key import ROOT_KEY
from server.tests.support.server_process import (
    END_SECONDS_MAX,
    FIRST_ADMIN,
    GENEROUS,
    LISTENS,
    ProcessTenant,
    make_tenant,
    sign_in,
)

ROOT = Path(__file__).resolve().parents[3]
FILES = "files"
"""Below its directory, where the server reads blobs from."""


class DoomedServer:
    """One server at a time, on one address for all of its lives."""

    def __init__(self, program: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self._program = program
        self._child: int | None = None
        self._log = log
        self.url = url

    @classmethod
    async def open(cls, directory: Path, database_url: str) -> "DoomedServer":
        """Start the program that starts the servers."""
        own = {
            "MOORING_DATABASE_URL": database_url,
            "MOORING_MASTER_KEY_FILE": str(directory / "keys" / "master.key"),
            "MOORING_FIRST_ADMIN_CODE_FILE": str(directory / "code"),
            "MOORING_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8",
            "MOORING_SOURCE_FILE_DIRECTORY": str(directory / FILES),
            "MOORING_REGISTRY_URL": "http://127.0.0.1:9",  # nothing is pushed there
            "MOORING_ROOT_KEY": ROOT_KEY,
            "MOORING_LOG_LEVEL": "warning",
        }
        (directory / FILES).mkdir()
        with (directory / "log").open("wb") as log:
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "server.tests.support.doomed_program",
                cwd=ROOT,
                env=os.environ | GENEROUS | own,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert program.stdout is not None
        word, port = (await program.stdout.readline()).decode().split()
        assert word == "listening"
        return cls(program, f"http://127.0.0.1:{port}", directory / "log")

    async def start(self) -> None:
        """A new life, which takes requests when this returns."""
        assert self._program.stdin is not None
        self._program.stdin.write(b"run\n")
        self._child = int(await self._line_after("child "))
        await self._line_after(LISTENS)

    async def ended(self) -> int:
        """How this life ended, once it has."""
        how = await self._line_after("ended ")
        self._child = None
        return int(how)

    async def restart(self) -> None:
        """`kill -9` and a new life."""
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
            await self.ended()
        await self.start()

    async def close(self) -> None:
        """End it all."""
        assert self._program.stdin is not None
        if self._child is not None:
            os.kill(self._child, signal.SIGKILL)
        self._program.stdin.close()
        async with asyncio.timeout(END_SECONDS_MAX):
            await self._program.wait()

    async def _line_after(self, words: str) -> str:
        """The rest of the next line that begins so; what else the product prints is for people."""
        assert self._program.stdout is not None
        async with asyncio.timeout(END_SECONDS_MAX):
            while line := (await self._program.stdout.readline()).decode():
                if line.startswith(words):
                    return line.removeprefix(words).strip()
                assert not line.startswith("ended "), f"it {line.strip()}: {self._log.read_text()}"
        raise AssertionError(f"the program ended: {self._log.read_text()}")


async def first_people(server: DoomedServer, directory: Path) -> tuple[str, ProcessTenant]:
    """The platform admin's token, and a tenant with its admin."""
    await server.start()
    admin_token = await sign_in(server.url, FIRST_ADMIN, (directory / "code").read_text().strip())
    return admin_token, await make_tenant(server.url, admin_token, "acme")
