"""What needs somebody: one item for each thing that does not continue by itself, worst first, with the next step.

A tenant sees its own things with names and reasons. The platform sees of a tenant's things that there is one, since
when, and the platform's own code for it, but no name and no text that somebody of the tenant wrote (decision 5). Which
kinds a caller sees follows from the keys that they hold at the place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from mooring.core.kernel.permissions import Scope
from mooring.core.runtime.instance_reconcile import NO_CAPACITY
from mooring.core.runtime.launch_history import WINDOW
from mooring.core.runtime.next_steps import (
    ADAPTER_BLOCKED,
    ADAPTER_MISSING,
    NEXT_OF_BLOCKER,
    NODE_SILENT,
    UNHEALTHY,
    UNTRUSTED,
    NextStep,
    Unblocker,
    next_of_failure,
)

DEADLINE_NEAR: Final = timedelta(minutes=10)
KEY_EXPIRES_SOON: Final = timedelta(days=14)
ADAPTER_SILENT: Final = timedelta(minutes=2)
"""An adapter asks for work at least every half minute; after this long without a request it does not run."""
LAUNCHES_FAILED: Final = timedelta(hours=1)


class Severity(StrEnum):
    """How urgent it is; the first is the worst."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTICE = "notice"


class AttentionKind(StrEnum):
    """What is the matter."""

    INSTANCE_FAILED = "instance_failed"
    NODE_UNREACHABLE = "node_unreachable"
    RELEASE_FAILED = "release_failed"
    ADAPTER_ABSENT = "adapter_absent"
    BALANCE_LOW = "balance_low"
    BUDGET_CROSSED = "budget_crossed"
    CIRCUIT_OPEN = "circuit_open"
    OPERATION_BLOCKED = "operation_blocked"
    OPERATION_NEAR_DEADLINE = "operation_near_deadline"
    LAUNCHES_FAILING = "launches_failing"
    INSTANCE_DISTRUSTED = "instance_distrusted"
    INSTANCE_DEGRADED = "instance_degraded"
    SLOTS_BLOCKED = "slots_blocked"
    KEY_EXPIRING = "key_expiring"
    NODE_PENDING = "node_pending"
    DELIVERIES_DEAD = "deliveries_dead"
    LATE_USAGE = "late_usage"


@dataclass(frozen=True, slots=True)
class KindRule:
    """How urgent a kind is, and which key shows it: in a tenant or project, and on the platform; None: never."""

    severity: Severity
    own: str | None
    platform: str | None


K, S = AttentionKind, Severity
RULES: Final[Mapping[AttentionKind, KindRule]] = MappingProxyType(
    {
        K.INSTANCE_FAILED: KindRule(S.CRITICAL, "instance.read", None),
        K.NODE_UNREACHABLE: KindRule(S.CRITICAL, None, "node.read"),
        K.RELEASE_FAILED: KindRule(S.CRITICAL, "allocation.read", "overview.read"),
        K.ADAPTER_ABSENT: KindRule(S.CRITICAL, "instance.read", "overview.read"),
        K.BALANCE_LOW: KindRule(S.CRITICAL, "billing.budget.read", None),
        K.BUDGET_CROSSED: KindRule(S.WARNING, "billing.budget.read", None),
        K.CIRCUIT_OPEN: KindRule(S.WARNING, "instance.read", "overview.read"),
        K.OPERATION_BLOCKED: KindRule(S.WARNING, "operation.read", "overview.read"),
        K.OPERATION_NEAR_DEADLINE: KindRule(S.WARNING, "operation.read", "overview.read"),
        K.LAUNCHES_FAILING: KindRule(S.WARNING, None, "overview.read"),
        K.INSTANCE_DISTRUSTED: KindRule(S.WARNING, "instance.read", None),
        K.INSTANCE_DEGRADED: KindRule(S.WARNING, "instance.read", None),
        K.SLOTS_BLOCKED: KindRule(S.WARNING, None, "node.read"),
        K.KEY_EXPIRING: KindRule(S.WARNING, "service_account.read", None),
        K.NODE_PENDING: KindRule(S.NOTICE, None, "node.read"),
        K.DELIVERIES_DEAD: KindRule(S.NOTICE, "outbox.read", "outbox.read"),
        K.LATE_USAGE: KindRule(S.NOTICE, "usage.read", None),
    }
)
_RANK: Final = {severity: rank for rank, severity in enumerate(Severity)}


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """One thing as it was read. On the platform, `name` and `detail` of a tenant's things are empty."""

    kind: AttentionKind
    noun: str
    subject_id: str
    since: datetime
    name: str | None = None
    code: str | None = None
    detail: str | None = None
    count: int = 1
    tenant_id: str | None = None
    project_id: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class AttentionItem:
    """One thing that needs somebody; `id` sorts as the list does."""

    id: str
    severity: Severity
    facts: AttentionFacts
    cause: str
    next_step: NextStep


def visible(held: frozenset[str], scope: Scope) -> list[AttentionKind]:
    """The kinds that these keys show at such a place."""
    return [kind for kind, rule in RULES.items() if (rule.platform if scope is Scope.PLATFORM else rule.own) in held]


def worst_first(found: Iterable[AttentionFacts]) -> list[AttentionItem]:
    """The items: the most urgent first, and of the same urgency what has lasted longest."""
    return sorted((_item(each) for each in found), key=lambda each: each.id)


def _item(facts: AttentionFacts) -> AttentionItem:
    severity = RULES[facts.kind].severity
    since = facts.since.isoformat(timespec="seconds")
    return AttentionItem(
        f"{_RANK[severity]}.{since}.{facts.kind}.{facts.subject_id}", severity, facts, _cause(facts), _step(facts)
    )


