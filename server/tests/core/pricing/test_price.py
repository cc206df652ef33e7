"""Which price holds, which prices a running allocation gets, and how usage of a unit is billed."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from mooring.core.kernel.errors import Refusal
from mooring.core.pricing.meter import Billing, Meter, MeterStatus, billing_of
from mooring.core.pricing.price import announced, price_at
from server.tests.support.money_rows import START, price

DAY = timedelta(days=1)


def days(count: int) -> datetime:
    return START + count * DAY


def test_a_contract_wins_over_the_list_and_the_newest_price_that_has_begun_holds() -> None:
    listed, later = price("list"), price("later", valid_from=days(5))
    contract = price("contract", tenant_id="ten_a", valid_from=days(3))
    foreign = price("foreign", tenant_id="ten_b")
    prices = (listed, later, contract, foreign)
    found = [
        price_at(prices, tenant, at) for tenant, at in (("ten_a", days(2)), ("ten_a", days(6)), ("ten_c", days(6)))
    ]
    assert found == [listed, contract, later]
    assert price_at(prices, "ten_c", days(-1)) is None


def test_a_running_allocation_gets_only_prices_that_were_announced_for_it() -> None:
    first = price("first")
    silent = price("silent", valid_from=days(1))
    dated = price("dated", valid_from=days(1), existing_from=days(9))
    dollars = replace(dated, id="dollars", currency="USD", existing_from=days(10))
    contract = price("contract", tenant_id="ten_a", existing_from=days(12))
    after = price("after", existing_from=days(20))
    prices = (after, contract, dollars, dated, silent, first)
    assert announced(prices, first, "ten_a", days(0)) == [dated, contract]
    assert announced(prices, first, "ten_b", days(0)) == [dated, after]
    assert announced(prices, first, "ten_b", days(9)) == [after]


def test_a_unit_that_is_unknown_or_disabled_is_refused() -> None:
    declared = {"tokens": False, "job_hours": True}
    meter = Meter("mtr_1", "app", "tokens", Billing.CHARGED.value, MeterStatus.ENABLED.value, 0, START)
    found = [billing_of("tokens", declared, None), billing_of("job_hours", declared, None)]
    assert found == [Billing.INFORMATIVE, Billing.COVERED]
    assert billing_of("tokens", declared, meter) is Billing.CHARGED
    with pytest.raises(Refusal, match="a unit of the pinned manifest: job_hours, tokens"):
        billing_of("requests", declared, meter)
    with pytest.raises(Refusal, match="the meter app/tokens is disabled"):
        billing_of("tokens", declared, replace(meter, status=MeterStatus.DISABLED.value))
