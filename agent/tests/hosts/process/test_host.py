"""The process host with real programs: create, run, serve, dial, tear down, and recover after a crash."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agent.tests.support.process_sandboxes import (
    NEVER,
    A,
    B,
    get,
    host_below,
    is_running,
    log_of,
    python,
    root_of,
    serve,
    shell,
    wanted,
)
from agent.tests.support.supervisors import DAEMON, daemon_pid, is_alive, kill, until
from mooring_agent.hosts.contract import (
    RESOURCE_KINDS,
    FileSpec,
    HostFailure,
    Owner,
    Peer,
    ProcessSpec,
    Resource,
    RestartPolicy,
    TeardownReport,
)
from mooring_agent.hosts.process import ProcessHost, destroy
from mooring_agent.hosts.process.inspect import InspectionScope, find_processes
from mooring_agent.hosts.process.sandbox_directory import SandboxDirectory
from mooring_agent.kernel import proc
from mooring_agent.supervisor.supervisor_client import SupervisorClient, SupervisorGone


@pytest.fixture
def node_id() -> str:
    """A unique id, because marks are searched for on the whole machine."""
    return f"node_{uuid.uuid4().hex}"


@pytest.fixture
async def host(tmp_path: Path, node_id: str) -> AsyncIterator[ProcessHost]:
    """A host with one sandbox."""
    async with host_below(tmp_path, node_id) as made:
        await made.create(wanted())
        yield made


def kinds(resources: tuple[Resource, ...]) -> set[str]:
    return {resource.kind for resource in resources}


def assert_clean(report: TeardownReport) -> None:
    assert report.remaining == ()
    assert report.clean
    assert set(report.looked) == set(RESOURCE_KINDS)
    assert sorted(map(repr, report.found)) == sorted(map(repr, report.removed))


async def test_a_sandbox_says_that_it_is_not_isolated(host: ProcessHost) -> None:
    facts = await host.create(wanted())
    assert facts.isolation == "none"
    assert all(limit.startswith("not enforced") for limit in facts.limits.values())


async def test_a_second_project_is_refused_until_the_first_is_gone(host: ProcessHost) -> None:
    await host.create(wanted("alc_2"))
    with pytest.raises(HostFailure) as refused:
        await host.create(wanted("alc_3", "prj_2"))
    assert refused.value.code == "capacity"
    await host.destroy("alc_1")
    await host.destroy("alc_2")
    await host.create(wanted("alc_3", "prj_2"))


async def test_a_run_ends_with_its_code_in_the_sandboxs_directory(host: ProcessHost, tmp_path: Path) -> None:
    code = await host.run(A, "task-1", ProcessSpec(("sh", "-c", "pwd; echo $HOME; cat; exit 5"), stdin=b"in"), 60)
    assert code == 5
    assert await log_of(host, A, "task-1") == f"{root_of(tmp_path)}\n{root_of(tmp_path)}\nin".encode()
    assert await log_of(host, A, "task-1", 3) == f"{root_of(tmp_path)}\n{root_of(tmp_path)}\nin".encode()[3:]
    assert await host.run(A, "task-1", shell("never"), 60) == 5
    assert await host.find_run(A, "task-1") == "ended"
    assert await host.find_run(A, "task-2") == "absent"


async def test_a_run_that_takes_too_long_times_out_now_and_later(host: ProcessHost) -> None:
    for _ in range(2):
        with pytest.raises(HostFailure) as late:
            await host.run(A, "task-1", shell("exec sleep 1000"), 0.2)
        assert late.value.code == "timed_out"


async def test_a_run_can_be_cancelled_while_it_is_waited_for(host: ProcessHost) -> None:
    running = asyncio.create_task(host.run(A, "task-1", shell("exec sleep 1000"), 600))
    await until(lambda: is_running(host))
    await host.cancel_run(A, "task-1")
    with pytest.raises(HostFailure) as cancelled:
        await running
    assert cancelled.value.code == "cancelled"


async def test_a_program_that_is_not_there_is_not_found_again_and_again(host: ProcessHost) -> None:
    for _ in range(2):
        with pytest.raises(HostFailure) as missing:
            await host.run(A, "task-1", ProcessSpec(("no-such-program",)), 60)
        assert missing.value.code == "not_found"


async def test_without_a_sandbox_nothing_is_done(host: ProcessHost) -> None:
    for allocation_id in ("alc_none", "../alc_1", "", "a/b", ".."):
        with pytest.raises(HostFailure) as refused:
            await host.run(Owner(allocation_id), "task-1", shell("true"), 60)
        assert refused.value.code in ("not_found", "path_refused")
    with pytest.raises(HostFailure) as refused:
        await host.run(Owner("alc_1", "../b"), "task-1", shell("true"), 60)
    assert refused.value.code == "path_refused"


async def test_a_service_is_inspected_with_its_last_lines(host: ProcessHost) -> None:
    started = await host.start_service(A, "web", shell("seq 100; exec sleep 1000"), RestartPolicy("always"))
    again = await host.start_service(A, "web", shell("exit 1"), RestartPolicy("always"))
    assert (started.state, again.pid) == ("running", started.pid)

    async def said_all() -> bool:
        return "100" in (await host.inspect_service(A, "web")).last_lines

    await until(said_all)
    assert (await host.inspect_service(A, "web")).last_lines == tuple(str(number) for number in range(51, 101))
    assert (await host.inspect_service(B, "web")).state == "absent"
    assert await host.stop_service(A, "web", "main", 30)
    assert not await host.stop_service(A, "web", "main", 30)
    assert (await host.inspect_service(A, "web")).state == "exited"


async def test_stopping_with_the_owner_ends_its_jobs_and_no_other_owners(host: ProcessHost, tmp_path: Path) -> None:
    other = await host.start_service(B, "web", shell("exec sleep 1000"), NEVER)
    await host.start_service(A, "web", shell("exec sleep 1000"), NEVER)
    await host.run(A, "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    daemon = await daemon_pid(tmp_path / "d")
    assert await host.stop_service(A, "web", "owner", 30)
    assert not is_alive(daemon)
    assert other.pid is not None
    assert is_alive(other.pid)


async def test_one_owner_goes_clean_while_the_other_serves(host: ProcessHost, tmp_path: Path) -> None:
    gone, stays = await serve(host, A, tmp_path), await serve(host, B, tmp_path)
    await host.write_files(A, [FileSpec("/etc/a/a.conf", b"a"), FileSpec("/data/a", directory=True, mode=0o755)])
    await host.write_files(B, [FileSpec("/etc/a/b.conf", b"b")])
    await host.run(A, "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    await host.run(
        A, "task-2", shell("mkdir -p data/a/deep && mkfifo data/a/deep/pipe && ln -s / data/a/deep/link"), 60
    )
    daemon = await daemon_pid(tmp_path / "d")
    report = await host.close_owner(A)
    assert_clean(report)
    assert kinds(report.found) == {"processes", "files", "ports", "sockets"}
    assert Resource("ports", f"tcp 127.0.0.1 {gone}") in report.removed
    assert not is_alive(daemon)
    assert b"200 OK" in await get(host, stays)
    with pytest.raises(HostFailure):
        await host.dial("alc_1", gone)
    root = root_of(tmp_path)
    assert not (root / "etc/a/a.conf").exists()
    assert not (root / "data/a").exists()
    assert (root / "etc/a/b.conf").read_bytes() == b"b"
    assert await log_of(host, A, "task-1") == b""
    assert_clean(await host.close_owner(A))


async def test_a_destroyed_sandbox_is_gone_whole(host: ProcessHost, tmp_path: Path) -> None:
    await serve(host, A, tmp_path)
    await host.run(B, "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    daemon = await daemon_pid(tmp_path / "d")
    await host.run(B, "task-2", shell("mkdir -p closed/in && touch closed/in/file && chmod 0 closed/in closed"), 60)
    supervisor = await SupervisorClient(tmp_path / "host/sandboxes/alc_1/supervisor").status()
    report = await host.destroy("alc_1")
    assert_clean(report)
    assert kinds(report.found) >= {"processes", "files", "ports", "sockets"}
    assert report.looked["processes"] > 1
    assert not any(is_alive(pid) for pid in (daemon, supervisor.pid, *supervisor.owners.values()))
    assert list((tmp_path / "host/sandboxes").iterdir()) == []
    assert_clean(await host.destroy("alc_1"))


async def test_a_tree_that_is_deeper_than_any_path_is_removed(host: ProcessHost) -> None:
    script = """