def _step(facts: AttentionFacts) -> NextStep:
    """The next step; the platform's people cannot run a command on what belongs to a tenant, and get none."""
    if facts.tenant_id is None or facts.name is not None:
        return _next(facts)
    if facts.code == NO_CAPACITY:
        return NextStep(Unblocker.OPERATOR, "add capacity, or let the tenant wait until some is free")
    return replace(_next(facts), command=None)


def _cause(facts: AttentionFacts) -> str:
    count, detail = facts.count, facts.detail
    match facts.kind:
        case K.INSTANCE_FAILED:
            return detail or "it failed"
        case K.NODE_UNREACHABLE:
            return "its agent is silent"
        case K.RELEASE_FAILED:
            return detail or "its teardown left something, or could not be checked"
        case K.ADAPTER_ABSENT:
            return f"no adapter takes the work of {_counted(count, 'instance')}"
        case K.BALANCE_LOW:
            return "the balance is used up" if facts.code == "depleted" else "the balance is low"
        case K.BUDGET_CROSSED:
            return f"{count} % of the month's budget is spent ({facts.code})"
        case K.CIRCUIT_OPEN:
            return f"launches of this version failed {_counted(count, 'time')} in a row: the next one waits"
        case K.OPERATION_BLOCKED:
            return detail or f"it waits: {facts.code or 'its adapter named the reason'}"
        case K.OPERATION_NEAR_DEADLINE:
            return f"its deadline is in less than {DEADLINE_NEAR.seconds // 60} minutes"
        case K.LAUNCHES_FAILING:
            return f"{_counted(count, 'launch', 'launches')} failed within the last hour"
        case K.INSTANCE_DISTRUSTED:
            return "its artifacts are not trusted any more"
        case K.INSTANCE_DEGRADED:
            return detail or "it runs, but it is not healthy"
        case K.SLOTS_BLOCKED:
            return f"{_counted(count, 'slot')} cannot be sold: a teardown left something there"
        case K.KEY_EXPIRING:
            return "a key of this service account expires soon"
        case K.NODE_PENDING:
            return "it waits for approval"
        case K.DELIVERIES_DEAD:
            return f"{_counted(count, 'event')} could not be delivered"
        case K.LATE_USAGE:
            return f"{_counted(count, 'usage event')} came too late to be charged"


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _next(facts: AttentionFacts) -> NextStep:
    subject, instance = facts.subject_id, facts.instance_id or facts.subject_id
    match facts.kind:
        case K.INSTANCE_FAILED:
            step = next_of_failure(facts.code or "", f"mooring why {subject}")
            return NextStep(step.who, step.what, f"mooring why {subject}")
        case K.NODE_UNREACHABLE:
            return NextStep(NODE_SILENT.who, NODE_SILENT.what, f"mooring nodes get {subject}")
        case K.RELEASE_FAILED:
            what = "bring the node back or remove what was left, then try the release again"
            return NextStep(Unblocker.OPERATOR, what, f"mooring allocations get {subject}")
        case K.ADAPTER_ABSENT:
            return ADAPTER_MISSING
        case K.BALANCE_LOW:
            return NextStep(Unblocker.YOU, "pay in advance, before what runs is stopped", "mooring payments list")
        case K.BUDGET_CROSSED:
            return NextStep(Unblocker.PROJECT_ADMIN, "raise the budget, or stop what is not needed", "mooring cost")
        case K.CIRCUIT_OPEN:
            what = f"wait {WINDOW.seconds // 60} minutes after the last failure, or launch another version"
            return NextStep(Unblocker.APP_TEAM, what)
        case K.OPERATION_BLOCKED:
            step = NEXT_OF_BLOCKER.get(facts.code or "", ADAPTER_BLOCKED)
            return NextStep(step.who, step.what, f"mooring why {instance}")
        case K.OPERATION_NEAR_DEADLINE:
            return NextStep(Unblocker.YOU, "see what it waits for, before it fails", f"mooring why {instance}")
        case K.LAUNCHES_FAILING:
            return NextStep(Unblocker.OPERATOR, "see which codes they failed with", "mooring overview apps list")
        case K.INSTANCE_DISTRUSTED:
            return NextStep(UNTRUSTED.who, UNTRUSTED.what, f"mooring why {subject}")
        case K.INSTANCE_DEGRADED:
            return NextStep(UNHEALTHY.who, UNHEALTHY.what, f"mooring why {subject}")
        case K.SLOTS_BLOCKED:
            what = "remove the leftovers that the receipt names: then the next check succeeds"
            return NextStep(Unblocker.OPERATOR, what, f"mooring nodes get {subject}")
        case K.KEY_EXPIRING:
            return NextStep(Unblocker.PROJECT_ADMIN, "add a new key, then revoke this one", None)
        case K.NODE_PENDING:
            what = "compare what it reports with what was ordered, then approve or reject it"
            return NextStep(Unblocker.OPERATOR, what, f"mooring nodes approve {subject}")
        case K.DELIVERIES_DEAD:
            what = "correct the receiver, then send them again"
            return NextStep(Unblocker.YOU, what, f"mooring outbox list --webhook {subject}")
        case K.LATE_USAGE:
            return NextStep(Unblocker.PROJECT_ADMIN, "accept or reject it", "mooring late-usage list")


if set(RULES) != set(AttentionKind):
    raise ValueError("every kind of attention must say how urgent it is, and who sees it")
