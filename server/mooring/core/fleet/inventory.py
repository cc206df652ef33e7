"""The inventory of a node, as its agent reports it, and what a report changes about its slots.

An agent is believed only about its own node. Each GPU becomes a slot. A report that equals the last one changes
nothing. A different one removes free slots and adds new ones, but never frees or changes a slot that an allocation
has: such a difference becomes a finding for an operator.

Compatibility compares facts. Some follow from the inventory; the agent adds others, and the platform does not
interpret their names.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from typing import Any, Final

from mooring.core.catalog.compatibility import Capacity, CapacityShape, Fact
from mooring.core.fleet.node import NODE, HostKind, Node, NodeState, NodeTrigger
from mooring.core.fleet.node_plan import Approval, baseline_of, differences, swapped_devices, unexpected
from mooring.core.fleet.slot import Slot, SlotStatus
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    Remove,
    StateChange,
    Update,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

CPUS_MAX: Final = 65_536
BYTES_MAX: Final = 2**60
GPUS_MAX: Final = 128
NUMA_MAX: Final = 128
FACTS_MAX: Final = 200
FACT_PATTERN: Final = "^[a-z][a-z0-9_.-]{0,62}$"
FACT_TEXT_MAX: Final = 200
ADDRESSES_MAX: Final = 32
VERSION_MAX: Final = 50
MODEL_MAX: Final = 100
GIB: Final = 2**30
_FACT: Final = re.compile(FACT_PATTERN)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, real or simulated."""

    index: int
    numa: int
    model: str
    memory_bytes: int
    simulated: bool


@dataclass(frozen=True, slots=True)
class NumaNode:
    index: int
    cpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Inventory:
    agent_version: str
    host: HostKind
    cpus: int
    memory_bytes: int
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    facts: Mapping[str, Fact] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    limits: Mapping[str, Fact] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The stored form; lists are sorted, so that two reports of the same inventory are equal."""
        return {
            "agent_version": self.agent_version,
            "host": self.host.value,
            "cpus": self.cpus,
            "memory_bytes": self.memory_bytes,
            "numa": [asdict(each) for each in sorted(self.numa, key=lambda each: each.index)],
            "gpus": [asdict(each) for each in sorted(self.gpus, key=lambda each: each.index)],
            "facts": dict(sorted(self.facts.items())),
            "addresses": sorted(set(self.addresses)),
            "limits": dict(sorted(self.limits.items())),
        }


@dataclass(frozen=True, slots=True)
class InventoryChange:
    """Writes for the slots of a node, and findings for what must not be changed."""

    writes: tuple[Write, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()


def facts_of(node: Node) -> dict[str, Fact]:
    """The facts of a node; a fact that follows from the inventory wins over the agent's fact of that name."""
    return facts_from(node.host, node.region, node.inventory)


def facts_from(host: str, region: str, inventory: Mapping[str, Any] | None) -> dict[str, Fact]:
    """The same, without the whole node."""
    inventory = inventory or {}
    gpus = inventory.get("gpus", [])
    facts: dict[str, Fact] = {
        **inventory.get("facts", {}),
        "host": host,
        "region": region,
        "cpus": inventory.get("cpus", 0),
        "memory_gib": inventory.get("memory_bytes", 0) // GIB,
        "gpu_count": len(gpus),
        "simulated_gpus": any(gpu["simulated"] for gpu in gpus),
    }
    if gpus:
        facts["gpu_memory_gib"] = min(gpu["memory_bytes"] for gpu in gpus) // GIB
    if len({gpu["model"] for gpu in gpus}) == 1:
        facts["gpu_model"] = gpus[0]["model"]
    return facts


def capacity_of(node: Node, shape: CapacityShape, gpu_count: int) -> Capacity:
    """An allocation on this node, in the terms of compatibility."""
    return Capacity(shape, gpu_count, node.id, facts_of(node))


