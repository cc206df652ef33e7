"""What a cluster has on its machine, by the kernel's own tables: noted while it runs, and looked for afterwards.

Other sandboxes of the machine come and go meanwhile, and other clusters of the same agent stand: only what is this
cluster's is compared.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.tests.namespace.standing import namespaces_of
from mooring_agent.hosts.namespace import NamespaceHost, processes, ranges
from mooring_agent.hosts.namespace.records import UIDS
from tests.e2e.cloud import Machine
from tests.e2e.traces import traces_of


@dataclass(frozen=True)
class Footprint:
    """The directories, ranges of users, groups and namespaces of some sandboxes."""

    directories: tuple[Path, ...]
    users: Mapping[int, str]  # the first of each range, and the directory that held it
    registry: Path  # of the ranges of all agents of the machine
    groups: tuple[Path, ...]
    namespaces: frozenset[tuple[str, int]]
    taken_at: int  # in the kernel's ticks: who came later may have been given a number that is free again

    @classmethod
    def of(cls, machine: Machine, allocations: Collection[str]) -> "Footprint":
        """As it is now."""
        host = NamespaceHost(machine.directory / "host", machine.node_id)
        records = [record for each in allocations if (record := host.places.load(each)) is not None]
        assert len(records) == len(allocations)
        users = {
            each.first_uid: str(host.places.sandbox(each.spec.allocation_id))
            for each in records
            if each.first_uid is not None
        }
        return cls(
            tuple(host.places.sandbox(each) for each in allocations),
            users,
            host.places.registry,
            tuple(Path(group) for each in records for group in each.cgroups),
            frozenset(item for each in allocations for item in namespaces_of(host, each)),
            processes.ticks_now(),
        )

    def left(self) -> list[str]:
        """What of it is still there: files, mounts and disks, processes, control groups, namespaces."""
        found = [f"directory {each}" for each in self.directories if each.exists()]
        found += [f"group {each}" for each in self.groups if each.exists()]
        found += [trace for each in self.directories for trace in traces_of(each)]
        # A range that is free again may be given to a sandbox of anybody, who came or went during the survey as well.
        before, survey = ranges.given(self.registry), processes.survey()
        after = ranges.given(self.registry)
        own = [first for first, holder in self.users.items() if {before.get(first), after.get(first)} <= {holder, None}]
        for each in survey:
            if any(first <= each.uid < first + UIDS for first in own):
                found.append(f"process {each.pid} {each.name}")
            if each.start <= self.taken_at:
                spaces = self.namespaces.intersection(each.namespaces.items())
                found += [f"namespace {kind}:{number} of {each.pid} {each.name}" for kind, number in spaces]
        return found
