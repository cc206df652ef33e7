"""Tenants that pay in advance: their balance, and what happens when it is low or used up.

The balance is a sum: what was paid and credited, less what was charged, less what clocks show since the last booked
hour. Nothing stores it. A level (`low`, `depleted`) fires once after each payment.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.pricing.budget import Basis
from mooring.core.pricing.price import AMOUNT_MAX, require_currency
from mooring.core.pricing.rating import MICRO


class BalanceLevel(StrEnum):
    LOW = "low"
    DEPLETED = "depleted"


@dataclass(frozen=True, slots=True)
class PrepaidAccount:
    id: str
    tenant_id: str
    currency: str
    low_minor: int  # from there on the balance is low
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class PrepaidSpec:
    currency: str
    low_minor: int
    reason: str


@dataclass(frozen=True, slots=True)
class Balance:
    """The parts of a balance, in micro."""

    paid_micro: int = 0
    charged_micro: int = 0
    accrued_micro: int = 0  # by clocks since the last booked hour
    last_payment_id: str = ""

    @property
    def booked_micro(self) -> int:
        return self.paid_micro - self.charged_micro

    @property
    def left_micro(self) -> int:
        return self.booked_micro - self.accrued_micro


def set_prepaid(
    context: DecisionContext,
    before: PrepaidAccount | None,
    balance: Balance,
    spec: PrepaidSpec,
    *,
    tenant_id: str,
    revision_seen: int | None,
) -> Decision[PrepaidAccount]:
    """Let a tenant pay in advance from now on; its balance must be positive, so that nothing is stopped at once."""
    require_currency(spec.currency)
    if not 0 <= spec.low_minor <= AMOUNT_MAX:
        raise validation.invalid("low_minor", f"0 to {AMOUNT_MAX}")
    require_revision(0 if before is None else before.revision, revision_seen)
    if before is not None and before.currency != spec.currency:
        raise validation.invalid("currency", f"the account has the currency {before.currency}")
    if before is None and balance.left_micro <= 0:
        raise validation.invalid(
            "currency", f"book a payment first: the tenant's balance in {spec.currency} is not positive"
        )
    values: dict[str, Any] = {"currency": spec.currency, "low_minor": spec.low_minor}
    if before is None:
        account = PrepaidAccount(
            id=context.mint(Prefix.PREPAID_ACCOUNT),
            tenant_id=tenant_id,
            **values,
            revision=0,
            created_at=context.now,
            updated_at=context.now,
        )
        write: Insert | Update = Insert("prepaid_account", asdict(account))
    else:
        account = replace(before, revision=before.revision + 1, updated_at=context.now, **values)
        write = Update("prepaid_account", before.id, before.revision, values | {"updated_at": context.now})
    audit = AuditRecord(
        "billing.payment.create",
        "prepaid_account",
        account.id,
        tenant_id,
        before=None if before is None else {"low_minor": before.low_minor},
        after=values,
        reason=validation.reason(spec.reason),
    )
    event = EventRecord(EventType.PREPAID_CHANGED, "prepaid_account", account.id, tenant_id, data=values)
    return Decision(account, (write,), (event,), (audit,))


@dataclass(frozen=True, slots=True)
class BalanceCrossing:
    account_id: str
    level: str
    payment_id: str
    tenant_id: str
    basis: str
    balance_minor: int
    created_at: datetime


def level_of(account: PrepaidAccount, left_micro: int) -> BalanceLevel | None:
    if left_micro <= 0:
        return BalanceLevel.DEPLETED
    return BalanceLevel.LOW if left_micro <= account.low_minor * MICRO else None


def due_levels(account: PrepaidAccount, balance: Balance, fired: frozenset[str]) -> list[BalanceLevel]:
    """The levels that are reached and did not fire since the last payment, `low` first."""
    level = level_of(account, balance.left_micro)
    reached = list(BalanceLevel)[: 0 if level is None else list(BalanceLevel).index(level) + 1]
    return [each for each in reached if each.value not in fired]


def cross_level(
    context: DecisionContext, account: PrepaidAccount, level: BalanceLevel, balance: Balance
) -> Decision[BalanceCrossing]:
    """Record that the balance is low or used up; the database accepts it once after each payment."""
    measured = level_of(account, balance.booked_micro) in (level, BalanceLevel.DEPLETED)
    crossing = BalanceCrossing(
        account.id,
        level.value,
        balance.last_payment_id,
        account.tenant_id,
        (Basis.MEASURED if measured else Basis.ESTIMATED).value,
        balance.left_micro // MICRO,
        context.now,
    )
    event = EventType.BALANCE_DEPLETED if level is BalanceLevel.DEPLETED else EventType.BALANCE_LOW
    shown = {
        "basis": crossing.basis,
        "currency": account.currency,
        "balance_minor": crossing.balance_minor,
        "low_minor": account.low_minor,
    }
    return Decision(
        crossing,
        (Insert("balance_crossing", asdict(crossing)),),
        (EventRecord(event, "prepaid_account", account.id, account.tenant_id, data=shown),),
        (AuditRecord(f"billing.balance.{level}", "prepaid_account", account.id, account.tenant_id, after=shown),),
    )
