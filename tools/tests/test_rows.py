"""A table inside one test: every row runs, and every row that fails is named."""

import asyncio

import pytest

from tests.support.rows import every_row


def test_every_row_runs_and_every_failure_names_its_row() -> None:
    seen = []

    @every_row(("number", "wanted"), [(1, 1), (2, 3), (4, 4), pytest.param(5, 6, id="five")])
    def check(number: int, wanted: int) -> None:
        seen.append(number)
        assert number == wanted

    with pytest.raises(BaseExceptionGroup, match="2 of 4 rows failed") as caught:
        check()
    assert seen == [1, 2, 4, 5]
    assert [each.__notes__ for each in caught.value.exceptions] == [
        ["in the row number=2, wanted=3"],
        ["in the row five"],
    ]


def test_one_failure_is_itself_and_pytest_fail_counts() -> None:
    @every_row("word", ["good", "bad"], ids=str.upper)
    def check(word: str) -> None:
        if word == "bad":
            pytest.fail("no")

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    assert caught.value.__notes__ == ["in the row BAD"]


def test_a_group_of_rows_is_a_test_of_its_own() -> None:
    seen = []

    @every_row("number", [1, 2, 3, 4], by=lambda number: "even" if number % 2 == 0 else "odd")
    async def check(number: int) -> None:
        seen.append(number)

    (mark,) = check.pytestmark  # type: ignore[attr-defined]
    assert mark.args == ("group", ["odd", "even"])
    asyncio.run(check(group="even"))
    assert seen == [2, 4]


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(AssertionError, match="without rows"):
        every_row("number", [])
