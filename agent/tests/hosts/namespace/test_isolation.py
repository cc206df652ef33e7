"""Two projects on one machine, and root in one of them tries everything."""

import asyncio
import ctypes
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.tests.support import adversary
from agent.tests.support.namespace_sandboxes import Inside, left_of, parsed, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import FileSpec, Isolation, Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import NamespaceHost, namespace_processes
from mooring_agent.sandbox_init import confinement

pytestmark = pytest.mark.anyio

NEIGHBOUR_MARK = "mooring-neighbour-secret-8c1f"
MACHINE_MARK = "mooring-machine-secret-1d77"

# The neighbour listens on everything it can, and reports when anything arrives.
NEIGHBOUR = f"""
import ctypes, os, selectors, socket, sys
libc = ctypes.CDLL(None)
assert libc.shmget(0x4D4F4F52, 4096, 0o1666) >= 0
every = selectors.DefaultSelector()
def serve(kind, family, address):
    one = socket.socket(family, kind)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen()
    every.register(one, selectors.EVENT_READ)
serve(socket.SOCK_STREAM, socket.AF_INET, ("0.0.0.0", 8000))
serve(socket.SOCK_DGRAM, socket.AF_INET, ("0.0.0.0", 8000))
serve(socket.SOCK_STREAM, socket.AF_UNIX, "\\0{NEIGHBOUR_MARK}")
print("listening", flush=True)
while True:
    for key, _ in every.select():
        if key.fileobj.type == socket.SOCK_DGRAM:
            data, sender = key.fileobj.recvfrom(100)
            key.fileobj.sendto(data, sender)
        else:
            key.fileobj.accept()[0].close()
        print("received", flush=True)
"""


@dataclass
class IsolationResult:
    """Two sandboxes of two projects, a second sandbox of the first project, and the results of the attempts."""

    host: NamespaceHost
    outcomes: dict[str, str]
    reached: dict[str, str]


@asynccontextmanager
async def isolation_result(isolation: Isolation, directory: Path) -> AsyncIterator[IsolationResult]:
    """Everything is tried once, by one program; the checks below evaluate the results."""
    mark = f"{MACHINE_MARK}-{secrets.token_hex(8)}"  # others may play the same on this machine
    (directory / f"{mark}.key").write_text(mark)
    host = NamespaceHost(directory / "state", "nod_test")
    (host.store.state / "agent.key").write_text(mark)
    shared = libc_segment()
    watcher = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", mark, stdin=-1)
    listener = socket.create_server(("0.0.0.0", 0))
    abstract = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    abstract.bind("\0" + mark)
    abstract.listen()
    try:
        await host.create(spec_of("alc_a", "one", number=5, isolation=isolation))
        await host.create(spec_of("alc_friend", "one", number=7, isolation=isolation))
        await host.create(spec_of("alc_b", "two", number=6, isolation=isolation))
        pids = {}
        for name in ("alc_b", "alc_friend"):
            await serve_in(host, name)
            pids[name] = machine_pid(host, name)
        given = {
            "machine_mark": mark,
            "neighbour_mark": NEIGHBOUR_MARK,
            "machine_file": str(directory / f"{mark}.key"),
            "machine_pid": str(watcher.pid),
            "neighbour_pid": str(pids["alc_b"]),
            "machine_port": str(listener.getsockname()[1]),
            "machine_address": machine_address(),
            "neighbour_address": "10.77.0.6",
        }
        inside = Inside(host, Owner("alc_a", "member"))
        # Attempts that search for a mark must not find it in their own arguments, so the marks are passed on standard
        # input.
        outcomes = parsed(await inside.python(SOURCE + RUN.format(given)))
        reached = parsed(await inside.python(SOURCE + REACH))
        yield IsolationResult(host, outcomes, reached)
    finally:
        watcher.kill()
        await watcher.wait()
        listener.close()
        abstract.close()
        release_segment(shared)
        for allocation_id in host.store.allocations():
            await host.destroy(allocation_id)
    assert left_of(host) == []


SOURCE = Path(adversary.__file__).read_text()
RUN = """
main({0!r})
"""
REACH = """
def answers(function):
    try:
        return f"got {function()!r}"
    except OSError as problem:
        return f"denied {problem}"
def datagram():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.connect(("10.77.0.7", 8000))
    sender.settimeout(30)
    sender.send(b"hello")
    return sender.recv(100).decode()
print(json.dumps({
    "tcp": answers(lambda: socket.create_connection(("10.77.0.7", 8000), timeout=30).fileno() > 0),
    "udp": answers(datagram),
    "ping": answers(lambda: ping("10.77.0.7")),
}))
"""


def libc_segment() -> int:
    """Shared memory of the machine under the key that is searched for."""
    return int(ctypes.CDLL(None).shmget(0x4D4F4F52, 4096, 0o1666))


