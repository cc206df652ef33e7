"""Kills of the adapter: at which steps of which operations, and the state of the cluster afterwards.

A step has begun when a report names it. One report may name several steps, and no kill fits between those: one kill
counts for all steps of the newest report. Steps that only the last report names cannot be killed at: the operation
ends with that report.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mooring_sdk import models
from tests.e2e.slurm.cluster import VERSIONS, SlurmSite, SlurmTenant

ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True)
class ClusterSnapshot:
    """Version, health and members of a cluster: equal after the same operations, with or without kills."""

    version: str
    health: str
    members: Mapping[tuple[str, str, str], int]  # so many of each component, status and version

    @classmethod
    def of(cls, tenant: SlurmTenant, cluster: str) -> "ClusterSnapshot":
        instance = tenant.client.get_instance(tenant.project_id, cluster)
        found = tenant.client.iter_members(tenant.project_id, cluster, limit=100)
        members = Counter((each.component_key, each.status, each.version) for each in found if each.status != "removed")
        return cls(instance.version, str(instance.health), dict(members))

    def after(self, kind: str) -> "ClusterSnapshot":
        """The snapshot after an operation of this kind, however often its adapter dies."""
        version = {"upgrade": VERSIONS[1], "rollback": VERSIONS[0]}.get(kind, self.version)
        members = Counter({(key, status, version): count for (key, status, _), count in self.members.items()})
        members["worker", "ready", version] += {"add": 1, "remove": -1, "drain": -1}.get(kind, 0)
        if kind == "drain":
            members["worker", "drained", version] += 1
        return ClusterSnapshot(version, "healthy", dict(+members))


def reaches(place: SlurmSite, tenant: SlurmTenant, cluster: str, wanted: ClusterSnapshot) -> None:
    """Wait for this snapshot: health is updated one poll after the end of an operation."""
    seen = place.patiently(lambda _: ClusterSnapshot.of(tenant, cluster), lambda each: each == wanted)
    assert seen == wanted, place.said()


@dataclass
class KillCoverage:
    """The kills during one kind of operation, by the number of the step."""

    aims_at: int | None = None  # one kill at about this step is enough; None: one at each step
    steps: int = 0  # of the newest operation, at which a kill is possible
    deaths: Counter[int] = field(default_factory=Counter)
    missed: Counter[int] = field(default_factory=Counter)
    names: dict[int, str] = field(default_factory=dict)

    @property
    def wanted(self) -> list[int]:
        """The steps without a kill."""
        if self.aims_at is not None:
            return [] if self.deaths else [self.aims_at]
        return [each for each in range(1, max(self.steps, 1) + 1) if not self.deaths[each]]

    @property
    def aim(self) -> int:
        """The step to kill at next: the one that was missed least often."""
        return min(self.wanted, key=lambda each: (self.missed[each], each), default=0)

    def note(self, aim: int, killed_at: int, steps: Sequence[models.OperationStep]) -> None:
        """Record an ended operation whose adapter was killed when so many steps had begun; 0: it was not killed."""
        reported = [_first_reported(each) for each in steps]
        last = max((each.ended_at for each in steps if each.ended_at is not None), default=None)
        self.steps = sum(each != last for each in reported)
        self.names |= {number: each.name.partition("/")[0] for number, each in enumerate(steps, 1)}
        covered = [number for number, each in enumerate(reported, 1) if killed_at and each == reported[killed_at - 1]]
        self.deaths.update(covered)
        self.missed[aim] += aim not in covered

    def __str__(self) -> str:
        cells = [f"{each} {self.names.get(each, '')}: {self.deaths[each]}" for each in range(1, self.steps + 1)]
        return ", ".join(cells)


def _first_reported(step: models.OperationStep) -> datetime | None:
    """When a report named the step first."""
    return step.started_at or step.ended_at


def is_reached(tenant: SlurmTenant, cluster: str, operation_id: str, steps: int) -> bool:
    """Wait until so many steps of an operation have begun; whether it was still the adapter's turn then."""
    seen = tenant.client.get_operation(tenant.project_id, cluster, operation_id)
    while is_open(seen):
        if len(seen.steps) >= steps:
            return True
        seen = tenant.client.get_operation(tenant.project_id, cluster, operation_id, wait=20, changed_from=seen.etag)
    return False


def is_open(operation: models.Operation) -> bool:
    """Whether its adapter still has something to do."""
    return operation.status not in ENDED and operation.phase != "platform"


def kill_adapter_at_step(place: SlurmSite, tenant: SlurmTenant, cluster: str, operation_id: str, steps: int) -> int:
    """Kill the adapter at that step and start another; how many steps had begun, or 0 if the kill came too late.

    Whether it came in time is read while no adapter runs, so that none can end the operation meanwhile.
    """
    if not steps or not is_reached(tenant, cluster, operation_id, steps):
        return 0
    place.kill_adapters()
    left = tenant.client.get_operation(tenant.project_id, cluster, operation_id)
    place.start_adapter()
    return len(left.steps) if is_open(left) else 0
