"""The footprint of a cluster on its machine, from the kernel's tables: recorded while it runs, looked for afterwards.

Other sandboxes of the machine come and go meanwhile, and other clusters of the same agent exist: only what belongs to
this cluster is compared. A veth link has a unique name in every network namespace, and a socket's inode is not reused.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.tests.support.namespace_sandboxes import namespaces_of
from mooring_agent.hosts.namespace import NamespaceHost, init_process, namespace_processes, uid_ranges
from mooring_agent.hosts.namespace.project_network import BRIDGE, list_links, run_inside
from mooring_agent.hosts.namespace.sandbox_records import UIDS
from mooring_agent.kernel import proc
from tests.e2e.agent_platform import AgentMachine
from tests.e2e.leftovers import leftovers_of

NAMED_NETWORKS = Path("/run/netns")
NO_CABLE = {"lo", BRIDGE}


def network_number(path: str) -> int:
    """The inode of a network namespace."""
    return os.stat(path).st_ino


def network_paths() -> Iterator[tuple[str, int]]:
    """A path to every network namespace of the machine, and its age: by a process in it, an open file, or a name.

    A namespace without any of these is gone.
    """
    known: set[str] = set()
    for pid in proc.pids():
        if (process := namespace_processes.read(pid)) is None:
            continue
        opened = [(f"/proc/{pid}/fd/{number}", target) for number, target in proc.descriptors(pid)]
        for path, target in ((f"/proc/{pid}/ns/net", f"net:[{process.namespaces.get('net')}]"), *opened):
            if target.startswith("net:[") and target not in known:
                known.add(target)
                yield path, process.start
    if NAMED_NETWORKS.is_dir():
        yield from ((str(each), 0) for each in NAMED_NETWORKS.iterdir())


def socket_numbers(path: str) -> frozenset[int]:
    """The inodes of all sockets in a network namespace."""
    return run_inside(path, lambda: frozenset(each.inode for each in proc.sockets()))


def own_paths() -> list[str]:
    """The paths of the unix sockets of the machine itself."""
    return [each.path for each in proc.sockets("/proc/self/net") if each.path.startswith("/")]


@dataclass(frozen=True)
class SandboxFootprint:
    """The directories, uid ranges, control groups, namespaces, links and sockets of some sandboxes."""

    directories: tuple[Path, ...]
    users: Mapping[int, str]  # the first uid of each range, and the directory that held it
    registry: Path  # of the uid ranges of all agents of the machine
    groups: tuple[Path, ...]
    namespaces: frozenset[tuple[str, int]]
    links: frozenset[str]
    projects: frozenset[int]  # the network namespaces with the other ends of the links
    sockets: frozenset[int]  # that the processes had open
    taken_at: int  # in clock ticks: later processes may reuse a freed number

    @classmethod
    def of(cls, machine: AgentMachine, allocations: Collection[str]) -> "SandboxFootprint":
        host = NamespaceHost(machine.directory / "host", machine.node_id)
        records = [record for each in allocations if (record := host.store.load(each)) is not None]
        assert len(records) == len(allocations)
        users = {
            each.first_uid: str(host.store.sandbox(each.spec.allocation_id))
            for each in records
            if each.first_uid is not None
        }
        cabled = [each for each in records if not each.shares_network]
        members = [each for each in records if not each.spec.network.machine]
        projects = {init_process.find_project_network(host.store, each.spec.network.name) for each in members}
        assert None not in projects
        namespaces = frozenset(item for each in allocations for item in namespaces_of(host, each))
        within = [each for each in namespace_processes.survey() if namespaces.intersection(each.namespaces.items())]
        return cls(
            tuple(host.store.sandbox(each) for each in allocations),
            users,
            host.store.registry,
            tuple(Path(group) for each in records for group in each.cgroups),
            namespaces,
            frozenset(each.link for each in cabled),
            frozenset(network_number(each.path) for each in projects if each is not None),
            proc.socket_inodes([each.pid for each in within]),
            proc.ticks_now(),
        )

    def left(self) -> list[str]:
        """What is left: files, mounts and disks, processes, control groups, namespaces, links, sockets."""
        found = [f"directory {each}" for each in self.directories if each.exists()]
        found += [f"group {each}" for each in self.groups if each.exists()]
        found += [trace for each in self.directories for trace in leftovers_of(each)]
        # A freed uid range may be given to another sandbox, also during the survey.
        before, survey = uid_ranges.allocated(self.registry), namespace_processes.survey()
        after = uid_ranges.allocated(self.registry)
        own = [first for first, holder in self.users.items() if {before.get(first), after.get(first)} <= {holder, None}]
        # So may the number of a namespace; an older process may enter one for a moment.
        given = {
            item
            for each in survey
            if each.start > self.taken_at and not is_of(each, own)
            for item in each.namespaces.items()
        }
        for each in survey:
            if is_of(each, own):
                found.append(f"process {each.pid} {each.name}")
            if each.start <= self.taken_at:
                spaces = (self.namespaces - given).intersection(each.namespaces.items())
                found += [f"namespace {kind}:{number} of {each.pid} {each.name}" for kind, number in spaces]
        return [*found, *self._left_in_networks()]

    def _left_in_networks(self) -> Iterator[str]:
        """Links and sockets in any network namespace, and project networks that are no longer used."""
        yield from (
            f"socket {path}" for path in own_paths() if any(path.startswith(f"{each}/") for each in self.directories)
        )
        for path, begun in network_paths():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                number, there = network_number(path), list_links(path)
                yield from (f"link {each} in net:{number}" for each in self.links.intersection(there))
                if number in self.projects and begun <= self.taken_at and set(there) <= NO_CABLE:
                    yield f"network net:{number} without a cable"
                yield from (f"socket {each} in net:{number}" for each in self.sockets & socket_numbers(path))


def is_of(process: namespace_processes.NamespaceProcess, ranges_of_users: Sequence[int]) -> bool:
    """Whether a user of these uid ranges runs it."""
    return any(first <= process.uid < first + UIDS for first in ranges_of_users)
