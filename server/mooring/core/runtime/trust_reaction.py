"""What the platform does with running instances that lost their trust: drain them, stop them, or let them go on.

The reaction is the policy's (`Distrust.reaction`). It is bounded: only so many instances of one app, of one tenant and
of the platform are drained or stopped at once, so that one revocation never ends everything at the same moment. A
reaction is under way as long as an operation that it started is open. Candidates are chosen in a fixed order, so
workers side by side choose the same ones, and only one of them wins each step.

It is reversible where trust is: a member that was drained for its instance's sake is put back to work when the instance
is trusted again. Nothing here ends an upgrade or a rollback, which may be what leads to trusted bytes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.core.catalog.policy import Reaction
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.runtime.instance import Instance, InstanceState
from mooring.core.runtime.instance_change import MEMBER_OPERATIONS, InstanceContext, stop_instance
from mooring.core.runtime.instance_launch import OperationBounds
from mooring.core.runtime.instance_teardown import ACTION
from mooring.core.runtime.instance_transitions import change_member, together
from mooring.core.runtime.instance_trust import Distrust, distrust_of
from mooring.core.runtime.member import Member, MemberState
from mooring.core.runtime.member_change import drain_member, resume_member
from mooring.core.runtime.operation import OperationKind

OWNER: Final = "trust"
"""Who holds members that are drained because their instance is not trusted."""
MEMBERS_AT_ONCE: Final = 20
"""How many members one decision drains."""
REMEDIES: Final = frozenset({OperationKind.UPGRADE, OperationKind.ROLLBACK})
LIVE: Final = frozenset({InstanceState.CREATED, InstanceState.STARTING, InstanceState.RUNNING})


@dataclass(frozen=True, slots=True)
class ReactionBudget:
    """How many instances may be drained or stopped at once."""

    per_app: int
    per_tenant: int
    at_once: int


@dataclass(frozen=True, slots=True)
class UntrustedInstance:
    """An instance that waits to be drained or stopped, or whose drain or stop is under way."""

    id: str
    tenant_id: str
    app_id: str


def choose(
    candidates: Iterable[UntrustedInstance], under_way: Sequence[UntrustedInstance], budget: ReactionBudget
) -> tuple[str, ...]:
    """The candidates for which there is room now, in their order; what is under way goes on and counts."""
    started = {each.id for each in under_way}
    apps, tenants = Counter(each.app_id for each in under_way), Counter(each.tenant_id for each in under_way)
    chosen = []
    for each in candidates:
        if each.id not in started:
            full = apps[each.app_id] >= budget.per_app or tenants[each.tenant_id] >= budget.per_tenant
            if full or len(started) >= budget.at_once:
                continue
            started.add(each.id)
            apps[each.app_id] += 1
            tenants[each.tenant_id] += 1
        chosen.append(each.id)
    return tuple(chosen)


def react(context: DecisionContext, current: InstanceContext, bounds: OperationBounds) -> Decision[Instance] | None:
    """The next step of the reaction that the policy asks for; None if there is nothing to do now."""
    instance, distrust = current.instance, distrust_of(current.instance.distrust)
    if distrust is None or instance.status not in LIVE:
        return None
    if any(each.kind in REMEDIES or each.kind == OperationKind.DECOMMISSION for each in current.operations):
        return None
    request = {"reason": _reason(distrust), "untrusted": [each.digest for each in distrust.artifacts]}
    if distrust.reaction is Reaction.STOP:
        return together(instance, stop_instance(context, current, bounds, request))
    if distrust.reaction is not Reaction.DRAIN or instance.status != InstanceState.RUNNING:
        return None
    drains = [
        drain_member(context, current, each, timeout_seconds=None, reason=_reason(distrust), request=request)
        for each in _working(current)[:MEMBERS_AT_ONCE]
    ]
    return together(instance, *drains) if drains else None


def lift(context: DecisionContext, current: InstanceContext, member: Member) -> Decision[Any] | None:
    """Put a member back to work that was drained for lack of trust; if others hold it too, only drop the own hold."""
    distrust = distrust_of(current.instance.distrust)
    if distrust is not None and distrust.reaction >= Reaction.DRAIN:
        return None
    others = [each for each in member.holds if each.get("owner") != OWNER]
    if len(others) == len(member.holds):
        return None
    if others or current.instance.status != InstanceState.RUNNING or _is_leaving(current, member):
        return change_member(current.instance.app_slug, member, ACTION, holds=others)
    return resume_member(context, current, member)


def _reason(distrust: Distrust) -> str:
    first = distrust.artifacts[0]
    return f"artifact {first.digest} is {first.trust}"


def _working(current: InstanceContext) -> list[Member]:
    """Members that accept work and that no operation is changing."""
    busy = {id_ for each in current.operations if each.kind in MEMBER_OPERATIONS for id_ in each.member_ids}
    return [
        each
        for each in current.members
        if each.status in (MemberState.READY, MemberState.DEGRADED) and each.id not in busy
    ]


def _is_leaving(current: InstanceContext, member: Member) -> bool:
    leaving = MEMBER_OPERATIONS - {OperationKind.DRAIN}
    return any(each.kind in leaving and member.id in each.member_ids for each in current.operations)
