"""The embedded server under its supervisor: started, stopped, started twice, and killed in every way."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from mooring.embedded import AlreadyRunning, EmbeddedPostgres, supervisor
from mooring.embedded.cluster import ClusterLayout
from mooring.embedded.processes import account_for, running_pids, wait_until_gone
from server.tests.embedded.conftest import Child, Remembered
from tests.support.waiting import turns, until

pytestmark = pytest.mark.real_part("postgresql")
PATIENCE_SECONDS = 60.0


def processes_in(directory: Path) -> list[int]:
    layout = ClusterLayout(directory)
    return running_pids(layout.cluster_name(), account_for(layout.cluster))


async def write_note(dsn: str, text: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS note (text text)")
        await connection.execute("INSERT INTO note VALUES ($1)", text)
    finally:
        await connection.close()


async def read_notes(dsn: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [row["text"] for row in await connection.fetch("SELECT text FROM note")]
    finally:
        await connection.close()


async def test_a_started_server_is_configured_as_promised(directory: Path, log: Remembered) -> None:
    async with EmbeddedPostgres(directory, log=log) as server:
        connection = await asyncpg.connect(server.dsn)
        names = (
            "server_encoding",
            "data_checksums",
            "listen_addresses",
            "fsync",
            "wal_level",
            "max_connections",
        )
        shown = [await connection.fetchval(f"SHOW {name}") for name in names]
        await connection.close()
    assert shown == ["UTF8", "on", "", "on", "minimal", "100"]


async def test_stop_leaves_no_process_and_no_socket_and_may_be_called_twice(directory: Path, log: Remembered) -> None:
    server = EmbeddedPostgres(directory, log=log)
    await server.start()
    assert processes_in(directory)
    await server.stop()
    await server.stop()
    assert processes_in(directory) == []
    assert list(ClusterLayout(directory).socket.iterdir()) == []


async def test_data_is_kept_between_two_starts(directory: Path, log: Remembered) -> None:
    async with EmbeddedPostgres(directory, log=log) as server:
        await write_note(server.dsn, "kept")
    async with EmbeddedPostgres(directory, log=log) as server:
        assert await read_notes(server.dsn) == ["kept"]
    assert log.events.count("creating the data directory of embedded PostgreSQL") == 1


async def test_a_second_start_is_refused_and_names_the_process_that_holds_the_data(
    directory: Path, log: Remembered, start_child: Callable[[Path], Child]
) -> None:
    child = start_child(directory)
    assert child.stdout is not None
    assert child.stdout.readline().split()[1] == "mooring"
    with pytest.raises(AlreadyRunning, match=f"in use by process {child.pid};") as refused:
        await EmbeddedPostgres(directory, log=log).start()
    assert refused.value.pid == child.pid
    assert processes_in(directory), "the refused start must not touch the server that runs"


async def test_a_killed_postmaster_comes_back_by_itself_and_keeps_its_data(directory: Path, log: Remembered) -> None:
    back = asyncio.Event()
    server = EmbeddedPostgres(directory, log=log, on_restart=lambda count: back.set())
    async with server:
        await write_note(server.dsn, "acknowledged")
        first = server.postmaster_pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await asyncio.wait_for(back.wait(), PATIENCE_SECONDS)
        assert server.restarts == 1
        assert server.postmaster_pid not in (first, None)
        assert await read_notes(server.dsn) == ["acknowledged"]
    died = dict(log.entries)["embedded PostgreSQL died; restarting it"]
    assert (died["pid"], died["how"]) == (first, "killed by SIGKILL")


async def test_an_orphan_that_is_too_busy_to_notice_is_ended_before_the_restart(
    directory: Path, log: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "ORPHAN_SECONDS_MAX", 0.5)
    back = asyncio.Event()
    async with EmbeddedPostgres(directory, log=log, on_restart=lambda count: back.set()) as server:
        connection = await asyncpg.connect(server.dsn)
        busy = await connection.fetchval("SELECT pg_backend_pid()")
        query = asyncio.ensure_future(
            connection.execute("DO $$ DECLARE n bigint := 0; BEGIN LOOP n := n + 1; END LOOP; END $$")
        )
        await until_busy(server.dsn, busy)
        assert server.postmaster_pid is not None
        os.kill(server.postmaster_pid, signal.SIGKILL)
        await asyncio.wait_for(back.wait(), PATIENCE_SECONDS)
        assert busy not in processes_in(directory)
        with pytest.raises((asyncpg.PostgresError, ConnectionError)):
            await query
    assert "processes of an earlier embedded PostgreSQL did not exit; signalling them" in log.events


async def until_busy(dsn: str, pid: int) -> None:
    """Return once the backend computes: a query that was not begun yet makes no busy orphan."""
    connection = await asyncpg.connect(dsn)
    try:
        await until(lambda: connection.fetchval("SELECT state = 'active' FROM pg_stat_activity WHERE pid = $1", pid))
    finally:
        await connection.close()


async def test_the_server_ends_with_a_killed_supervisor(directory: Path, start_child: Callable[[Path], Child]) -> None:
    child = start_child(directory)
    assert child.stdout is not None
    postmaster = int(child.stdout.readline().split()[0])
    assert postmaster in processes_in(directory)
    child.kill()
    layout = ClusterLayout(directory)
    account = account_for(layout.cluster)
    assert wait_until_gone(layout.cluster_name(), account, timeout_seconds=PATIENCE_SECONDS) == []


async def test_a_new_start_works_at_once_after_the_supervisor_was_killed(
    directory: Path, log: Remembered, start_child: Callable[[Path], Child]
) -> None:
    child = start_child(directory)
    assert child.stdout is not None
    assert child.stdout.readline()
    await write_note(ClusterLayout(directory).dsn, "acknowledged")
    child.kill()
    child.wait()
    async with EmbeddedPostgres(directory, log=log) as server:
        assert await read_notes(server.dsn) == ["acknowledged"]


async def test_a_pid_file_that_names_a_living_stranger_does_not_stop_a_start(directory: Path, log: Remembered) -> None:
    async with EmbeddedPostgres(directory, log=log) as server:
        await write_note(server.dsn, "kept")
    stranger = await asyncio.create_subprocess_exec("sleep", "infinity")
    pid_file = ClusterLayout(directory).cluster / "postmaster.pid"
    pid_file.write_text(f"{stranger.pid}\n{ClusterLayout(directory).cluster}\n1\n5432\n\n\n1 1\nready\n")
    try:
        async with EmbeddedPostgres(directory, log=log) as server:
            assert await read_notes(server.dsn) == ["kept"]
        assert stranger.returncode is None, "the stranger is left alone"
    finally:
        stranger.kill()
        await stranger.wait()


async def test_a_supervisor_killed_while_it_makes_the_cluster_leaves_nothing_that_matters(
    directory: Path, log: Remembered, start_child: Callable[..., Child]
) -> None:
    child = start_child(directory, "held")
    home = ClusterLayout(directory).home
    await until(lambda: child.poll() is not None or list(home.glob("cluster.new-*/held")))
    assert child.poll() is None
    child.kill()
    child.wait()
    assert not ClusterLayout(directory).cluster.exists()
    async with EmbeddedPostgres(directory, log=log) as server:
        await write_note(server.dsn, "made again")
    assert list(home.glob("cluster.new-*")) == []


async def test_a_cancelled_start_ends_what_it_began(directory: Path, log: Remembered) -> None:
    server = EmbeddedPostgres(directory, log=log)
    starting = asyncio.ensure_future(server.start())
    await turns()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not ClusterLayout(directory).cluster.exists() or processes_in(directory) == []
    async with EmbeddedPostgres(directory, log=log) as again:
        assert again.postmaster_pid is not None
