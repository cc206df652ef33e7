"""Taking a sandbox, or one owner of it, away, and looking whether it is gone.

The record stays until a look found nothing: what could not be taken away is named, and the next try begins with what
the record says. While a look goes on the namespaces are held open, since the kernel would give their numbers to
others at once.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mooring_agent.atomic_files import sync_directory
from mooring_agent.hosts.contract import HostFailure, Look, Owner, Thing
from mooring_agent.hosts.namespace import (
    cgroups,
    init_process,
    inspect,
    namespace_processes,
    owner_files,
    project_network,
    root_filesystem,
    uid_ranges,
)
from mooring_agent.hosts.namespace.create import Machine, rename_members
from mooring_agent.hosts.namespace.inspect import Seen, Traces
from mooring_agent.hosts.namespace.sandbox_records import SANDBOX, UIDS, Init, Places, Record, sandbox_itself
from mooring_agent.kernel import proc, syscalls

Step = Callable[["Unmaking"], None]

CUTS_MAX: Final = 5
LISTED_MAX: Final = 1000
_OWNERS_OWN: Final = {"pid", "mnt"}


class Unmaking:
    """One teardown of a whole sandbox, step by step."""

    def __init__(self, machine: Machine, record: Record) -> None:
        self.machine = machine
        self.record = record
        self.allocation_id = record.spec.allocation_id
        self.before: Seen | None = None
        self.after: Seen | None = None
        places = machine.places
        for owner in places.owners(self.allocation_id):
            init_process.wait_for_birth(places.owner(owner))
        self.inits = [init for owner in places.owners(self.allocation_id) if (init := places.load_init(owner))]
        self.parts = [places.owner(each) for each in places.owners(self.allocation_id) if each.label != SANDBOX]
        # First: whoever is still alive afterwards keeps its namespace numbers for good.
        self.guard = namespace_processes.Guard(self.inits)
        self.namespaces = own_namespaces(places, record, self.inits)
        self.sockets: frozenset[int] = frozenset()

    def traces(self) -> Traces:
        """What to look for, from the record."""
        places = self.machine.places
        directory = places.sandbox(self.allocation_id)
        return Traces(
            allocation_id=self.allocation_id,
            label=None,
            directory=directory,
            namespaces=self.namespaces,
            files=(directory / "root", directory / "disk.img", directory / "disk", *self.parts),
            first_uid=self.record.first_uid,
            link=self.record.link,
            project_links=lambda: init_process.in_project_network(
                places, self.record.spec.network.name, project_network.links, []
            ),
            cgroups=self.record.cgroups,
            killed_at=places.killed_at(sandbox_itself(self.allocation_id)),
            sockets=self.sockets,
        )

    def look(self) -> Seen:
        """One look."""
        return inspect.look(self.traces(), self.guard)


def note_destroying(work: Unmaking) -> None:
    """From now on it is not to stand again."""
    work.record = work.machine.places.store(replace(work.record, status="destroying"))


def look_before(work: Unmaking) -> None:
    """What there is."""
    work.before, work.sockets = inspect.first_look(work.traces(), work.guard)


def kill_all(work: Unmaking) -> None:
    """The inits, with whom the kernel kills all that is in their pid namespaces; then whoever else was found."""
    places = work.machine.places
    living = [init for init in work.inits if namespace_processes.is_alive(init)]
    namespace_processes.kill((init.pid, init.start) for init in living)
    for _ in range(5):
        strangers = [each for each in inspect.processes_of(work.traces()) if each.pid != os.getpid()]
        if not strangers:
            break
        namespace_processes.kill((each.pid, each.start) for each in strangers)
    itself = sandbox_itself(work.allocation_id)
    if living or places.killed_at(itself) is None:
        # An earlier try may have killed them: since then the kernel has given their namespaces' numbers to others.
        places.note_killed(itself, proc.ticks_now())


def cut_cable(work: Unmaking) -> None:
    """Its cable, by the end that can be reached: its own while we hold its network, the project's while that stands."""
    with work.machine.cables:
        for kind, number in work.namespaces:
            path = work.guard.path(kind, number) if kind == "net" else None
            if path is not None:
                project_network.remove_link(path, "eth0")
        places, name = work.machine.places, work.record.spec.network.name
        for _ in range(CUTS_MAX):  # until it is seen to be gone, whichever of the members ends meanwhile
            if not init_process.in_project_network(
                places, name, lambda at: project_network.remove_link(at, work.record.link), False
            ):
                break


