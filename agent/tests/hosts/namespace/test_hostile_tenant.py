"""What root in a sandbox does to the agent, to the machine's root and to other owners with ordinary system calls."""

import asyncio
import ctypes
import json
import os
import sys
from pathlib import Path

import pytest

from agent.tests.support import killed_owner_spawner
from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import HostFailure, Isolation, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost, cgroups, init_process, namespace_processes
from mooring_agent.hosts.namespace.sandbox_records import sandbox_owner
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}"}
ATTACKER, VICTIM = Owner("alc_1", "attacker"), Owner("alc_1", "victim")

ODD_SOCKETS = r"""
import os, socket, time
os.chdir("/tmp")
names = ["\0a\nb", "\0a\rb", "\0\n\n c\n", "d\ne", "f\u2028g", b"\0\xff\n", "\0" + "\n" * 107, "\0x unix /y/z"]
kept = [socket.socket(socket.AF_UNIX) for _ in names]
for each, name in zip(kept, names):
    each.bind(name)
print("bound", flush=True)
time.sleep(1000)
"""

# Sends descriptors that nobody receives, until the kernel refuses to let this user have more of them under way.
DESCRIPTORS_UNDER_WAY = """
import os, socket, time
kept, file = [], os.open("/dev/null", os.O_RDONLY)
try:
    while len(kept) < 2000:
        kept += [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)]
        kept[-1][0].setblocking(False)
        try:
            while True:
                socket.send_fds(kept[-1][0], [b"x"], [file] * 250)
        except BlockingIOError:
            pass
except OSError as problem:
    print(problem.errno, flush=True)
time.sleep(1000)
"""

WATCHERS = """
import ctypes, time
count = 0
while count < 100_000 and ctypes.CDLL(None).inotify_init1(0) >= 0:
    count += 1
print("used up", count, flush=True)
time.sleep(1000)
"""


async def start(host: NamespaceHost, owner: Owner, source: str, said: str) -> None:
    """Start a Python program as a service and wait until it says this."""
    program = ProcessSpec(("python3", "-I", "-S", "-c", source))
    await host.start_service(owner, "evil", program, RestartPolicy("never"))

    async def has_said() -> bool:
        return said in await Inside(host, owner).log("evil")

    await until(has_said)


