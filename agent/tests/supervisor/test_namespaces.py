"""The supervisor with more rights: as pid 1, with owners in pid namespaces of their own, and other users."""

import asyncio
import os
import select
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.supervisors import DAEMON, NEVER, is_alive, python, shell, until
from mooring_agent.kernel import proc, process_tree
from mooring_agent.supervisor import segmented_log
from mooring_agent.supervisor.supervisor_client import ProgramSpec, SupervisorClient, SupervisorRefusal, bind_listener
from mooring_agent.supervisor.users import UnknownUserError, find_user

INIT = """
import sys
from mooring_agent.supervisor.options import SupervisorOptions
from mooring_agent.supervisor.serve import serve
listener, state, nested = (int(each) for each in sys.argv[1:])
serve(SupervisorOptions(listener, state, 0, "mooring-init test", peer_outside=True, owner_namespaces=bool(nested)))
"""

GREETER = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open(sys.argv[2], "w")
server.accept()[0].sendall(b"inside")
time.sleep(1000)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and becomes other users, as root")


class InitSupervisor:
    """A supervisor that is pid 1 of a pid namespace of its own."""

    def __init__(self, state: Path, process: asyncio.subprocess.Process) -> None:
        self.state = state
        self.process = process
        self.client = SupervisorClient(state)

    def output(self, owner: str, key: str) -> str:
        return b"".join(segmented_log.read_log(str(self.state / f"label-{owner}" / "logs" / key), 0)).decode()

    async def run_output(self, owner: str, key: str, program: ProgramSpec) -> str:
        """Run a program to its end and return its output."""
        await self.client.start_run(owner, key, program, 60)
        ended = await self.client.wait_run(owner, key)
        assert ended.exit_code == 0, self.output(owner, key)
        return self.output(owner, key)


