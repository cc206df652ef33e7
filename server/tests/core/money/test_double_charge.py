"""The seeds of double charge, each with its statement worked by hand.

One GPU costs 36.00 an hour here: 3600 minor units, so 1 minor unit (1,000,000 micro) a second. A million output tokens
cost 2.00: 200 minor units per 10⁶, so 200 micro for each token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

from mooring.core.catalog.manifest import read_manifest
from mooring.core.catalog.operating_mode import ControlPlaneScope
from mooring.core.kernel.decision import Insert
from mooring.core.money.charge import HOUR, MeteredUsage, RatedLine, target_lines
from mooring.core.money.interval import LogStep
from mooring.core.money.usage import UsageContext, UsageReport, store_usage
from mooring.core.pricing.meter import Billing, Meter, MeterStatus
from mooring.core.pricing.price import Item
from server.tests.support.decision_context import context
from server.tests.support.money_rows import START, allocation, log, price
from server.tests.support.runtime_rows import DOCUMENT, seen
from tests.support.rows import every_row

GPU: Final = price("gpu", 3600)
TOKENS: Final = price("tokens", 200, item=Item.UNIT.value, item_key="my-app/token_out", per=1_000_000)
JOBS: Final = price("jobs", 3600, item=Item.UNIT.value, item_key="my-app/job_hour", per=1)
SECOND: Final = 1_000_000  # what a GPU costs in a second, in micro
GUEST: Final = "prj_guest"


@dataclass(frozen=True)
class Line:
    """One line of the statement: what, whose, how much of it, what it costs, and what it would have cost."""

    unit: str
    quantity: Fraction | int
    micro: int
    shadow_micro: int = 0


def reported(unit: str, quantity: str, billing: Billing, *, by: str | None = None) -> MeteredUsage:
    """A record of an app half an hour after the start, as the platform stores it."""
    now = replace(context(), now=START + timedelta(minutes=30))
    there = seen()
    instance = replace(there.instance, created_at=START, control_plane_scope=ControlPlaneScope.TENANT.value)
    meter = Meter("mtr_1", "my-app", unit, billing.value, MeterStatus.ENABLED.value, 0, START)
    units = [{"unit": unit, "title": unit, "covered_by_allocation": billing is Billing.COVERED}]
    known = read_manifest({**DOCUMENT, "usage_units": units}).manifest
    assert known is not None
    of = {"token_out": TOKENS, "job_hour": JOBS}[unit]
    loaded = UsageContext(there.claim, instance, known, {}, frozenset({GUEST}), {unit: meter}, {unit: [of]})
    report = UsageReport("r1", unit, START, now.now, Decimal(quantity), by)
    (row,) = [
        each.row
        for each in store_usage(now, loaded, [report]).writes
        if isinstance(each, Insert) and each.noun == "usage_record"
    ]
    values = {name: row[name] for name in MeteredUsage.__slots__ if name != "price"}
    return MeteredUsage(**values, price=of)  # type: ignore[arg-type]


RUNS: Final = log(("requested", 0), ("provisioning", 5), ("active", 10))
"""Active after ten seconds: 3590 seconds of the first hour."""

SEEDS: Final[dict[str, tuple[tuple[LogStep, ...], Sequence[MeteredUsage], list[Line], list[Line]]]] = {
    # The job ran for half an hour on a GPU that is paid for already: 0.5 job-hours at 3600 minor units would be
    # 1800 minor units. They are shown, and not charged.
    "a job of a clustered app in a paid allocation": (
        RUNS,
        [reported("job_hour", "0.5", Billing.COVERED)],
        [Line("gpu_second", 3590, 3590 * SECOND), Line("job_hour", Fraction(1, 2), 0, 1800 * 10**6)],
        [Line("gpu_second", 3600, 3600 * SECOND)],
    ),
    # The guest's job runs on the owner's allocation. The owner's line is the whole cost, and the guest owes nothing.
    "a job of an attached project": (
        RUNS,
        [reported("job_hour", "0.5", Billing.COVERED, by=GUEST)],
        [Line("gpu_second", 3590, 3590 * SECOND), Line("job_hour", Fraction(1, 2), 0, 1800 * 10**6)],
        [Line("gpu_second", 3600, 3600 * SECOND)],
    ),
    # 12,345 tokens at 200 micro would cost 2,469,000; the GPU that made them is paid for, so they cost nothing.
    "a token of an inference app in a paid allocation": (
        RUNS,
        [reported("token_out", "12345", Billing.COVERED)],
        [Line("gpu_second", 3590, 3590 * SECOND), Line("token_out", 12345, 0, 2_469_000)],
        [Line("gpu_second", 3600, 3600 * SECOND)],
    ),
    # The same tokens of an app that sells them: they are charged besides the capacity, once, and have no shadow.
    "a token that is sold": (
        RUNS,
        [reported("token_out", "12345", Billing.CHARGED)],
        [Line("gpu_second", 3590, 3590 * SECOND), Line("token_out", 12345, 2_469_000)],
        [Line("gpu_second", 3600, 3600 * SECOND)],
    ),
    # The app stopped; the capacity was not released, and nobody else can use it.
    "a stopped app whose allocation is not released": (
        RUNS,
        [],
        [Line("gpu_second", 3590, 3590 * SECOND)],
        [Line("gpu_second", 3600, 3600 * SECOND)],
    ),
    # The node is lost after 1000 seconds. The admin notices at 2000 and writes it off: the request of release ends the
    # clock, 2000 - 10 = 1990 seconds. A credit for the 1000 dead seconds is a correction by hand.
    "a lost node that is written off": (
        (*RUNS, LogStep(3, "releasing", START + timedelta(seconds=2000)), LogStep(4, "released", START + HOUR)),
        [],
        [Line("gpu_second", 1990, 1990 * SECOND)],
        [],
    ),
    # The tenant is root on its machine and cuts the agent's line. Nothing comes into the log, so the clock goes on; the
    # release at 5000 ends it, 1400 seconds into the second hour.
    "a node that its tenant cut off": (
        (*RUNS, LogStep(3, "releasing", START + timedelta(seconds=5000))),
        [],
        [Line("gpu_second", 3590, 3590 * SECOND)],
        [Line("gpu_second", 1400, 1400 * SECOND)],
    ),
    # The platform tears down from second 100 on, fails, tries again, and ends after an hour and a half: 90 seconds.
    "a teardown that the platform caused and that takes long": (
        (
            *RUNS,
            LogStep(3, "releasing", START + timedelta(seconds=100)),
            LogStep(4, "release_failed", START + timedelta(seconds=2000)),
            LogStep(5, "releasing", START + timedelta(seconds=3000)),
            LogStep(6, "released", START + timedelta(seconds=5400)),
        ),
        [],
        [Line("gpu_second", 90, 90 * SECOND)],
        [],
    ),
    "a creation that failed": (
        log(("requested", 0), ("provisioning", 5), ("failed", 900), ("releasing", 901), ("released", 2000)),
        [],
        [],
        [],
    ),
}


@every_row(("name", "steps", "usage", "first", "second"), [(name, *row) for name, row in SEEDS.items()])
def test_a_seed_of_double_charge_has_this_statement(
    name: str, steps: tuple[LogStep, ...], usage: Sequence[MeteredUsage], first: list[Line], second: list[Line]
) -> None:
    mine = allocation(GPU, steps)
    for number, expected in enumerate((first, second)):
        hour = START + number * HOUR
        within = [each for each in usage if hour <= each.created_at < hour + HOUR]
        lines = target_lines(hour, [mine], {"sku_1": [GPU]}, within, {})
        assert [_shown(each) for each in lines] == expected, name
        assert all(each.project_id != GUEST for each in lines)


def _shown(line: RatedLine) -> Line:
    return Line(line.unit, Fraction(line.quantity_micro, 10**6), line.micro, line.shadow_micro)
