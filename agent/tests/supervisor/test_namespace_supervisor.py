"""The supervisor outside of a sandbox with its init inside: users, terminals, signals, and a hostile init."""

import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import FileSpec, HostFailure, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost
from mooring_agent.kernel import hostile_files
from mooring_agent.supervisor.init_processes import InitGone, InitProcesses
from mooring_agent.supervisor.process_control import RequestRefused, SpawnSpec, StandardStreams, TerminalSize
from mooring_agent.supervisor.users import Accounts, UnknownUserError, find_user, read_accounts

MEMBER = Owner("alc_1", "member")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces and becomes other users, as root")

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open("/tmp/daemon", "w").write(str(os.getpid()))
time.sleep(1000)
"""


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[NamespaceHost]:
    """A host with one sandbox, destroyed afterwards."""
    made = NamespaceHost(tmp_path / "state", "nod_test")
    await made.create(spec_of("alc_1"))
    yield made
    assert (await made.destroy("alc_1")).clean


@as_root
async def test_a_program_becomes_the_user_that_it_names(host: NamespaceHost) -> None:
    script = "id -u; id -g; id -G; echo $HOME $USER; pwd"
    rows = {
        "nobody": ["65534", "65534", "65534", "/nonexistent", "nobody", "/"],
        "app": ["1000", "1000", "1000", "/home/app", "app", "/"],
        "4711:4712": ["4711", "4712", "4712", "/", "4711", "/"],
        "root": ["0", "0", "0", "/root", "root", "/"],
    }
    inside = Inside(host, MEMBER)
    seen = {user: (await inside.run("sh", "-c", script, user=user))[1].split() for user in rows}
    assert seen == rows
    with pytest.raises(HostFailure) as refused:
        await inside.run("true", user="no-such-user")
    assert refused.value.code == "not_found"


@as_root
async def test_what_cannot_be_started_is_reported_with_its_reason(host: NamespaceHost) -> None:
    await host.write_files(MEMBER, [FileSpec("/srv/plain", b"not a program", 0o644)])
    codes = {}
    for name, process in {
        "absent": ProcessSpec(("no-such-program",)),
        "not executable": ProcessSpec(("/srv/plain",)),
        "no directory": ProcessSpec(("true",), directory="/absent"),
        "own path": ProcessSpec(("true",), environment={"PATH": "/srv"}),
    }.items():
        with pytest.raises(HostFailure) as refused:
            await host.run(MEMBER, name.replace(" ", "-"), process, 60)
        codes[name] = refused.value.code
    assert codes == {
        "absent": "not_found",
        "not executable": "permission_denied",
        "no directory": "not_found",
        "own path": "not_found",
    }


@as_root
async def test_a_large_environment_and_input_arrive_whole(host: NamespaceHost) -> None:
    environment = {f"V{number}": "x" * 1000 for number in range(900)}
    process = ProcessSpec(("sh", "-c", "env | grep -c ^V; wc -c"), environment=environment, stdin=b"y" * 300_000)
    assert await host.run(MEMBER, "large", process, 60) == 0
    assert (await Inside(host, MEMBER).log("large")).split() == ["900", "300000"]


@as_root
async def test_a_command_runs_as_its_user_on_a_terminal_of_the_sandbox(host: NamespaceHost) -> None:
    process = ProcessSpec(("sh", "-c", "id -un; tty; stty size; read x < /dev/tty; exit 7"), user="nobody")
    command = await host.open_command(MEMBER, process, 132, 43)
    seen = b""
    while b"43 132" not in seen:
        seen += await command.receive()
    assert seen.split()[0] == b"nobody"
    assert seen.split()[1].startswith(b"/dev/pts/")
    await command.send(b"\n")
    assert await command.exit_code() == 7
    await command.close()
    with pytest.raises(HostFailure, match="is root in the sandbox"):
        await host.open_command(MEMBER, ProcessSpec(("sh",), user="root"), 80, 24)


@as_root
async def test_an_interrupt_reaches_the_foreground_and_a_hang_up_ends_the_command(host: NamespaceHost) -> None:
    script = "trap 'echo interrupted' INT; echo ready; while :; do sleep 0.05; done"
    command = await host.open_command(MEMBER, ProcessSpec(("sh", "-c", script), user="app"), 80, 24)
    seen = b""
    while b"ready" not in seen:
        seen += await command.receive()
    await command.signal(2)
    while b"interrupted" not in seen:
        seen += await command.receive()
    await command.close()
    inside = Inside(host, MEMBER)

    async def is_gone() -> bool:
        return (await inside.run("pgrep", "-u", "app"))[0] == 1

    await until(is_gone)


@as_root
async def test_cancelling_a_run_kills_what_carries_its_key_and_nothing_else(host: NamespaceHost) -> None:
    inside = Inside(host, MEMBER)
    await host.start_service(MEMBER, "stays", ProcessSpec(("sleep", "1000")), RestartPolicy("never"))
    assert await host.run(MEMBER, "task-1", ProcessSpec(("python3", "-c", DAEMON)), 60) == 0

    async def has_started() -> bool:
        return (await inside.run("test", "-s", "/tmp/daemon"))[0] == 0

    await until(has_started)
    await host.cancel_run(MEMBER, "task-1")
    _, listed = await inside.run("sh", "-c", "pgrep -c python3; pgrep -c sleep")
    assert listed.split() == ["0", "1"]
    assert await host.stop_service(MEMBER, "stays", "owner", 5)
    assert (await host.inspect_service(MEMBER, "stays")).state == "exited"


class HostileInit:
    """The other end of the socket, which says what it likes."""

    def __init__(self) -> None:
        self._ours, self.socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.processes = InitProcesses(self._ours)

    def close(self) -> None:
        self.socket.close()
        self._ours.close()


SPEC = SpawnSpec(("true",), {}, "4711", "/", b"")
CALLS: dict[str, Callable[[InitProcesses], object]] = {
    "start": lambda each: each.start(SPEC, StandardStreams(1, 2)),
    "start_on_terminal": lambda each: each.start_on_terminal(SPEC, TerminalSize(80, 24)),
    "living": lambda each: each.living(),
    "related": lambda each: each.related(7, "key"),
    "signal": lambda each: each.signal([7], 9),
    "ended": lambda each: list(each.ended()),
}
packets = st.one_of(
    st.binary(max_size=200),
    st.builds(
        lambda number, error, value, more, body: struct.pack("=IiiI", number, error, value, more) + body,
        st.integers(0, 4),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=64),
    ),
)


@given(said=st.lists(packets, max_size=8), call=st.sampled_from(sorted(CALLS)))
def test_nothing_that_an_init_says_breaks_its_supervisor(said: list[bytes], call: str) -> None:
    init = HostileInit()
    try:
        for packet in said:
            init.socket.send(packet)
        init.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(InitGone, RequestRefused, OSError):
            CALLS[call](init.processes)
    finally:
        init.close()


def accounts_in(directory: Path) -> Accounts:
    """The accounts of the files in a directory."""
    place = hostile_files.open_directory(directory)
    try:
        return read_accounts(lambda name: hostile_files.open_regular(place, name))
    finally:
        os.close(place)


def test_odd_lines_of_the_tenants_passwd_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "passwd").write_bytes(
        b"broken\n\xff\xfe:x:1\nbig:x:99999999999:1::/:/\napp:x:1000:1000::/home/app:/bin/sh\n"
    )
    (tmp_path / "group").write_text("broken\nextra:x:2000:other,app\nhuge:x:99999999999:app\n")
    accounts = accounts_in(tmp_path)
    user = find_user("app", accounts)
    assert (user.uid, user.gid, user.groups, user.home) == (1000, 1000, (1000, 2000), "/home/app")
    assert find_user("1000", accounts).name == "app"
    for name in ("big", "nobody", "-1", "99999999999", ""):
        with pytest.raises(UnknownUserError):
            find_user(name, accounts)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "absent"])
def test_a_passwd_that_is_not_a_plain_file_is_not_read(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "passwd"
    if kind == "link":
        place.symlink_to("/etc/passwd")
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "directory":
        place.mkdir()
    with pytest.raises(UnknownUserError):
        find_user("root", accounts_in(tmp_path))
