"""What the kernel has once for everybody, and one tenant tries to take."""

import asyncio
import os
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import Owner
from mooring_agent.hosts.namespace import NamespaceHost, cgroups, io_budget, kernel_tables
from mooring_agent.hosts.namespace.cgroups import CgroupHierarchies
from mooring_agent.hosts.namespace.io_budget import IoBudget
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio

GREEDY, NEIGHBOUR = Owner("alc_1", "greedy"), Owner("alc_2", "neighbour")

# Asynchronous I/O: asks for as many requests as the kernel had for the whole machine, and a few more.
ASYNCHRONOUS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
number = 206 if os.uname().machine == "x86_64" else 0
made = 0
for _ in range(int(sys.argv[1])):
    context = ctypes.c_ulong(0)
    if libc.syscall(number, 100, ctypes.byref(context)) < 0:
        break
    made += 1
print(made, flush=True)
if made > 1:
    sys.stdin.read()
    __import__("signal").pause()
"""

# Connections to itself, and as much unread data in each as the kernel takes.
UNREAD = """
import socket, time
server = socket.create_server(("127.0.0.1", 9999), backlog=4096)
kept, end = [], time.monotonic() + 3
while time.monotonic() < end and len(kept) < 7000:
    sender = socket.socket()
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 << 20)
    sender.settimeout(1)
    try:
        sender.connect(("127.0.0.1", 9999))
        receiver = server.accept()[0]
        kept += [sender, receiver]
        sender.setblocking(False)
        while True:
            sender.send(bytes(65536))
    except OSError:
        pass
for line in open("/proc/net/sockstat"):
    if line.startswith("TCP:"):
        print(line.split()[-1])
"""
SCAN = """
import os, socket
found = [line.split()[-1] for line in open("/proc/net/if_inet6")]
print("interfaces", *sorted(set(found)))
sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
sent = 0
for _ in range(2000):
    try:
        sender.sendto(b"x", (f"fe80::{os.urandom(2).hex()}", 9, 0, socket.if_nametoindex("eth0")))
        sent += 1
    except OSError:
        pass
print("sent", sent)
"""


async def two(host: NamespaceHost) -> tuple[Inside, Inside]:
    await host.create(spec_of("alc_1"))
    await host.create(spec_of("alc_2", "two", number=6))
    return Inside(host, GREEDY), Inside(host, NEIGHBOUR)


async def test_no_sandbox_takes_all_asynchronous_requests_of_the_machine(host: NamespaceHost) -> None:
    greedy, neighbour = await two(host)
    count = 700
    held = asyncio.create_task(greedy.python(ASYNCHRONOUS, str(count)))
    await until(lambda: held.done() or int(Path("/proc/sys/fs/aio-nr").read_text()) >= 65_000)
    assert (await neighbour.python(ASYNCHRONOUS, "1")).split() == ["1"]
    await host.close_owner(GREEDY)
    await asyncio.gather(held, return_exceptions=True)


async def test_what_waits_in_a_sandboxs_connections_is_a_part_of_what_the_machine_has(host: NamespaceHost) -> None:
    greedy, _ = await two(host)
    pages = int(await greedy.python(UNREAD))
    assert pages * 4_096 <= cgroups.tcp_bytes() // 2, "the whole machine's connections would slow down"


async def test_a_sandbox_looks_for_neighbours_among_254_addresses_only(host: NamespaceHost) -> None:
    """Each one that it looks for is an entry in a table of the machine's, also if nobody answers."""
    greedy, _ = await two(host)
    assert (await greedy.python(SCAN)).splitlines() == ["interfaces lo", "sent 0"]


@every_row("table", kernel_tables.tables(8 << 30))
def test_a_table_is_raised_and_never_lowered_and_a_failure_is_reported(
    tmp_path: Path, table: kernel_tables.KernelTable
) -> None:
    file = tmp_path / table.path
    file.parent.mkdir(parents=True, exist_ok=True)
    for before, after in ((1, table.wanted), (table.wanted + 1, table.wanted + 1)):
        file.write_text(str(before))
        assert kernel_tables.raise_tables(8 << 30, tmp_path) == []
        assert int(file.read_text()) == after


async def test_the_tables_of_this_machine_are_above_what_a_sandbox_can_use(host: NamespaceHost) -> None:
    facts = await host.create(spec_of("alc_1"))
    assert facts.limits["kernel_tables"] == "raised above what a sandbox can use"
    for table in kernel_tables.tables(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        assert value_of(table) >= table.wanted


def value_of(table: kernel_tables.KernelTable) -> int:
    return int(Path("/proc/sys", table.path).read_text())


@every_row(("limit", "pids", "files"), [(2_400_000, 200, 3_000), (1 << 60, 200, 16_384), (100_000, 1_000, 1_024)])
def test_all_processes_of_a_sandbox_together_leave_most_of_the_kernels_open_files(
    tmp_path: Path, limit: int, pids: int, files: int
) -> None:
    (tmp_path / "fs").mkdir(exist_ok=True)
    (tmp_path / "fs/file-max").write_text(str(limit))
    assert kernel_tables.open_files(pids, tmp_path) == files


DIRECT = """
import mmap, os, time
buffer = mmap.mmap(-1, 1 << 20)
file = os.open("/var/tmp/direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
begun = time.monotonic()
for _ in range(4):
    os.write(file, buffer)
print(time.monotonic() - begun)
"""


async def test_a_sandbox_writes_no_faster_than_its_budget(tmp_path: Path) -> None:
    host = NamespaceHost(tmp_path / "state", "nod_test", io=IoBudget(2 << 20))
    facts = await host.create(spec_of("alc_1"))
    try:
        if not facts.limits["io"].startswith("cgroup"):
            pytest.skip(facts.limits["io"])
        assert "2097152 bytes/s" in facts.limits["io"]
        # Four MiB at two per second; the kernel lets the first part through at once.
        assert float(await Inside(host, GREEDY).python(DIRECT)) > 1.0
    finally:
        assert (await host.destroy("alc_1")).clean


@every_row(
    ("version", "parents", "budget", "said", "written"),
    [
        (0, (), IoBudget(), "not enforced: this machine has no io control group", {}),
        (1, ("blkio",), IoBudget(), "not enforced: the agent is configured without an I/O budget", {}),
        (
            1,
            ("blkio",),
            IoBudget(9, 7),
            "cgroup v1: 9 bytes/s, 7 operations/s, without buffered writes",
            {
                "blkio.throttle.read_bps_device": "{device} 9",
                "blkio.throttle.write_bps_device": "{device} 9",
                "blkio.throttle.read_iops_device": "{device} 7",
                "blkio.throttle.write_iops_device": "{device} 7",
            },
        ),
        (2, ("io",), IoBudget(), "cgroup v2: equal weights", {}),
        (2, ("io",), IoBudget(0, 7), "cgroup v2: 7 operations/s", {"io.max": "{device} riops=7 wiops=7"}),
    ],
)
def test_the_facts_say_what_enforces_an_io_budget(
    version: int, parents: tuple[str, ...], budget: IoBudget, said: str, written: dict[str, str]
) -> None:
    hierarchies = CgroupHierarchies(version, {name: Path("/groups", name) for name in parents})
    assert io_budget.describe(hierarchies, budget) == said
    groups = tuple(f"/groups/{name}/mooring-x/alc_1" for name in parents)
    found = io_budget.files(hierarchies, groups, budget)
    assert {Path(path).name: text for path, text in found} == written
