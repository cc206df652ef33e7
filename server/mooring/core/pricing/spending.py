"""What a tenant and a project may still have and spend: every limit on a request, in one form.

Quotas, budgets that block, and the balance of a tenant that pays in advance all become a `Limit`: a maximum, what is
used of it, and what the request would add. A plan shows them; a launch is refused by those that it would exceed, each
with the smallest change that would make it fit. Amounts are compared in minor units, what is used rounded up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.pricing.budget import Budget, Spent
from mooring.core.pricing.prepaid import Balance, PrepaidAccount
from mooring.core.pricing.quota import Quota
from mooring.core.pricing.rating import HOUR_SECONDS, MICRO, ClockTerms, amount, counted_seconds, gpu_rate, hourly_minor

MICROSECOND: Final = timedelta(microseconds=1)
WANTED: Final = frozenset({"requested", "provisioning", "active"})
"""The states of an allocation that counts: it has GPUs, or is to get them."""


class LimitKind(StrEnum):
    GPUS = "gpus"
    INSTANCES = "instances"
    SPEND_PER_HOUR = "spend_per_hour"
    BUDGET = "budget"
    BALANCE = "balance"


class LimitScope(StrEnum):
    TENANT = "tenant"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class RunningClock:
    """An allocation as its cost sees it."""

    project_id: str
    status: str
    gpus: int
    minor_per_gpu_hour: int
    currency: str
    terms: ClockTerms
    activated_at: datetime | None
    releasing_at: datetime | None
    hold_minor: int = 0

    def amount_micro(self, at: datetime) -> int:
        """What it costs from the start of its clock to `at`."""
        if self.activated_at is None:
            return 0
        end = at if self.releasing_at is None else min(at, self.releasing_at)
        seconds = counted_seconds(self.terms, (end - self.activated_at) // MICROSECOND)
        return amount(gpu_rate(self.minor_per_gpu_hour), seconds * self.gpus * MICRO)

    def accrued_micro(self, since: datetime, now: datetime) -> int:
        return max(0, self.amount_micro(now) - self.amount_micro(since))

    def held_micro(self, now: datetime) -> int:
        """What is left of its hold: the clock settles it, and the end of the allocation releases it."""
        return max(0, self.hold_minor * MICRO - self.amount_micro(now)) if self.status in WANTED else 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is booked for one project in one currency, in micro."""

    project_id: str
    currency: str
    month_micro: int
    ever_micro: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tenant has and has spent, at one moment."""

    now: datetime
    month: datetime
    booked_until: datetime  # hours before it are in the ledger
    guard_revision: int = 0
    clocks: Sequence[RunningClock] = ()
    ledger: Sequence[Ledger] = ()
    instances: Mapping[str, int] = field(default_factory=dict)  # by project, those that are not stopped
    paid: Mapping[str, int] = field(default_factory=dict)  # by currency, in micro
    last_payment_id: str = ""

    def clocks_of(self, project_id: str | None) -> list[RunningClock]:
        return [each for each in self.clocks if project_id in (None, each.project_id)]

    def spent(self, project_id: str | None, currency: str) -> Spent:
        """What the project, or the whole tenant, spent in this month."""
        booked = (each for each in self.ledger if project_id in (None, each.project_id) and each.currency == currency)
        since = max(self.month, self.booked_until)
        running = (each for each in self.clocks_of(project_id) if each.currency == currency)
        return Spent(
            sum(each.month_micro for each in booked), sum(each.accrued_micro(since, self.now) for each in running)
        )

    def held_micro(self, project_id: str | None, currency: str) -> int:
        return sum(each.held_micro(self.now) for each in self.clocks_of(project_id) if each.currency == currency)

    def balance(self, currency: str) -> Balance:
        charged = sum(each.ever_micro for each in self.ledger if each.currency == currency)
        accrued = sum(
            each.accrued_micro(self.booked_until, self.now) for each in self.clocks if each.currency == currency
        )
        return Balance(self.paid.get(currency, 0), charged, accrued, self.last_payment_id)


@dataclass(frozen=True, slots=True)
class SpendingSnapshot:
    """The limits of a project and its tenant, and what is used of them."""

    tenant_id: str
    project_id: str
    figures: Figures
    quotas: Sequence[Quota] = ()
    budgets: Sequence[Budget] = ()
    prepaid: PrepaidAccount | None = None
    hold_seconds: int = HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class SpendRequest:
    """What a request would add: equal allocations, and perhaps an instance."""

    instances: int = 0
    allocations: int = 0
    gpus: int = 0  # of each allocation
    minor_per_gpu_hour: int = 0
    currency: str | None = None

    def hold_minor(self, seconds: int) -> int:
        """What each allocation reserves."""
        return -(-self.minor_per_gpu_hour * self.gpus * seconds // HOUR_SECONDS)


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit on a request: counts, or minor units of `currency`."""

    kind: LimitKind
    scope: LimitScope
    maximum: int
    used: int
    requested: int
    each: int  # what one allocation adds to `requested`
    currency: str | None = None
    measured: int = 0  # of `used`: booked
    estimated: int = 0  # of `used`: by clocks that are not booked yet
    held: int = 0  # of `used`: reserved by launches
    closed: bool = False  # nothing new at all, however little it needs

    @property
    def left(self) -> int:
        return max(0, self.maximum - self.used)

    @property
    def exceeded(self) -> bool:
        return self.closed or (self.requested > 0 and self.used + self.requested > self.maximum)


