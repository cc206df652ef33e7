"""How much a sandbox may read and write per second, by the control groups of block devices.

The budget is on the sandbox's own disk, or on that of the state directory if it has none. With cgroup v2 it covers
everything; with v1 the kernel writes what is buffered on its own account, so only reads and direct writes are counted.
Without a budget, sandboxes have equal weights with cgroup v2, if the machine's I/O scheduler knows weights.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.hosts.namespace.cgroups import CgroupHierarchies

_DEVICES: Final = Path("/sys/dev/block")
_UNLIMITED: Final = "not enforced: the agent is configured without an I/O budget"


@dataclass(frozen=True, slots=True)
class IoBudget:
    """Of reading and of writing, each; 0 for no limit."""

    bytes_per_second: int = 0
    operations_per_second: int = 0

    def __bool__(self) -> bool:
        return bool(self.bytes_per_second or self.operations_per_second)

    def __str__(self) -> str:
        parts = {"bytes/s": self.bytes_per_second, "operations/s": self.operations_per_second}
        return ", ".join(f"{value} {unit}" for unit, value in parts.items() if value)


def describe(hierarchies: CgroupHierarchies, budget: IoBudget) -> str:
    """What enforces it, in the facts of a sandbox."""
    if not {"io", "blkio"} & set(hierarchies.parents):
        return "not enforced: this machine has no io control group"
    if hierarchies.version == 2:
        return f"cgroup v2: {budget}" if budget else "cgroup v2: equal weights"
    return f"cgroup v1: {budget}, without buffered writes" if budget else _UNLIMITED


def files(hierarchies: CgroupHierarchies, groups: tuple[str, ...], budget: IoBudget) -> list[tuple[str, str]]:
    """What is written where for one device, which is named by `{device}`."""
    name = "io" if hierarchies.version == 2 else "blkio"
    parent = hierarchies.parents.get(name)
    group = next((Path(each) for each in groups if parent is not None and Path(each).is_relative_to(parent)), None)
    if group is None or not budget:
        return []
    if hierarchies.version == 2:
        limits = [f"{way}bps={budget.bytes_per_second}" for way in "rw" if budget.bytes_per_second]
        limits += [f"{way}iops={budget.operations_per_second}" for way in "rw" if budget.operations_per_second]
        return [(str(group / "io.max"), f"{{device}} {' '.join(limits)}")]
    wanted = {"bps": budget.bytes_per_second, "iops": budget.operations_per_second}
    return [
        (str(group / f"blkio.throttle.{way}_{kind}_device"), f"{{device}} {value}")
        for kind, value in wanted.items()
        for way in ("read", "write")
        if value
    ]


def device_of(directory: Path) -> str:
    """The whole disk, as `major:minor`, on which a directory is; empty if it is on none."""
    number = os.stat(directory).st_dev
    place = _DEVICES / f"{os.major(number)}:{os.minor(number)}"
    if (place / "partition").exists():
        place = place.resolve().parent
    try:
        return (place / "dev").read_text().strip()
    except OSError:
        return ""
