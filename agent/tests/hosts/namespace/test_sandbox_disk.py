"""A sandbox that fills its disk gets an error, and nobody else is affected."""

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.tests.support.namespace_sandboxes import Inside, left_of, spec_of
from mooring_agent.hosts.contract import FileSpec, Owner
from mooring_agent.hosts.namespace import NamespaceHost, sandbox_disk

SIZE = 32 << 20
FILL = """
import errno, os
written = 0
with open("/var/tmp/fill", "wb", buffering=0) as file:
    try:
        while written < 1 << 30:
            written += file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno], written)
"""


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[NamespaceHost]:
    """A host whose sandboxes have a small disk."""
    made = NamespaceHost(tmp_path / "state", "nod_test", disk_bytes=SIZE)
    yield made
    for allocation_id in made.store.allocations():
        await made.destroy(allocation_id)
    assert left_of(made) == []


def loops(host: NamespaceHost) -> list[str]:
    """The loop devices backed by a file of this host."""
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "BACK-FILE"], capture_output=True, text=True
    )
    return [line for line in listed.stdout.splitlines() if str(host.store.state) in line]


def machines_mounts() -> str:
    """The mounts in the machine's own namespace."""
    return Path("/proc/self/mountinfo").read_text()


async def test_a_tenant_who_fills_their_disk_gets_an_error_and_nobody_else_notices(small: NamespaceHost) -> None:
    facts = await small.create(spec_of("alc_1"))
    await small.create(spec_of("alc_2", number=6))
    assert facts.limits["disk"] == f"a disk of its own of {SIZE} bytes"
    full, other = Inside(small, Owner("alc_1", "member")), Inside(small, Owner("alc_2", "member"))
    said, written = (await full.python(FILL, user="app")).split()
    assert said == "ENOSPC"
    assert SIZE // 4 < int(written) < SIZE
    assert (await full.run("sh", "-c", "echo still here"))[1] == "still here\n"
    more = ("sh", "-c", "head -c 4000000 /dev/zero > /home/app/more")
    code, text = await full.run(*more)
    assert code != 0, "no other directory has room of its own"
    assert "No space left on device" in text
    assert await other.run("sh", "-c", "head -c 1000000 /dev/zero > /var/tmp/mine && wc -c < /var/tmp/mine") == (
        0,
        "1000000\n",
    )
    await small.write_files(Owner("alc_2"), [FileSpec("/srv/note", b"written by the agent")])
    assert small.store.disk("alc_1").stat().st_blocks * 512 <= SIZE + (1 << 20)
    assert (await full.run("rm", "/var/tmp/fill"))[0] == 0
    assert (await full.run(*more))[0] == 0, "what was removed is room again"
    for allocation_id in ("alc_1", "alc_2"):
        report = await small.destroy(allocation_id)
        assert report.clean, report
    assert loops(small) == []


async def test_the_disk_is_in_the_sandboxs_view_alone(small: NamespaceHost) -> None:
    await small.create(spec_of("alc_1"))
    assert str(small.store.state) not in machines_mounts()
    mounted = (await Inside(small, Owner("alc_1")).run("cat", "/proc/self/mountinfo"))[1]
    root = next(line for line in mounted.splitlines() if line.split(" ")[4] == "/")
    assert "nosuid" in root
    assert "nodev" in root
    assert " - ext4 " in root


async def test_a_host_without_a_bound_says_so(tmp_path: Path) -> None:
    host = NamespaceHost(tmp_path / "state", "nod_test", disk_bytes=0)
    facts = await host.create(spec_of("alc_1"))
    assert facts.limits["disk"] == "not enforced: the agent is configured without a disk limit"
    assert (await host.destroy("alc_1")).clean
    with pytest.raises(ValueError, match="at least"):
        NamespaceHost(tmp_path / "state", "nod_test", disk_bytes=sandbox_disk.DISK_BYTES_MIN - 1)
