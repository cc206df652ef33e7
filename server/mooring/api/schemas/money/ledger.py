"""Queries and response bodies for the ledger. Amounts are integers of 10⁻⁶ minor unit of their currency."""

from typing import Annotated

from msgspec import Meta

from mooring.api.page import PageQuery
from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.money.charge import TransactionKind
from mooring.core.money.ledger import LedgerBalance
from mooring.storage.money.ledger import BookedTransaction

Micro = Annotated[int, Meta(description="In 10⁻⁶ minor unit of the currency.")]


class LedgerQuery(PageQuery):
    """Which transactions are listed."""

    kind: TransactionKind | None = None
    since: Annotated[Time, Meta(description="Only of hours that begin at this time or later.")] | None = None
    until: Annotated[Time, Meta(description="Only of hours that begin before this time.")] | None = None


class LedgerEntryView(Shown):
    """One side of a transaction; what the project owes is positive in `receivable`."""

    account: str
    currency: str
    amount_micro: Micro


class LedgerTransactionView(Shown):
    """What was booked for one project, price and hour; its entries add up to zero, and it is never changed."""

    id: str
    project_id: str
    kind: TransactionKind
    hour: Time
    price_id: str | None
    corrects_id: str | None
    entries: list[LedgerEntryView]
    correlation_id: str
    created_at: Time


class LedgerBalanceView(Shown):
    """The sum of the entries of an account in one currency."""

    account: str
    currency: str
    amount_micro: Micro
    entries: int


def transaction_view(booked: BookedTransaction) -> LedgerTransactionView:
    transaction = booked.transaction
    return LedgerTransactionView(
        id=transaction.id,
        project_id=transaction.project_id,
        kind=TransactionKind(transaction.kind),
        hour=transaction.hour,
        price_id=transaction.price_id,
        corrects_id=transaction.corrects_id,
        entries=[
            LedgerEntryView(account=each.account, currency=each.currency, amount_micro=each.amount)
            for each in booked.entries
        ],
        correlation_id=transaction.correlation_id,
        created_at=transaction.created_at,
    )


def balance_view(balance: LedgerBalance) -> LedgerBalanceView:
    return LedgerBalanceView(
        account=balance.account, currency=balance.currency, amount_micro=balance.amount, entries=balance.entries
    )