def report_inventory(
    context: DecisionContext, node: Node, slots: Sequence[Slot], inventory: Inventory
) -> Decision[Node]:
    """Record an agent's report about its own node; the first report makes the node ready."""
    if node.status == NodeState.RETIRED:
        raise Refusal(Code.ILLEGAL_TRANSITION, "the node is retired", {"state": node.status, "allowed": []})
    check_inventory(inventory)
    reconciled = reconcile_slots(context, node.id, slots, inventory.gpus)
    host, findings = _host(node, slots, inventory.host)
    document = inventory.document()
    compared = _compared(node, slots, document, [*findings, *reconciled.findings])
    findings = compared.findings
    is_new = node.status == NodeState.ENROLLED
    same = (document, findings, host) == (node.inventory, node.findings, node.host)
    if same and not reconciled.writes and not is_new:
        return Decision(result=node)
    columns: dict[str, Any] = {
        "inventory": document,
        "inventory_at": context.now,
        "findings": findings,
        "host": host,
        "baseline": compared.baseline,
        "attested_at": None,
    }
    changed = replace(node, **columns)
    waits = node.approval == Approval.REQUIRED or compared.is_unexpected
    change = ("pending" if waits else "ready") if is_new else "inventory"
    summary: dict[str, Any] = {"change": change, **_summary(document, findings)}
    write: Write
    if is_new:
        edge = NODE.step(NodeState.ENROLLED, NodeTrigger.AWAIT_APPROVAL if waits else NodeTrigger.REPORT_READY)
        write = StateChange("node", node.id, NODE, edge, node.generation, None, columns)
        changed = replace(changed, status=edge.target.value, generation=node.generation + 1)
    else:
        write = Update("node", node.id, node.revision, columns)
        changed = replace(changed, revision=node.revision + 1)
    return Decision(
        result=changed,
        writes=(write, *reconciled.writes),
        events=(EventRecord(EventType.NODE_CHANGED, "node", node.id, None, data={"name": node.name, **summary}),),
        audits=(AuditRecord("agent.report", "node", node.id, None, after=summary),),
    )


def reconcile_slots(
    context: DecisionContext, node_id: str, slots: Sequence[Slot], gpus: Sequence[Gpu]
) -> InventoryChange:
    """Make the slots equal to the reported GPUs, except slots that an allocation has."""
    known = {slot.index: slot for slot in slots}
    reported = {gpu.index: gpu for gpu in gpus}
    writes: list[Write] = []
    findings: list[dict[str, Any]] = []
    for index in sorted(known.keys() | reported.keys()):
        slot, gpu = known.get(index), reported.get(index)
        if slot is None and gpu is not None:
            writes.append(_new_slot(context, node_id, gpu))
        elif slot is not None and gpu is None:
            if slot.status == SlotStatus.FREE:
                writes.append(Remove("slot", slot.id, slot.revision))
            else:
                findings.append(_finding("gpu_missing", f"GPU {index} is {slot.status} and is not reported", slot))
        elif slot is not None and gpu is not None and _columns(gpu) != _slot_columns(slot):
            if slot.status == SlotStatus.FREE:
                writes.append(Update("slot", slot.id, slot.revision, _columns(gpu)))
            else:
                detail = f"GPU {index} is {slot.status} and is reported as another: {gpu.model}"
                findings.append(_finding("gpu_changed", detail, slot))
    return InventoryChange(tuple(writes), tuple(findings))


def check_inventory(inventory: Inventory) -> None:
    """Refuse values out of bounds and repeated indexes."""
    validation.display_name(inventory.agent_version, "agent_version", VERSION_MAX)
    _bounded("cpus", inventory.cpus, CPUS_MAX)
    _bounded("memory_bytes", inventory.memory_bytes, BYTES_MAX)
    _at_most("gpus", len(inventory.gpus), GPUS_MAX)
    _at_most("numa", len(inventory.numa), NUMA_MAX)
    _at_most("addresses", len(inventory.addresses), ADDRESSES_MAX)
    for path, listed in (("gpus", [gpu.index for gpu in inventory.gpus]), ("numa", [n.index for n in inventory.numa])):
        if len(set(listed)) != len(listed):
            raise validation.invalid(path, "each index once")
    for gpu in inventory.gpus:
        _bounded("gpus.index", gpu.index, GPUS_MAX * 8)
        _bounded("gpus.numa", gpu.numa, NUMA_MAX * 8)
        _bounded("gpus.memory_bytes", gpu.memory_bytes, BYTES_MAX)
        validation.display_name(gpu.model, "gpus.model", MODEL_MAX)
    for numa in inventory.numa:
        _bounded("numa.index", numa.index, NUMA_MAX * 8)
        _bounded("numa.cpus", numa.cpus, CPUS_MAX)
        _bounded("numa.memory_bytes", numa.memory_bytes, BYTES_MAX)
    for address in inventory.addresses:
        _address(address)
    _check_facts("facts", inventory.facts)
    _check_facts("limits", inventory.limits)


