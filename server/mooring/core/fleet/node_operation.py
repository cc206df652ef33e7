"""What operators do with a node beside its lifecycle: cordon it, and label it.

A cordoned node takes no new allocations, and what is on it goes on. Unlike a drain it leads nowhere: the state of the
node stays, and `uncordon` ends it. An operator cordons to look at a machine, or to keep it for something; to empty it,
they drain it.
"""

from collections.abc import Mapping
from dataclasses import replace

from mooring.core.fleet.enrolment import check_labels
from mooring.core.fleet.node import Node, NodeState, node_event
from mooring.core.fleet.project_network import POOL_LABEL
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType


def cordon_node(context: DecisionContext, node: Node, reason: str) -> Decision[Node]:
    """Take no new allocations on a node; repeating it changes nothing."""
    _require_open(node)
    if node.cordoned_at is not None:
        return _unchanged(node, "cordoned")
    stated = validation.reason(reason)
    return _changed(node, "cordoned", {"cordoned_at": context.now, "cordon_reason": stated}, reason=stated)


def uncordon_node(context: DecisionContext, node: Node) -> Decision[Node]:
    """Let a node take new allocations again; repeating it changes nothing."""
    if node.cordoned_at is None:
        return _unchanged(node, "uncordoned")
    return _changed(node, "uncordoned", {"cordoned_at": None, "cordon_reason": None})


def label_node(context: DecisionContext, node: Node, labels: Mapping[str, str | None]) -> Decision[Node]:
    """Set labels of a node; None removes one, and labels that are not named stay."""
    _require_open(node)
    if POOL_LABEL in labels:
        raise validation.invalid(
            f"labels.{POOL_LABEL}", "only set when the machine joins: networks of sandboxes depend on it"
        )
    named = {**node.labels, **labels}
    after = check_labels({name: value for name, value in named.items() if value is not None})
    if after == node.labels:
        return _unchanged(node, "labelled")
    return _changed(node, "labelled", {"labels": after})


def _require_open(node: Node) -> None:
    if node.status == NodeState.RETIRED:
        raise Refusal(Code.CONFLICT, f"{node.name} is retired", {"status": node.status})


def _unchanged(node: Node, asked: str) -> Decision[Node]:
    """Nothing to do; the audit trail says who asked."""
    return Decision(node, audits=(AuditRecord("node.operate", "node", node.id, None, after={"unchanged": asked}),))


def _changed(node: Node, change: str, columns: Mapping[str, object], reason: str | None = None) -> Decision[Node]:
    before = {name: _plain(getattr(node, name)) for name in columns}
    after = {name: _plain(value) for name, value in columns.items()}
    return Decision(
        result=replace(node, revision=node.revision + 1, **columns),  # type: ignore[arg-type]
        writes=(Update("node", node.id, node.revision, columns),),
        events=(node_event(node, EventType.NODE_CHANGED, {"change": change}),),
        audits=(AuditRecord("node.operate", "node", node.id, None, before=before, after=after, reason=reason),),
    )


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, str | dict) else str(value)
