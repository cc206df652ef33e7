"""The namespace host, as the agent sees it.

Changes of the machine run in threads, one at a time per allocation; what happens inside a sandbox is requested from the
supervisor of the owner concerned. The host keeps nothing in memory that it could not find again on disk.
"""

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import os
import re
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts import contract
from mooring_agent.hosts.contract import (
    FileSpec,
    HostFailure,
    Owner,
    Peer,
    SandboxFacts,
    SandboxSpec,
    TeardownReport,
)
from mooring_agent.hosts.namespace import (
    cgroups,
    create,
    destroy,
    init_process,
    namespace_processes,
    owner_files,
    project_network,
    rule_monitor,
    sandbox_disk,
    sweep,
)
from mooring_agent.hosts.namespace.create import Machine
from mooring_agent.hosts.namespace.io_budget import IoBudget
from mooring_agent.hosts.namespace.machine_network import MachineNetwork
from mooring_agent.hosts.namespace.sandbox_records import InitProcess, SandboxRecord, SandboxStore, sandbox_owner
from mooring_agent.hosts.namespace.supervised_programs import SupervisedPrograms
from mooring_agent.hosts.streams import SocketStream
from mooring_agent.kernel import proc
from mooring_agent.supervisor.log_room import RESERVE_BYTES

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

CONNECT_SECONDS: Final = 10.0
_HOSTNAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_DEFAULT_REGISTRY: Final = Path("/var/lib/mooring-agent/uid-ranges")


