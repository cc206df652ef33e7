"""Files of a tenant's that the agent opens, replaced by whatever a file system offers, also while it opens them."""

import asyncio
import os
import re
import subprocess
from collections.abc import Awaitable
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import FileSpec, HostFailure, Owner, Peer, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio

MEMBER, OTHER = Owner("alc_1", "member"), Owner("alc_1", "other")
SECONDS = 20.0
REFUSALS = {"path_refused", "not_found", "permission_denied", "host_error", "capacity"}
CANARY = "the machine's own"

# How a path is replaced; {path} is the path and {canary} a file of the machine's.
KINDS = {
    "a link to a file of the machine": "ln -s {canary} {path}",
    "a link into the init's root": "ln -s /proc/1/root{canary} {path}",
    "a link into the root of the process that opens it": "ln -s /proc/self/root{canary} {path}",
    "a link into a descriptor of the process that opens it": "ln -s /proc/self/fd/3 {path}",
    "a link to itself": "ln -s {path} {path}",
    "a pipe that nobody writes": "mkfifo {path}",
    "a socket": "python3 -c 'import socket, sys; socket.socket(1).bind(sys.argv[1])' {path}",
    "a terminal": "ln -s /dev/ptmx {path}",
    "an endless device": "ln -s /dev/zero {path}",
    "a directory": "mkdir {path}",
    "nothing": "true",
    "a file of a terabyte": "truncate -s 1T {path}",
    "a file that nobody may read": "touch {path}; chmod 0 {path}",
    "two names of one file": "echo x > /srv/one; ln /srv/one {path}",
}
PLACES = ("/etc", "/etc/passwd", "/etc/group", "/etc/hosts", "/srv/written", "/home/app", "/tmp")


async def attempt(action: Awaitable[object]) -> str:
    """The action ends in time, with success or with a refusal."""
    try:
        async with asyncio.timeout(SECONDS):
            await action
    except HostFailure as failure:
        if failure.code not in REFUSALS:
            raise
        return failure.code
    return "done"


@every_row(("kind", "replace"), list(KINDS.items()))
async def test_whatever_a_tenant_puts_where_the_agent_reads_or_writes_it_is_refused_or_its_own(
    host: NamespaceHost, tmp_path: Path, kind: str, replace: str
) -> None:
    canary = tmp_path / "canary"
    canary.write_text(CANARY)
    canary.chmod(0o600)
    before = canary.stat()
    await host.create(spec_of("alc_1"))
    await host.create(spec_of("alc_2", number=6))  # the same one for every row
    await host.write_files(MEMBER, [FileSpec("/srv/written", b"first")])
    inside = Inside(host, MEMBER)
    for place in PLACES:
        script = f"mv {place} /srv/kept; {replace.format(path=place, canary=canary)}"
        # The numbers need no account, which may be gone by now.
        await inside.run("sh", "-c", script, user="0:0")
        for user in ("app", "root", "0:0"):
            key = re.sub("[^a-z0-9]", "-", f"{kind}{user}{place}")
            await attempt(host.run(MEMBER, key, ProcessSpec(("true",), user=user), 10))
        await attempt(host.set_peers("alc_1", [Peer("friend", "10.77.0.9")]))
        below = f"{place}/below"
        for path in (place, below):
            await attempt(host.write_files(MEMBER, [FileSpec(path, b"agent's", user="app")]))
        await attempt(host.write_files(MEMBER, [FileSpec(below, directory=True)]))
        await inside.run("sh", "-c", f"rm -rf {place} /srv/one; mv /srv/kept {place}", user="0:0")
    assert (canary.read_text(), canary.stat().st_mode, canary.stat().st_uid) == (CANARY, before.st_mode, before.st_uid)
    assert [name for name in os.listdir(tmp_path) if name.startswith("canary")] == ["canary"]
    assert CANARY not in "".join([await inside.log(each.name) for each in logs_of(host)])
    assert (await Inside(host, Owner("alc_2", "member")).run("true"))[0] == 0, "a neighbour waited for nothing"
    assert (await host.destroy("alc_1")).clean


