"""Owners under one supervisor: one is killed completely, the others stay; and supervisors, or the agent, that are
killed.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.supervisors import (
    DAEMON,
    NEVER,
    RunningSupervisor,
    daemon_pid,
    is_alive,
    kill,
    python,
    running_supervisor,
    shell,
    until,
)
from mooring_agent.kernel import proc
from mooring_agent.supervisor.supervisor_client import SupervisorGone, SupervisorRefusal
from tests.support.rows import every_row

SERVER = """
import http.server, pathlib, sys
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
new = pathlib.Path(sys.argv[1] + ".new"); new.write_text(str(server.server_port)); new.rename(sys.argv[1])
server.serve_forever()
"""

BOMB = """
import os, time
for _ in range(200):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
time.sleep(1000)
"""


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[RunningSupervisor]:
    """A running supervisor for one test."""
    async with running_supervisor(tmp_path) as made:
        yield made


async def serve(sandbox: RunningSupervisor, owner: str, tmp_path: Path) -> int:
    """Start a real HTTP server of an owner; returns its port."""
    place = tmp_path / f"port-{owner}"
    await sandbox.client.start_service(owner, "web", python(SERVER, str(place)), NEVER)
    await until(place.exists)
    return int(place.read_text())


async def answers(sandbox: RunningSupervisor, port: int) -> bool:
    """Whether HTTP is served there, over a connection that the supervisor made."""
    connection = await sandbox.client.dial(port)
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    first = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return b"200" in first


async def test_closing_an_owner_kills_its_daemons_while_another_serves(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    port = await serve(sandbox, "stays", tmp_path)
    await sandbox.client.start_run("goes", "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    assert (await sandbox.client.wait_run("goes", "task-1")).exit_code == 0
    daemon = await daemon_pid(tmp_path / "d")
    assert is_alive(daemon)
    assert await sandbox.client.close_owner("goes") == ()
    assert not is_alive(daemon)
    assert await answers(sandbox, port)
    assert set((await sandbox.client.status()).owners) == {"stays"}


async def test_an_owner_with_hundreds_of_scattered_processes_goes_whole(sandbox: RunningSupervisor) -> None:
    await sandbox.client.start_service("many", "bomb", python(BOMB), NEVER)

    async def scattered() -> bool:
        return len(await sandbox.client.processes("many")) >= 200

    await until(scattered)
    pids = await sandbox.client.processes("many")
    assert await sandbox.client.close_owner("many") == ()
    assert not any(is_alive(pid) for pid in pids)


async def test_killing_an_owner_reports_what_ran_and_lets_it_start_again(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    await sandbox.client.start_service("a", "web", shell("exec sleep 1000"), {**NEVER, "policy": "always", "limit": 9})
    await sandbox.client.start_run("a", "task-1", shell("exec sleep 1000"), 600)
    await sandbox.client.start_run("a", "task-2", python(DAEMON, str(tmp_path / "d")), 600)
    daemon = await daemon_pid(tmp_path / "d")
    ran, left = await sandbox.client.kill("a", 30)
    assert ({"web", "task-1"} <= set(ran), left) == (True, ())
    assert not is_alive(daemon)
    assert (await sandbox.client.wait_run("a", "task-1")).reason == "cancelled"
    state = await sandbox.client.inspect("a", "web")
    assert state is not None
    assert state.state == "exited"
    assert (await sandbox.client.start_service("a", "web", shell("exec sleep 1000"), NEVER)).state == "running"


async def test_an_owners_supervisor_that_is_killed_takes_its_programs_along(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    port = await serve(sandbox, "stays", tmp_path)
    await sandbox.client.start_run("hit", "task-1", shell("exec sleep 1000"), 600)
    await sandbox.client.start_run("hit", "task-2", python(DAEMON, str(tmp_path / "d")), 600)
    daemon = await daemon_pid(tmp_path / "d")
    run = await sandbox.client.find_run("hit", "task-1")
    assert run is not None
    assert run.pid is not None
    pid = run.pid
    kill((await sandbox.client.status()).owners["hit"])
    await until(lambda: not is_alive(pid) and not is_alive(daemon))
    found = await sandbox.client.find_run("hit", "task-1")
    assert found is not None
    assert (found.state, found.reason) == ("ended", "lost")
    again = await sandbox.client.start_run("hit", "task-1", shell("touch ../again"), 600)
    assert again.reason == "lost"
    assert not (sandbox.root.parent / "again").exists()
    assert await answers(sandbox, port)


async def test_a_supervisor_that_is_killed_takes_everything_along(sandbox: RunningSupervisor, tmp_path: Path) -> None:
    await sandbox.client.start_run("", "done", shell("exit 3"), 60)
    await sandbox.client.wait_run("", "done")
    await sandbox.client.start_run("", "task-1", python(DAEMON, str(tmp_path / "d")), 600)
    daemon = await daemon_pid(tmp_path / "d")
    started = await sandbox.client.start_service("b", "web", shell("exec sleep 1000"), NEVER)
    status = await sandbox.client.status()
    kill(status.pid)
    pids = [daemon, started.pid or 0, *status.owners.values()]
    await until(lambda: not any(is_alive(pid) for pid in pids))
    with pytest.raises(SupervisorGone):
        await sandbox.client.status()
    await sandbox.status()
    done = await sandbox.client.find_run("", "done")
    assert done is not None
    assert (done.reason, done.exit_code) == ("exited", 3)


AGENT = """
import asyncio, os, sys
from pathlib import Path
from mooring_agent.supervisor.supervisor_client import ProgramSpec, SupervisorClient
from mooring_agent.supervisor.launcher import ensure_supervisor