def take_name(work: Unmaking) -> None:
    """The members of its project that stand on forget its name."""
    rename_members(work.machine, work.record.spec.network.name)


def remove_groups(work: Unmaking) -> None:
    """Its groups."""
    cgroups.remove(work.record.cgroups)


def remove_files(work: Unmaking) -> None:
    """What is mounted below its directory, and everything that it wrote."""
    places = work.machine.places
    directory = places.sandbox(work.allocation_id)
    unmount_below(directory)
    for name in ("root", "disk.img", "disk"):
        root_filesystem.remove(directory / name)
    for owner in places.owners(work.allocation_id):
        if owner.label != SANDBOX:
            root_filesystem.remove(places.owner(owner))


def look_after(work: Unmaking) -> None:
    """What is left; what is known of its init stays until then, since it says what to look for."""
    work.after = work.look()


def forget(work: Unmaking) -> None:
    """Only what is proven gone is forgotten."""
    if work.after is None or work.after.things or work.after.not_looked:
        return
    places = work.machine.places
    directory = places.sandbox(work.allocation_id)
    root_filesystem.remove(directory)
    sync_directory(places.sandboxes)
    uid_ranges.release(places.registry, directory)


STEPS: tuple[Step, ...] = (
    note_destroying,
    look_before,
    kill_all,
    cut_cable,
    take_name,
    remove_groups,
    remove_files,
    look_after,
    forget,
)


def destroy(machine: Machine, record: Record, steps: tuple[Step, ...]) -> Look:
    """Do the steps, whichever of them were done before; what was found, and what is left."""
    work = Unmaking(machine, record)
    try:
        for step in steps:
            try:
                step(work)
            except OSError as problem:
                raise HostFailure("host_error", f"{step.__name__}: {problem}") from problem
    finally:
        work.guard.close()
    return result(work.before or Seen(), work.after or Seen())


def result(before: Seen, after: Seen) -> Look:
    """A teardown as the receipt tells it."""
    remaining = tuple(dict.fromkeys(after.things))
    found = tuple(dict.fromkeys(before.things))
    left = set(remaining)
    removed = [thing for thing in found if thing not in left]
    return Look(
        found=found[:LISTED_MAX],
        removed=tuple(removed[:LISTED_MAX]),
        remaining=remaining,
        looked=dict(after.looked),
        not_looked=tuple(sorted(set(after.not_looked))),
        truncated=len(found) > LISTED_MAX,
    )


def own_namespaces(places: Places, record: Record, inits: Sequence[Init]) -> frozenset[tuple[str, int]]:
    """The namespaces of these inits without those that are the machine's, and without those of another start of the
    machine.

    The kernel gives the number of a namespace to another when it is gone, and whoever has it then may be anybody's, of
    another agent too. So the numbers of an init that somebody killed count only where one of the sandbox's own
    processes, by its users or its groups, is in that namespace, and no younger init of ours has it.
    """
    machine = set(namespace_processes.own_namespaces().items())
    boot = proc.boot_id()
    found: set[tuple[str, int]] = set()
    for init in inits:
        if init.boot == boot and namespace_processes.is_alive(init):
            found |= set(init.namespaces.items())
        elif init.boot == boot:
            found |= set(init.namespaces.items()) & _of_processes(record) - _of_younger(places, init)
    return frozenset(found) - machine


def _of_processes(record: Record) -> set[tuple[str, int]]:
    """The namespaces of the processes that are this sandbox's, whatever namespaces they are in."""
    grouped = set(cgroups.members(record.cgroups))
    first = record.first_uid
    own = [
        each
        for each in namespace_processes.survey()
        if each.pid in grouped or (first is not None and first <= each.uid < first + UIDS)
    ]
    return {item for each in own for item in each.namespaces.items()}


