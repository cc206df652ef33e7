"""Node: a machine whose agent dials out to the platform.

The state says whether the platform gives it new work. Whether it can be reached, and since when, is
observed beside the state. Retiring revokes its key; with live allocations that is done only by a write-off.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from mooring.core.fleet.slot import Slot, quarantine_slots
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who

NAMED_MAX: Final = 100
"""How many allocations a refusal names."""


class NodeState(StrEnum):
    ENROLLED = "enrolled"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    RETIRED = "retired"


class NodeTrigger(StrEnum):
    REPORT_READY = "report_ready"
    DRAIN = "drain"
    FINISH_DRAIN = "finish_drain"
    RESUME = "resume"
    RETIRE = "retire"


S, T = NodeState, NodeTrigger

NODE = Lifecycle(
    name="node",
    about="A machine whose agent dials out to the platform. "
    "Whether it can be reached, and since when, is observed beside the state.",
    states=NodeState,
    triggers=NodeTrigger,
    initial=S.ENROLLED,
    meaning={
        S.ENROLLED: "its key is known; its agent has not reported what it has",
        S.READY: "it takes new allocations",
        S.DRAINING: "it takes no new allocations, and those that it has come to their end",
        S.DRAINED: "it has no allocations and takes none",
        S.RETIRED: "gone for ever: its key is revoked and its slots are out of use",
    },
    edges=(
        Transition(S.ENROLLED, T.REPORT_READY, S.READY, Who.AGENT, "Its agent proved its key and told its slots."),
        Transition(S.ENROLLED, T.RETIRE, S.RETIRED, Who.ADMIN, "It will not come into use after all."),
        Transition(S.READY, T.DRAIN, S.DRAINING, Who.ADMIN, "An operator wants it empty, for repair or for good."),
        Transition(S.READY, T.RETIRE, S.RETIRED, Who.ADMIN, "It goes at once: empty, or by write-off."),
        Transition(S.DRAINING, T.FINISH_DRAIN, S.DRAINED, Who.WORKER, "Its last allocation is released."),
        Transition(S.DRAINING, T.RESUME, S.READY, Who.ADMIN, "An operator takes the drain back in time."),
        Transition(S.DRAINING, T.RETIRE, S.RETIRED, Who.ADMIN, "It is lost while it drains, and is written off."),
        Transition(S.DRAINED, T.RESUME, S.READY, Who.ADMIN, "An operator puts it back to work."),
        Transition(S.DRAINED, T.RETIRE, S.RETIRED, Who.ADMIN, "It is empty, so taking it out disturbs nobody."),
    ),
    requires={
        S.READY: frozenset({"inventory"}),
        S.DRAINING: frozenset({"inventory"}),
        S.DRAINED: frozenset({"inventory"}),
        S.RETIRED: frozenset({"retired_at", "retirement_reason"}),
    },
)


class HostKind(StrEnum):
    """How an agent keeps sandboxes apart."""

    NAMESPACE = "namespace"
    PROCESS = "process"
    SIMULATED = "simulated"


HOST_MEANING: Final[Mapping[HostKind, str]] = {
    HostKind.NAMESPACE: "each sandbox has a root, a network and processes of its own; the agent runs as root",
    HostKind.PROCESS: "no isolation: the node takes one project only",
    HostKind.SIMULATED: "nothing is run: sandboxes are made in memory, to try the platform at scale",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A machine whose agent dials out."""

    id: str
    name: str
    host: str
    region: str
    labels: dict[str, str]
    signing_key: bytes
    sealing_key: bytes
    status: str
    generation: int
    revision: int
    created_at: datetime
    inventory: dict[str, Any] | None = None
    inventory_at: datetime | None = None
    findings: list[dict[str, Any]] = field(default_factory=list)
    health: dict[str, Any] | None = None
    last_seen_at: datetime | None = None
    unreachable_since: datetime | None = None
    sweep_due: bool = False
    previous_node_id: str | None = None
    retired_at: datetime | None = None
    retirement_reason: str | None = None
    written_off_at: datetime | None = None
    may_be_left: str | None = None

    @property
    def takes_work(self) -> bool:
        """Whether new allocations may be placed here; the same is asked again by the database when one is."""
        return self.status == NodeState.READY and not self.sweep_due and self.unreachable_since is None


