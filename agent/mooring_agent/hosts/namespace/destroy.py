"""Destroying a sandbox, or one owner of it, and verifying that nothing is left.

The record stays until an inspection finds nothing: what could not be removed is reported, and the next try starts from
the record. During an inspection the namespaces are held open, because the kernel would reuse their numbers at once.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from mooring_agent.atomic_files import sync_directory
from mooring_agent.hosts import gpu_reset
from mooring_agent.hosts.contract import DeviceReturn, HostFailure, Owner, Resource, TeardownReport
from mooring_agent.hosts.namespace import (
    cgroups,
    init_process,
    inspect,
    machine_network,
    namespace_processes,
    owner_files,
    project_network,
    root_filesystem,
    uid_ranges,
)
from mooring_agent.hosts.namespace.create import Machine, routed_link, update_host_entries
from mooring_agent.hosts.namespace.inspect import MachineSnapshot, SandboxTraces
from mooring_agent.hosts.namespace.sandbox_records import (
    SANDBOX,
    UIDS,
    InitProcess,
    SandboxRecord,
    SandboxStore,
    sandbox_owner,
)
from mooring_agent.kernel import proc, syscalls

Step = Callable[["NamespaceTeardown"], None]

DETACH_TRIES_MAX: Final = 5
RESOURCES_LISTED_MAX: Final = 1000
_OWNERS_OWN: Final = {"pid", "mnt"}


class NamespaceTeardown:
    """One teardown of a whole sandbox, step by step."""

    def __init__(self, machine: Machine, record: SandboxRecord) -> None:
        self.machine = machine
        self.record = record
        self.allocation_id = record.spec.allocation_id
        self.before: MachineSnapshot | None = None
        self.after: MachineSnapshot | None = None
        store = machine.store
        for owner in store.owners(self.allocation_id):
            init_process.wait_for_spawn(store.owner(owner))
        self.inits = [init for owner in store.owners(self.allocation_id) if (init := store.load_init(owner))]
        self.parts = [store.owner(each) for each in store.owners(self.allocation_id) if each.label != SANDBOX]
        # First, so that the namespace numbers of inits that are still alive cannot be reused.
        self.guard = namespace_processes.NamespaceGuard(self.inits)
        self.namespaces = own_namespaces(store, record, self.inits)
        self.sockets: frozenset[int] = frozenset()
        self.devices: tuple[DeviceReturn, ...] = ()

    def traces(self) -> SandboxTraces:
        """What to look for, according to the record."""
        store = self.machine.store
        directory = store.sandbox(self.allocation_id)
        return SandboxTraces(
            allocation_id=self.allocation_id,
            label=None,
            directory=directory,
            namespaces=self.namespaces,
            files=(directory / "root", directory / "disk.img", directory / "disk", *self.parts),
            first_uid=self.record.first_uid,
            link=self.record.link,
            machine_link=routed_link(self.machine, self.record) if self.record.is_routed else None,
            machine_namespace=self.machine.network.namespace,
            project_links=lambda: init_process.run_in_project_network(
                store, self.record.spec.network.name, project_network.list_links, []
            ),
            cgroups=self.record.cgroups,
            killed_at=store.killed_at(sandbox_owner(self.allocation_id)),
            sockets=self.sockets,
            inits=tuple(self.inits),
        )

    def inspect(self) -> MachineSnapshot:
        return inspect.inspect_machine(self.traces(), self.guard)


def mark_destroying(work: NamespaceTeardown) -> None:
    """Record that the sandbox must not be recovered any more."""
    work.record = work.machine.store.save(replace(work.record, status="destroying"))


def inspect_before(work: NamespaceTeardown) -> None:
    work.before, work.sockets = inspect.inspect_with_sockets(work.traces(), work.guard)


def kill_all(work: NamespaceTeardown) -> None:
    """Kill the inits, with which the kernel kills everything in their pid namespaces; then whatever else is found."""
    store = work.machine.store
    living = [init for init in work.inits if namespace_processes.is_alive(init)]
    namespace_processes.kill([*living, *namespace_processes.find_supervisors(work.inits)])
    for _ in range(5):
        strangers = [each for each in inspect.processes_of(work.traces()) if each.pid != os.getpid()]
        if not strangers:
            break
        namespace_processes.kill(strangers)
    owner = sandbox_owner(work.allocation_id)
    if living or store.killed_at(owner) is None:
        # An earlier try may have killed them, and the kernel may have reused their namespace numbers since.
        store.note_killed(owner, proc.ticks_now())


def return_devices(work: NamespaceTeardown) -> None:
    """Reset its GPUs, now that nothing of the sandbox can use them."""
    work.devices = gpu_reset.return_devices(work.record.spec.devices)


def detach_veth(work: NamespaceTeardown) -> None:
    """Remove its veth pair by the end that can be reached: its own network, the machine's or the project's."""
    with work.machine.network_lock:
        for kind, number in work.namespaces:
            path = work.guard.path(kind, number) if kind == "net" else None
            if path is not None:
                project_network.remove_link(path, "eth0")
        if work.record.is_routed:
            with machine_network.locked(work.machine.store.registry):
                machine_network.release(work.machine.network, routed_link(work.machine, work.record))
        store, name = work.machine.store, work.record.spec.network.name
        for _ in range(DETACH_TRIES_MAX):  # repeated until it is gone, because members of the project may end meanwhile
            if not init_process.run_in_project_network(
                store, name, lambda at: project_network.remove_link(at, work.record.link), False
            ):
                break


def remove_host_entry(work: NamespaceTeardown) -> None:
    """Make the remaining members of the project forget its name."""
    update_host_entries(work.machine, work.record.spec.network.name)


def remove_cgroups(work: NamespaceTeardown) -> None:
    cgroups.remove(work.record.cgroups)


def remove_files(work: NamespaceTeardown) -> None:
    """Unmount what is below its directory, and remove everything that it wrote."""
    store = work.machine.store
    directory = store.sandbox(work.allocation_id)
    unmount_below(directory)
    for name in ("root", "disk.img", "disk"):
        root_filesystem.remove(directory / name)
    for owner in store.owners(work.allocation_id):
        if owner.label != SANDBOX:
            root_filesystem.remove(store.owner(owner))


def inspect_after(work: NamespaceTeardown) -> None:
    """Inspect what is left. The init's record is kept until then, because it says what to look for."""
    work.after = work.inspect()
    for each in work.devices:
        work.after.add("processes", (f"{pid} uses {each.name}" for pid in each.holders))


