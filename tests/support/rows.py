"""Tables inside one test: `every_row` is `pytest.mark.parametrize` without a test for each row.

A matrix of hundreds of cells is one statement about the program, so it is one test. Every row runs, also after one has
failed, and each failure names its row. With `by` the rows fall into groups, and each group is a test of its own:
enough to see at a glance where it broke, and few enough to read.

    @every_row(("text", "wanted"), [("1.0", True), ("one", False)])
    def test_what_is_a_version(text: str, wanted: bool) -> None: ...
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

Test = Callable[..., Any]
Names = str | Sequence[str]
GROUP = "group"


@dataclass(frozen=True)
class TableRow:
    """The values of one row, by parameter, and how a failure names it."""

    values: dict[str, Any]
    name: str


def every_row(
    names: Names, rows: Iterable[Any], *, ids: Any = None, by: Callable[..., str] | None = None
) -> Callable[[Test], Test]:
    """Run the test for every row; `ids` as for parametrize, `by` gives the group of a row from its values."""
    words = [each.strip() for each in names.split(",")] if isinstance(names, str) else list(names)
    table = [_row(words, each, ids, number) for number, each in enumerate(rows)]
    assert table, "a table without rows proves nothing"

    def decorate(test: Test) -> Test:
        if by is None:
            return _over(test, words, lambda _: table, grouped=False)
        groups: dict[str, list[TableRow]] = {}
        for row in table:
            groups.setdefault(str(by(*row.values.values())), []).append(row)
        return pytest.mark.parametrize(GROUP, list(groups))(_over(test, words, groups.__getitem__, grouped=True))

    return decorate


def _row(words: Sequence[str], row: Any, ids: Any, number: int) -> TableRow:
    name = None
    if hasattr(row, "marks") and hasattr(row, "values"):  # pytest.param
        name, row = row.id, row.values if len(words) > 1 else row.values[0]
    values = dict(zip(words, row if len(words) > 1 else (row,), strict=True))
    if name is None and callable(ids):
        name = "-".join(str(ids(each)) for each in values.values())
    elif name is None and ids is not None:
        name = str(ids[number])
    return TableRow(values, name or ", ".join(f"{word}={value!r}" for word, value in values.items()))


def _over(test: Test, words: Sequence[str], chosen: Callable[[str], list[TableRow]], *, grouped: bool) -> Test:
    parameters = inspect.signature(test).parameters.values()
    fixtures = [each for each in parameters if each.name not in words]
    if grouped:
        fixtures.append(inspect.Parameter(GROUP, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str))

    async def run_async(**given: Any) -> None:
        rows, failures = chosen(given.pop(GROUP, "") if grouped else ""), []
        for row in rows:
            try:
                await test(**given, **row.values)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  (every row runs)
                failures.append(_noted(error, row))
        _report(failures, len(rows))

    def run_sync(**given: Any) -> None:
        rows, failures = chosen(given.pop(GROUP, "") if grouped else ""), []
        for row in rows:
            try:
                test(**given, **row.values)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  (every row runs)
                failures.append(_noted(error, row))
        _report(failures, len(rows))

    run: Any = functools.wraps(test)(run_async if inspect.iscoroutinefunction(test) else run_sync)
    del run.__wrapped__  # pytest would look through it for the parameters
    run.__signature__ = inspect.Signature(fixtures)
    return run  # type: ignore[no-any-return]


def _noted(error: BaseException, row: TableRow) -> BaseException:
    error.add_note(f"in the row {row.name}")
    return error


def _report(failures: list[BaseException], count: int) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {count} rows failed", failures)