def logs_of(host: NamespaceHost) -> list[Path]:
    return sorted((host.store.owner(MEMBER) / "data" / "label-member" / "logs").iterdir())


async def test_a_path_through_a_process_is_refused(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    for path in (
        "/proc/self/root/srv/x",
        "/proc/1/root/srv/x",
        "/proc/1/cwd/x",
        "/proc/self/fd/3",
        "/proc/thread-self/cwd/x",
        "/proc/1/mem",
        "/dev/fd/1",
        "/dev/stdout",
        "/proc/sys/kernel/core_pattern",
        "/sys/kernel/x",
    ):
        assert await attempt(host.write_files(MEMBER, [FileSpec(path, b"x")])) != "done", path


# Exchanges two names as fast as it can: what the agent has just looked at is something else when it opens it.
SWAPS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
first, second = (each.encode() for each in sys.argv[1:3])
print("swapping", flush=True)
while True:
    libc.syscall(316, -100, first, -100, second, 2)
"""


async def swap(host: NamespaceHost, first: str, second: str, user: str) -> None:
    """Start the exchange and wait until it is under way."""
    program = ProcessSpec(("python3", "-I", "-S", "-c", SWAPS, first, second), user=user)
    await host.start_service(OTHER, "swap", program, RestartPolicy("never"))

    async def is_swapping() -> bool:
        return "swapping" in await Inside(host, OTHER).log("swap")

    await until(is_swapping)


async def test_a_directory_that_becomes_a_link_while_the_agent_writes_below_it_leads_nowhere(
    host: NamespaceHost, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    await host.create(spec_of("alc_1"))
    await Inside(host, OTHER).run("sh", "-c", f"mkdir /srv/place; ln -s {outside} /srv/link")
    await swap(host, "/srv/place", "/srv/link", "root")
    outcomes = []
    for number in range(150):
        file = FileSpec(f"/srv/place/deeper/file{number}", b"agent's")
        outcomes.append(await attempt(host.write_files(MEMBER, [file])))
    assert list(outside.iterdir()) == []
    assert "path_refused" in outcomes, "the link was never there when the agent came"
    assert (await host.close_owner(MEMBER)).found
    assert list(outside.iterdir()) == []


# The owners of the attacker's bytes, by descriptor: names change all the time.
LOOKS = """
import os
os.chdir("/home/app/d")
for name in os.listdir("."):
    with open(name, "rb") as file:
        if b"evil" in file.read():
            print(os.fstat(file.fileno()).st_uid)
"""


async def test_a_file_that_is_exchanged_while_the_agent_writes_it_is_not_given_to_its_user(host: NamespaceHost) -> None:
    """A user of the sandbox would have bytes of their own in a file of its root's."""
    await host.create(spec_of("alc_1"))
    inside = Inside(host, OTHER)
    await inside.run("sh", "-c", "mkdir /home/app/d; cd /home/app/d; echo evil > mine; echo x > file", user="app")
    await swap(host, "/home/app/d/file", "/home/app/d/mine", "app")
    put_back = "echo evil > /home/app/d/more; mv -f /home/app/d/more /home/app/d/mine"
    for _ in range(30):
        await attempt(host.write_files(MEMBER, [FileSpec("/home/app/d/file", b"agent's", user="root")]))
        assert "0" not in (await inside.python(LOOKS)).split()
        assert (await inside.run("sh", "-c", put_back, user="app"))[0] == 0


PRELOADED = """
#include <stdio.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) {
    char name[64] = {0};
    int from = open("/proc/self/comm", O_RDONLY), to = open("@MARK@", O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (from >= 0 && to >= 0 && read(from, name, sizeof name - 1) > 0) (void)!write(to, name, strlen(name));
}
"""


def compiled(directory: Path, source: str) -> Path:
    """A library."""
    (directory / "evil.c").write_text(source)
    library = directory / "evil.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, directory / "evil.c"], check=True)
    return library


async def test_nothing_of_the_agents_loads_what_a_tenants_etc_names(host: NamespaceHost, tmp_path: Path) -> None:
    mark = f"/tmp/preloaded-{host.store.label}"
    library = compiled(tmp_path, PRELOADED.replace("@MARK@", mark))
    await host.create(spec_of("alc_1"))
    names = ("libnss_evil.so.2", "libc.so.6", "evil.so")
    await host.write_files(MEMBER, [FileSpec(f"/srv/lib/{name}", library.read_bytes(), 0o755) for name in names])
    switch = "passwd: evil files\ngroup: evil files\nhosts: evil files\n"
    account = "root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"
    await host.write_files(
        MEMBER,
        [
            FileSpec("/etc/ld.so.preload", b"/srv/lib/evil.so\n"),
            FileSpec("/etc/nsswitch.conf", switch.encode()),
            FileSpec("/etc/passwd", account.encode()),
            FileSpec("/etc/environment", b"LD_PRELOAD=/srv/lib/evil.so\n"),
        ],
    )
    for owner in (MEMBER, OTHER):
        assert (await Inside(host, owner).run("true", user="app"))[0] == 0
    await (await host.open_command(MEMBER, ProcessSpec(("true",), user="app"), 80, 24)).close()
    await host.set_peers("alc_1", [Peer("friend", "10.77.0.9")])
    await attempt(host.dial("alc_1", 4))
    _, loaded = await Inside(host, MEMBER).run("cat", mark)
    assert set(loaded.split()) == {"true", "cat"}, "only the tenant's own programs"
    assert (await host.destroy("alc_1")).clean
    assert os.path.basename(mark) not in os.listdir("/tmp"), "a program of the machine's loaded it"


# Attaches to every process of its own user that appears, as soon as it appears, and lets it go on.
CATCHES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17
own, seen = os.getpid(), set()

def is_copy_of_init(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read() == "mooring-init\\n"
    except OSError:
        return False

def open_parts(pid):
    os.listdir(f"/proc/{pid}/fd")
    os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))