def _check_facts(path: str, facts: Mapping[str, Fact]) -> None:
    _at_most(path, len(facts), FACTS_MAX)
    for name, value in facts.items():
        if not _FACT.fullmatch(name):
            raise validation.invalid(path, "names of 1 to 63 lower-case letters, digits, `_`, `.` and `-`")
        if isinstance(value, str):
            validation.remark(value, f"{path}.{name}", FACT_TEXT_MAX)
        elif not math.isfinite(value) or abs(value) > BYTES_MAX:
            raise validation.invalid(f"{path}.{name}", f"a finite number of at most {BYTES_MAX}")


def _address(text: str) -> None:
    try:
        ip_address(text)
    except ValueError as error:
        raise validation.invalid("addresses", "IP addresses") from error


def _bounded(path: str, number: int, most: int) -> None:
    if not 0 <= number <= most:
        raise validation.invalid(path, f"0 to {most}")


def _at_most(path: str, count: int, most: int) -> None:
    if count > most:
        raise validation.invalid(path, f"at most {most}")


def _host(node: Node, slots: Sequence[Slot], host: HostKind) -> tuple[str, list[dict[str, Any]]]:
    """Accept another kind of host only while no slot is held: a sandbox outlives its agent, but not its host."""
    if host.value == node.host:
        return node.host, []
    if not any(slot.is_held for slot in slots):
        return host.value, []
    detail = f"the agent now reports host {host}, but its sandboxes were made with host {node.host}"
    return node.host, [{"code": "host_changed", "detail": detail}]


@dataclass(frozen=True, slots=True)
class _Compared:
    """A report after it was compared with the plan and with earlier reports."""

    findings: list[dict[str, Any]]
    baseline: dict[str, Any]
    is_unexpected: bool


def _compared(
    node: Node, slots: Sequence[Slot], document: Mapping[str, Any], found: Sequence[dict[str, Any]]
) -> _Compared:
    """Add how the report differs from the plan and from the baseline, which only a report without findings replaces."""
    before = node.baseline
    if before is None and node.inventory is not None:
        before = baseline_of(node.inventory)
    held = {slot.index: slot for slot in slots if slot.is_held}
    flagged = {each.get("slot_index") for each in found}
    swapped = [
        _finding("gpu_changed", f"GPU {index} is {held[index].status}, and another device has its index", held[index])
        for index in swapped_devices(before, document, sorted(held.keys() - flagged))
    ]
    of_slots = [*found, *swapped]
    lost = differences(before, document)
    if of_slots:  # they name the GPUs already
        lost = [each for each in lost if each["code"] != "gpus_lost"]
    planned = unexpected(node.expects, node.name, document)
    findings = [*of_slots, *lost, *planned]
    keep = before is not None and (of_slots or lost)
    return _Compared(findings, dict(before) if keep and before else baseline_of(document), bool(planned))


def _new_slot(context: DecisionContext, node_id: str, gpu: Gpu) -> Insert:
    row = {
        "id": context.mint(Prefix.SLOT),
        "node_id": node_id,
        "index": gpu.index,
        **_columns(gpu),
        "status": SlotStatus.FREE.value,
        "created_at": context.now,
    }
    return Insert("slot", row)


def _columns(gpu: Gpu) -> dict[str, object]:
    return {"numa": gpu.numa, "gpu_model": gpu.model, "memory_bytes": gpu.memory_bytes, "simulated": gpu.simulated}


def _slot_columns(slot: Slot) -> dict[str, object]:
    return {
        "numa": slot.numa,
        "gpu_model": slot.gpu_model,
        "memory_bytes": slot.memory_bytes,
        "simulated": slot.simulated,
    }


def _finding(code: str, detail: str, slot: Slot) -> dict[str, Any]:
    return {"code": code, "detail": detail, "slot_index": slot.index, "allocation_id": slot.allocation_id}


def _summary(document: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "agent_version": document["agent_version"],
        "cpus": document["cpus"],
        "gpus": len(document["gpus"]),
        "simulated_gpus": sum(gpu["simulated"] for gpu in document["gpus"]),
        "findings": list(findings),
    }
