"""Node: a machine whose agent dials out to the platform.

The state says whether the platform gives it new work. Whether the node is reachable is observed separately
(`unreachable_since`). Retiring a node revokes its key; a node with live allocations is retired only by a write-off.
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
    PENDING = "pending"
    READY = "ready"
    DRAINING = "draining"
    DRAINED = "drained"
    RETIRED = "retired"


class NodeTrigger(StrEnum):
    REPORT_READY = "report_ready"
    AWAIT_APPROVAL = "await_approval"
    APPROVE = "approve"
    REJECT = "reject"
    DRAIN = "drain"
    FINISH_DRAIN = "finish_drain"
    RESUME = "resume"
    RETIRE = "retire"


S, T = NodeState, NodeTrigger

NODE = Lifecycle(
    name="node",
    about="A machine whose agent dials out to the platform. "
    "Whether it is reachable, and since when it is not, is observed separately.",
    states=NodeState,
    triggers=NodeTrigger,
    initial=S.ENROLLED,
    meaning={
        S.ENROLLED: "its key is registered; its agent has not reported its inventory yet",
        S.PENDING: "its agent reported its inventory; it gets no work until somebody accepts it",
        S.READY: "it takes new allocations",
        S.DRAINING: "it takes no new allocations and waits until those it has are released",
        S.DRAINED: "it has no allocations and takes none",
        S.RETIRED: "gone for good: its key is revoked and its slots are out of use",
    },
    edges=(
        Transition(S.ENROLLED, T.REPORT_READY, S.READY, Who.AGENT, "Its agent proved its key and reported its slots."),
        Transition(
            S.ENROLLED, T.AWAIT_APPROVAL, S.PENDING, Who.AGENT, "It needs approval, or is not what was expected."
        ),
        Transition(S.PENDING, T.APPROVE, S.READY, Who.ADMIN, "An operator, or the attestation command, accepts it."),
        Transition(S.PENDING, T.REJECT, S.RETIRED, Who.ADMIN, "It is refused before it got any work."),
        Transition(S.PENDING, T.RETIRE, S.RETIRED, Who.ADMIN, "It is removed before it was ever used."),
        Transition(S.ENROLLED, T.RETIRE, S.RETIRED, Who.ADMIN, "It is removed before it was ever used."),
        Transition(S.READY, T.DRAIN, S.DRAINING, Who.ADMIN, "An operator wants it empty, for repair or for good."),
        Transition(
            S.READY, T.RETIRE, S.RETIRED, Who.ADMIN, "It is removed at once: it is empty, or it is written off."
        ),
        Transition(S.DRAINING, T.FINISH_DRAIN, S.DRAINED, Who.WORKER, "Its last allocation is released."),
        Transition(S.DRAINING, T.RESUME, S.READY, Who.ADMIN, "An operator cancels the drain."),
        Transition(S.DRAINING, T.RETIRE, S.RETIRED, Who.ADMIN, "It was lost during the drain and is written off."),
        Transition(S.DRAINED, T.RESUME, S.READY, Who.ADMIN, "An operator puts it back to work."),
        Transition(S.DRAINED, T.RETIRE, S.RETIRED, Who.ADMIN, "It is empty, so nobody is affected."),
    ),
    requires={
        S.PENDING: frozenset({"inventory"}),
        S.READY: frozenset({"inventory"}),
        S.DRAINING: frozenset({"inventory"}),
        S.DRAINED: frozenset({"inventory"}),
        S.RETIRED: frozenset({"retired_at", "retirement_reason"}),
    },
)


class HostKind(StrEnum):
    """How an agent isolates sandboxes."""

    NAMESPACE = "namespace"
    PROCESS = "process"
    SIMULATED = "simulated"


HOST_MEANING: Final[Mapping[HostKind, str]] = {
    HostKind.NAMESPACE: "each sandbox has a root, a network and processes of its own; the agent runs as root",
    HostKind.PROCESS: "no isolation: the node takes one project only",
    HostKind.SIMULATED: "runs nothing: sandboxes exist in memory, to test the platform at scale",
}


@dataclass(frozen=True, slots=True)
class Node:
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
    approval: str = "automatic"
    expects: dict[str, Any] | None = None
    baseline: dict[str, Any] | None = None
    attested_at: datetime | None = None
    cordoned_at: datetime | None = None
    cordon_reason: str | None = None

    @property
    def takes_work(self) -> bool:
        """Whether new allocations may be placed here; the database checks the same again for each placement."""
        ready = self.status == NodeState.READY and self.cordoned_at is None
        return ready and not self.sweep_due and self.unreachable_since is None


@dataclass(frozen=True, slots=True)
class WriteOff:
    """What an admin states and answers for: why the machine is given up, and what may still be on it."""

    reason: str
    may_be_left: str


_CHANGE: Final[Mapping[NodeTrigger, str]] = {
    NodeTrigger.REPORT_READY: "ready",
    NodeTrigger.DRAIN: "draining",
    NodeTrigger.FINISH_DRAIN: "drained",
    NodeTrigger.RESUME: "resumed",
}
"""The value of `change` in the event of a transition."""


def why_no_work(node: Node, allocations: int = 0) -> list[dict[str, str]]:
    """Why a node takes no new allocations; empty when it does."""
    reasons = []
    if node.status == NodeState.ENROLLED:
        reasons.append(("inventory_missing", "its agent has not reported its inventory"))
    if node.status == NodeState.PENDING:
        reasons.append(("approval_missing", "it waits until somebody approves it, or rejects it"))
    if node.status == NodeState.DRAINING:
        reasons.append(("draining", f"an operator is draining it; {allocations} allocations are left"))
    if node.status == NodeState.DRAINED:
        reasons.append(("drained", "an operator drained it; `resume` puts it back to work"))
    if node.status == NodeState.RETIRED:
        reasons.append(("retired", f"it is retired: {node.retirement_reason}"))
    elif node.unreachable_since is not None:
        reasons.append(("unreachable", f"it is unreachable since {node.unreachable_since.isoformat()}"))
    if node.cordoned_at is not None and node.status != NodeState.RETIRED:
        reasons.append(("cordoned", f"an operator cordoned it: {node.cordon_reason}; `uncordon` ends that"))
    if node.sweep_due and node.status != NodeState.RETIRED:
        reasons.append(
            ("sweep_due", "it was a node before; its agent must sweep what is left of that before it takes work")
        )
    return [{"code": code, "detail": detail} for code, detail in reasons]


def drain_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """Take no new allocations; those that are there run until they are released."""
    return _move(context, node, NodeTrigger.DRAIN, "node.drain")


def resume_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """Cancel a drain, finished or not."""
    return _move(context, node, NodeTrigger.RESUME, "node.drain")


def finish_drain(context: DecisionContext, node: Node) -> Decision[Node]:
    """End the drain of a node whose last allocation is released."""
    return _move(context, node, NodeTrigger.FINISH_DRAIN, "node.drain")


def retire_node(
    context: DecisionContext, node: Node, slots: Sequence[Slot], allocation_ids: Sequence[str], reason: str
) -> Decision[Node]:
    """Retire an empty node for good, and revoke its key."""
    edge = NODE.step(NodeState(node.status), NodeTrigger.RETIRE)
    if allocation_ids or any(slot.is_held for slot in slots):
        raise Refusal(
            Code.NOT_EMPTY,
            f"{node.name} has {len(allocation_ids)} allocations: drain it and wait, or write it off if it is lost",
            {"allocation_ids": list(allocation_ids)[:NAMED_MAX]},
        )
    return retired(context, node, slots, edge, reason=validation.reason(reason), may_be_left=None)


def write_off_node(context: DecisionContext, node: Node, slots: Sequence[Slot], stated: WriteOff) -> Decision[Node]:
    """Give up a lost machine: retire the node with all that it holds, and never use its slots again.

    This covers only the node, its key and its slots. An allocation on a written-off node ends by its own `write_off`
    transition, which the state of this node allows.
    """
    edge = NODE.step(NodeState(node.status), NodeTrigger.RETIRE)
    left = validation.remark(stated.may_be_left, "may_be_left", 1000)
    if not left:
        raise validation.invalid("may_be_left", "say what may still be on the machine; `nothing` is an answer")
    return retired(context, node, slots, edge, reason=validation.reason(stated.reason), may_be_left=left)


def finish_sweep(context: DecisionContext, node: Node) -> Decision[Node]:
    """The agent has swept the node, so nothing unknown is left on it: it may take work."""
    if not node.sweep_due or node.status == NodeState.RETIRED:
        return Decision(result=node)
    swept = {"sweep_due": False}
    return Decision(
        result=replace(node, revision=node.revision + 1, sweep_due=False),
        writes=(Update("node", node.id, node.revision, swept),),
        events=(node_event(node, EventType.NODE_CHANGED, {"change": "swept"}),),
        audits=(AuditRecord("agent.report", "node", node.id, None, after=swept),),
    )


def mark_unreachable(context: DecisionContext, nodes: Sequence[Node]) -> Decision[tuple[Node, ...]]:
    """Mark nodes whose last heartbeat is too old."""
    return _marked(nodes, EventType.NODE_UNREACHABLE)


def mark_reachable(context: DecisionContext, nodes: Sequence[Node]) -> Decision[tuple[Node, ...]]:
    """Clear the mark of nodes that send heartbeats again."""
    return _marked(nodes, EventType.NODE_REACHABLE)


def _marked(nodes: Sequence[Node], event: EventType) -> Decision[tuple[Node, ...]]:
    """A node is unreachable since its last heartbeat, both by the database's clock."""
    marked = tuple(
        replace(
            node,
            unreachable_since=node.last_seen_at if event is EventType.NODE_UNREACHABLE else None,
            revision=node.revision + 1,
        )
        for node in nodes
    )
    summaries = [
        {"last_seen_at": _text(before.last_seen_at), "unreachable_since": _text(before.unreachable_since)}
        for before in nodes
    ]
    reachable = event is EventType.NODE_REACHABLE
    return Decision(
        result=marked,
        writes=tuple(
            Update("node", node.id, node.revision - 1, {"unreachable_since": node.unreachable_since}) for node in marked
        ),
        events=tuple(node_event(node, event, data) for node, data in zip(nodes, summaries, strict=True)),
        audits=tuple(
            AuditRecord("node.watch", "node", node.id, None, after={"reachable": reachable}) for node in nodes
        ),
    )


