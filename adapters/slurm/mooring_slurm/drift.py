"""The drift between three views of a cluster: the platform's members, the adapter's target, and Slurm.

`look` is the answer of the controller's node program. A difference has a name, a sentence, and whether a repair
corrects it; drains of others are shown and left alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring_adapter import InstanceView, Member
from mooring_slurm.drains import DEAD
from mooring_slurm.members import OPERATOR, OWNER, WORKER, workers_of

LISTED_MAX: Final = 40
"""The most nodes that a view lists; the rest is counted."""
LEAVING_KINDS: Final = frozenset({"drain", "remove", "replace"})
LEFT: Final = "left_node"
"""The difference of a node that is still in Slurm after a forced removal of its member."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference from the target."""

    node: str
    name: str
    detail: str
    is_repairable: bool = False

    def plain(self) -> dict[str, Any]:
        """The JSON form."""
        return {"node": self.node, "difference": self.name, "detail": self.detail, "repairable": self.is_repairable}


def nodes_of(look: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(each["name"]): each for each in look.get("nodes", ()) if isinstance(each, Mapping) and "name" in each}


def wanted_of(member: Member) -> str:
    """The target state of a member's node in Slurm."""
    match member.status:
        case "ready" | "degraded":
            return "takes jobs"
        case "draining" | "drained":
            return "drained"
        case _:
            return "nothing yet"


def busy_members(view: InstanceView) -> frozenset[str]:
    """The ids of members that an open operation drains, removes or replaces; their drained state is not drift."""
    return frozenset(
        identity
        for operation in view.operations
        if operation.kind in LEAVING_KINDS
        for identity in operation.member_ids
    )


def differences(view: InstanceView, look: Mapping[str, Any]) -> list[Difference]:
    """The differences between Slurm and the target, sorted by name."""
    nodes = nodes_of(look)
    members = {each.name: each for each in workers_of(view)}
    leaving = busy_members(view)
    found = [
        difference
        for name, member in members.items()
        if member.id not in leaving
        for difference in _of_member(member, nodes.get(name), look)
    ]
    known = {each.name for each in view.members}
    found += [_of_nobody(view, name, node) for name, node in nodes.items() if name not in known]
    found += [
        Difference("", "partition_down", f"the partition {each.get('name')} is {each.get('state')}")
        for each in look.get("partitions", ())
        if isinstance(each, Mapping) and str(each.get("state", "UP")).upper() != "UP"
    ]
    return sorted(found, key=lambda each: (each.node, each.name))


def _of_nobody(view: InstanceView, name: str, node: Mapping[str, Any]) -> Difference:
    if not is_named_by_us(view, name):
        is_silent = is_down(node)
        detail = "Slurm has a node without a member" + ("" if is_silent else "; it answers and is left alone")
        return Difference(name, "unknown_node", detail, is_repairable=is_silent)
    detail = "its member was removed, but Slurm still has the node; it is deleted when Slurm no longer reaches it"
    return Difference(name, LEFT, detail, is_repairable=True)


def left_nodes(view: InstanceView, look: Mapping[str, Any]) -> list[str]:
    """The nodes that forced removals left in Slurm: they have names of this instance's workers, and do not answer.

    The platform's records do not contain removed members. A node that has a member, answers, or has another kind of
    name does not count: administrators may have their own nodes.
    """
    known = {each.name for each in view.members}
    return sorted(
        name
        for name, node in nodes_of(look).items()
        if name not in known and is_named_by_us(view, name) and is_down(node)
    )


def is_named_by_us(view: InstanceView, name: str) -> bool:
    """Whether this is the name of a worker of the instance: instance name, component, number."""
    own, _, number = name.rpartition("-")
    return bool(view.instance.name) and own == f"{view.instance.name}-{WORKER}" and number.isdecimal()


def _of_member(member: Member, node: Mapping[str, Any] | None, look: Mapping[str, Any]) -> list[Difference]:
    name, wanted = member.name, wanted_of(member)
    if wanted == "nothing yet":
        return []
    if node is None:
        if look.get("truncated") or look.get("nodes_after"):
            return []
        return [Difference(name, "missing_node", f"the member is {member.status}, but Slurm has no such node", True)]
    state = frozenset(node.get("state", ()))
    found: list[Difference] = []
    drained, owner = "DRAIN" in state, drain_owner(node)
    if wanted == "drained" and not drained:
        found.append(Difference(name, "not_drained", f"the member is {member.status}, but the node takes jobs", True))
    if wanted == "takes jobs" and drained:
        found.append(_drained(name, node, owner))
    if is_down(node):
        found.append(
            Difference(name, "down", f"Slurm says {'+'.join(sorted(state))}: {node.get('reason') or 'no reason'}")
        )
    version, of_controller = node.get("version"), look.get("version")
    if version and of_controller and version != of_controller:
        found.append(Difference(name, "version", f"its slurmd is {version}, the controller {of_controller}"))
    return found


def _drained(name: str, node: Mapping[str, Any], owner: str | None) -> Difference:
    reason = node.get("reason") or "no reason given"
    if owner == OWNER:
        return Difference(name, "stale_drain", f"a drain of the platform is left over: {reason}", is_repairable=True)
    if owner is not None:
        return Difference(name, "operator_drain", f"drained by an action: {reason}")
    by = f" by {node['reason_by']}" if node.get("reason_by") else ""
    return Difference(name, "foreign_drain", f"drained in Slurm{by}: {reason}; it is left alone")


def drain_owner(node: Mapping[str, Any]) -> str | None:
    """The owner of a node's drain if it is one of this platform's, otherwise None."""
    words = str(node.get("reason") or "").split(":", 2)
    return words[1] if len(words) == 3 and words[0] == "mooring" and words[1] in (OWNER, OPERATOR) else None


def is_down(node: Mapping[str, Any]) -> bool:
    """Whether Slurm considers the node down or unresponsive."""
    return bool(DEAD & frozenset(node.get("state", ()))) or node.get("responding") is False


def is_merely_silent(node: Mapping[str, Any]) -> bool:
    """Whether the node at most does not answer right now, and has no worse state."""
    return not DEAD - {"NOT_RESPONDING"} & frozenset(node.get("state", ()))


def three_views(view: InstanceView, look: Mapping[str, Any] | None, found: Sequence[Difference]) -> dict[str, Any]:
    """The evidence of a reconcile: the three views and their differences."""
    members = [each for each in view.members if each.status not in ("removing", "removed")]
    workers = workers_of(view)
    slurm: dict[str, Any] | None = None
    if look is not None:
        nodes = nodes_of(look)
        slurm = {
            "version": look.get("version"),
            "nodes": {name: _short(node) for name, node in list(nodes.items())[:LISTED_MAX]},
            "node_count": len(nodes),
            "job_counts": look.get("job_counts", {}),
        }
    return {
        "platform": {each.name: f"{each.status} {each.version}".strip() for each in members[:LISTED_MAX]},
        "adapter": {each.name: wanted_of(each) for each in workers[:LISTED_MAX]},
        "slurm": slurm,
        "differences": [each.plain() for each in found[:LISTED_MAX]],
        "difference_count": len(found),
    }


def _short(node: Mapping[str, Any]) -> str:
    words = ["+".join(str(each) for each in node.get("state", ()))]
    if node.get("jobs"):
        words.append(f"{node['jobs']} jobs")
    if node.get("reason"):
        words.append(str(node["reason"])[:120])
    return ", ".join(words)