def _of_younger(places: Places, dead: Init) -> set[tuple[str, int]]:
    """The namespaces of everything that this agent made later, and that lives."""
    owners = [owner for each in places.allocations() for owner in places.owners(each)]
    recorded = [init for owner in owners if (init := places.load_init(owner)) is not None]
    younger = [init for init in recorded if init.start > dead.start and namespace_processes.is_alive(init)]
    return {item for init in younger for item in init.namespaces.items()}


def unmount_below(directory: Path) -> list[str]:
    """Take away what is mounted below a directory in the machine's own view, the newest first."""
    places = [mount.target for mount in proc.mounts() if mount.target.startswith(f"{directory}/")]
    for place in reversed(places):
        with contextlib.suppress(FileNotFoundError):
            syscalls.unmount(place)
    return places


def destroy_unknown(machine: Machine, allocation_id: str) -> Look:
    """There is no record: look for what would be there by its names."""
    directory = machine.places.sandbox(allocation_id)
    root_filesystem.remove(directory)
    uid_ranges.release(machine.places.registry, directory)
    groups = cgroups.plan(machine.hierarchies, machine.places.label, allocation_id)
    traces = Traces(
        allocation_id=allocation_id,
        label=None,
        directory=directory,
        namespaces=frozenset(),
        files=(directory,),
        link=project_network.link_name(allocation_id),
        cgroups=groups,
    )
    guard = namespace_processes.Guard(())
    before = inspect.look(traces, guard)
    cgroups.remove(groups)
    return result(before, inspect.look(traces, guard))


def close_owner(machine: Machine, record: Record, owner: Owner) -> Look:
    """Kill, remove and look for everything of one owner; the sandbox and the others in it go on."""
    places = machine.places
    directory = places.owner(owner)
    init_process.wait_for_birth(directory)
    init = places.load_init(owner)
    inits = [init] if init is not None else []
    guard = namespace_processes.Guard(inits)
    own = frozenset(item for item in own_namespaces(places, record, inits) if item[0] in _OWNERS_OWN)

    def traces(sockets: frozenset[int] = frozenset()) -> Traces:
        return Traces(
            allocation_id=owner.allocation_id,
            label=owner.label,
            directory=directory,
            namespaces=own,
            files=(directory / "data",),
            killed_at=places.killed_at(owner),
            sockets=sockets,
        )

    try:
        before, held = inspect.first_look(traces(), guard)
        _look_inside(machine, owner, before, held)
        living = [each for each in inits if namespace_processes.is_alive(each)]
        namespace_processes.kill((each.pid, each.start) for each in living)
        if living or places.killed_at(owner) is None:
            places.note_killed(owner, proc.ticks_now())
        owner_files.remove(places, owner)
        root_filesystem.remove(directory / "data")
        after = inspect.look(traces(held), guard)
        _look_inside(machine, owner, after, held)
    finally:
        guard.close()
    if not after.things and not after.not_looked:
        root_filesystem.remove(directory)
    return result(before, after)


def _look_inside(machine: Machine, owner: Owner, seen: Seen, held: frozenset[int]) -> None:
    """What an owner has in the sandbox that it shares: sockets by who had them open, files by who had them written."""
    sandbox = init_process.living(machine.places, sandbox_itself(owner.allocation_id))
    if sandbox is None:
        return
    inside = project_network.inside(f"/proc/{sandbox.pid}/ns/net", lambda: list(proc.sockets()))
    seen.looked["sockets"] += len(inside)
    seen.looked["ports"] += sum(each.port is not None for each in inside)
    ours = [each for each in inside if each.inode in held]
    seen.add("sockets", (each.name for each in ours))
    seen.add("ports", sorted({f"{each.table} {each.port}" for each in ours if each.port is not None}))
    there, count = owner_files.remaining(machine.places, owner)
    seen.looked["files"] += count
    seen.things += [Thing("files", name) for name in there]