def _move(context: DecisionContext, node: Node, trigger: NodeTrigger, action: str) -> Decision[Node]:
    edge = NODE.step(NodeState(node.status), trigger)
    return Decision(
        result=replace(node, status=edge.target.value, generation=node.generation + 1),
        writes=(StateChange("node", node.id, NODE, edge, node.generation, None),),
        events=(node_event(node, EventType.NODE_CHANGED, {"change": _CHANGE[trigger], "status": edge.target.value}),),
        audits=(
            AuditRecord(
                action, "node", node.id, None, before={"status": node.status}, after={"status": edge.target.value}
            ),
        ),
    )


def retired(
    context: DecisionContext,
    node: Node,
    slots: Sequence[Slot],
    edge: Transition[NodeState, NodeTrigger],
    *,
    reason: str,
    may_be_left: str | None,
    action: str | None = None,
) -> Decision[Node]:
    """Retire a node by this edge: its key is revoked, and its slots are never used again."""
    written_off_at = None if may_be_left is None else context.now
    columns: dict[str, Any] = {
        "retired_at": context.now,
        "retirement_reason": reason,
        "written_off_at": written_off_at,
        "may_be_left": may_be_left,
        "sweep_due": False,
    }
    summary = {
        "written_off": may_be_left is not None,
        "reason": reason,
        "may_be_left": may_be_left,
        "slots_quarantined": len(slots),
    }
    action = action or ("node.retire" if may_be_left is None else "teardown.write_off")
    return Decision(
        result=replace(node, status=edge.target.value, generation=node.generation + 1, **columns),
        writes=(
            StateChange("node", node.id, NODE, edge, node.generation, None, columns),
            *quarantine_slots(slots),
        ),
        events=(node_event(node, EventType.NODE_RETIRED, summary),),
        audits=(
            AuditRecord(action, "node", node.id, None, before={"status": node.status}, after=summary, reason=reason),
        ),
    )


def node_event(node: Node, event: EventType, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(event, "node", node.id, None, data={"name": node.name, **data})


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
