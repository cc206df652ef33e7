"""What a tenant does with terminals, /dev and /proc, while the agent opens terminals in its sandbox."""

import asyncio
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import CommandStream, Isolation, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost, namespace_processes

pytestmark = pytest.mark.anyio

ATTACKER, FRIEND = Owner("alc_1", "attacker"), Owner("alc_1", "friend")
SECONDS = 30.0

# What a program can do to the terminal that it was given: type for its user, change how the kernel reads it, take the
# machine's console, or take the terminal from its session.
CONTROLS = """
import fcntl, os, struct, sys, termios
def outcome(name, request, argument):
    try:
        fcntl.ioctl(0, request, argument)
        print("did", name, flush=True)
    except OSError as problem:
        print("denied", name, problem.errno, flush=True)
outcome("type", termios.TIOCSTI, b"x")
for number in range(1, 31):
    outcome("discipline", termios.TIOCSETD, struct.pack("i", number))
outcome("console", termios.TIOCCONS, 0)
outcome("linux", 0x541C, struct.pack("B", 2))
child = os.fork()
if child == 0:
    os.setsid()
    outcome("steal", termios.TIOCSCTTY, 1)
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print("done", flush=True)
"""

# Moves and replaces what the agent would open a terminal by, or mount another /proc on.
MOVES = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def outcome(name, act):
    ctypes.set_errno(0)
    try:
        result = act()
    except OSError as problem:
        return print("denied", name, problem.errno)
    number = ctypes.get_errno()
    print("denied" if result == -1 and number else "did", name, number)
MOVE, BIND = ctypes.c_ulong(8192), ctypes.c_ulong(4096)
os.makedirs("/tmp/there", exist_ok=True)
for place in ("/dev", "/dev/pts", "/dev/shm", "/proc", "/sys", "/usr", "/run"):
    outcome(f"move {place}", lambda: libc.mount(place.encode(), b"/tmp/there", None, MOVE, None))
    outcome(f"bind {place}", lambda: libc.mount(place.encode(), b"/tmp/there", None, BIND, None))
    outcome(f"cover {place}", lambda: libc.mount(b"/tmp/there", place.encode(), None, BIND, None))
    outcome(f"unmount {place}", lambda: libc.umount2(place.encode(), 2))
    outcome(f"open tree {place}", lambda: libc.syscall(428, -100, place.encode(), 1))
    outcome(f"rename {place}", lambda: os.rename(place, "/tmp/elsewhere"))
    outcome(f"exchange {place}", lambda: libc.syscall(316, -100, place.encode(), -100, b"/tmp/there", 2))
    outcome(f"remove {place}", lambda: os.rmdir(place))
outcome("move_mount", lambda: libc.syscall(429, -100, b"/dev", -100, b"/tmp/there", 0))
outcome("pivot", lambda: libc.syscall(155, b"/tmp/there", b"/tmp/there"))
outcome("link in pts", lambda: os.symlink("/etc/passwd", "/dev/pts/9"))
outcome("rename ptmx", lambda: os.rename("/dev/pts/ptmx", "/dev/pts/other"))
"""
# These belong to the tenant; the agent must not depend on them.
REPLACES = """
import os, shutil
for name in ("null", "tty", "ptmx", "zero", "urandom", "fd", "stdin", "stdout", "stderr"):
    if os.path.lexists(f"/dev/{name}"):
        os.unlink(f"/dev/{name}")
    if name in ("null", "ptmx", "tty"):
        os.mkfifo(f"/dev/{name}")
    else:
        os.symlink("/proc/1/root/etc/passwd", f"/dev/{name}")
"""

# The first program lets go of its terminal and hands it to another owner's, which makes it its own.
GIVES_TERMINAL = """
import fcntl, os, signal, socket, sys, termios
receiver = socket.socket(socket.AF_UNIX)
receiver.connect("\\0handover")
signal.signal(signal.SIGHUP, signal.SIG_IGN)
fcntl.ioctl(0, termios.TIOCNOTTY)
socket.send_fds(receiver, [b"x"], [0])
receiver.recv(1)
print("given", flush=True)
signal.pause()
"""
TAKES_TERMINAL = """
import fcntl, os, signal, socket, termios
server = socket.socket(socket.AF_UNIX)
server.bind("\\0handover")
server.listen()
print("listening", flush=True)
sender, _ = server.accept()
_, passed, _, _ = socket.recv_fds(sender, 1, 1)
signal.signal(signal.SIGHUP, lambda *_: print("hung up", flush=True))
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
try:
    fcntl.ioctl(passed[0], termios.TIOCSCTTY, 0)
    print("mine", os.tcgetpgrp(passed[0]) == os.getpgrp(), flush=True)
