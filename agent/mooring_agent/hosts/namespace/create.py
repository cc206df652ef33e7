"""Creating a sandbox: a list of idempotent steps.

The steps are data, so that a test can stop after each of them. Everything that a step allocates or creates is in the
sandbox's record first, so that after a crash the next agent runs the whole list again and reaches the same state.
"""

import logging
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from mooring_agent.control_plane.addresses import LOOPBACK
from mooring_agent.hosts.contract import HostFailure, Peer, SandboxFacts, SandboxSpec
from mooring_agent.hosts.namespace import (
    apparmor,
    cgroups,
    forwarding_guard,
    init_process,
    io_budget,
    kernel_tables,
    machine_network,
    nft_tables,
    owner_files,
    project_network,
    root_filesystem,
    sandbox_disk,
    uid_ranges,
)
from mooring_agent.hosts.namespace.cgroups import CgroupHierarchies
from mooring_agent.hosts.namespace.io_budget import IoBudget
from mooring_agent.hosts.namespace.machine_network import MachineNetwork, RoutedLink
from mooring_agent.hosts.namespace.sandbox_records import InitProcess, SandboxRecord, SandboxStore, sandbox_owner
from mooring_agent.sandbox_init import confinement

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the steps work with."""

    store: SandboxStore
    hierarchies: CgroupHierarchies
    network_lock: threading.Lock  # serializes changes of the project networks
    disk_bytes: int = sandbox_disk.DISK_BYTES  # how much a sandbox may write; 0 for no limit
    address: str = LOOPBACK  # where other machines reach this one
    network: MachineNetwork = field(default_factory=MachineNetwork)  # of sandboxes that have the whole machine
    io: IoBudget = field(default_factory=IoBudget)  # of each sandbox


Step = Callable[[Machine, SandboxRecord], SandboxRecord]


def allocate_uids(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Give the sandbox a uid range of its own, unless capabilities alone confine it."""
    if record.spec.isolation == "bounded" or record.first_uid is not None:
        return record
    holder = machine.store.sandbox(record.spec.allocation_id)
    return machine.store.save(replace(record, first_uid=uid_ranges.claim(machine.store.registry, holder)))


