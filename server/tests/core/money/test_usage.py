"""The interval of a usage record lies between the instance's creation and now."""

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from mooring.core.kernel.errors import Refusal
from mooring.core.money.usage import UsageContext, UsageReport, store_usage
from server.tests.support.lifecycle_rows import context
from server.tests.support.runtime_rows import manifest, seen


def stored(started: timedelta, ended: timedelta) -> int:
    """How many records are stored of one whose times are counted from the instance's creation, a minute ago."""
    now = context()
    created_at = now.now.replace(microsecond=255_784) - timedelta(minutes=1)
    reported = UsageReport("r1", "tokens", created_at + started, created_at + ended, Decimal(1))
    there = seen()
    loaded = UsageContext(there.claim, replace(there.instance, created_at=created_at), manifest(), {}, frozenset())
    return store_usage(now, loaded, [reported]).result[0]


def test_a_start_in_the_second_of_the_creation_is_accepted_since_many_clocks_have_whole_seconds() -> None:
    assert stored(-timedelta(microseconds=255_784), timedelta(seconds=1)) == 1


@pytest.mark.parametrize("times", [(-timedelta(seconds=1), timedelta(0)), (timedelta(0), timedelta(minutes=3))])
def test_an_interval_before_the_creation_or_after_now_is_refused(times: tuple[timedelta, timedelta]) -> None:
    with pytest.raises(Refusal, match="between the instance's creation and now"):
        stored(*times)
