"""Making a sandbox of the process host: a list of steps, each of which may be done again.

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
    """One sandbox that is made; its record, which says that it is wanted, is on disk already."""

    sandbox: SandboxDirectory
    spec: SandboxSpec
    record: ProcessSandboxRecord
    ensure_supervisor: Callable[[SandboxDirectory], Awaitable[object]]  # start its supervisor, unless it stands

    @property
    def is_ready(self) -> bool:
        """Whether an earlier making came to its end."""
        return self.record.phase == "ready"


Step = Callable[[Creation], Awaitable[None]]


async def make_directories(work: Creation) -> None:
    """Its root, and its supervisor's directory."""
    if not work.is_ready:
        await asyncio.to_thread(work.sandbox.make_directories)


async def write_hosts_file(work: Creation) -> None:
    """The names that it was told."""
    if not work.is_ready:
        await asyncio.to_thread(OwnedFiles(work.sandbox).write, "", [hosts_file(work.spec.peers)])


async def mark_ready(work: Creation) -> None:
    """From now on it stands."""
    if not work.is_ready:
        work.record = replace(work.record, phase="ready")
        work.sandbox.write(work.record)


async def start_supervisor(work: Creation) -> None:
    """Who runs its programs."""
    await work.ensure_supervisor(work.sandbox)


STEPS: tuple[Step, ...] = (make_directories, write_hosts_file, mark_ready, start_supervisor)


def hosts_file(peers: Sequence[Peer]) -> FileSpec:
    """The names of a project, as /etc/hosts has them."""
    for peer in peers:
        if not is_name(peer.name):
            raise HostFailure("refused", "no name of a peer")
        try:
            ipaddress.ip_address(peer.address)
        except ValueError:
            raise HostFailure("refused", "no address of a peer") from None
    lines = [f"{peer.address} {peer.name}\n" for peer in (Peer("localhost", LOOPBACK), *peers)]
    return FileSpec("/etc/hosts", "".join(lines).encode())
