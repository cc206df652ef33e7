"""What a cluster has on its machine, by the kernel's own tables: noted while it runs, and looked for afterwards.

Other sandboxes of the machine come and go meanwhile, and other clusters of the same agent stand: only what is this
cluster's is compared. A cable has a name of its own in whatever network it lies, and a socket a number that is not
given again.
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
from tests.e2e.cloud import Machine
from tests.e2e.traces import traces_of

NAMED_NETWORKS = Path("/run/netns")
NO_CABLE = {"lo", BRIDGE}


def network_number(way: str) -> int:
    """The kernel's number of a network."""
    return os.stat(way).st_ino


def ways() -> Iterator[tuple[str, int]]:
    """A way into every network of the machine, and since when it is there: by who is in it, has it open, or by a name.

    A network that nobody has by any of these is gone.
    """
    known: set[str] = set()
    for pid in proc.pids():
        if (process := namespace_processes.read(pid)) is None:
            continue
        opened = [(f"/proc/{pid}/fd/{number}", target) for number, target in proc.descriptors(pid)]
        for way, target in ((f"/proc/{pid}/ns/net", f"net:[{process.namespaces.get('net')}]"), *opened):
            if target.startswith("net:[") and target not in known:
                known.add(target)
                yield way, process.start
    if NAMED_NETWORKS.is_dir():
        yield from ((str(each), 0) for each in NAMED_NETWORKS.iterdir())


def socket_numbers(way: str) -> frozenset[int]:
    """The sockets of all kinds in a network."""
    return run_inside(way, lambda: frozenset(each.inode for each in proc.sockets()))


def own_paths() -> list[str]:
    """The files of the machine itself that are unix sockets."""
    return [each.path for each in proc.sockets("/proc/self/net") if each.path.startswith("/")]


@dataclass(frozen=True)
class Footprint:
    """The directories, ranges of users, groups, namespaces, cables and sockets of some sandboxes."""

    directories: tuple[Path, ...]
    users: Mapping[int, str]  # the first of each range, and the directory that held it
    registry: Path  # of the ranges of all agents of the machine
    groups: tuple[Path, ...]
    namespaces: frozenset[tuple[str, int]]
    links: frozenset[str]
    projects: frozenset[int]  # the networks where the other ends of the cables are
    sockets: frozenset[int]  # that its processes had open
    taken_at: int  # in the kernel's ticks: who came later may have been given a number that is free again

    @classmethod
    def of(cls, machine: Machine, allocations: Collection[str]) -> "Footprint":
        """As it is now."""
        host = NamespaceHost(machine.directory / "host", machine.node_id)
        records = [record for each in allocations if (record := host.store.load(each)) is not None]
        assert len(records) == len(allocations)
        users = {
            each.first_uid: str(host.store.sandbox(each.spec.allocation_id))
            for each in records
            if each.first_uid is not None
        }
        cabled = [each for each in records if not each.spec.network.machine]
        projects = {init_process.find_project_network(host.store, each.spec.network.name) for each in cabled}
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
            frozenset(network_number(each) for each in projects if each is not None),
            proc.socket_inodes([each.pid for each in within]),
            proc.ticks_now(),
        )

    def left(self) -> list[str]:
        """What of it is still there: files, mounts and disks, processes, control groups, namespaces, links, sockets."""
        found = [f"directory {each}" for each in self.directories if each.exists()]
        found += [f"group {each}" for each in self.groups if each.exists()]
        found += [trace for each in self.directories for trace in traces_of(each)]
        # A range that is free again may be given to a sandbox of anybody, who came or went during the survey as well.
        before, survey = uid_ranges.allocated(self.registry), namespace_processes.survey()
        after = uid_ranges.allocated(self.registry)
        own = [first for first, holder in self.users.items() if {before.get(first), after.get(first)} <= {holder, None}]
        # So may the number of a namespace; somebody older may be inside of one for a moment.
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
        """Cables and sockets in whatever network of the machine, and a project's network that nobody is on any more."""
        yield from (
            f"socket {path}" for path in own_paths() if any(path.startswith(f"{each}/") for each in self.directories)
        )
        for way, begun in ways():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                number, there = network_number(way), list_links(way)
                yield from (f"link {each} in net:{number}" for each in self.links.intersection(there))
                if number in self.projects and begun <= self.taken_at and set(there) <= NO_CABLE:
                    yield f"network net:{number} without a cable"
                yield from (f"socket {each} in net:{number}" for each in self.sockets & socket_numbers(way))


def is_of(process: namespace_processes.NamespaceProcess, ranges_of_users: Sequence[int]) -> bool:
    """Whether somebody of these ranges of users runs it."""
    return any(first <= process.uid < first + UIDS for first in ranges_of_users)
