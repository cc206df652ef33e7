"""Corrections by hand: an admin credits a project, or charges it, for a transaction that is booked.

A correction is a transaction of its own with two entries and one line, so that statements and costs show it; it names
the one that it corrects and says why. Nobody gets back more than was charged for the same price and hour.
"""

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.money.charge import Account, RatedLine, Source, TransactionKind
from mooring.core.money.ledger import LedgerTransaction, entry_of, line_of
from mooring.core.pricing.meter import Billing

MICRO_MAX: Final = 10**18
UNIT: Final = "correction"


@dataclass(frozen=True, slots=True)
class CorrectionSpec:
    transaction_id: str
    micro: int  # what the project owes more; negative: a credit
    reason: str


@dataclass(frozen=True, slots=True)
class Correctable:
    """A booked transaction, and what is booked for the same project, price and hour."""

    id: str
    tenant_id: str
    project_id: str
    hour: datetime
    price_id: str
    currency: str
    corrections: int
    owed_micro: int


@dataclass(frozen=True, slots=True)
class Correction:
    transaction: LedgerTransaction
    micro: int


def correct(context: DecisionContext, spec: CorrectionSpec, booked: Correctable) -> Decision[Correction]:
    """Book a correction of this transaction."""
    reason = validation.reason(spec.reason)
    if spec.micro == 0 or abs(spec.micro) > MICRO_MAX:
        raise validation.invalid("micro", f"a number other than 0, up to {MICRO_MAX}")
    if booked.owed_micro + spec.micro < 0:
        raise Refusal(
            Code.CONFLICT,
            f"a credit of {-spec.micro} is more than is owed for this price and hour: {booked.owed_micro}",
            {"owed_micro": booked.owed_micro},
        )
    made = LedgerTransaction(
        id=context.mint(Prefix.LEDGER_TRANSACTION),
        tenant_id=booked.tenant_id,
        project_id=booked.project_id,
        kind=TransactionKind.CORRECTION.value,
        hour=booked.hour,
        price_id=booked.price_id,
        currency=booked.currency,
        revision=booked.corrections + 1,
        corrects_id=booked.id,
        correlation_id=context.correlation_id,
        created_at=context.now,
        correction_reason=reason,
        corrected_by=context.actor.id,
    )
    entries = ((Account.RECEIVABLE, spec.micro), (Account.REVENUE, -spec.micro))
    place = (booked.tenant_id, booked.project_id)
    source = (Source.CORRECTION.value, made.id, booked.price_id, booked.currency, UNIT, Billing.CHARGED.value)
    line = RatedLine(*place, *source, booked.hour, booked.hour, 0, spec.micro)
    shown = {"corrects_id": booked.id, "micro": str(spec.micro), "currency": booked.currency, "reason": reason}
    return Decision(
        Correction(made, spec.micro),
        (
            Insert("ledger_transaction", asdict(made)),
            *(
                Insert("ledger_entry", asdict(entry_of(made, number, account=account.value, amount=micro)))
                for number, (account, micro) in enumerate(entries)
            ),
            line_of(context, booked.hour, line, made.id),
        ),
        (EventRecord(EventType.CORRECTION_BOOKED, "ledger_transaction", made.id, *place, data=shown),),
        (AuditRecord("billing.correct", "ledger_transaction", made.id, *place, after=shown, reason=reason),),
    )
