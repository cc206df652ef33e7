"""Compares the machine with what the platform knows: reaps what is ours and unknown, reports what is not ours.

Ours is what is below our state directory, carries our label, or has uids of a range allocated to us. Everything else
that looks like a sandbox belongs to another agent; a sweep reports it and never touches it.
"""

import contextlib
import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

from mooring_agent.hosts.contract import Resource, Stray
from mooring_agent.hosts.namespace import (
    cgroups,
    forwarding_guard,
    init_process,
    machine_network,
    namespace_processes,
    project_network,
    root_filesystem,
    uid_ranges,
)
from mooring_agent.hosts.namespace.create import Machine
from mooring_agent.hosts.namespace.sandbox_records import UIDS


def sweep_unrecorded(machine: Machine) -> list[Stray]:
    """Reap what is ours and belongs to no recorded sandbox."""
    recorded = set(machine.store.allocations())
    return [
        *_unknown_cgroups(machine, recorded),
        *_unknown_processes(machine),
        *_unknown_links(machine, recorded),
        *_unknown_routes(machine),
        *_unused_ranges(machine),
    ]


def _unknown_cgroups(machine: Machine, recorded: Collection[str]) -> list[Stray]:
    found = []
    ours = f"mooring-{machine.store.label}"
    for parent in set(machine.hierarchies.parents.values()):
        with contextlib.suppress(OSError):
            for agent in sorted(parent.glob("mooring-*")):
                if agent.name != ours:
                    found.append(Stray(Resource("cgroups", str(agent)), "foreign"))
                    continue
                for group in sorted(each for each in agent.iterdir() if each.is_dir() and each.name not in recorded):
                    if machine.store.sandbox(group.name).exists():
                        continue  # it was begun after the records were read
                    found_pids = cgroups.members((str(group),))
                    members = [each for pid in found_pids if (each := namespace_processes.read(pid)) is not None]
                    namespace_processes.kill(members)
                    cgroups.remove((str(group),))
                    found.append(Stray(Resource("cgroups", str(group)), "reaped", group.name))
    return found


def _unknown_processes(machine: Machine) -> list[Stray]:
    """Processes with uids of an allocated range: ours without a sandbox are killed, those of other agents reported."""
    holders = uid_ranges.allocated(machine.store.registry)
    found: list[Stray] = []
    foreign_holders: set[str] = set()
    for each in namespace_processes.survey():
        holder = holders.get(each.uid // UIDS * UIDS)
        if holder is None:
            continue
        if Path(holder).parent != machine.store.sandboxes:
            foreign_holders.add(holder)
        elif not os.path.exists(holder):
            namespace_processes.kill([each])
            found.append(Stray(Resource("processes", f"{each.pid} {each.name}"), "reaped", Path(holder).name))
    return [
        *found,
        *(Stray(Resource("processes", f"sandbox {holder}"), "foreign") for holder in sorted(foreign_holders)),
    ]


def _unknown_links(machine: Machine, recorded: Collection[str]) -> list[Stray]:
    """Links in the project networks that lead to no sandbox."""
    records = [record for each in recorded if (record := machine.store.load(each)) is not None]
    found = []
    with machine.network_lock:
        for name in sorted({record.spec.network.name for record in records if not record.spec.network.machine}):
            found_links = init_process.run_in_project_network(
                machine.store, name, project_network.list_links, list[str]()
            )
            # Read after the links: a sandbox has its record before it has a link.
            wanted = {project_network.link_name(each) for each in machine.store.allocations()}
            for link in found_links:
                if link not in wanted and link not in ("lo", project_network.BRIDGE):
                    remove = partial(project_network.remove_link, link=link)
                    init_process.run_in_project_network(machine.store, name, remove, False)
                    found.append(Stray(Resource("links", link), "reaped"))
    return found


def _unknown_routes(machine: Machine) -> list[Stray]:
    """Links and tables in the machine's own network that lead to no sandbox."""
    found = []
    with machine.network_lock, machine_network.locked(machine.store.registry):
        # A sandbox has its record before it has a table.
        for link in machine_network.strays(machine.network, machine.store.label, machine.store.allocations()):
            machine_network.release(machine.network, link)
            found.append(Stray(Resource("links", link.name), "reaped"))
        forwarding_guard.close_unused(machine.network.namespace)
    return found


def _unused_ranges(machine: Machine) -> list[Stray]:
    """Release ranges whose sandbox is gone."""
    found = []
    for first, holder in uid_ranges.allocated(machine.store.registry).items():
        place = Path(holder)
        if place.parent == machine.store.sandboxes and not place.exists():
            uid_ranges.release(machine.store.registry, place)
            found.append(Stray(Resource("files", f"users {first}"), "reaped", place.name))
    return found


def remove_unrecorded(machine: Machine, allocation_id: str) -> None:
    """Remove a directory without a record: its sandbox was never begun, or is proven to be gone."""
    directory = machine.store.sandbox(allocation_id)
    root_filesystem.remove(directory)
    uid_ranges.release(machine.store.registry, directory)
