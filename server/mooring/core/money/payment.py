"""Payments and credits: a platform admin books them into the ledger of a tenant.

A payment adds to `cash`, a credit to `credits_given`; both add to what the tenant has (`prepaid`). They belong to the
tenant, not to a project, and have no price. A refund is a payment with a negative amount. The reference names the
receipt outside of the platform, and is booked once for each tenant.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.money.charge import Account, TransactionKind, hour_of
from mooring.core.pricing.price import AMOUNT_MAX, require_currency
from mooring.core.pricing.rating import MICRO

PAYMENT_KINDS: Final = (TransactionKind.PAYMENT, TransactionKind.CREDIT)


@dataclass(frozen=True, slots=True)
class PaymentSpec:
    kind: TransactionKind
    currency: str
    minor: int  # negative: a refund, or a credit that is taken back
    reference: str
    reason: str


@dataclass(frozen=True, slots=True)
class Payment:
    """A booked payment or credit."""

    id: str
    tenant_id: str
    kind: str
    currency: str
    minor: int
    reference: str
    reason: str
    created_by: str
    created_at: datetime


def book_payment(context: DecisionContext, tenant_id: str, spec: PaymentSpec) -> Decision[Payment]:
    """Book a payment or a credit, with its two entries."""
    require_currency(spec.currency)
    if spec.kind not in PAYMENT_KINDS:
        raise validation.invalid("kind", "payment or credit")
    if spec.minor == 0 or abs(spec.minor) > AMOUNT_MAX:
        raise validation.invalid("minor", f"an amount up to {AMOUNT_MAX}, not zero")
    payment = Payment(
        context.mint(Prefix.LEDGER_TRANSACTION),
        tenant_id,
        spec.kind.value,
        spec.currency,
        spec.minor,
        validation.display_name(spec.reference, "reference"),
        validation.reason(spec.reason),
        context.actor.id,
        context.now,
    )
    row = {name: value for name, value in asdict(payment).items() if name != "minor"} | {
        "hour": hour_of(context.now),
        "revision": 0,
        "correlation_id": context.correlation_id,
    }
    against = Account.CASH if spec.kind is TransactionKind.PAYMENT else Account.CREDITS_GIVEN
    entries = tuple(
        Insert(
            "ledger_entry",
            {
                "transaction_id": payment.id,
                "line": line,
                "tenant_id": tenant_id,
                "account": account.value,
                "currency": spec.currency,
                "amount": sign * spec.minor * MICRO,
            },
        )
        for line, (account, sign) in enumerate(((against, 1), (Account.PREPAID, -1)))
    )
    shown = {
        "kind": payment.kind,
        "currency": payment.currency,
        "minor": payment.minor,
        "reference": payment.reference,
    }
    return Decision(
        payment,
        (Insert("ledger_transaction", row), *entries),
        (EventRecord(EventType.PAYMENT_BOOKED, "payment", payment.id, tenant_id, data=shown),),
        (AuditRecord("billing.payment.create", "payment", payment.id, tenant_id, after=shown, reason=payment.reason),),
    )