class NamespaceHost(SupervisedPrograms):
    """The namespace sandboxes of one agent on this machine."""

    kind: contract.HostKind = "namespace"

    def __init__(
        self,
        directory: Path,
        node_id: str,
        registry: Path = _DEFAULT_REGISTRY,
        *,
        disk_bytes: int = sandbox_disk.DISK_BYTES,
        reserve_bytes: int = RESERVE_BYTES,
        address: str = LOOPBACK,
        machine_network: MachineNetwork | None = None,
        io: IoBudget | None = None,
        added_usr: tuple[str, ...] = (),
    ) -> None:
        label = hashlib.sha256(f"{node_id}\n{directory}".encode()).hexdigest()[:12]
        if disk_bytes and disk_bytes < sandbox_disk.DISK_BYTES_MIN:
            raise ValueError(f"a sandbox's disk needs at least {sandbox_disk.DISK_BYTES_MIN} bytes")
        store = SandboxStore(directory.absolute(), label, registry, reserve_bytes, added_usr)
        network = machine_network or MachineNetwork()
        self.machine = Machine(
            store, cgroups.detect(), threading.Lock(), disk_bytes, address, network, io or IoBudget()
        )
        self.store.make()
        self.create_steps = create.STEPS
        self.destroy_steps = destroy.STEPS
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._open_streams: dict[str, weakref.WeakSet[SocketStream]] = {}

    @property
    def store(self) -> SandboxStore:
        return self.machine.store

    def network_path(self, allocation_id: str) -> str:
        """A path by which another program can join the sandbox's network."""
        return f"/proc/{self._init(allocation_id).pid}/ns/net"

    def uid_base(self, allocation_id: str) -> int | None:
        """The first uid of the sandbox's range; none if it has no range of its own."""
        return self._record(allocation_id).first_uid

    def spec_of(self, allocation_id: str) -> SandboxSpec:
        return self._record(allocation_id).spec

    def device_paths(self, allocation_id: str) -> tuple[str, ...]:
        """The device files of the machine that belong to the sandbox; simulated GPUs have none."""
        nodes = init_process.devices(self._record(allocation_id).spec.devices)
        return tuple(node["source"] for node in nodes if node["source"])

    def _lock(self, allocation_id: str) -> asyncio.Lock:
        return self._locks.setdefault(allocation_id, asyncio.Lock())

    def _record(self, allocation_id: str) -> SandboxRecord:
        record = self.store.load(allocation_id)
        if record is None or record.status == "destroying":
            raise HostFailure("not_found", f"{allocation_id} has no sandbox here")
        return record

    def _init(self, allocation_id: str) -> InitProcess:
        init = init_process.find_living(self.store, sandbox_owner(allocation_id))
        if init is None:
            raise HostFailure("not_found", f"the sandbox of {allocation_id} is not running")
        return init

    # --- sandboxes ---

    async def recover(self) -> Sequence[str]:
        """After a start of the agent: complete what was begun, remove what never existed, return what is running."""
        standing = []
        for allocation_id in self.store.allocations():
            async with self._lock(allocation_id):
                if await _in_thread(self._recover_one, allocation_id):
                    standing.append(allocation_id)
        await _in_thread(sweep.sweep_unrecorded, self.machine)
        for name in {self._record(each).spec.network.name for each in standing}:
            await _in_thread(create.update_host_entries, self.machine, name)
        return standing

    def _recover_one(self, allocation_id: str) -> bool:
        for owner in self.store.owners(allocation_id):
            init_process.wait_for_spawn(self.store.owner(owner))
        record = self.store.load(allocation_id)
        if record is None:
            sweep.remove_unrecorded(self.machine, allocation_id)
            return False
        if record.status == "creating":
            # A sandbox that cannot be completed stays as it is; the next request for it reports why.
            with contextlib.suppress(HostFailure):
                record = create.run_steps(self.machine, record, self.create_steps)
        create.restore_network(self.machine, allocation_id)
        return (
            record.status == "standing"
            and init_process.find_living(self.store, sandbox_owner(allocation_id)) is not None
        )

    async def create(self, spec: SandboxSpec) -> SandboxFacts:
        """Create the sandbox, or return the state of an existing one; a partly created one is completed."""
        _check(spec)
        async with self._lock(spec.allocation_id):
            return await _in_thread(self._create, spec)

    def _create(self, spec: SandboxSpec) -> SandboxFacts:
        record = self.store.load(spec.allocation_id)
        if record is None:
            record = create.record_intent(self.machine, spec)
        if record.status == "destroying":
            raise HostFailure("refused", f"the sandbox of {spec.allocation_id} is being destroyed")
        if record.status == "standing":
            if init_process.find_living(self.store, sandbox_owner(spec.allocation_id)) is None:
                raise HostFailure("interrupted", "the sandbox ended with the machine's last boot; destroy it first")
            return create.facts(record)
        return create.facts(create.run_steps(self.machine, record, self.create_steps))

    async def set_peers(self, allocation_id: str, peers: Sequence[Peer]) -> None:
        """Set the names that this sandbox resolves in addition to those of its project on this machine."""

        def change() -> None:
            record = self._record(allocation_id)
            self._init(allocation_id)
            self.store.save(replace(record, spec=replace(record.spec, peers=tuple(peers))))
            refused = create.update_host_entries(self.machine, record.spec.network.name)
            if allocation_id in refused:
                raise refused[allocation_id]

        async with self._lock(allocation_id):
            await _in_thread(change)

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        """Write files below the sandbox's root and record their owner; returns how many."""
        async with self._lock(owner.allocation_id):
            return await _in_thread(owner_files.write, self.store, self._record(owner.allocation_id), owner, files)

    async def watch(self) -> None:
        """Until cancelled: load the rules of routed sandboxes again as soon as somebody flushes them."""
        async for _ in rule_monitor.changes(self.machine.network.namespace):
            for allocation_id in await _in_thread(create.lacks_rules, self.machine):
                log.warning("somebody removed rules of %s from the machine; loading them again", allocation_id)
                async with self._lock(allocation_id):
                    await _in_thread(create.restore_network, self.machine, allocation_id)

    # --- reaching in ---

    async def dial(self, allocation_id: str, port: int) -> SocketStream:
        """Connect to a port inside the sandbox's own network, and nowhere else."""
        if not 0 < port < 65536:
            raise HostFailure("refused", "a port must be 1 to 65535")
        record, init = self._record(allocation_id), self._init(allocation_id)
        namespace = f"/proc/{init.pid}/ns/net"
        if record.shares_network and port not in await _in_thread(self._own_ports, allocation_id):
            raise HostFailure("not_found", f"nothing in the sandbox accepts connections on port {port}")
        addresses = [record.spec.network.address] if record.spec.network.address else []
        for address in (LOOPBACK, *addresses, "::1"):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with contextlib.suppress(OSError, TimeoutError):
                connection = await _in_thread(
                    project_network.run_inside, namespace, lambda family=family: socket.socket(family)
                )
                stream = await _connect(connection, address, port)
                self._open_streams.setdefault(allocation_id, weakref.WeakSet()).add(stream)
                return stream
        raise HostFailure("not_found", f"nothing in the sandbox accepts connections on port {port}")

    def _own_ports(self, allocation_id: str) -> set[int]:
        """The ports that the sandbox's processes listen on, where it uses the machine's network."""
        number = self._init(allocation_id).namespaces["uts"]
        inside = [each for each in namespace_processes.survey() if each.namespaces.get("uts") == number]
        inodes = proc.socket_inodes([each.pid for each in inside])
        return {each.port for each in proc.sockets("/proc/self/net") if each.port and each.inode in inodes}

    async def _close_streams(self, allocation_id: str) -> None:
        """Close our own connections into a sandbox, which would keep its network alive."""
        for stream in list(self._open_streams.pop(allocation_id, ())):
            await stream.close()

    # --- teardown ---

    async def close_owner(self, owner: Owner) -> TeardownReport:
        """Kill and remove everything of one owner, then inspect; other owners are not affected."""
        if not owner.label:
            return await self.destroy(owner.allocation_id)
        async with self._lock(owner.allocation_id):
            record = self.store.load(owner.allocation_id)
            if record is None:
                return await _in_thread(destroy.destroy_unknown, self.machine, owner.allocation_id)
            return await _in_thread(destroy.close_owner, self.machine, record, owner)

    async def destroy(self, allocation_id: str) -> TeardownReport:
        """Kill and remove everything of the allocation, then inspect."""
        async with self._lock(allocation_id):
            await self._close_streams(allocation_id)
            record = self.store.load(allocation_id)
            if record is None:
                return await _in_thread(destroy.destroy_unknown, self.machine, allocation_id)
            return await _in_thread(destroy.destroy, self.machine, record, self.destroy_steps)

    async def sweep(self, known: Collection[str]) -> Sequence[contract.Stray]:
        """Compare the machine with the allocations that the platform knows; reap what is ours and unknown."""
        strays: list[contract.Stray] = []
        for allocation_id in self.store.allocations():
            resource = contract.Resource("files", str(self.store.sandbox(allocation_id)))
            record = self.store.load(allocation_id)
            if allocation_id not in known:
                found = await self.destroy(allocation_id)
                # What is still there is held by a process of the machine that is not ours.
                held = [contract.Stray(each, "foreign", allocation_id) for each in found.remaining]
                strays += [contract.Stray(resource, "reaped", allocation_id), *held]
            elif record is not None and record.status == "creating" and not self._lock(allocation_id).locked():
                async with self._lock(allocation_id):
                    await _in_thread(self._recover_one, allocation_id)
                strays.append(contract.Stray(resource, "adopted", allocation_id))
            elif record is not None and record.is_routed and not self._lock(allocation_id).locked():
                async with self._lock(allocation_id):
                    await _in_thread(create.restore_network, self.machine, allocation_id)
        return [*strays, *await _in_thread(sweep.sweep_unrecorded, self.machine)]