def limits_of(spending: SpendingSnapshot, request: SpendRequest) -> tuple[Limit, ...]:
    """Every limit that concerns the request, the tenant's before the project's."""
    found = [each for quota in spending.quotas for each in _of_quota(spending, quota, request)]
    found += [each for budget in spending.budgets for each in _of_budget(spending, budget, request)]
    if spending.prepaid is not None:
        found.append(_of_balance(spending, spending.prepaid, request))
    return tuple(found)


def spending_refusals(spending: SpendingSnapshot, request: SpendRequest) -> Iterator[Refusal]:
    """One refusal for each limit that the request would exceed."""
    account = spending.prepaid
    if account is not None and request.allocations and request.currency != account.currency:
        yield Refusal(
            Code.BALANCE_TOO_LOW,
            f"the tenant pays in advance in {account.currency}, and this costs {request.currency}",
            {"limit": LimitKind.BALANCE.value, "smallest_change": f"a SKU that is sold in {account.currency}"},
        )
    for limit in limits_of(spending, request):
        if limit.exceeded:
            yield _refusal(limit, request)


def reserve(
    spending: SpendingSnapshot | None, request: SpendRequest, allocation_ids: Sequence[str]
) -> tuple[Update | Insert, ...]:
    """Refuse what exceeds a limit; otherwise the guard of the limits, and the holds. Without limits nothing."""
    if spending is None:
        return ()
    for refusal in spending_refusals(spending, request):
        raise refusal
    return guard_of(spending), *holds(spending, request, allocation_ids)


def guard_of(spending: SpendingSnapshot) -> Update:
    """All requests of a tenant with limits change this row, so that two cannot both take what is left."""
    return Update("spending_guard", spending.tenant_id, spending.figures.guard_revision, {})


def holds(spending: SpendingSnapshot, request: SpendRequest, allocation_ids: Sequence[str]) -> tuple[Insert, ...]:
    """What each new allocation reserves, where a budget blocks or the tenant pays in advance; nothing otherwise."""
    concerned = [
        each
        for each in limits_of(spending, request)
        if each.kind in (LimitKind.BUDGET, LimitKind.BALANCE) and each.currency == request.currency
    ]
    if not concerned:
        return ()
    available, amount_minor = min(each.left for each in concerned), request.hold_minor(spending.hold_seconds)
    return tuple(
        Insert(
            "hold",
            {
                "allocation_id": allocation_id,
                "tenant_id": spending.tenant_id,
                "project_id": spending.project_id,
                "currency": request.currency,
                "amount_minor": amount_minor,
                "available_minor": available - number * amount_minor,
                "created_at": spending.figures.now,
            },
        )
        for number, allocation_id in enumerate(allocation_ids)
    )


def _of_quota(spending: SpendingSnapshot, quota: Quota, request: SpendRequest) -> Iterator[Limit]:
    figures, scope = spending.figures, _scope(quota.project_id)
    clocks = [each for each in figures.clocks_of(quota.project_id) if each.status in WANTED]
    if quota.gpus_max is not None:
        used = sum(each.gpus for each in clocks)
        yield Limit(LimitKind.GPUS, scope, quota.gpus_max, used, request.gpus * request.allocations, request.gpus)
    if quota.instances_max is not None:
        counts = figures.instances
        used = sum(counts.values()) if quota.project_id is None else counts.get(quota.project_id, 0)
        yield Limit(LimitKind.INSTANCES, scope, quota.instances_max, used, request.instances, 0)
    if quota.minor_per_hour_max is not None:
        used = sum(
            hourly_minor(each.minor_per_gpu_hour, each.gpus) for each in clocks if each.currency == quota.currency
        )
        price = hourly_minor(request.minor_per_gpu_hour, request.gpus) if request.currency == quota.currency else 0
        yield Limit(
            LimitKind.SPEND_PER_HOUR,
            scope,
            quota.minor_per_hour_max,
            used,
            price * request.allocations,
            price,
            quota.currency,
        )


