"""How each function that decides about money is driven, for the tests of every statement."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.money.charge import postings_of, target_lines
from mooring.core.money.correction import Correctable, CorrectionSpec, correct
from mooring.core.money.ledger import BookedCharge, BookedHour, Booking, book, close_hour
from mooring.core.money.payment import PAYMENT_KINDS, PaymentSpec, book_payment
from mooring.core.money.statement import (
    Charged,
    LineTotals,
    Statement,
    StatementKey,
    StatementState,
    close,
    freeze,
    open_statement,
)
from mooring.core.pricing.budget import Budget, BudgetSpec, Spent, Threshold, ThresholdAction, cross, set_budget
from mooring.core.pricing.meter import Billing, Meter, MeterSpec, MeterStatus, set_meter
from mooring.core.pricing.prepaid import (
    Balance,
    BalanceLevel,
    PrepaidAccount,
    PrepaidSpec,
    cross_level,
    set_prepaid,
)
from mooring.core.pricing.price import Item, PriceSpec, create_price
from mooring.core.pricing.quota import QuotaSpec, set_quota
from server.tests.support.money_rows import START, allocation, log, price, usage

METER: Final = Meter("mtr_1", "my-app", "tokens", Billing.COVERED.value, MeterStatus.ENABLED.value, 0, START)


def _booked(now: DecisionContext) -> Iterator[Decision[Any]]:
    first, tokens = price("p0"), price("t0", item=Item.UNIT.value)
    used = [usage("use_1", tokens, "2.5", 1), usage("use_2", tokens, "1", 2, Billing.COVERED)]
    lines = target_lines(START, [allocation(first, log(("active", 0)))], {"sku_1": [first]}, used, {})
    postings = postings_of(lines)
    covered = [each for each in lines if each.billing == Billing.COVERED]
    yield book(now, START, BookedHour((), {}), Booking("ten_a", postings, covered))
    before = {each.key: BookedCharge("ltx_1", 0) for each in postings}
    yield book(now, START, BookedHour(lines, before), Booking("ten_a", postings, ()))


def _metered(now: DecisionContext) -> Iterator[Decision[Any]]:
    spec = MeterSpec("my-app", "tokens", Billing.CHARGED, MeterStatus.ENABLED)
    yield set_meter(now, spec, None, has_list_price=True)
    yield set_meter(now, replace(spec, status=MeterStatus.DISABLED), METER, has_list_price=True)


def _statement(status: StatementState) -> Statement:
    return Statement(
        id="stm_1",
        tenant_id="ten_a",
        period=START.date(),
        currency="EUR",
        correlation_id="cor_1",
        created_at=START,
        status=status.value,
    )


def _closed(now: DecisionContext) -> Iterator[Decision[Any]]:
    before = replace(_statement(StatementState.CLOSED), id="stm_0", digest="sha256:" + "0" * 64)
    for earlier in (None, before):
        yield close(now, _statement(StatementState.CLOSING), LineTotals(1, 2, 3, "sha256:" + "1" * 64), earlier)


PLACE: Final[dict[str, Any]] = {"tenant_id": "ten_a", "project_id": "prj_a", "revision_seen": None}
STEPS: Final = [Threshold(50, ThresholdAction.NOTIFY)]
BUDGET: Final = Budget("bud_1", "ten_a", "prj_a", "EUR", 100, [{"percent": 50, "action": "notify"}], 0, START, START)
ACCOUNT: Final = PrepaidAccount("pre_1", "ten_a", "EUR", 5, 0, START, START)


def _limited(now: DecisionContext) -> Iterator[Decision[Any]]:
    made = set_quota(now, None, QuotaSpec(gpus_max=8, reason="a limit for tests"), **PLACE)
    yield made
    yield set_quota(now, made.result, QuotaSpec(gpus_max=9, reason="a limit for tests"), **PLACE)


def _budgeted(now: DecisionContext) -> Iterator[Decision[Any]]:
    spec = BudgetSpec("EUR", 100, STEPS, "a limit for tests")
    yield set_budget(now, None, None, spec, **PLACE)
    yield set_budget(now, BUDGET, None, spec, **PLACE)


def _prepaid(now: DecisionContext) -> Iterator[Decision[Any]]:
    spec = PrepaidSpec("EUR", 5, "a tenant that pays in advance")
    yield set_prepaid(now, None, Balance(1), spec, tenant_id="ten_a", revision_seen=None)
    yield set_prepaid(now, ACCOUNT, Balance(1), spec, tenant_id="ten_a", revision_seen=None)


def _paid(now: DecisionContext) -> Iterator[Decision[Any]]:
    for kind in PAYMENT_KINDS:
        yield book_payment(now, "ten_a", PaymentSpec(kind, "EUR", 100, "wire 7", "paid by wire"))


DRIVEN_MONEY: Final[dict[str, Callable[[DecisionContext], Any]]] = {
    "correction.correct": lambda now: correct(
        now,
        CorrectionSpec("ltx_1", -5, "the node was slow"),
        Correctable("ltx_1", "ten_a", "prj_a", START, "p0", "EUR", 0, 9),
    ),
    "ledger.book": _booked,
    "ledger.close_hour": lambda now: close_hour(now, START),
    "meter.set_meter": _metered,
    "statement.close": _closed,
    "statement.freeze": lambda now: freeze(
        now, _statement(StatementState.OPEN), Charged(START + timedelta(days=40), START), None
    ),
    "statement.open_statement": lambda now: open_statement(now, StatementKey("ten_a", "EUR", START.date())),
    "budget.cross": lambda now: cross(now, BUDGET, STEPS[0], Spent(10**9)),
    "budget.set_budget": _budgeted,
    "payment.book_payment": _paid,
    "prepaid.cross_level": lambda now: cross_level(now, ACCOUNT, BalanceLevel.DEPLETED, Balance()),
    "prepaid.set_prepaid": _prepaid,
    "quota.set_quota": _limited,
    "price.create_price": lambda now: create_price(
        now, PriceSpec("ten_a", Item.SKU, "sku_1", "EUR", 200, reason="a contract of two years")
    ),
}