async def test_no_name_of_a_socket_keeps_an_owner_or_a_sandbox_from_being_removed(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await start(host, ATTACKER, ODD_SOCKETS, "bound")
    assert (await host.close_owner(ATTACKER)).clean
    await Inside(host, ATTACKER).run("sh", "-c", "rm -f /tmp/*")
    await start(host, ATTACKER, ODD_SOCKETS, "bound")
    assert (await host.destroy("alc_1")).clean


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_a_program_gets_no_file_of_the_machines_and_can_open_its_streams_again(
    host: NamespaceHost, isolation: Isolation
) -> None:
    """A machine's /dev/null as standard input could be given another mode by a `bounded` sandbox's root."""
    await host.create(spec_of("alc_1", isolation=isolation))
    inside, null = Inside(host, ATTACKER), os.stat("/dev/null")
    _, text = await inside.run("stat", "-L", "-c", "%d %i", "/proc/self/fd/0")
    assert text.split() != [str(null.st_dev), str(null.st_ino)]
    script = "cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr"
    for user in ("root", "app"):
        assert await inside.run("sh", "-c", script, user=user) == (0, "out\nerr\n"), user
    command = await host.open_piped(ATTACKER, ProcessSpec(("sh", "-c", f"{script}; exit 7"), user="app"))
    await command.send_end()
    assert await command.exit_code() == 7
    await command.close()


async def test_the_root_of_a_bounded_sandbox_cannot_make_the_machine_wait_for_a_program(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1", isolation="bounded"))
    source = "import fcntl, os; fcntl.fcntl(os.open('/usr/bin/tac', 0), fcntl.F_SETLEASE, fcntl.F_WRLCK)"
    code, text = await Inside(host, ATTACKER).run("python3", "-I", "-S", "-c", source)
    assert (code, "PermissionError: [Errno 1]" in text) == (1, True)


async def test_descriptors_that_an_owner_keeps_under_way_do_not_end_another_owner(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await host.start_service(VICTIM, "web", ProcessSpec(("sleep", "1000")), RestartPolicy("never"))
    before = host.store.load_init(VICTIM)
    await start(host, ATTACKER, DESCRIPTORS_UNDER_WAY, "109")
    assert (await Inside(host, VICTIM).run("true"))[0] == 0
    await (await host.open_command(VICTIM, ProcessSpec(("true",), user="app"), 80, 24)).close()
    assert (await host.inspect_service(VICTIM, "web")).state == "running"
    assert host.store.load_init(VICTIM) == before


async def test_what_a_sandbox_watches_is_not_counted_for_the_machines_root(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    await start(host, ATTACKER, WATCHERS, "used up")
    watcher = ctypes.CDLL(None).inotify_init1(0)
    assert watcher >= 0
    os.close(watcher)


@every_row(("place", "victim"), killed_owner_spawner.CASES)
async def test_an_owner_whose_spawn_is_killed_anywhere_leaves_nothing_and_can_be_spawned_again(
    host: NamespaceHost, place: str, victim: str
) -> None:
    await host.create(spec_of("alc_1"))
    record, sandbox = host.store.load("alc_1"), host.store.load_init(sandbox_owner("alc_1"))
    assert record is not None
    assert sandbox is not None
    plan = init_process.owner_plan(host.store, record, VICTIM, sandbox)
    command = [sys.executable, killed_owner_spawner.__file__, place, victim]
    process = await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stdin=-1, stdout=-1, stderr=-1)
    await process.communicate(json.dumps(plan).encode())
    init_process.wait_for_spawn(host.store.owner(VICTIM))
    await until(lambda: of_sandbox(sandbox.namespaces["uts"]) == ["mooring-init"])
    # The supervisor is outside of the sandbox's namespaces, but in its control groups.
    await until(lambda: cgroups.members(record.cgroups) == [sandbox.pid])
    assert (await Inside(host, VICTIM).run("true"))[0] == 0
    assert (await host.close_owner(VICTIM)).clean


def of_sandbox(number: int) -> list[str]:
    """The names of the living processes of a sandbox, whichever owner's."""
    return [each.name for each in namespace_processes.survey() if each.namespaces.get("uts") == number]


# Traces every other process of its owner, and never looks at what becomes of it.
HOLDS = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.ptrace.argtypes = [ctypes.c_long] * 4
own, held = os.getpid(), set()
print("watching", flush=True)
while True:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) > own and name not in held and libc.ptrace(0x4206, int(name), 0, 0) == 0:
            held.add(name)
            print("holds", len(held), flush=True)
"""


async def test_a_program_that_is_traced_to_its_end_and_never_let_go_still_ends_in_time(host: NamespaceHost) -> None:
    """The kernel reports the end of a traced process to its tracer first, who need not listen."""
    await host.create(spec_of("alc_1"))
    await start(host, ATTACKER, HOLDS, "watching")
    service = ProcessSpec(("sleep", "1000"))
    await host.start_service(ATTACKER, "web", service, RestartPolicy("never"))
    run = asyncio.create_task(host.run(ATTACKER, "run", ProcessSpec(("sleep", "1000")), 2))
    inside = Inside(host, ATTACKER)

    async def are_held() -> bool:
        return "holds 2" in await inside.log("evil")

    await until(are_held)
    async with asyncio.timeout(30):
        with pytest.raises(HostFailure, match="timed_out"):
            await run
        assert await host.stop_service(ATTACKER, "web", "main", 0)
    assert (await host.inspect_service(ATTACKER, "web")).state == "exited"
    assert (await host.close_owner(ATTACKER)).clean