@dataclass(frozen=True, slots=True)
class WriteOff:
    """What an admin answers for who gives up a machine: why, and what may still be on it."""

    reason: str
    may_be_left: str


_CHANGE: Final[Mapping[NodeTrigger, str]] = {
    NodeTrigger.REPORT_READY: "ready",
    NodeTrigger.DRAIN: "draining",
    NodeTrigger.FINISH_DRAIN: "drained",
    NodeTrigger.RESUME: "resumed",
}
"""How an event names a transition."""


def why_no_work(node: Node, allocations: int = 0) -> list[dict[str, str]]:
    """Why a node takes no new allocations; empty when it does."""
    reasons = []
    if node.status == NodeState.ENROLLED:
        reasons.append(("inventory_missing", "its agent has not reported what it has"))
    if node.status == NodeState.DRAINING:
        reasons.append(("draining", f"an operator drains it; {allocations} allocations are left"))
    if node.status == NodeState.DRAINED:
        reasons.append(("drained", "an operator drained it; `resume` puts it back to work"))
    if node.status == NodeState.RETIRED:
        reasons.append(("retired", f"it is retired: {node.retirement_reason}"))
    elif node.unreachable_since is not None:
        reasons.append(("unreachable", f"it is unreachable since {node.unreachable_since.isoformat()}"))
    if node.sweep_due and node.status != NodeState.RETIRED:
        reasons.append(("sweep_due", "it was here before; what is left of that is swept before it takes work"))
    return [{"code": code, "detail": detail} for code, detail in reasons]


def drain_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """No new allocations from now on; those that are there come to their end."""
    return _move(context, node, NodeTrigger.DRAIN, "node.drain")


def resume_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """Take a drain back, whether it has finished or not."""
    return _move(context, node, NodeTrigger.RESUME, "node.drain")


def finish_drain(context: DecisionContext, node: Node) -> Decision[Node]:
    """The last allocation of a draining node is released."""
    return _move(context, node, NodeTrigger.FINISH_DRAIN, "node.drain")


def retire_node(
    context: DecisionContext, node: Node, slots: Sequence[Slot], allocation_ids: Sequence[str], reason: str
) -> Decision[Node]:
    """An empty node goes for ever, and its key counts no more."""
    edge = NODE.step(NodeState(node.status), NodeTrigger.RETIRE)
    if allocation_ids or any(slot.is_held for slot in slots):
        raise Refusal(
            Code.NOT_EMPTY,
            f"{node.name} has {len(allocation_ids)} allocations: drain it and wait, or write it off if it is gone",
            {"allocation_ids": list(allocation_ids)[:NAMED_MAX]},
        )
    return _retired(context, node, slots, (edge, validation.reason(reason), None))


def write_off_node(context: DecisionContext, node: Node, slots: Sequence[Slot], stated: WriteOff) -> Decision[Node]:
    """A lost machine is given up: the node is retired with all that it holds, and its slots are never used again.

    Only the node, its key and its slots are dealt with here. An allocation on a node that was written off ends by
    its own `write_off`, which the state of this node allows.
    """
    edge = NODE.step(NodeState(node.status), NodeTrigger.RETIRE)
    left = validation.remark(stated.may_be_left, "may_be_left", 1000)
    if not left:
        raise validation.invalid("may_be_left", "say what may still be on the machine; `nothing` is an answer")
    return _retired(context, node, slots, (edge, validation.reason(stated.reason), left))


