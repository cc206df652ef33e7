"""When an allocation is charged: from active to the request of release, whatever happens around it."""

from datetime import timedelta

from mooring.core.money.interval import Clock, clock_of, pieces
from server.tests.support.money_rows import START, allocation, log, price


def at(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_the_clock_runs_from_active_to_the_request_of_release() -> None:
    table = {
        "it waits for a place": (log(("requested", 0), ("provisioning", 5)), None),
        "it never became active": (log(("requested", 0), ("failed", 5), ("releasing", 6), ("released", 9)), None),
        "it runs, or its tenant cut its node off": (
            log(("requested", 0), ("provisioning", 1), ("active", 2)),
            (2, None),
        ),
        "the platform's teardown takes long, fails and is retried": (
            log(
                ("requested", 0),
                ("active", 2),
                ("releasing", 60),
                ("release_failed", 90),
                ("releasing", 99),
                ("released", 200),
            ),
            (2, 60),
        ),
        "its node is lost and written off": (
            log(("requested", 0), ("active", 2), ("releasing", 50), ("released", 51)),
            (2, 50),
        ),
        "the clocks of two replicas differ": (log(("active", 9), ("releasing", 8)), (9, 9)),
    }
    for name, (steps, expected) in table.items():
        begun = None if expected is None else START + at(expected[0])
        ended = None if expected is None or expected[1] is None else START + at(expected[1])
        assert clock_of(steps) == (None if begun is None else Clock(begun, ended)), name


def test_an_announced_price_splits_the_interval_and_a_minimum_applies_once() -> None:
    first = price("first", 3600, minimum_seconds=60)
    second = price("second", 7200, minimum_seconds=60, existing_from=START + at(100))
    mine = allocation(first, log(("active", 0), ("releasing", 130)), gpus=2)
    found = pieces(mine, [first, second], START, START + at(3600))
    assert [(each.price.id, each.gpu_seconds, each.micro) for each in found] == [
        ("first", 200, 200_000_000),
        ("second", 60, 120_000_000),
    ]
    short = allocation(first, log(("active", 0), ("releasing", 1)))
    assert [each.gpu_seconds for each in pieces(short, [first], START, START + at(3600))] == [60]
    # The rest of the minimum is not charged again after the hour's end.
    late = allocation(first, log(("active", 3590), ("releasing", 3620)))
    hours = [pieces(late, [first], START + at(3600 * n), START + at(3600 * (n + 1))) for n in (0, 1)]
    assert [[each.gpu_seconds for each in hour] for hour in hours] == [[60], [0]]