def remove_record(work: NamespaceTeardown) -> None:
    """Forget the sandbox only if it is proven to be gone."""
    if work.after is None or work.after.resources or work.after.not_looked:
        return
    store = work.machine.store
    directory = store.sandbox(work.allocation_id)
    root_filesystem.remove(directory)
    sync_directory(store.sandboxes)
    uid_ranges.release(store.registry, directory)


STEPS: tuple[Step, ...] = (
    mark_destroying,
    inspect_before,
    kill_all,
    return_devices,
    detach_veth,
    remove_host_entry,
    remove_cgroups,
    remove_files,
    inspect_after,
    remove_record,
)


def destroy(machine: Machine, record: SandboxRecord, steps: tuple[Step, ...]) -> TeardownReport:
    """Run the steps, regardless of which of them ran before; returns what was found and what is left."""
    work = NamespaceTeardown(machine, record)
    try:
        for step in steps:
            try:
                step(work)
            except OSError as problem:
                raise HostFailure("host_error", f"{step.__name__}: {problem}") from problem
    finally:
        work.guard.close()
    report = teardown_report(work.before or MachineSnapshot(), work.after or MachineSnapshot())
    return replace(report, devices=work.devices)


def teardown_report(before: MachineSnapshot, after: MachineSnapshot) -> TeardownReport:
    remaining = tuple(dict.fromkeys(after.resources))
    found = tuple(dict.fromkeys(before.resources))
    left = set(remaining)
    removed = [resource for resource in found if resource not in left]
    return TeardownReport(
        found=found[:RESOURCES_LISTED_MAX],
        removed=tuple(removed[:RESOURCES_LISTED_MAX]),
        remaining=remaining,
        looked=dict(after.looked),
        not_looked=tuple(sorted(set(after.not_looked))),
        truncated=len(found) > RESOURCES_LISTED_MAX,
    )


def own_namespaces(
    store: SandboxStore, record: SandboxRecord, inits: Sequence[InitProcess]
) -> frozenset[tuple[str, int]]:
    """The namespaces of these inits, without the machine's and without those of an earlier boot.

    The kernel reuses the number of a namespace that is gone, so it may belong to anybody by now, even to another agent.
    The numbers of an init that was killed by others therefore count only if one of the sandbox's own processes, by uid
    or control group, is in that namespace, and no younger init of ours has it.
    """
    machine = set(namespace_processes.own_namespaces().items())
    boot = proc.boot_id()
    found: set[tuple[str, int]] = set()
    for init in inits:
        if init.boot == boot and namespace_processes.is_alive(init):
            found |= set(init.namespaces.items())
        elif init.boot == boot:
            found |= set(init.namespaces.items()) & _of_processes(record) - _of_younger(store, init)
    return frozenset(found) - machine


