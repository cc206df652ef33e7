"""What a request may still have and spend: quotas, budgets that block, balances, and what launches reserved."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from mooring.core.kernel.errors import Refusal
from mooring.core.pricing.budget import (
    Budget,
    BudgetSpec,
    Spent,
    Threshold,
    ThresholdAction,
    cross,
    due_crossings,
    set_budget,
)
from mooring.core.pricing.prepaid import (
    Balance,
    BalanceLevel,
    PrepaidAccount,
    PrepaidSpec,
    cross_level,
    due_levels,
    set_prepaid,
)
from mooring.core.pricing.quota import Quota, QuotaSpec, set_quota
from mooring.core.pricing.rating import MICRO, ClockTerms
from mooring.core.pricing.spending import (
    Figures,
    Ledger,
    RunningClock,
    SpendingSnapshot,
    SpendRequest,
    guard_of,
    limits_of,
    reserve,
    spending_refusals,
)
from server.tests.support.decision_context import context as decision_context
from server.tests.support.money_rows import START

NOW: Final = START + timedelta(minutes=30)
MONTH: Final = START.replace(day=1, hour=0)
FIGURES: Final = ("clocks", "ledger", "instances", "paid", "last_payment_id")
PAIR: Final = SpendRequest(1, 2, 4, 250, "EUR")
"""Two allocations of four GPUs at 2.50 EUR: 2000 minor units per hour."""


def quota(project_id: str | None = None, **limits: Any) -> Quota:
    values: dict[str, Any] = {"gpus_max": None, "instances_max": None, "minor_per_hour_max": None, "currency": None}
    return Quota("quo_1", "ten_a", project_id, **(values | limits), revision=0, created_at=START, updated_at=START)


def budget(minor: int, *steps: tuple[int, str], project_id: str | None = None) -> Budget:
    thresholds = [{"percent": percent, "action": action} for percent, action in steps]
    return Budget("bud_1", "ten_a", project_id, "EUR", minor, thresholds, 0, START, START)


def account(low: int = 500) -> PrepaidAccount:
    return PrepaidAccount("pre_1", "ten_a", "EUR", low, 0, START, START)


def clock(project_id: str = "prj_a", status: str = "active", **changed: Any) -> RunningClock:
    one = RunningClock(project_id, status, 4, 250, "EUR", ClockTerms(), START, None)
    return replace(one, **changed)


def snapshot(**changed: Any) -> SpendingSnapshot:
    figures = Figures(NOW, MONTH, START, 7, **{name: changed.pop(name) for name in FIGURES if name in changed})
    return SpendingSnapshot("ten_a", "prj_a", figures, **changed)


@pytest.mark.parametrize(
    ("limited", "code", "change"),
    [
        (snapshot(), None, ""),
        (snapshot(quotas=[quota(gpus_max=8)]), None, ""),
        (snapshot(quotas=[quota(gpus_max=7)]), "quota_exceeded", "1 allocations instead of 2, or a quota of 8 GPUs"),
        (snapshot(quotas=[quota(gpus_max=8)], clocks=[clock("prj_b")]), "quota_exceeded", "1 allocations instead"),
        (snapshot(quotas=[quota("prj_a", gpus_max=8)], clocks=[clock("prj_b")]), None, ""),
        (snapshot(quotas=[quota(gpus_max=8)], clocks=[clock(status="releasing")]), None, ""),
        (snapshot(quotas=[quota(instances_max=1)], instances={"prj_b": 1}), "quota_exceeded", "one instance less"),
        (snapshot(quotas=[quota("prj_a", instances_max=1)], instances={"prj_b": 1}), None, ""),
        (snapshot(quotas=[quota(minor_per_hour_max=2000, currency="EUR")]), None, ""),
        (snapshot(quotas=[quota(minor_per_hour_max=1999, currency="EUR")]), "quota_exceeded", "of 2000 per hour"),
        (snapshot(quotas=[quota(minor_per_hour_max=1, currency="USD")]), None, ""),
        (snapshot(budgets=[budget(2000, (100, "block"))]), None, ""),
        (snapshot(budgets=[budget(2000, (100, "notify"))], clocks=[clock()] * 9), None, ""),
        (snapshot(budgets=[budget(4000, (50, "notify"), (75, "stop"))], clocks=[clock()] * 3), "budget_exceeded",
         "1 allocations instead of 2, or a budget that blocks only at 3500 EUR"),
        (snapshot(budgets=[budget(2000, (100, "block"))], ledger=[Ledger("prj_b", "EUR", MICRO, 9 * MICRO)]),
         "budget_exceeded", "1 allocations instead of 2, or a budget that blocks only at 2001 EUR"),
        (snapshot(budgets=[budget(2000, (100, "block"))], ledger=[Ledger("prj_b", "EUR", 2000 * MICRO, 0)]),
         "budget_exceeded", "a budget that blocks only at 4000 EUR"),
        (snapshot(prepaid=account(), paid={"EUR": 2000 * MICRO}), None, ""),
        (snapshot(prepaid=account(), paid={"EUR": 1999 * MICRO}), "balance_too_low", "a payment of at least 1 EUR"),
        (snapshot(prepaid=replace(account(), currency="USD"), paid={"USD": 2000 * MICRO}), "balance_too_low", "USD"),
    ],
)  # fmt: skip
def test_a_request_is_refused_by_each_limit_with_the_smallest_change(
    limited: SpendingSnapshot, code: str | None, change: str
) -> None:
    found = list(spending_refusals(limited, PAIR))
    assert [each.code.value for each in found] == ([] if code is None else [code])
    if found:
        assert change in str(found[0].details["smallest_change"])


def test_what_is_used_is_booked_estimated_or_held() -> None:
    # Half an hour of 1000 per hour is on the clock; the hold of 1000 is half settled; a request that waits holds all.
    running, waiting = clock(hold_minor=1000), clock(status="requested", activated_at=None, hold_minor=1000)
    ended = clock(status="released", releasing_at=START + timedelta(minutes=6), hold_minor=1000)
    limited = snapshot(
        budgets=[budget(9000, (100, "block"))],
        clocks=[running, waiting, ended],
        ledger=[Ledger("prj_a", "EUR", 70 * MICRO, 80 * MICRO)],
    )
    (limit,) = limits_of(limited, PAIR)
    assert (limit.measured, limit.estimated, limit.held) == (70, 500 + 100, 500 + 1000)
    assert (limit.used, limit.left, limit.requested, limit.exceeded) == (2170, 6830, 2000, False)


def test_every_hold_ends_with_the_clock_of_its_allocation() -> None:
    held = clock(hold_minor=1000)
    assert [held.held_micro(START + timedelta(minutes=each)) // MICRO for each in (0, 15, 60, 600)] == [1000, 750, 0, 0]
    for state in ("releasing", "release_failed", "released", "failed"):
        assert replace(held, status=state).held_micro(START) == 0, state


def test_a_request_reserves_only_what_is_available_before_it() -> None:
    limited = snapshot(prepaid=account(), paid={"EUR": 2500 * MICRO})
    guard, *rows = reserve(limited, PAIR, ["alc_1", "alc_2"])
    assert guard == guard_of(limited)
    assert [(each.row["amount_minor"], each.row["available_minor"]) for each in rows] == [(1000, 2500), (1000, 1500)]  # type: ignore[union-attr]
    assert reserve(None, PAIR, ["alc_1"]) == ()
    with pytest.raises(Refusal):
        reserve(snapshot(prepaid=account(), paid={"EUR": 1500 * MICRO}), PAIR, ["alc_1", "alc_2"])


def test_only_quotas_reserve_nothing() -> None:
    assert len(reserve(snapshot(quotas=[quota(gpus_max=8)]), PAIR, ["alc_1", "alc_2"])) == 1


def test_a_threshold_fires_once_and_says_what_it_rests_on() -> None:
    limited = budget(1000, (50, "notify"), (100, "stop"))
    spent = Spent(400 * MICRO, 200 * MICRO)
    assert due_crossings(limited, spent, ()) == [Threshold(50, ThresholdAction.NOTIFY)]
    assert due_crossings(limited, spent, (50,)) == []
    crossed = cross(decision_context(), limited, limited.steps[0], spent)
    assert (crossed.result.basis, crossed.result.spent_minor) == ("estimated", 600)
    booked = cross(decision_context(), limited, limited.steps[1], Spent(1000 * MICRO, 5))
    assert booked.result.basis == "measured"
    with pytest.raises(Refusal):
        cross(decision_context(), limited, limited.steps[1], spent)


def test_a_balance_is_low_before_it_is_used_up() -> None:
    table = {501: [], 500: ["low"], 1: ["low"], 0: ["low", "depleted"], -9: ["low", "depleted"]}
    for left, levels in table.items():
        found = due_levels(account(), Balance(left * MICRO), frozenset())
        assert [each.value for each in found] == levels, left
    assert due_levels(account(), Balance(0), frozenset({"low"})) == [BalanceLevel.DEPLETED]
    crossed = cross_level(decision_context(), account(), BalanceLevel.DEPLETED, Balance(100 * MICRO, 0, 100 * MICRO))
    assert crossed.result.basis == "estimated"


def test_limits_are_checked_when_they_are_set() -> None:
    now, place = decision_context(), {"tenant_id": "ten_a", "project_id": None, "revision_seen": None}
    for spec in (QuotaSpec(gpus_max=-1, reason="a reason"), QuotaSpec(minor_per_hour_max=5, reason="a reason")):
        with pytest.raises(Refusal):
            set_quota(now, None, spec, **place)  # type: ignore[arg-type]
    steps = [Threshold(50, ThresholdAction.NOTIFY)]
    good = BudgetSpec("EUR", 100, steps, "a reason")
    for wrong in (replace(good, thresholds=[]), replace(good, thresholds=steps * 2), replace(good, currency="eur")):
        with pytest.raises(Refusal):
            set_budget(now, None, None, wrong, **place)  # type: ignore[arg-type]
    with pytest.raises(Refusal, match="tenant's budget"):
        set_budget(now, None, budget(99, (100, "block")), good, **place)  # type: ignore[arg-type]
    prepaid = PrepaidSpec("EUR", 5, "a reason")
    with pytest.raises(Refusal, match="book a payment first"):
        set_prepaid(now, None, Balance(), prepaid, tenant_id="ten_a", revision_seen=None)