except OSError as problem:
    print("mine", problem, flush=True)
sender.send(b"x")
while True:
    signal.pause()
"""


async def terminal_of(host: NamespaceHost, owner: Owner, source: str) -> CommandStream:
    program = ProcessSpec(("python3", "-I", "-S", "-c", source), user="app")
    return await host.open_command(owner, program, 80, 24)


async def read_until(command: CommandStream, word: str) -> str:
    seen = b""
    async with asyncio.timeout(SECONDS):
        while word.encode() not in seen:
            part = await command.receive()
            assert part, f"the command ended without {word!r}: {seen!r}"
            seen += part
    return seen.decode()


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_no_program_types_into_its_terminal_or_changes_how_the_kernel_reads_it(
    host: NamespaceHost, isolation: Isolation
) -> None:
    await host.create(spec_of("alc_1", isolation=isolation))
    command = await terminal_of(host, ATTACKER, CONTROLS)
    lines = (await read_until(command, "done")).split("\r\n")
    await command.close()
    assert [line for line in lines if line.startswith("did")] == []
    assert sum(line.startswith("denied") for line in lines) == 34


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_terminals_open_whatever_a_tenant_moves_or_replaces_in_dev_and_proc(
    host: NamespaceHost, isolation: Isolation
) -> None:
    await host.create(spec_of("alc_1", isolation=isolation))
    inside = Inside(host, ATTACKER)
    lines = (await inside.python(MOVES)).splitlines()
    assert [line for line in lines if not line.startswith("denied")] == []
    assert len(lines) == 7 * 8 + 4
    await inside.python(REPLACES)
    # One owner exists already; the other's init enters only now, and mounts a /proc of its own.
    for owner in (ATTACKER, FRIEND):
        command = await terminal_of(host, owner, "import os; print(os.ttyname(0), 'opened', flush=True)")
        assert "/dev/pts/" in await read_until(command, "opened")
        await command.close()
        assert (await Inside(host, owner).run("true"))[0] == 0


async def test_a_terminal_that_is_handed_to_another_owner_signals_nobody_there_and_is_gone_with_its_command(
    host: NamespaceHost,
) -> None:
    await host.create(spec_of("alc_1"))
    taker = ProcessSpec(("python3", "-I", "-S", "-c", TAKES_TERMINAL), user="app")
    await host.start_service(FRIEND, "taker", taker, RestartPolicy("never"))
    friend = Inside(host, FRIEND)

    async def has_said(word: str) -> bool:
        return word in await friend.log("taker")

    await until(lambda: has_said("listening"))
    command = await terminal_of(host, ATTACKER, GIVES_TERMINAL)
    await read_until(command, "given")
    await until(lambda: has_said("mine True"))
    # Its foreground group is in another pid namespace now: the number means nothing to the command's own init.
    await command.signal(2)
    assert (await Inside(host, ATTACKER).run("true"))[0] == 0
    await command.close()
    await until(lambda: has_said("hung up"))
    assert (await host.close_owner(ATTACKER)).clean
    assert "interrupted" not in await friend.log("taker")
    assert (await host.inspect_service(FRIEND, "taker")).state == "running"


def terminal_number(pid: int) -> str:
    """The controlling terminal of a process, as the kernel numbers it; 0 for none."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[4]


async def test_a_program_without_a_terminal_has_none_of_the_agents(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    code, text = await Inside(host, ATTACKER).run("python3", "-I", "-S", "-c", "open('/dev/tty')")
    assert (code, "[Errno 6] No such device or address: '/dev/tty'" in text) == (1, True)
    init = host.store.load_init(ATTACKER)
    assert init is not None
    inside = [each for each in namespace_processes.survey() if each.namespaces.get("pid") == init.namespaces["pid"]]
    assert inside
    for each in inside:
        assert terminal_number(each.pid) == "0", each.name
