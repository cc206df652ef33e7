"""Finding everything that belongs to a sandbox or to one of its owners, before and after a teardown."""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import RESOURCE_KINDS, Resource, TeardownReport
from mooring_agent.hosts.process.sandbox_directory import SANDBOX_VARIABLE, SandboxDirectory
from mooring_agent.kernel import proc, process_tree
from mooring_agent.supervisor.owner_process import OWNER_VARIABLE

RESOURCES_LISTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class InspectionScope:
    """What to look for: a sandbox, or one owner in it, whose supervisors are known."""

    sandbox: SandboxDirectory
    label: str | None  # none means the whole sandbox
    supervisors: frozenset[proc.Process]
    paths: tuple[Path, ...]
    origin: frozenset[str]  # the namespaces and control groups of the agent that started the supervisor


@dataclass(frozen=True, slots=True)
class SandboxSnapshot:
    """What was found: resources by their kind and a key that identifies each, and how much was examined."""

    resources: Mapping[tuple[str, str], Resource]
    processes: tuple[proc.Process, ...]
    examined: Mapping[str, int]
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)


def find_processes(
    scope: InspectionScope, table: dict[int, proc.Process], known: Iterable[proc.Process] = ()
) -> tuple[proc.Process, ...]:
    """The living processes, by tree, by the mark in the environment, and supervisors by their title.

    A `known` process counts as long as it lives: a dying one loses its environment a while before it is gone.
    """
    sandbox = scope.sandbox
    # Compared by start time too, because pids are reused.
    roots = {
        each.pid
        for each in (*scope.supervisors, *known)
        if each.pid in table and table[each.pid].started == each.started
    }
    for pid in table:
        variables = proc.environment(pid)
        if variables.get(SANDBOX_VARIABLE) == sandbox.mark:
            if scope.label is None or variables.get(OWNER_VARIABLE) == scope.label:
                roots.add(pid)
        elif scope.label is None and proc.title(pid) == sandbox.title:
            roots.add(pid)
    return tuple(table[pid] for pid in sorted(process_tree.subtree(table, roots)) if not table[pid].ended)


def inspect_sandbox(scope: InspectionScope, before: SandboxSnapshot | None = None) -> SandboxSnapshot:
    """Inspect everything. With `before`, also whether any process still holds what was found then."""
    table = proc.processes()
    found = find_processes(scope, table, () if before is None else before.processes)
    resources = {
        ("processes", f"{each.pid}/{each.started}"): Resource("processes", f"{each.pid} {each.name}") for each in found
    }
    examined = dict.fromkeys(RESOURCE_KINDS, 0) | {"processes": len(table)}
    held = {
        "namespaces": _own_groups(proc.namespaces, scope, found),
        "cgroups": _own_groups(proc.cgroups, scope, found),
        "sockets": frozenset(str(inode) for inode in proc.socket_inodes([each.pid for each in found])),
    }
    if before is not None:
        held = {kind: names | before.held[kind] for kind, names in held.items()}
    for kind in ("namespaces", "cgroups"):
        in_use, examined[kind] = _in_use(kind, table)
        if kind == "cgroups":
            in_use |= _empty_cgroups(held[kind])
        resources |= {(kind, name): Resource(kind, name) for name in held[kind] & in_use}
    _inspect_sockets(held["sockets"], resources, examined)
    places = [mount.target for mount in proc.mounts()]
    examined["mounts"] = len(places)
    inside = f"{scope.sandbox.directory.resolve()}/"
    if scope.label is None:
        resources |= {
            ("mounts", place): Resource("mounts", place) for place in places if f"{place}/".startswith(inside)
        }
    for path in scope.paths:
        examined["files"] += 1
        if path.is_symlink() or path.exists():
            resources[("files", str(path))] = Resource("files", str(path.relative_to(scope.sandbox.directory)))
    return SandboxSnapshot(resources, found, examined, held)


def compare(before: SandboxSnapshot, after: SandboxSnapshot) -> TeardownReport:
    """What was found, what is gone, and what is left, including what was not there before."""
    found = list(before.resources.values())
    removed = [resource for key, resource in before.resources.items() if key not in after.resources]
    looked = {kind: max(before.examined[kind], after.examined[kind]) for kind in RESOURCE_KINDS}
    return TeardownReport(
        found=tuple(found[:RESOURCES_LISTED_MAX]),
        removed=tuple(removed[:RESOURCES_LISTED_MAX]),
        remaining=tuple(after.resources.values()),
        looked=looked,
        truncated=len(found) > RESOURCES_LISTED_MAX,
    )


def _own_groups(
    read: Callable[[int], set[str]], scope: InspectionScope, found: tuple[proc.Process, ...]
) -> frozenset[str]:
    """The namespaces or control groups that processes created for themselves: those that no agent of ours was in."""
    ours = read(os.getpid()) | scope.origin
    return frozenset(name for each in found for name in read(each.pid) if name not in ours)


def _in_use(kind: str, table: dict[int, proc.Process]) -> tuple[set[str], int]:
    """What any visible process is in, and how many were examined."""
    read = proc.namespaces if kind == "namespaces" else proc.cgroups
    names = [name for pid, process in table.items() if not process.ended for name in read(pid)]
    return set(names), len(names)


def _empty_cgroups(held: frozenset[str]) -> set[str]:
    """Control groups without processes whose directories still exist."""
    places = {name: proc.cgroup_directory(name) for name in held}
    return {name for name, place in places.items() if place is not None and os.path.isdir(place)}


def remove_cgroups(held: frozenset[str]) -> None:
    """Remove the groups that programs created, deepest first; one that other processes are in stays."""
    places = [place for name in held if (place := proc.cgroup_directory(name)) is not None]
    for place in sorted(places, key=lambda each: each.count("/"), reverse=True):
        with contextlib.suppress(OSError):
            os.rmdir(place)


def _inspect_sockets(
    held: frozenset[str], resources: dict[tuple[str, str], Resource], examined: dict[str, int]
) -> None:
    """Sockets live as long as a process holds them: those that were held and are still in the kernel's tables."""
    sockets = list(proc.sockets("/proc/self/net"))
    named = [each for each in sockets if each.path]
    ports = [each for each in sockets if each.port is not None and each.protocol in ("tcp", "udp")]
    examined |= {"sockets": len(named), "ports": len(ports)}
    for each in named:
        if str(each.inode) in held:
            resources[("sockets", f"{each.inode}/{each.path}")] = Resource("sockets", each.path)
    for each in ports:
        if str(each.inode) in held:
            resources[("ports", f"{each.inode}/{each.port}")] = Resource(
                "ports", f"{each.protocol} {each.address} {each.port}"
            )