def release_segment(segment: int) -> None:
    """Otherwise it outlives its process."""
    ctypes.CDLL(None).shmctl(segment, 0, None)


def machine_address() -> str:
    """An address of the machine besides its loopback, if it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses a route
        except OSError:
            return "192.0.2.1"
        return str(probe.getsockname()[0])


def status_of(pid: int) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())


async def serve_in(host: NamespaceHost, allocation_id: str) -> None:
    """The listening neighbour, with its mark in its files and arguments."""
    owner = Owner(allocation_id, "member")
    files = [FileSpec("/srv/neighbour.py", NEIGHBOUR.encode()), FileSpec(f"/srv/{NEIGHBOUR_MARK}", b"x", 0o644)]
    await host.write_files(owner, files)
    argv = ("python3", "/srv/neighbour.py", NEIGHBOUR_MARK)
    await host.start_service(owner, "neighbour", ProcessSpec(argv), RestartPolicy("never"))
    inside = Inside(host, owner)
    await inside.run("sh", "-c", "until ss -ltn 2>/dev/null | grep -q 8000 || grep -q :1F40 /proc/net/tcp; do :; done")


def machine_pid(host: NamespaceHost, allocation_id: str) -> int:
    """The neighbour's pid on the machine."""
    init = host.store.load_init(Owner(allocation_id, "member"))
    assert init is not None
    number = init.namespaces["pid"]
    return next(
        each.pid
        for each in namespace_processes.survey()
        if each.namespaces.get("pid") == number and "python" in each.name
    )


def root_was_denied_everything(result: IsolationResult) -> None:
    """Check each attempt by its name."""
    assert set(result.outcomes) == set(adversary.ATTEMPTS)
    assert {name: outcome for name, outcome in result.outcomes.items() if not outcome.startswith("denied")} == {}


async def only_the_friend_received(result: IsolationResult) -> None:
    """The neighbour of another project received nothing, the member of the same project did."""
    assert {name: outcome.split(" ")[0] for name, outcome in result.reached.items()} == {
        "tcp": "got",
        "udp": "got",
        "ping": "got",
    }
    friend, neighbour = (Inside(result.host, Owner(name, "member")) for name in ("alc_friend", "alc_b"))

    async def both_were_received() -> bool:
        return (await friend.log("neighbour")).count("received") >= 2

    await until(both_were_received)
    assert await neighbour.log("neighbour") == "listening\n"


def nobody_holds_a_capability_beyond_the_short_list(result: IsolationResult) -> None:
    """Check every process of a sandbox by the kernel's own status."""
    mask = sum(1 << number for number in confinement.KEPT.values())
    init = result.host.store.load_init(Owner("alc_b", "member"))
    assert init is not None
    inside = [each for each in namespace_processes.survey() if each.namespaces.get("net") == init.namespaces["net"]]
    assert len(inside) >= 3
    for each in inside:
        status = status_of(each.pid)
        for kind in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"):
            assert int(status[kind], 16) & ~mask == 0, (each.name, kind)
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def no_namespace_is_shared(result: IsolationResult) -> None:
    """Neither with the machine nor with the neighbour."""
    first, second = (result.host.store.load_init(Owner(name, "_sandbox")) for name in ("alc_a", "alc_b"))
    assert first is not None
    assert second is not None
    record = result.host.store.load("alc_a")
    assert record is not None
    shared = {"user"} if record.spec.isolation == "bounded" else set()
    for kind, number in first.namespaces.items():
        if kind not in shared:
            assert number not in (second.namespaces[kind], namespace_processes.own_namespaces()[kind]), kind


def users_are_a_range_of_its_own(result: IsolationResult) -> None:
    """Of a sandbox that has one, on disk as well."""
    ranges = []
    for name in ("alc_a", "alc_b", "alc_friend"):
        record = result.host.store.load(name)
        assert record is not None
        if record.spec.isolation == "bounded":
            assert record.first_uid is None
            continue
        assert record.first_uid is not None
        ranges.append(record.first_uid)
        root = result.host.store.root(name)
        assert (root.stat().st_uid, (root / "home/app").stat().st_uid) == (record.first_uid, record.first_uid + 1000)
        assert oct(os.stat(result.host.store.state).st_mode & 0o777) == "0o700"
    assert len(ranges) == len(set(ranges))


@pytest.mark.parametrize("isolation", ["user_namespace", "bounded"])
async def test_root_in_a_sandbox_is_denied_everything_beyond_it_and_its_project(
    isolation: Isolation, tmp_path: Path
) -> None:
    async with isolation_result(isolation, tmp_path) as result:
        root_was_denied_everything(result)
        await only_the_friend_received(result)
        nobody_holds_a_capability_beyond_the_short_list(result)
        no_namespace_is_shared(result)
        users_are_a_range_of_its_own(result)
