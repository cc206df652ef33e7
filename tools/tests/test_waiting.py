"""The one way to wait: it returns what the condition found, and gives up at its bound with what it saw last."""

import pytest

from tests.support.waiting import turns, until, until_sync


@pytest.mark.anyio
async def test_it_returns_the_first_true_value_of_a_function_or_a_coroutine_function() -> None:
    values = iter([0, "", None, "found"])
    assert await until(lambda: next(values)) == "found"
    more = iter([False, 7])

    async def look() -> int | None:
        await turns()
        return next(more)

    assert await until(look) == 7


@pytest.mark.anyio
async def test_it_gives_up_at_its_bound_and_says_what_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"the end did not come about within 0.01 s; seen last: 0"):
        await until(lambda: 0, 0.01, what="the end")
    with pytest.raises(AssertionError, match=r"the end did not come about within 0.01 s; seen last: \[\]"):
        until_sync(list, 0.01, what=lambda: "the end")


def test_without_an_event_loop_it_returns_the_first_true_value_too() -> None:
    values = iter([0, 3])
    assert until_sync(lambda: next(values)) == 3