def _of_processes(record: SandboxRecord) -> set[tuple[str, int]]:
    """The namespaces of this sandbox's processes, whichever they are in."""
    grouped = set(cgroups.members(record.cgroups))
    first = record.first_uid
    own = [
        each
        for each in namespace_processes.survey()
        if each.pid in grouped or (first is not None and first <= each.uid < first + UIDS)
    ]
    return {item for each in own for item in each.namespaces.items()}


def _of_younger(store: SandboxStore, dead: InitProcess) -> set[tuple[str, int]]:
    """The namespaces of everything alive that this agent created later."""
    owners = [owner for each in store.allocations() for owner in store.owners(each)]
    recorded = [init for owner in owners if (init := store.load_init(owner)) is not None]
    younger = [init for init in recorded if init.start > dead.start and namespace_processes.is_alive(init)]
    return {item for init in younger for item in init.namespaces.items()}


def unmount_below(directory: Path) -> list[str]:
    """Unmount everything below a directory in the machine's own mount namespace, newest first."""
    store = [mount.target for mount in proc.mounts() if mount.target.startswith(f"{directory}/")]
    for place in reversed(store):
        with contextlib.suppress(FileNotFoundError):
            syscalls.unmount(place)
    return store


def destroy_unknown(machine: Machine, allocation_id: str) -> TeardownReport:
    """Destroy a sandbox without a record: look for what would be there by its names."""
    directory = machine.store.sandbox(allocation_id)
    root_filesystem.remove(directory)
    uid_ranges.release(machine.store.registry, directory)
    groups = cgroups.plan(machine.hierarchies, machine.store.label, allocation_id)
    link = machine_network.link_of(machine.store.label, allocation_id)
    traces = SandboxTraces(
        allocation_id=allocation_id,
        label=None,
        directory=directory,
        namespaces=frozenset(),
        files=(directory,),
        link=project_network.link_name(allocation_id),
        machine_link=link,
        machine_namespace=machine.network.namespace,
        cgroups=groups,
    )
    guard = namespace_processes.NamespaceGuard(())
    before = inspect.inspect_machine(traces, guard)
    cgroups.remove(groups)
    with machine.network_lock, machine_network.locked(machine.store.registry):
        machine_network.release(machine.network, link)
    return teardown_report(before, inspect.inspect_machine(traces, guard))


def close_owner(machine: Machine, record: SandboxRecord, owner: Owner) -> TeardownReport:
    """Kill and remove everything of one owner, then inspect; the sandbox and its other owners are not affected."""
    store = machine.store
    directory = store.owner(owner)
    init_process.wait_for_spawn(directory)
    init = store.load_init(owner)
    inits = [init] if init is not None else []
    guard = namespace_processes.NamespaceGuard(inits)
    own = frozenset(item for item in own_namespaces(store, record, inits) if item[0] in _OWNERS_OWN)

    def traces(sockets: frozenset[int] = frozenset()) -> SandboxTraces:
        return SandboxTraces(
            allocation_id=owner.allocation_id,
            label=owner.label,
            directory=directory,
            namespaces=own,
            files=(directory / "data",),
            killed_at=store.killed_at(owner),
            sockets=sockets,
            inits=tuple(inits),
        )

    try:
        before, held = inspect.inspect_with_sockets(traces(), guard)
        _inspect_owner(machine, owner, before, held)
        living = [each for each in inits if namespace_processes.is_alive(each)]
        namespace_processes.kill([*living, *namespace_processes.find_supervisors(inits)])
        if living or store.killed_at(owner) is None:
            store.note_killed(owner, proc.ticks_now())
        owner_files.remove(store, owner)
        root_filesystem.remove(directory / "data")
        after = inspect.inspect_machine(traces(held), guard)
        _inspect_owner(machine, owner, after, held)
    finally:
        guard.close()
    if not after.resources and not after.not_looked:
        root_filesystem.remove(directory)
    return teardown_report(before, after)


def _inspect_owner(machine: Machine, owner: Owner, snapshot: MachineSnapshot, held: frozenset[int]) -> None:
    """Inspect an owner's share of the sandbox: sockets by the process that had them open, files by their record."""
    sandbox = init_process.find_living(machine.store, sandbox_owner(owner.allocation_id))
    if sandbox is None:
        return
    inside = project_network.run_inside(f"/proc/{sandbox.pid}/ns/net", lambda: list(proc.sockets()))
    snapshot.looked["sockets"] += len(inside)
    snapshot.looked["ports"] += sum(each.port is not None for each in inside)
    ours = [each for each in inside if each.inode in held]
    snapshot.add("sockets", (each.name for each in ours))
    snapshot.add("ports", sorted({f"{each.table} {each.port}" for each in ours if each.port is not None}))
    present, count = owner_files.remaining(machine.store, owner)
    snapshot.looked["files"] += count
    snapshot.resources += [Resource("files", name) for name in present]