import os
for number in range(400):
    os.mkdir("down-and-down"); os.chdir("down-and-down"); open("file", "w").close()
"""
    assert await host.run(A, "task-1", python(script), 60) == 0
    assert_clean(await host.destroy("alc_1"))


async def test_processes_that_hide_from_the_tree_are_found_by_their_mark(host: ProcessHost, tmp_path: Path) -> None:
    """The tenant runs as the agent's user, so it may kill its supervisors; what they leave is still found."""
    await host.run(A, "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    daemon = await daemon_pid(tmp_path / "d")
    status = await SupervisorClient(tmp_path / "host/sandboxes/alc_1/supervisor").status()
    for pid in (status.pid, *status.owners.values()):
        kill(pid, signal.SIGSTOP)
    for pid in (status.pid, *status.owners.values()):
        kill(pid)
    assert is_alive(daemon)
    assert_clean(await host.close_owner(A))
    assert not is_alive(daemon)


async def test_a_process_without_a_mark_is_killed_though_its_supervisor_is_gone_meanwhile(
    host: ProcessHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known from below its supervisor; without a mark it could not be found again."""
    await host.start_service(A, "web", shell("exec env -i sleep 1000"), NEVER)
    client = SupervisorClient(tmp_path / "host/sandboxes/alc_1/supervisor")
    status = await client.status()
    (unmarked,) = [each.pid for each in proc.processes().values() if each.parent == status.owners[A.label]]
    await until(lambda: proc.title(unmarked).startswith("sleep"))

    answers = destroy._unless_gone

    async def once(asked: Awaitable[object]) -> object:
        monkeypatch.setattr(destroy, "_unless_gone", gone)
        return await answers(asked)

    async def gone(asked: Awaitable[object]) -> None:
        for pid in (status.pid, *status.owners.values()):
            kill(pid, signal.SIGSTOP)
        for pid in (status.pid, *status.owners.values()):
            kill(pid)
        with suppress(SupervisorGone):
            await asked

    monkeypatch.setattr(destroy, "_unless_gone", once)
    assert_clean(await host.close_owner(A))
    assert not is_alive(unmarked)


def test_who_was_seen_before_is_looked_for_by_its_number_and_its_start(node_id: str, tmp_path: Path) -> None:
    """A dying process loses its environment, and so its mark, a while before it is gone."""
    scope = InspectionScope(SandboxDirectory(tmp_path, node_id), None, frozenset(), (), frozenset())
    with subprocess.Popen(["sleep", "1000"], env={}) as unmarked:
        try:
            report = proc.find_process(unmarked.pid)
            assert report is not None
            table = proc.processes()
            assert find_processes(scope, table) == ()
            assert [each.pid for each in find_processes(scope, table, [report])] == [report.pid]
            assert find_processes(scope, table, [replace(report, started=report.started - 1)]) == ()
        finally:
            unmarked.kill()


async def test_a_port_of_somebody_elses_is_refused(host: ProcessHost, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign:
        foreign.setblocking(False)
        with pytest.raises(HostFailure) as refused:
            await host.dial("alc_1", foreign.getsockname()[1])
        assert refused.value.code == "permission_denied"
        with pytest.raises(BlockingIOError):
            foreign.accept()
    await host.create(wanted("alc_2"))
    port = await serve(host, Owner("alc_2", "c"), tmp_path)
    assert b"200 OK" in await get(host, port, "alc_2")
    with pytest.raises(HostFailure) as refused:
        await host.dial("alc_1", port)
    assert refused.value.code == "permission_denied"


async def test_a_port_that_a_stranger_shares_is_refused(host: ProcessHost, tmp_path: Path) -> None:
    """With SO_REUSEPORT the kernel would distribute connections between both."""
    script = """
import socket, time
server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.bind(("127.0.0.1", 0)); server.listen(); open("new", "w").write(str(server.getsockname()[1]))
import os; os.rename("new", "port"); time.sleep(1000)
"""
    await host.start_service(A, "web", python(script), NEVER)
    place = root_of(tmp_path) / "port"
    await until(place.exists)
    port = int(place.read_text())
    await (await host.dial("alc_1", port)).close()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind(("127.0.0.1", port))
        stranger.listen()
        with pytest.raises(HostFailure) as refused:
            await host.dial("alc_1", port)
        assert refused.value.code == "permission_denied"


async def test_a_command_is_typed_into_and_ends(host: ProcessHost) -> None:
    command = await host.open_command(A, shell("stty size; read line; echo got $line; exit 4"), 100, 30)
    await command.send(b"hello\n")
    report = b""
    while piece := await command.receive():
        report += piece
    assert b"30 100" in report
    assert b"got hello" in report
    assert await command.exit_code() == 4
    await command.close()


async def test_peers_are_written_below_the_root(host: ProcessHost, tmp_path: Path) -> None:
    await host.set_peers("alc_1", [Peer("two", "10.77.0.6")])
    assert (root_of(tmp_path) / "etc/hosts").read_text() == "127.0.0.1 localhost\n10.77.0.6 two\n"
    with pytest.raises(HostFailure):
        await host.set_peers("alc_1", [Peer("two\n6.6.6.6 evil", "10.77.0.6")])
    with pytest.raises(HostFailure):
        await host.set_peers("alc_1", [Peer("two", "elsewhere")])
    await host.close_owner(A)


async def test_a_sweep_reaps_what_is_unknown_and_names_what_is_foreign(
    host: ProcessHost, tmp_path: Path, node_id: str
) -> None:
    await host.create(wanted("alc_2"))
    lost = await host.start_service(Owner("alc_2"), "web", shell("exec sleep 1000"), NEVER)
    kept = await host.start_service(A, "web", shell("exec sleep 1000"), NEVER)
    half = tmp_path / "host/sandboxes/alc_half"
    half.mkdir()
    (tmp_path / "host/sandboxes/notes.txt").write_text("somebody's")
    other = uuid.uuid4().hex
    environment = {"MOORING_SANDBOX": f"node_{other}/alc_9"}
    stranger = await asyncio.create_subprocess_exec("sleep", "1000", env=environment)
    stray = await asyncio.create_subprocess_exec("sleep", "1000", env={"MOORING_SANDBOX": f"{node_id}/alc_8"})
    strays = await host.sweep(["alc_1"])
    verdicts = {(each.resource.kind, each.resource.name): each.verdict for each in strays}
    assert verdicts["files", "alc_2"] == "reaped"
    assert verdicts["files", "alc_half"] == "reaped"
    assert verdicts["files", "notes.txt"] == "foreign"
    assert verdicts["processes", f"{stranger.pid} sleep"] == "foreign"
    assert verdicts["processes", f"{stray.pid} sleep"] == "reaped"
    assert lost.pid is not None
    assert kept.pid is not None
    assert (is_alive(lost.pid), is_alive(kept.pid), is_alive(stranger.pid)) == (False, True, True)
    assert not half.exists()
    assert await stray.wait() == -9
    stranger.kill()
    await stranger.wait()
    (tmp_path / "host/sandboxes/notes.txt").unlink()
    # Other agents may run on this machine during the test: only theirs is reported as foreign.
    assert [each for each in await host.sweep(["alc_1"]) if each.verdict != "foreign"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a control group, as root")
async def test_a_control_group_that_a_program_was_in_is_found_and_removed(host: ProcessHost) -> None:
    started = await host.start_service(A, "web", shell("exec sleep 1000"), NEVER)
    assert started.pid is not None
    places = [Path(place) for line in proc.cgroups(started.pid) if (place := proc.cgroup_directory(line)) is not None]
    group = next(place for place in sorted(places) if place.is_dir()) / f"made-{uuid.uuid4().hex}"
    move_to(group, started.pid)
    report = await host.close_owner(A)
    assert [resource.name.endswith(group.name) for resource in report.found if resource.kind == "cgroups"] == [True]
    assert (report.clean, group.exists()) == (True, False)


def move_to(group: Path, pid: int) -> None:
    """Create a group and move a process into it."""
    group.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (group / name).exists():
            (group / name).write_text((group.parent / name).read_text())
    (group / "cgroup.procs").write_text(str(pid))


async def test_nothing_of_a_whole_life_is_left_in_the_agent_or_on_the_machine(tmp_path: Path, node_id: str) -> None:
    async def live(allocation_id: str) -> None:
        async with host_below(tmp_path, node_id) as host:
            await host.create(wanted(allocation_id))
            owner = Owner(allocation_id, "a")
            port = await serve(host, owner, tmp_path)
            await get(host, port, allocation_id)
            await host.run(owner, "task-1", shell("true"), 60)
            command = await host.open_command(owner, shell("exec sleep 1000"), 80, 24)
            await command.close()
            await host.destroy(allocation_id)

    await live("alc_0")
    gc.collect()
    descriptors, before = len(os.listdir("/proc/self/fd")), set(proc.processes())
    for number in range(3):
        await live(f"alc_{number}")
    await until(lambda: not [each for each in proc.processes().values() if node_id in proc.title(each.pid)])
    # Fewer is fine: what an earlier test left open may be closed meanwhile.
    await until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    left = [each for pid, each in proc.processes().items() if pid not in before and each.parent == os.getpid()]
    assert left == []