def attempts(pid):
    yield "links", lambda: [os.readlink(f"/proc/{pid}/{each}") for each in ("exe", "root", "cwd", "ns/mnt")]
    yield "parts", lambda: open_parts(pid)

print("watching", flush=True)
while True:
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) > own]:
        if not is_copy_of_init(pid):
            continue
        for name, act in attempts(pid):
            try:
                act()
            except OSError:
                continue
            if is_copy_of_init(pid):
                print("caught", name, flush=True)
        if libc.ptrace(SEIZE, pid, 0, 0) == 0:
            if is_copy_of_init(pid):
                print("caught trace", flush=True)
            libc.ptrace(INTERRUPT, pid, 0, 0)
            os.waitpid(pid, 0x40000000)
            libc.ptrace(DETACH, pid, 0, 0)
        if pid not in seen:
            seen.add(pid)
            print("saw", len(seen), flush=True)
"""


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_a_program_cannot_be_traced_between_its_fork_and_its_start(host: NamespaceHost, isolation: str) -> None:
    """Until then it is a copy of the init, with the init's memory and its socket to the supervisor."""
    await host.create(spec_of("alc_1", isolation=isolation))  # type: ignore[arg-type]
    catcher = ProcessSpec(("python3", "-I", "-S", "-c", CATCHES))
    await host.start_service(MEMBER, "catcher", catcher, RestartPolicy("never"))
    inside = Inside(host, MEMBER)

    async def says(word: str) -> bool:
        return word in await inside.log("catcher")

    await until(lambda: says("watching"))
    # A long search for the program keeps it a copy of the init for longer.
    path = ":".join(f"/srv/{number}" for number in range(800)) + ":/usr/bin:/bin"
    for number in range(400):
        spec = ProcessSpec(("true",), environment={"PATH": path})
        assert await host.run(MEMBER, f"run-{number}", spec, 30) == 0
        if number >= 40 and await says("saw 5"):
            break
    assert await says("saw 5"), "the attack never came in time, so it shows nothing"
    assert not await says("caught"), await inside.log("catcher")