async def _in_thread(action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run in a thread and wait for its end even if the caller is cancelled: the lock must be held until then."""
    work = asyncio.ensure_future(asyncio.to_thread(action, *arguments, **named))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise


async def _connect(connection: socket.socket, address: str, port: int) -> SocketStream:
    connection.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except (OSError, TimeoutError):
        connection.close()
        raise
    return SocketStream(connection)


def _check(spec: SandboxSpec) -> None:
    """Refuse specifications that cannot be applied."""
    if os.geteuid() != 0:
        raise HostFailure("permission_denied", "only root can create namespaces with a uid range")
    if spec.isolation not in ("user_namespace", "bounded"):
        raise HostFailure("refused", f"this host does not support the isolation {spec.isolation!r}")
    if not _HOSTNAME.fullmatch(spec.hostname):
        raise HostFailure("refused", f"{spec.hostname!r} is not a host name")
    if spec.cpus <= 0 or spec.memory_bytes <= 0 or spec.pids <= 0:
        raise HostFailure("refused", "limits must be above zero")
    if not spec.network.machine:
        try:
            inside = ipaddress.ip_address(spec.network.address) in ipaddress.ip_network(spec.network.subnet)
        except ValueError as problem:
            raise HostFailure("refused", str(problem)) from problem
        if not inside or not spec.network.name:
            raise HostFailure("refused", "the address is outside the project's network")
