"""When a month may be closed, and what a close says: state in, decision out."""

from dataclasses import replace
from datetime import date, datetime, timedelta

import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.money.statement import (
    Charged,
    LineTotals,
    Statement,
    StatementKey,
    StatementState,
    close,
    digest_of,
    freeze,
    is_due,
    open_statement,
)
from server.tests.support.decision_context import context
from server.tests.support.money_rows import START
from tests.support.rows import every_row

DECEMBER = date(2026, 12, 1)
LAST_HOUR = datetime(2026, 12, 31, 23, tzinfo=START.tzinfo)
TOTALS = LineTotals(2, 300, 5, "sha256:" + "1" * 64)


def statement(status: StatementState = StatementState.OPEN, period: date = DECEMBER) -> Statement:
    made = open_statement(context(), StatementKey("ten_a", "EUR", period)).result
    return replace(made, status=status.value)


@every_row(
    ("charged", "minutes", "due"),
    [
        (None, 0, False),
        (Charged(LAST_HOUR - timedelta(hours=1), LAST_HOUR), 60 * 48, False),
        (Charged(LAST_HOUR, LAST_HOUR), 60 * 24 - 1, False),
        (Charged(LAST_HOUR, LAST_HOUR), 60 * 24, True),
        (Charged(LAST_HOUR + timedelta(days=3), LAST_HOUR), 60 * 24, True),
    ],
)
def test_a_month_is_due_a_day_after_its_last_hour_was_charged(charged: Charged | None, minutes: int, due: bool) -> None:
    assert is_due(statement(), charged, LAST_HOUR + timedelta(minutes=minutes)) is due


def test_a_month_ends_where_the_next_begins_also_in_december() -> None:
    made = statement()
    assert (made.month, made.ended_at - made.started_at) == ("2026-12", timedelta(days=31))
    assert made.ended_at.isoformat() == "2027-01-01T00:00:00+00:00"


@every_row(
    ("charged", "before"),
    [
        (Charged(LAST_HOUR - timedelta(hours=1), LAST_HOUR), None),
        (Charged(LAST_HOUR, LAST_HOUR), statement(StatementState.OPEN, date(2026, 11, 1))),
    ],
)
def test_a_close_waits_for_the_last_hour_and_for_the_month_before(charged: Charged, before: Statement | None) -> None:
    with pytest.raises(Refusal) as refused:
        freeze(context(), statement(), charged, before)
    assert refused.value.code is Code.CONFLICT


def test_each_closed_statement_commits_to_the_one_before() -> None:
    frozen = freeze(context(), statement(), Charged(LAST_HOUR, LAST_HOUR), None).result
    first = close(context(), frozen, TOTALS, None)
    assert first.result.status == StatementState.CLOSED
    assert (first.result.amount, first.result.line_count) == (300, 2)
    assert [event.type for event in first.events] == [EventType.STATEMENT_CLOSED]
    second = close(context(), replace(frozen, period=date(2027, 1, 1)), TOTALS, first.result).result
    assert second.previous_digest == first.result.digest
    forged = replace(first.result, digest=digest_of(frozen, replace(TOTALS, amount=299), None))
    assert close(context(), replace(frozen, period=date(2027, 1, 1)), TOTALS, forged).result.digest != second.digest
