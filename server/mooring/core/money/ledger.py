"""The ledger: transactions with two entries each, to which rows are only added.

A charge says what a project owes for one price in one hour; there is one of each. What turns out to be different later
is a correction that names the charge. A balance is the sum of the entries of an account.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.money.charge import Posting, PostingKey, RatedLine, TransactionKind


@dataclass(frozen=True, slots=True)
class LedgerTransaction:
    id: str
    tenant_id: str
    project_id: str
    kind: str
    hour: datetime
    price_id: str
    currency: str
    revision: int
    corrects_id: str | None
    correlation_id: str
    created_at: datetime
    correction_reason: str | None = None  # of a correction that a person booked
    corrected_by: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    transaction_id: str
    line: int
    tenant_id: str
    project_id: str
    account: str
    currency: str
    amount: int


@dataclass(frozen=True, slots=True)
class LedgerBalance:
    """The sum of the entries of an account in one currency."""

    account: str
    currency: str
    amount: int
    entries: int


@dataclass(frozen=True, slots=True)
class BookedCharge:
    """The charge that is booked for a key and an hour, and how many corrections follow it."""

    transaction_id: str
    corrections: int


@dataclass(frozen=True, slots=True)
class BookedHour:
    """What is booked for an hour already."""

    lines: Sequence[RatedLine]
    charges: Mapping[PostingKey, BookedCharge]


@dataclass(frozen=True, slots=True)
class Booking:
    """What one statement books, all of one tenant: postings with their lines, and covered lines, which have none."""

    tenant_id: str
    postings: Sequence[Posting]
    covered: Sequence[RatedLine]

    @property
    def lines(self) -> int:
        return len(self.covered) + sum(len(each.lines) for each in self.postings)


def book(
    context: DecisionContext, hour: datetime, booked: BookedHour, due: Booking
) -> Decision[dict[PostingKey, BookedCharge]]:
    """Write the postings of one tenant; the result is what is booked for each of their keys now.

    Each row has the number of those before it for the same key. Of two workers that book the same, the database
    accepts one.
    """
    writes = []
    lines_before = Counter(each.key for each in booked.lines)
    charges: dict[PostingKey, BookedCharge] = {}
    for posting in due.postings:
        before = booked.charges.get(posting.key)
        transaction = _transaction(context, hour, posting.key, before)
        charges[posting.key] = (
            BookedCharge(transaction.id, 0) if before is None else replace(before, corrections=before.corrections + 1)
        )
        writes.append(Insert("ledger_transaction", asdict(transaction)))
        writes += [
            Insert("ledger_entry", asdict(entry_of(transaction, number, account=account.value, amount=micro)))
            for number, (account, micro) in enumerate(posting.entries)
        ]
        writes += [
            line_of(context, hour, line, transaction.id, revision=lines_before[line.key]) for line in posting.lines
        ]
    writes += [line_of(context, hour, line, None, revision=lines_before[line.key]) for line in due.covered]
    after = {"hour": hour.isoformat(), "postings": len(due.postings), "covered": len(due.covered)}
    audit = AuditRecord("billing.charge", "ledger_transaction", None, due.tenant_id, after=after)
    # Inserts of one table stand together, so that they become one statement each.
    order = ("ledger_transaction", "ledger_entry", "rated_usage")
    return Decision(charges, tuple(sorted(writes, key=lambda each: order.index(each.noun))), (), (audit,))


def close_hour(context: DecisionContext, hour: datetime) -> Decision[datetime]:
    """Mark the hour as charged."""
    return Decision(hour, (Insert("billing_hour", {"hour": hour, "closed_at": context.now}),), traceless=True)


def _transaction(
    context: DecisionContext, hour: datetime, key: PostingKey, before: BookedCharge | None
) -> LedgerTransaction:
    kind = TransactionKind.CHARGE if before is None else TransactionKind.CORRECTION
    return LedgerTransaction(
        id=context.mint(Prefix.LEDGER_TRANSACTION),
        tenant_id=key.tenant_id,
        project_id=key.project_id,
        kind=kind.value,
        hour=hour,
        price_id=key.price_id,
        currency=key.currency,
        revision=0 if before is None else before.corrections + 1,
        corrects_id=None if before is None else before.transaction_id,
        correlation_id=context.correlation_id,
        created_at=context.now,
    )


def entry_of(transaction: LedgerTransaction, number: int, *, account: str, amount: int) -> LedgerEntry:
    place = (transaction.tenant_id, transaction.project_id)
    return LedgerEntry(transaction.id, number, *place, account, transaction.currency, amount)


def line_of(
    context: DecisionContext,
    hour: datetime,
    line: RatedLine,
    transaction_id: str | None,
    *,
    revision: int = 0,
) -> Insert:
    row = {
        "id": context.mint(Prefix.RATED_USAGE),
        "tenant_id": line.tenant_id,
        "project_id": line.project_id,
        "transaction_id": transaction_id,
        "hour": hour,
        "revision": revision,
        "source": line.source,
        "source_id": line.source_id,
        "price_id": line.price_id,
        "currency": line.currency,
        "unit": line.unit,
        "billing": line.billing,
        "started_at": line.started_at,
        "ended_at": line.ended_at,
        "quantity": line.quantity_micro,
        "amount": line.micro,
        "shadow_amount": line.shadow_micro,
        "created_at": context.now,
    }
    return Insert("rated_usage", row)