async def main():
    state, root, flag = (Path(each) for each in sys.argv[1:])
    await ensure_supervisor(state, root, "mooring-init test", {})
    client = SupervisorClient(state)
    program = ProgramSpec(("sh", "-c", f"while ! test -e {flag}; do sleep 0.02; done; echo late; exit 9"), {})
    await client.start_run("", "task-1", program, 600)
    never = {"policy": "never", "backoff_seconds": 0, "limit": 0}
    await client.start_service("b", "web", ProgramSpec(("sleep", "1000"), {}), never)
    print((await client.status()).pid, flush=True)
    await client.wait_run("", "task-1")

asyncio.run(main())
"""


async def test_what_an_agent_started_outlives_it_and_its_result_is_found(tmp_path: Path) -> None:
    state, root = tmp_path / "state", tmp_path / "root"
    state.mkdir()
    root.mkdir()
    arguments = (str(state), str(root), str(tmp_path / "go"))
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, *arguments, stdout=-1, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert agent.stdout is not None
    pid = int(await agent.stdout.readline())
    agent.kill()
    await agent.wait()
    async with running_supervisor(tmp_path) as sandbox:
        assert (await sandbox.client.status()).pid == pid
        found = await sandbox.client.find_run("", "task-1")
        assert found is not None
        assert found.state == "running"
        (tmp_path / "go").touch()
        assert (await sandbox.client.wait_run("", "task-1")).exit_code == 9
        service = await sandbox.client.inspect("b", "web")
        assert service is not None
        assert service.state == "running"


async def test_shutting_down_ends_every_owner_and_the_supervisor(sandbox: RunningSupervisor, tmp_path: Path) -> None:
    await sandbox.client.start_run("a", "task-1", python(DAEMON, str(tmp_path / "d")), 600)
    daemon = await daemon_pid(tmp_path / "d")
    status = await sandbox.client.status()
    await sandbox.client.shut_down()
    await until(lambda: not any(is_alive(pid) for pid in (daemon, status.pid, *status.owners.values())))


async def test_a_second_supervisor_for_the_same_state_does_not_stand(sandbox: RunningSupervisor) -> None:
    first = await sandbox.client.status()
    assert (await sandbox.status()).pid == first.pid


def sockets_of(pid: int) -> set[str]:
    """What a process has open, without anonymous files."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {each for each in found if not each.startswith("/proc/")}


async def test_nothing_is_left_over_after_hundreds_of_runs(sandbox: RunningSupervisor) -> None:
    await sandbox.client.start_run("", "warm", shell("true"), 60)
    await sandbox.client.wait_run("", "warm")
    status = await sandbox.client.status()
    pids = (status.pid, *status.owners.values())
    before = [len(os.listdir(f"/proc/{pid}/fd")) for pid in pids]
    own = sockets_of(os.getpid())
    for batch in range(10):
        keys = [f"task-{batch}-{number}" for number in range(20)]
        await asyncio.gather(*(sandbox.client.start_run("", key, shell("(echo x &) ; true"), 60) for key in keys))
        await asyncio.gather(*(sandbox.client.wait_run("", key) for key in keys))
    with pytest.raises(SupervisorRefusal):
        await sandbox.client.start_run("", "absent", python("", "\0"), 60)
    # At most as many as before: the connection that reported the end of the first run may still have been open.
    await until(lambda: all(len(os.listdir(f"/proc/{pid}/fd")) <= most for pid, most in zip(pids, before, strict=True)))
    # Leftovers of the programs end, and are reaped, a moment after the programs; and garbage collection may close what
    # earlier tests left open in this process.
    await until(lambda: not [each for each in proc.processes().values() if each.parent in pids and each.ended])
    assert sockets_of(os.getpid()) - own == set()


def memory_of(pid: int) -> tuple[int, int]:
    """Resident and proportional memory of a process, in KiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    memory = dict(line.split(":", 1) for line in lines)
    return int(memory["Rss"].split()[0]), int(memory["Pss"].split()[0])


async def test_a_supervisor_is_small(sandbox: RunningSupervisor) -> None:
    for owner in ("a", "b"):
        await sandbox.client.start_service(owner, "web", shell("exec sleep 1000"), NEVER)
    status = await sandbox.client.status()
    for name, pid in [("sandbox", status.pid), *status.owners.items()]:
        resident, proportional = memory_of(pid)
        print(f"{name}: resident {resident} KiB, proportional {proportional} KiB")
        assert proportional < 12 * 1024
        assert resident < 24 * 1024


async def test_requests_of_other_users_are_ignored(sandbox: RunningSupervisor) -> None:
    """Another user who could reach the socket gets no reply."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    sandbox.state.chmod(0o777)
    (sandbox.state / "supervisor.sock").chmod(0o777)
    script = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setuid(65534)
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect("supervisor.sock")
try:
    connection.send(b'I{"op":"status"}')
    print(repr(connection.recv(1000)))
except ConnectionError: print("b''")
"""
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(sandbox.state), stdout=-1)
    output, _ = await stranger.communicate()
    assert output.strip() == b"b''"


@every_row(
    "raw",
    [b"", b"I", b"I{", b"I[]", b"Mx", b"X{}", b'I{"op":"none","owner":""}', b'I{"op":[]}', b'I{"op":"list","owner":7}'],
)
async def test_a_malformed_message_is_refused_and_ends_nothing(sandbox: RunningSupervisor, raw: bytes) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(180)
    connection.connect(str(sandbox.state / "supervisor.sock"))
    if raw:
        connection.send(raw)
        assert b'"ok":false' in connection.recv(10_000)
    connection.close()
    assert (await sandbox.client.status()).pid > 0
