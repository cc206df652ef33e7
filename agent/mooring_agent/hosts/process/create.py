"""Creating a sandbox of the process host: a list of idempotent steps.

The steps are data, so that a test can kill the agent after each of them.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.contract import FileSpec, HostFailure, Peer, SandboxSpec
from mooring_agent.hosts.process.owner_files import OwnedFiles
from mooring_agent.hosts.process.sandbox_directory import ProcessSandboxRecord, SandboxDirectory
from mooring_agent.supervisor.program_runner import is_name


@dataclass(slots=True)
class Creation:
    """One sandbox being created; its record, which says that it is wanted, is already on disk."""

    sandbox: SandboxDirectory
    spec: SandboxSpec
    record: ProcessSandboxRecord
    ensure_supervisor: Callable[[SandboxDirectory], Awaitable[object]]  # starts its supervisor unless it is running

    @property
    def is_ready(self) -> bool:
        """Whether an earlier creation was completed."""
        return self.record.phase == "ready"


Step = Callable[[Creation], Awaitable[None]]


async def make_directories(work: Creation) -> None:
    if not work.is_ready:
        await asyncio.to_thread(work.sandbox.make_directories)


async def write_hosts_file(work: Creation) -> None:
    if not work.is_ready:
        await asyncio.to_thread(OwnedFiles(work.sandbox).write, "", [hosts_file(work.spec.peers)])


async def mark_ready(work: Creation) -> None:
    if not work.is_ready:
        work.record = replace(work.record, phase="ready")
        work.sandbox.write(work.record)


async def start_supervisor(work: Creation) -> None:
    await work.ensure_supervisor(work.sandbox)


STEPS: tuple[Step, ...] = (make_directories, write_hosts_file, mark_ready, start_supervisor)


def hosts_file(peers: Sequence[Peer]) -> FileSpec:
    """The /etc/hosts of a sandbox."""
    for peer in peers:
        if not is_name(peer.name):
            raise HostFailure("refused", "not a valid peer name")
        try:
            ipaddress.ip_address(peer.address)
        except ValueError:
            raise HostFailure("refused", "not a valid peer address") from None
    lines = [f"{peer.address} {peer.name}\n" for peer in (Peer("localhost", LOOPBACK), *peers)]
    return FileSpec("/etc/hosts", "".join(lines).encode())
