"""Decisions about machines that wait for approval, and about reports that an operator accepts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from mooring.core.fleet.node import NODE, Node, NodeState, NodeTrigger, node_event, retired
from mooring.core.fleet.node_plan import baseline_of
from mooring.core.fleet.slot import Slot
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, StateChange, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType

ACTION: Final = "node.approve"
OF_SLOTS: Final = frozenset({"gpu_missing", "gpu_changed", "host_changed"})
"""Findings about what allocations use: nobody accepts those, they end with the allocation or when the GPU is back."""


def approve_node(context: DecisionContext, node: Node, reason: str | None = None) -> Decision[Node]:
    """Accept a machine as it reports itself: it takes work from now on."""
    edge = NODE.step(NodeState(node.status), NodeTrigger.APPROVE)
    columns = _accepted(node)
    data = {"change": "approved", "status": edge.target.value, "accepted": _codes(node), "reason": reason}
    return Decision(
        result=replace(node, status=edge.target.value, generation=node.generation + 1, **columns),
        writes=(StateChange("node", node.id, NODE, edge, node.generation, None, columns),),
        events=(node_event(node, EventType.NODE_CHANGED, data),),
        audits=(AuditRecord(ACTION, "node", node.id, None, before={"status": node.status}, after=data, reason=reason),),
    )


def reject_node(context: DecisionContext, node: Node, slots: Sequence[Slot], reason: str) -> Decision[Node]:
    """Refuse a machine that waits: its key is revoked, and it never had work."""
    edge = NODE.step(NodeState(node.status), NodeTrigger.REJECT)
    return retired(context, node, slots, edge, reason=validation.reason(reason), may_be_left=None, action=ACTION)


def acknowledge_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """Accept what a node reports now as what it has; findings about slots in use stay."""
    if node.status in (NodeState.RETIRED, NodeState.ENROLLED, NodeState.PENDING):
        raise Refusal(Code.ILLEGAL_TRANSITION, f"the node is {node.status}", {"state": node.status, "allowed": []})
    columns = _accepted(node)
    data = {"change": "acknowledged", "accepted": _codes(node)}
    return Decision(
        result=replace(node, revision=node.revision + 1, **columns),
        writes=(Update("node", node.id, node.revision, columns),),
        events=(node_event(node, EventType.NODE_CHANGED, data),),
        audits=(AuditRecord(ACTION, "node", node.id, None, after=data),),
    )


def leave_to_operator(context: DecisionContext, node: Node, detail: str) -> Decision[Node]:
    """The attestation command decided nothing: the machine waits for an operator."""
    columns = {"attested_at": context.now}
    data = {"change": "attestation_undecided", "detail": detail}
    return Decision(
        result=replace(node, revision=node.revision + 1, attested_at=context.now),
        writes=(Update("node", node.id, node.revision, columns),),
        events=(node_event(node, EventType.NODE_CHANGED, data),),
        audits=(AuditRecord(ACTION, "node", node.id, None, after=data),),
    )


def _accepted(node: Node) -> dict[str, Any]:
    return {
        "expects": None,
        "baseline": None if node.inventory is None else baseline_of(node.inventory),
        "findings": [each for each in node.findings if each["code"] in OF_SLOTS],
    }


def _codes(node: Node) -> list[str]:
    return [str(each["code"]) for each in node.findings if each["code"] not in OF_SLOTS]
