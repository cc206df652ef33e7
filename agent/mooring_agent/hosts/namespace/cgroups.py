"""Resource limits of a sandbox: control groups where the machine has them, and weaker substitutes elsewhere.

Three kinds of machines are distinguished: a unified hierarchy with controllers (v2), a hierarchy per controller (v1,
also if a v2 without controllers is mounted beside them), and none. Groups are created below the agent's own group (v1)
or below the root of the hierarchy (v2, where a group with processes may have no child groups with controllers), and are
named by the agent's label and the allocation. For each limit the result says what enforces it, or that nothing does.
"""

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import SandboxSpec
from mooring_agent.kernel import proc

PERIOD_MICROSECONDS: Final = 100_000
_TCP_SHARE: Final = 4
V2: Final = Path("/sys/fs/cgroup")
_DEVICES: Final = (
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
)
_CONTROLLERS: Final = ("memory", "pids", "cpu", "devices", "blkio")
_WITHOUT_CGROUP: Final = {
    "memory": "not enforced: this machine has no memory control group",
    "cpu": "not enforced: this machine has no cpu control group",
    "pids": "RLIMIT_NPROC",
    "devices": "private /dev, no mknod",
}


@dataclass(frozen=True, slots=True)
class CgroupHierarchies:
    """Which controllers can be used, and the directory below which our groups are created."""

    version: int  # 2, 1, or 0 for none
    parents: Mapping[str, Path]


def detect() -> CgroupHierarchies:
    with contextlib.suppress(OSError):
        controllers = (V2 / "cgroup.controllers").read_text().split()
        usable: dict[str, Path] = {name: V2 for name in ("memory", "pids", "cpu", "io") if name in controllers}
        if usable:
            return CgroupHierarchies(2, usable)
    mounted: dict[str, Path] = {}
    for mount in proc.mounts():
        if mount.kind == "cgroup":
            for name in set(mount.options.split(",")) & set(_CONTROLLERS):
                mounted[name] = Path(mount.target)
    own_groups: dict[str, str] = {}
    for line in proc.cgroups("self"):
        _, names, path = line.split(":", 2)
        own_groups.update(dict.fromkeys(names.split(","), path.lstrip("/")))
    parents = {name: place / own_groups[name] for name, place in mounted.items() if name in own_groups}
    return CgroupHierarchies(1 if parents else 0, parents)


def plan(hierarchies: CgroupHierarchies, label: str, allocation_id: str) -> tuple[str, ...]:
    """The groups that a sandbox will have; they are recorded before they are created."""
    return tuple(
        dict.fromkeys(str(parent / f"mooring-{label}" / allocation_id) for parent in hierarchies.parents.values())
    )


def create(
    hierarchies: CgroupHierarchies, groups: tuple[str, ...], spec: SandboxSpec, devices: tuple[str, ...]
) -> dict[str, str]:
    """Create the groups and set their limits; returns what enforces each limit."""
    limits: dict[str, str] = dict(_WITHOUT_CGROUP)
    for name, parent in hierarchies.parents.items():
        group = next(Path(each) for each in groups if Path(each).is_relative_to(parent))
        try:
            if hierarchies.version == 2:
                _enable(parent, group.parent, name)
            group.mkdir(parents=True, exist_ok=True)
            _set(hierarchies.version, name, group, spec, devices)
        except OSError as problem:
            limits[name] = f"not enforced: {problem.strerror}"
        else:
            limits[name] = f"cgroup v{hierarchies.version}"
    for name in ("io", "blkio"):  # `io_budget` says what becomes of it
        limits.pop(name, None)
    return limits


def _enable(root: Path, parent: Path, name: str) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    for each in (root, parent):
        (each / "cgroup.subtree_control").write_text(f"+{name}")


def _set(version: int, name: str, group: Path, spec: SandboxSpec, devices: tuple[str, ...]) -> None:
    quota = max(1_000, int(spec.cpus * PERIOD_MICROSECONDS))
    if name == "memory" and version == 2:
        (group / "memory.max").write_text(str(spec.memory_bytes))
        with contextlib.suppress(FileNotFoundError):
            (group / "memory.swap.max").write_text("0")
    elif name == "memory":
        _set_v1_memory(group, spec.memory_bytes)
    elif name == "pids":
        (group / "pids.max").write_text(str(spec.pids))
    elif name == "cpu" and version == 2:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
    elif name == "cpu":
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    elif name == "devices":
        (group / "devices.deny").write_text("a")
        for device in (*_DEVICES, *devices):
            (group / "devices.allow").write_text(device)


def _set_v1_memory(group: Path, size: int) -> None:
    limit, with_swap = group / "memory.limit_in_bytes", group / "memory.memsw.limit_in_bytes"
    try:
        limit.write_text(str(size))
    except OSError as problem:
        # Lowering works in the opposite order: the limit with swap may not be below the one without.
        if problem.errno != errno.EINVAL:
            raise
    with contextlib.suppress(FileNotFoundError):
        with_swap.write_text(str(size))
    limit.write_text(str(size))
    # Otherwise what waits in TCP connections counts for nobody, and one sandbox can take what all of the machine's may.
    with contextlib.suppress(FileNotFoundError):
        (group / "memory.kmem.tcp.limit_in_bytes").write_text(str(min(size // 2, tcp_bytes() // _TCP_SHARE)))


def tcp_bytes() -> int:
    """How much memory the kernel gives to all TCP connections of the machine before it slows them down."""
    pages = int(Path("/proc/sys/net/ipv4/tcp_mem").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def remove(groups: tuple[str, ...]) -> None:
    """Remove the groups, children first, and the agent's own group when it is empty."""
    for each in groups:
        group = Path(each)
        for directory, _, _ in os.walk(group, topdown=False):
            _remove_group(Path(directory))
        with contextlib.suppress(OSError):
            group.parent.rmdir()


def _remove_group(group: Path, attempts: int = 100) -> None:
    """Remove one group. It stays busy for a moment after its last process was killed."""
    for _ in range(attempts):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError as problem:
            if problem.errno != errno.EBUSY:
                raise
            time.sleep(0.01)
        else:
            return


def members(groups: tuple[str, ...]) -> list[int]:
    """The processes that are in these groups."""
    hierarchies: set[int] = set()
    for each in groups:
        for directory, _, _ in os.walk(each):
            with contextlib.suppress(OSError):
                hierarchies.update(int(line) for line in Path(directory, "cgroup.procs").read_text().split())
    return sorted(hierarchies)


def existing(groups: tuple[str, ...]) -> list[str]:
    return [each for each in groups if os.path.isdir(each)]