def plan_resources(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Record the names of its network link and control groups."""
    if record.spec.network.machine and not record.machine_network and _init(machine, record) is None:
        # An older agent began it, and would have shared the machine's network.
        record = machine.store.save(replace(record, machine_network=machine.network.choose(), link=""))
    if record.link:
        return record
    allocation_id = record.spec.allocation_id
    groups = cgroups.plan(machine.hierarchies, machine.store.label, allocation_id)
    link = routed_link(machine, record).name if record.is_routed else project_network.link_name(allocation_id)
    return machine.store.save(replace(record, link=link, cgroups=groups))


def create_disk(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Create a disk of its own where this machine supports it, from scratch unless the sandbox is alive."""
    if _init(machine, record) is not None:
        return record
    reason = sandbox_disk.unavailable_reason() if machine.disk_bytes else "the agent is configured without a disk limit"
    if reason:
        return machine.store.save(replace(record, disk=f"not enforced: {reason}", has_disk=False))
    record = machine.store.save(replace(record, disk=sandbox_disk.describe(machine.disk_bytes), has_disk=True))
    sandbox_disk.create(machine.store.disk(record.spec.allocation_id), machine.disk_bytes)
    return record


def build_root_filesystem(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Build its root file system, from scratch unless the sandbox is alive."""
    if _init(machine, record) is None:
        root_filesystem.build(machine.store.root(record.spec.allocation_id), record.spec, record.first_uid)
    return record


def create_cgroups(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    rules = init_process.device_rules(init_process.devices(record.spec.devices))
    limits = cgroups.create(machine.hierarchies, record.cgroups, record.spec, rules)
    limits["disk"] = record.disk
    limits["io"] = io_budget.describe(machine.hierarchies, machine.io)
    limits["apparmor"] = apparmor.load().describe()
    limits["kernel_tables"] = kernel_tables.enforced()
    if record.spec.network.machine:
        limits["network"] = record.machine_network if record.is_routed else machine_network.SHARED_LIMIT
    limits["capabilities"] = "bounding set, no new privileges"
    known = confinement.filter_program(platform.machine()) is not None
    limits["system_calls"] = "seccomp" if known else f"not enforced: no list for a {platform.machine()} machine"
    return machine.store.save(replace(record, limits=limits))


def restrict_network(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Load the rules of a routed sandbox before it can send anything."""
    if record.is_routed:
        with machine.network_lock, machine_network.locked(machine.store.registry):
            record = _claim_subnet(machine, record)
            machine_network.restrict(machine.network, routed_link(machine, record))
    return record


def spawn_init(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Create its namespaces and its init."""
    # Otherwise the first two members of a project would each create a network.
    with machine.network_lock:
        limits = io_budget.files(machine.hierarchies, record.cgroups, machine.io)
        init_process.ensure_sandbox_init(machine.store, record, limits)
    return record


def attach_veth(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Connect it to the project's network, or through the machine to its networks."""
    init = _init(machine, record)
    if init is None:
        raise HostFailure("interrupted", "the sandbox's init ended while the sandbox was created")
    if record.shares_network:
        return record
    if record.is_routed:
        with machine.network_lock, machine_network.locked(machine.store.registry):
            record = _claim_subnet(machine, record)
            machine_network.connect(machine.network, routed_link(machine, record), init.pid)
        return record
    with machine.network_lock:
        project = init_process.NetworkHolder(init.pid, init.start).path
        project_network.attach(project, record.spec.network, record.link, init.pid)
    return record


def publish_host_entries(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    """Make the project's members on this machine resolve its name, and it theirs."""
    update_host_entries(machine, record.spec.network.name)
    return record


def mark_standing(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    return machine.store.save(replace(record, status="standing"))


STEPS: tuple[Step, ...] = (
    allocate_uids,
    plan_resources,
    create_disk,
    build_root_filesystem,
    create_cgroups,
    restrict_network,
    spawn_init,
    attach_veth,
    publish_host_entries,
    mark_standing,
)


def record_intent(machine: Machine, spec: SandboxSpec) -> SandboxRecord:
    """Record that the sandbox is wanted, before anything of it exists. With a whole machine it has that address."""
    mode = ""
    if spec.network.machine:
        mode = machine.network.choose()
        spec = replace(spec, network=replace(spec.network, address=machine.address))
    return machine.store.save(SandboxRecord(spec=spec, status="creating", machine_network=mode))


def run_steps(machine: Machine, record: SandboxRecord, steps: tuple[Step, ...]) -> SandboxRecord:
    """Run the steps, regardless of which of them ran before."""
    for step in steps:
        try:
            record = step(machine, record)
        except OSError as problem:
            raise HostFailure("host_error", f"{step.__name__}: {problem}") from problem
    return record


def routed_link(machine: Machine, record: SandboxRecord) -> RoutedLink:
    return machine_network.link_of(
        machine.store.label, record.spec.allocation_id, record.link_subnet, record.spec.network.address
    )


def _claim_subnet(machine: Machine, record: SandboxRecord) -> SandboxRecord:
    subnet = machine_network.claim_subnet(machine.network, routed_link(machine, record))
    return record if subnet == record.link_subnet else machine.store.save(replace(record, link_subnet=subnet))


def restore_network(machine: Machine, allocation_id: str) -> None:
    """Load the rules of a routed sandbox again: somebody may have flushed them, or the machine's uplinks changed."""
    record = machine.store.load(allocation_id)
    if record is None or record.status != "standing" or not record.is_routed or _init(machine, record) is None:
        return
    try:
        attach_veth(machine, record)
    except (HostFailure, OSError) as problem:
        log.warning("cannot restore the network of %s: %s; will retry", allocation_id, problem)


def lacks_rules(machine: Machine) -> list[str]:
    """The allocations with a routed sandbox whose rules somebody took away, wholly or in part."""
    records = [each for each in map(machine.store.load, machine.store.allocations()) if each is not None]
    routed = [each for each in records if each.is_routed and each.status == "standing"]
    if not routed:
        return []
    namespace = machine.network.namespace
    tables = nft_tables.list_tables(namespace)
    is_whole = forwarding_guard.is_whole(namespace)
    return [
        each.spec.allocation_id for each in routed if not is_whole or routed_link(machine, each).table not in tables
    ]


def facts(record: SandboxRecord) -> SandboxFacts:
    return SandboxFacts(record.spec.isolation, record.spec.network.address, dict(record.limits))


def update_host_entries(machine: Machine, name: str) -> dict[str, HostFailure]:
    """Update /etc/hosts of every sandbox in a project's network on this machine.

    A sandbox whose /etc/hosts is no longer a regular file, or is too large, is skipped; the others are still updated.
    Returns the failures, keyed by allocation id.
    """
    refused: dict[str, HostFailure] = {}
    with machine.network_lock:
        records = [each for each in map(machine.store.load, machine.store.allocations()) if each is not None]
        members = [each for each in records if _is_member(each, name)]
        for record in members:
            init = _init(machine, record)
            if init is None:
                continue
            peers = [Peer(each.spec.hostname, each.spec.network.address) for each in members if each is not record]
            try:
                owner_files.write_hosts(record, init, (*peers, *record.spec.peers))
            except HostFailure as failure:
                log.warning(
                    "cannot update /etc/hosts of %s: %s; leaving it as it is", record.spec.allocation_id, failure
                )
                refused[record.spec.allocation_id] = failure
            except OSError as problem:  # it has just ended
                log.info("skipped /etc/hosts of %s, which has just ended: %s", record.spec.allocation_id, problem)
    return refused


def _is_member(record: SandboxRecord, name: str) -> bool:
    network = record.spec.network
    return record.status != "destroying" and network.name == name and not network.machine


def _init(machine: Machine, record: SandboxRecord) -> InitProcess | None:
    return init_process.find_living(machine.store, sandbox_owner(record.spec.allocation_id))
