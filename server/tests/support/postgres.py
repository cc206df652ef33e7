"""One throwaway PostgreSQL for a whole run of the tests, shared by all workers of pytest-xdist.

The first test that asks for it, in whichever worker, starts a keeper: this file run as a program, with the
embedded server of the product below it. The keeper ends by itself when the pytest process at the head of the
run is gone, so neither a finished nor a killed run leaves a server or files behind.
`MOORING_TEST_DATABASE_URL` names a server to use instead; its user must be a superuser.
"""

import asyncio
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg
import pytest
import structlog

from mooring.embedded import BinariesMissing, EmbeddedPostgres, EmbeddedPostgresError
from mooring.embedded.binaries import find_installation

START_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 60.0
SOAK = os.environ.get("MOORING_SOAK") == "1"
"""Whether the tests that have a long form take it: `make soak`."""
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 * 1024**3
SETTINGS = {
    "max_connections": "300",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "jit": "off",
    "update_process_title": "off",
}
"""Fast instead of durable: what these tests write is thrown away with the server, and no database lives long enough to
need a sweep."""


def _place() -> Path:
    """Where the server's files are: in memory where there is room, since each test copies and drops a database."""
    if os.access(MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        return MEMORY
    return Path(tempfile.gettempdir())


@functools.cache
def test_cluster_dsn() -> str:
    """The DSN of a superuser of the run's server, which is started if it is not there yet."""
    if url := os.environ.get("MOORING_TEST_DATABASE_URL"):
        return url
    try:
        find_installation()
    except BinariesMissing as error:
        pytest.skip(str(error))
    head = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    directory = Path(_place(), f"mooring-test-{os.geteuid()}-{head}-{_begun(head)}")
    directory.mkdir(mode=0o711, exist_ok=True)
    if directory.lstat().st_uid != os.geteuid():
        raise RuntimeError(f"{directory} belongs to somebody else")
    with (directory / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _read_dsn(directory) or _start_keeper(directory, head)


test_cluster_dsn.__test__ = False  # type: ignore[attr-defined] # a name that pytest would take for a test


async def make_or_drop(dsn: str, statement: str) -> None:
    """Run a CREATE or DROP DATABASE, again while somebody is still leaving what it needs for itself.

    PostgreSQL waits for five seconds until they are gone and then gives up; on a busy machine that may not be enough.
    """
    connection = await asyncpg.connect(dsn)
    try:
        deadline = time.monotonic() + LEAVE_SECONDS_MAX
        while True:
            try:
                await connection.execute(statement)
            except asyncpg.ObjectInUseError:
                if time.monotonic() > deadline:
                    raise
            else:
                return
    finally:
        await connection.close()


def _read_dsn(directory: Path) -> str | None:
    path = directory / "dsn"
    return path.read_text(encoding="utf-8") if path.exists() else None


def _start_keeper(directory: Path, head: int) -> str:
    with (directory / "keeper.log").open("w") as log:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(directory), str(head)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS_MAX
    while (dsn := _read_dsn(directory)) is None:
        if keeper.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the tests' PostgreSQL did not start: {(directory / 'keeper.log').read_text()}")
        time.sleep(0.02)
    return dsn


async def _keep(directory: Path, head: int) -> None:
    """The keeper's life: have a server until the run is over, then leave nothing."""
    try:
        async with EmbeddedPostgres(directory, log=structlog.get_logger(), settings=SETTINGS) as server:
            unfinished = directory / "dsn.new"
            unfinished.write_text(server.dsn, encoding="utf-8")
            unfinished.rename(directory / "dsn")
            await asyncio.to_thread(_wait_for_end, head)
    except EmbeddedPostgresError as error:
        sys.exit(str(error))
    shutil.rmtree(directory)


def _wait_for_end(pid: int) -> None:
    begun = _begun(pid)
    while begun is not None and _begun(pid) == begun:
        time.sleep(0.25)


def _begun(pid: int) -> int | None:
    """When a process began, in ticks since boot, which with its id names it for ever; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


if __name__ == "__main__":
    asyncio.run(_keep(Path(sys.argv[1]), int(sys.argv[2])))