def _of_budget(spending: SpendingSnapshot, budget: Budget, request: SpendRequest) -> Iterator[Limit]:
    most = budget.blocks_at
    if most is None:
        return
    spent = spending.figures.spent(budget.project_id, budget.currency)
    held = spending.figures.held_micro(budget.project_id, budget.currency)
    each = request.hold_minor(spending.hold_seconds) if request.currency == budget.currency else 0
    yield Limit(
        LimitKind.BUDGET,
        _scope(budget.project_id),
        most,
        up(spent.total_micro + held),
        each * request.allocations,
        each,
        budget.currency,
        up(spent.measured_micro),
        up(spent.estimated_micro),
        up(held),
        closed=up(spent.total_micro) >= most and bool(request.instances or request.allocations),
    )


def _of_balance(spending: SpendingSnapshot, account: PrepaidAccount, request: SpendRequest) -> Limit:
    balance = spending.figures.balance(account.currency)
    held = spending.figures.held_micro(None, account.currency)
    each = request.hold_minor(spending.hold_seconds) if request.currency == account.currency else 0
    return Limit(
        LimitKind.BALANCE,
        LimitScope.TENANT,
        balance.paid_micro // MICRO,
        up(balance.charged_micro + balance.accrued_micro + held),
        each * request.allocations,
        each,
        account.currency,
        up(balance.charged_micro),
        up(balance.accrued_micro),
        up(held),
        closed=balance.left_micro <= 0 and bool(request.instances or request.allocations),
    )


def _scope(project_id: str | None) -> LimitScope:
    return LimitScope.TENANT if project_id is None else LimitScope.PROJECT


def up(micro: int) -> int:
    """Minor units, rounded up."""
    return -(-micro // MICRO)


CODES: Final[Mapping[LimitKind, Code]] = {
    LimitKind.BUDGET: Code.BUDGET_EXCEEDED,
    LimitKind.BALANCE: Code.BALANCE_TOO_LOW,
}


def _refusal(limit: Limit, request: SpendRequest) -> Refusal:
    change = smallest_change(limit, request)
    money = "" if limit.currency is None else f" {limit.currency} (minor units)"
    name = {
        LimitKind.GPUS: f"the {limit.scope}'s quota of GPUs",
        LimitKind.INSTANCES: f"the {limit.scope}'s quota of instances",
        LimitKind.SPEND_PER_HOUR: f"the {limit.scope}'s quota of spending per hour",
        LimitKind.BUDGET: f"the {limit.scope}'s budget",
        LimitKind.BALANCE: "the tenant's balance",
    }[limit.kind]
    detail = f"{name} allows {limit.maximum}{money}: {limit.used} are used, {limit.requested} more are needed"
    if limit.closed:
        detail = f"{name} of {limit.maximum}{money} is used up: {limit.used}"
    details = {
        "limit": limit.kind.value,
        "scope": limit.scope.value,
        "maximum": limit.maximum,
        "used": limit.used,
        "requested": limit.requested,
        "left": limit.left,
        "smallest_change": change,
    }
    if limit.currency is not None:
        details |= {"currency": limit.currency, "measured": limit.measured, "estimated": limit.estimated}
    code = CODES.get(limit.kind, Code.QUOTA_EXCEEDED)
    return Refusal(code, f"{detail}; what would help: {change}", details)


def smallest_change(limit: Limit, request: SpendRequest) -> str:
    """Fewer allocations if some would fit, and the amount by which the limit is too small."""
    missing = max(1, limit.used + limit.requested - limit.maximum)
    needed = {
        LimitKind.GPUS: f"a quota of {limit.maximum + missing} GPUs",
        LimitKind.INSTANCES: "one instance less" if missing == 1 else f"a quota of {limit.maximum + missing} instances",
        LimitKind.SPEND_PER_HOUR: f"a quota of {limit.maximum + missing} per hour",
        LimitKind.BUDGET: f"a budget that blocks only at {limit.maximum + missing}",
        LimitKind.BALANCE: f"a payment of at least {missing}",
    }[limit.kind]
    if limit.currency is not None:
        needed += f" {limit.currency} (minor units)"
    fits = 0 if limit.closed or not limit.each else min(request.allocations, limit.left // limit.each)
    if 0 < fits < request.allocations:
        return f"{fits} allocations instead of {request.allocations}, or {needed}"
    return needed