def finish_sweep(context: DecisionContext, node: Node) -> Decision[Node]:
    """The node was looked through and nothing foreign is left on it: it may take work."""
    if not node.sweep_due or node.status == NodeState.RETIRED:
        return Decision(result=node)
    swept = {"sweep_due": False}
    return Decision(
        result=replace(node, revision=node.revision + 1, sweep_due=False),
        writes=(Update("node", node.id, node.revision, swept),),
        events=(_happened(node, EventType.NODE_CHANGED, {"change": "swept"}),),
        audits=(AuditRecord("agent.report", "node", node.id, None, after=swept),),
    )


def mark_unreachable(context: DecisionContext, nodes: Sequence[Node]) -> Decision[tuple[Node, ...]]:
    """These were not heard of for too long."""
    return _marked(nodes, EventType.NODE_UNREACHABLE)


def mark_reachable(context: DecisionContext, nodes: Sequence[Node]) -> Decision[tuple[Node, ...]]:
    """These are heard of again."""
    return _marked(nodes, EventType.NODE_REACHABLE)


def _marked(nodes: Sequence[Node], event: EventType) -> Decision[tuple[Node, ...]]:
    """A node is unreachable since it was last seen: that moment is the database's, as the measure is."""
    marked = tuple(
        replace(
            node,
            unreachable_since=node.last_seen_at if event is EventType.NODE_UNREACHABLE else None,
            revision=node.revision + 1,
        )
        for node in nodes
    )
    told = [
        {"last_seen_at": _text(before.last_seen_at), "unreachable_since": _text(before.unreachable_since)}
        for before in nodes
    ]
    reachable = event is EventType.NODE_REACHABLE
    return Decision(
        result=marked,
        writes=tuple(
            Update("node", node.id, node.revision - 1, {"unreachable_since": node.unreachable_since}) for node in marked
        ),
        events=tuple(_happened(node, event, data) for node, data in zip(nodes, told, strict=True)),
        audits=tuple(
            AuditRecord("node.watch", "node", node.id, None, after={"reachable": reachable}) for node in nodes
        ),
    )


def _move(context: DecisionContext, node: Node, trigger: NodeTrigger, action: str) -> Decision[Node]:
    edge = NODE.step(NodeState(node.status), trigger)
    return Decision(
        result=replace(node, status=edge.target.value, generation=node.generation + 1),
        writes=(StateChange("node", node.id, NODE, edge, node.generation, None),),
        events=(_happened(node, EventType.NODE_CHANGED, {"change": _CHANGE[trigger], "status": edge.target.value}),),
        audits=(
            AuditRecord(
                action, "node", node.id, None, before={"status": node.status}, after={"status": edge.target.value}
            ),
        ),
    )


def _retired(
    context: DecisionContext,
    node: Node,
    slots: Sequence[Slot],
    how: tuple[Transition[NodeState, NodeTrigger], str, str | None],
) -> Decision[Node]:
    edge, reason, may_be_left = how
    written_off_at = None if may_be_left is None else context.now
    columns: dict[str, Any] = {
        "retired_at": context.now,
        "retirement_reason": reason,
        "written_off_at": written_off_at,
        "may_be_left": may_be_left,
        "sweep_due": False,
    }
    told = {
        "written_off": may_be_left is not None,
        "reason": reason,
        "may_be_left": may_be_left,
        "slots_quarantined": len(slots),
    }
    action = "node.retire" if may_be_left is None else "teardown.write_off"
    return Decision(
        result=replace(node, status=edge.target.value, generation=node.generation + 1, **columns),
        writes=(
            StateChange("node", node.id, NODE, edge, node.generation, None, columns),
            *quarantine_slots(slots),
        ),
        events=(_happened(node, EventType.NODE_RETIRED, told),),
        audits=(AuditRecord(action, "node", node.id, None, before={"status": node.status}, after=told, reason=reason),),
    )


def _happened(node: Node, event: EventType, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(event, "node", node.id, None, data={"name": node.name, **data})


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
