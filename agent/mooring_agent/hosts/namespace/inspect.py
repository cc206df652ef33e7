"""Inspecting the machine: what exists of a sandbox, or of one owner in it.

An inspection trusts no record about the present: it reads the kernel's own tables. What it searches for
(`SandboxTraces`) comes from records that were written before anything was created: namespace numbers, a uid range, a
directory, a link, control groups.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import RESOURCE_KINDS, HostFailure, Resource
from mooring_agent.hosts.namespace import (
    cgroups,
    namespace_processes,
    nft_tables,
    project_network,
    root_filesystem,
)
from mooring_agent.hosts.namespace.machine_network import RoutedLink
from mooring_agent.hosts.namespace.namespace_processes import NamespaceGuard, NamespaceProcess
from mooring_agent.hosts.namespace.sandbox_records import UIDS, InitProcess
from mooring_agent.kernel import proc

_TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm", "/run")


@dataclass(frozen=True, slots=True)
class SandboxTraces:
    allocation_id: str
    label: str | None  # none means the whole sandbox
    directory: Path
    namespaces: frozenset[tuple[str, int]]  # only its own, none that it shares
    files: tuple[Path, ...]
    first_uid: int | None = None
    link: str = ""
    machine_link: RoutedLink | None = None  # of a sandbox that is routed through the machine
    machine_namespace: str = "/proc/self/ns/net"
    project_links: Callable[[], list[str]] = list  # of the network where its veth pair ends
    cgroups: tuple[str, ...] = ()
    killed_at: int | None = None
    sockets: frozenset[int] = frozenset()  # inodes that its processes had open
    inits: tuple[InitProcess, ...] = ()  # whose supervisors, outside of its namespaces, belong to it too


@dataclass(slots=True)
class MachineSnapshot:
    """The result of one inspection."""

    resources: list[Resource] = field(default_factory=list)
    looked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESOURCE_KINDS, 0))
    not_looked: list[str] = field(default_factory=list)
    processes: list[NamespaceProcess] = field(default_factory=list)

    def add(self, kind: str, names: Iterable[str]) -> None:
        self.resources += [Resource(kind, name) for name in names]


def inspect_machine(traces: SandboxTraces, guard: NamespaceGuard) -> MachineSnapshot:
    """Inspect everything that this host creates; containers are inspected by their own tasks."""
    return _inspect(traces, guard, namespace_processes.survey())


def inspect_with_sockets(traces: SandboxTraces, guard: NamespaceGuard) -> tuple[MachineSnapshot, frozenset[int]]:
    """Inspect, and also return the sockets that the found processes have open.

    In a shared network only the process that holds a socket shows whose it is, so later inspections search for the
    sockets found here.
    """
    processes = namespace_processes.survey()
    held = proc.socket_inodes([each.pid for each in _select_processes(traces, processes)])
    return _inspect(replace(traces, sockets=held), guard, processes), held


def _inspect(traces: SandboxTraces, guard: NamespaceGuard, processes: list[NamespaceProcess]) -> MachineSnapshot:
    snapshot = MachineSnapshot()
    snapshot.looked["processes"] = len(processes)
    snapshot.processes = _select_processes(traces, processes)
    snapshot.add("processes", (f"{each.pid} {each.name}" for each in snapshot.processes))
    _inspect_namespaces(traces, snapshot, processes, guard)
    _inspect_mounts(traces, snapshot, processes)
    _inspect_links(traces, snapshot, guard)
    _inspect_sockets(traces, snapshot, guard)
    _inspect_cgroups(traces, snapshot)
    _inspect_files(traces, snapshot)
    return snapshot


def processes_of(traces: SandboxTraces) -> list[NamespaceProcess]:
    """Only the processes; a full inspection reads everything that any process has open."""
    return _select_processes(traces, namespace_processes.survey())


def _select_processes(traces: SandboxTraces, processes: list[NamespaceProcess]) -> list[NamespaceProcess]:
    found = []
    grouped = set(cgroups.members(traces.cgroups))
    grouped |= {each.pid for each in namespace_processes.find_supervisors(traces.inits)}
    for each in processes:
        if each.pid == os.getpid():
            continue
        in_range = traces.first_uid is not None and traces.first_uid <= each.uid < traces.first_uid + UIDS
        inside = not traces.namespaces.isdisjoint(each.namespaces.items())
        if traces.killed_at is not None and each.start > traces.killed_at:
            inside = False  # its namespace number was reused
        if in_range or inside or each.pid in grouped:
            found.append(each)
    return found


def _inspect_namespaces(
    traces: SandboxTraces, snapshot: MachineSnapshot, processes: list[NamespaceProcess], guard: NamespaceGuard
) -> None:
    """A namespace lives as long as a process is in it or has it open, or a mount holds it."""
    found: set[tuple[str, int]] = set()
    for each in processes:
        snapshot.looked["namespaces"] += len(each.namespaces)
        ours = each in snapshot.processes
        found.update(item for item in each.namespaces.items() if ours and item in traces.namespaces)
    own_descriptors = set(guard.held.values())
    if not guard.held and traces.killed_at is not None:
        # After a crash nothing kept the numbers from being reused: what is held open now may be anybody's.
        snapshot.add("namespaces", (f"{kind}:[{number}]" for kind, number in sorted(found)))
        return
    for pid in {each.pid for each in processes}:
        for descriptor, target in proc.descriptors(pid):
            number = proc.parse_namespace(target)
            if number is not None and not (pid == os.getpid() and descriptor in own_descriptors):
                snapshot.looked["namespaces"] += 1
                if number in traces.namespaces:
                    found.add(number)
    for mount in _all_mounts(processes):
        number = proc.parse_namespace(mount.root)
        if number is not None:
            snapshot.looked["namespaces"] += 1
            if number in traces.namespaces:
                found.add(number)
    snapshot.add("namespaces", (f"{kind}:[{number}]" for kind, number in sorted(found)))


def _all_mounts(processes: list[NamespaceProcess]) -> Iterator[proc.Mount]:
    known: set[int] = set()
    for each in processes:
        number = each.namespaces.get("mnt")
        if number is None or number in known:
            continue
        found = proc.mounts(each.pid)
        if found:  # empty if the process has just ended; another one may show the same namespace
            known.add(number)
            yield from found


def _inspect_mounts(traces: SandboxTraces, snapshot: MachineSnapshot, processes: list[NamespaceProcess]) -> None:
    """Mounts that show a file of the sandbox, are on its disk, or are below its directory."""
    found = set()
    disks = _disks_below(traces.directory)
    for mount in _all_mounts(processes):
        snapshot.looked["mounts"] += 1
        if mount.device in disks or any(_is_below(each, traces.directory) for each in (mount.root, mount.target)):
            found.add(mount.target)
    snapshot.add("mounts", sorted(found))


def _disks_below(directory: Path) -> set[str]:
    """The device numbers of the loop devices whose file is below the directory."""
    found = set()
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):
            backing = (device / "loop" / "backing_file").read_text().rstrip("\n").removesuffix(" (deleted)")
            if _is_below(backing, directory):
                found.add((device / "dev").read_text().strip())
    return found


def _is_below(path: str, directory: Path) -> bool:
    return path == str(directory) or path.startswith(f"{directory}/")


def _inspect_links(traces: SandboxTraces, snapshot: MachineSnapshot, guard: NamespaceGuard) -> None:
    if traces.label is not None:
        return
    store: list[tuple[Callable[[], list[str]], str]] = [
        (traces.project_links, traces.link),
        (partial(project_network.list_links, traces.machine_namespace), traces.link),
    ]
    if (routed := traces.machine_link) is not None:
        if routed.name != traces.link:
            store.append((partial(project_network.list_links, traces.machine_namespace), routed.name))
        store.append((partial(nft_tables.list_tables, traces.machine_namespace), routed.table))
    for kind, number in traces.namespaces:
        path = guard.path(kind, number) if kind == "net" else None
        if path is not None:
            store.append((partial(project_network.list_links, path), "eth0"))
    for links, wanted in store:
        try:
            present = links()
        except FileNotFoundError:
            continue
        except (OSError, HostFailure):
            snapshot.not_looked.append("links")
            continue
        snapshot.looked["links"] += len(present)
        snapshot.add("links", (name for name in present if name == wanted))


def _inspect_sockets(traces: SandboxTraces, snapshot: MachineSnapshot, guard: NamespaceGuard) -> None:
    ours: list[proc.Socket] = []
    for each in proc.sockets("/proc/self/net"):
        snapshot.looked["sockets"] += 1
        snapshot.looked["ports"] += each.port is not None
        if each.path.startswith(f"{traces.directory}/") or each.inode in traces.sockets:
            ours.append(each)
    for kind, number in traces.namespaces:
        path = guard.path(kind, number) if kind == "net" else None
        if path is None:
            continue
        inside = project_network.run_inside(path, lambda: list(proc.sockets()))
        snapshot.looked["sockets"] += len(inside)
        snapshot.looked["ports"] += sum(each.port is not None for each in inside)
        # A socket that nobody has open belongs to the kernel, and ends with its namespace.
        ours += [each for each in inside if each.inode]
    snapshot.add("sockets", (each.name for each in ours))
    snapshot.add("ports", sorted({f"{each.table} {each.port}" for each in ours if each.port is not None}))


def _inspect_cgroups(traces: SandboxTraces, snapshot: MachineSnapshot) -> None:
    snapshot.looked["cgroups"] = len(traces.cgroups)
    snapshot.add("cgroups", (each.removeprefix("/sys/fs/cgroup/") for each in cgroups.existing(traces.cgroups)))


def _inspect_files(traces: SandboxTraces, snapshot: MachineSnapshot) -> None:
    snapshot.looked["files"] = len(traces.files)
    # Tenants read this, and the agent's paths are none of their business.
    state = traces.directory.parent if traces.label is None else traces.directory.parents[2]
    snapshot.add("files", (str(each.relative_to(state)) for each in traces.files if os.path.lexists(each)))
    if traces.first_uid is not None and traces.label is None:
        found, looked = root_filesystem.find_owned_below(_TEMPORARY, traces.first_uid, UIDS)
        snapshot.looked["files"] += looked
        snapshot.add("files", found)