@pytest.fixture(params=["nested", "tree"])
async def init(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[InitSupervisor]:
    """A supervisor in new pid and mount namespaces; killing it ends them."""
    listener = bind_listener(tmp_path)
    state = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    inside = (sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{INIT}")
    arguments = (str(listener.fileno()), str(state), str(int(request.param == "nested")))
    unshare = ("unshare", "--pid", "--mount", "--fork", "--kill-child=SIGKILL", "--mount-proc")
    process = await asyncio.create_subprocess_exec(*unshare, *inside, *arguments, pass_fds=(listener.fileno(), state))
    listener.close()
    os.close(state)
    made = InitSupervisor(tmp_path, process)
    status = await made.client.status()
    assert status.pid == 1
    yield made
    process.kill()
    await process.wait()
    await until(lambda: not is_alive(status.machine_pid))
    assert (tmp_path / "supervisor.log").read_text() == ""


async def test_the_machine_knows_its_pid_by_the_socket(init: InitSupervisor) -> None:
    status = await init.client.status()
    found = proc.find_process(status.machine_pid)
    assert found is not None
    assert proc.title(found.pid) == "mooring-init test"
    assert found.parent == init.process.pid


def living_below(pid: int) -> int:
    """The number of processes from this one on, without zombies."""
    table = proc.processes()
    return sum(not table[each].ended for each in process_tree.subtree(table, {pid}))


async def test_closing_an_owner_kills_its_daemon_while_the_other_lives(init: InitSupervisor, tmp_path: Path) -> None:
    stays = await init.client.start_service("stays", "web", shell("exec sleep 1000"), NEVER)
    before = (await init.client.status()).machine_pid
    await init.client.start_run("goes", "task-1", python(DAEMON, str(tmp_path / "d")), 60)
    await init.client.wait_run("goes", "task-1")
    await until((tmp_path / "d.pid").exists)
    assert len(await init.client.processes("goes")) == 1
    alive = living_below(before)
    assert await init.client.close_owner("goes") == ()
    assert living_below(before) == alive - 2
    again = await init.client.inspect("stays", "web")
    assert again is not None
    assert (again.state, again.pid) == ("running", stays.pid)
    assert await init.client.processes("goes") == ()
    assert len(await init.client.processes("stays")) == 1


async def test_its_tenants_can_neither_end_nor_look_into_it(init: InitSupervisor) -> None:
    script = """
import os, signal
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT):
    os.kill(1, number)
looks = {"root": os.readlink, "cwd": os.readlink, "root/etc": os.listdir, "ns/mnt": os.readlink}
looks |= {name: lambda path: open(path, "rb").read(1) for name in ("environ", "maps", "mem")}
looks |= {f"fd/{name}": os.readlink for name in os.listdir("/proc/1/fd")}
looks |= {f"fd/{name}/.": os.listdir for name in os.listdir("/proc/1/fd")}
for name, look in looks.items():
    try:
        print(name, "SEEN", look(f"/proc/1/{name}"))
    except OSError as error:
        print(name, "denied")
"""
    # The capabilities a host leaves to root in a sandbox: neither SYS_PTRACE nor PERFMON, which can read others'
    # memory.
    kept = "-all,+chown,+dac_override,+fowner,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+sys_chroot"
    program = ProgramSpec(("setpriv", f"--bounding-set={kept}", sys.executable, "-c", script), {}, "root")
    assert "SEEN" not in await init.run_output("a", "task-1", program)
    assert (await init.client.status()).pid == 1


async def test_a_request_from_inside_is_ignored(init: InitSupervisor) -> None:
    script = f"""
import socket
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect({str(init.state / "supervisor.sock")!r})
try:
    connection.send(b'I{{"op":"status"}}')
    print(repr(connection.recv(1000)))
except ConnectionError: print("b''")
"""
    assert (await init.run_output("a", "task-1", python(script))).strip() == "b''"


async def test_a_program_becomes_the_user_that_it_names(init: InitSupervisor) -> None:
    script = "id -u; id -g; id -G; echo $HOME $USER; grep -c 'NoNewPrivs:.1' /proc/self/status || true; pwd"
    asked = ("sh", "-c", script)
    known = await init.run_output("a", "task-1", ProgramSpec(asked, {}, "nobody"))
    assert known.split() == ["65534", "65534", "65534", "/nonexistent", "nobody", "1", "/"]
    number = await init.run_output("a", "task-2", ProgramSpec(asked, {}, "4711:4712", "/tmp"))
    assert number.split() == ["4711", "4712", "4712", "/", "4711", "1", "/tmp"]
    root = await init.run_output("a", "task-3", ProgramSpec(asked, {}, "root"))
    assert root.split()[:3] == ["0", "0", "0"]
    assert root.split()[-2:] == ["0", "/"]
    with pytest.raises(SupervisorRefusal) as refused:
        await init.client.start_run("a", "task-4", ProgramSpec(asked, {}, "no-such-user"), 60)
    assert refused.value.code == "not_found"


async def test_a_command_runs_as_its_user_on_a_terminal_of_its_own(init: InitSupervisor) -> None:
    command = await init.client.open_command(
        "a", ProgramSpec(("sh", "-c", "id -un; test -t 0; read x < /dev/tty"), {}, "nobody"), 80, 24
    )
    wanted, said = b"nobody\r\n", b""
    while len(said) < len(wanted):  # a line and its end may come in two pieces
        await until(lambda: _can_read(command.terminal))
        said += os.read(command.terminal, 100)
    assert said == wanted
    os.write(command.terminal, b"\n")
    assert await command.exit_code() == 0
    command.close()


async def test_a_port_of_the_machine_is_reached_only_in_its_own_network(tmp_path: Path) -> None:
    """In a network namespace of its own the supervisor connects there, and not to what listens outside."""
    listener = bind_listener(tmp_path)
    state = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    inside = (sys.executable, "-I", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{INIT}")
    unshare = ("unshare", "--pid", "--mount", "--net", "--fork", "--kill-child=SIGKILL", "--mount-proc")
    setup = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    arguments = (*unshare, *setup, *inside, str(listener.fileno()), str(state), "0")
    process = await asyncio.create_subprocess_exec(*arguments, pass_fds=(listener.fileno(), state))
    os.close(state)
    listener.close()
    client = SupervisorClient(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as outside:
        with pytest.raises(SupervisorRefusal) as refused:
            await client.dial(outside.getsockname()[1])
        assert refused.value.code == "not_found"
        place = tmp_path / "up"
        await client.start_service("", "web", python(GREETER, str(outside.getsockname()[1]), str(place)), NEVER)
        await until(place.exists)
        with await client.dial(outside.getsockname()[1]) as connection:
            assert await asyncio.get_running_loop().sock_recv(connection, 100) == b"inside"
    process.kill()
    await process.wait()


def test_odd_lines_of_the_tenants_passwd_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(
        b"broken\n\xff\xfe:x:1\nbig:x:99999999999:1::/:/\napp:x:1000:1000::/home/app:/bin/sh\n"
    )
    (tmp_path / "group").write_text("broken\nextra:x:2000:other,app\nhuge:x:99999999999:app\n")
    user = find_user("app", str(tmp_path))
    assert (user.uid, user.gid, user.groups, user.home) == (1000, 1000, (1000, 2000), "/home/app")
    assert find_user("1000", str(tmp_path)).name == "app"
    for name in ("big", "nobody", "-1", "99999999999", ""):
        with pytest.raises(UnknownUserError):
            find_user(name, str(tmp_path))


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "absent"])
def test_a_passwd_that_is_no_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "passwd"
    if kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    with pytest.raises(UnknownUserError):
        find_user("root", str(tmp_path))


def _can_read(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 1)
    return bool(poll.poll(0))
