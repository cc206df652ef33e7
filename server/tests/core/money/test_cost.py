"""Which part of a period is charged and which is estimated, and where a month leads."""

from datetime import UTC, datetime, timedelta

import pytest

from mooring.core.kernel.errors import Refusal
from mooring.core.money.charge import HOUR
from mooring.core.money.cost import (
    CostPeriod,
    CostSum,
    Forecast,
    clock_micro_per_hour,
    closed_part,
    first_open_hour,
    forecast,
    open_part,
    period_of,
)
from server.tests.support.money_rows import START, allocation, log, price

NOW = datetime(2026, 3, 31, 22, 30, tzinfo=UTC)
MONTH = datetime(2026, 3, 1, tzinfo=UTC)


def test_a_period_is_this_month_by_default() -> None:
    assert period_of(None, None, NOW) == CostPeriod(MONTH, NOW)
    asked = CostPeriod(MONTH - timedelta(days=300), MONTH)
    assert period_of(asked.since, asked.until, NOW) == asked
    assert period_of(None, MONTH + HOUR, NOW).since == MONTH
    for since, until in ((MONTH, MONTH), (NOW, MONTH), (MONTH, MONTH + timedelta(days=367))):
        with pytest.raises(Refusal):
            period_of(since, until, NOW)


def test_every_moment_is_charged_or_estimated_and_never_both() -> None:
    border = first_open_hour(NOW.replace(hour=20, minute=0), NOW)
    assert border == NOW.replace(hour=21, minute=0)
    assert first_open_hour(None, NOW) == NOW.replace(minute=0)
    month = CostPeriod(MONTH, NOW)
    assert (closed_part(month, border), open_part(month, border, NOW)) == (
        CostPeriod(MONTH, border),
        CostPeriod(border, NOW),
    )
    past, future = CostPeriod(MONTH, MONTH + HOUR), CostPeriod(border, NOW + timedelta(days=9))
    assert (closed_part(past, border), open_part(past, border, NOW)) == (past, None)
    assert (closed_part(future, border), open_part(future, border, NOW)) == (None, CostPeriod(border, NOW))


def test_the_burn_rate_counts_clocks_that_run_and_no_others() -> None:
    of = price("prc_1", 250)
    runs = allocation(of, log(("provisioning", 0), ("active", 10)), gpus=2)
    ended = allocation(of, log(("active", 0), ("releasing", 20)), "alc_2")
    waits = allocation(of, log(("provisioning", 0)), "alc_3")
    assert clock_micro_per_hour([runs, ended, waits], {}, START + HOUR) == {"EUR": 500 * 10**6}


def test_a_forecast_adds_the_burn_rate_until_the_end_of_the_month() -> None:
    found = forecast(NOW, [CostSum("EUR", 1_000, 7), CostSum("USD", 5, 0)], {"EUR": 3_600}, [CostSum("EUR", 2_400, 9)])
    until = datetime(2026, 4, 1, tzinfo=UTC)
    rate = 3_600 + 2_400 // 24
    assert found == [Forecast("EUR", until, rate, 1_000 + rate * 5_400 // 3_600), Forecast("USD", until, 0, 5)]
