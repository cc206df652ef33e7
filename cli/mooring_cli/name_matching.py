"""Which resource a name means: the exact name or id first, otherwise a prefix that only one of them has.

A living resource wins over a stopped or removed one of the same name. A name that nothing has gets the most similar one
as a hint. A command that removes something takes whole names only: half a name must not delete anything.
"""

import re
from collections.abc import Sequence
from typing import Any

from mooring_cli.columns import DEAD
from mooring_cli.failures import NoSuchName

WHOLE_ID = re.compile(r"[a-z]+_[0-9a-z]{26}")
LISTED_MAX = 5
CATALOG = "mooring catalog list shows the apps that a project can launch"

Row = dict[str, Any]


def is_whole_id(value: str) -> bool:
    """Whether a value is an id and no prefix of one: it needs no look-up."""
    return WHOLE_ID.fullmatch(value) is not None


def names_of(row: Row, fields: Sequence[str]) -> list[str]:
    return [str(row[field]) for field in fields if row.get(field)]


def match(rows: Sequence[Row], value: str, fields: Sequence[str], *, noun: str, whole: bool = False) -> Row:
    """The row that a value means; raises NoSuchName if there is none, or if there are several."""
    exact = living([row for row in rows if value == row.get("id") or value in names_of(row, fields)], noun)
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise NoSuchName(f"{value!r} is the name of {len(exact)} of them; give an id")
    by_prefix = [row for row in rows if value and begins(row, value, () if whole else fields)]
    found = alive_of(by_prefix, noun) or by_prefix
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(shown(row, fields) for row in found[:LISTED_MAX]) + (" …" if len(found) > LISTED_MAX else "")
        raise NoSuchName(f"{value!r} could be {listed}; give more of it")
    hint = suggestion(rows, value, fields, noun) or (f"; {CATALOG}" if noun == "app" else "")
    raise NoSuchName(f"there is no {noun} {value!r} here{hint}")


def begins(row: Row, value: str, fields: Sequence[str]) -> bool:
    return any(name.startswith(value) for name in (str(row.get("id") or ""), *names_of(row, fields)))


def shown(row: Row, fields: Sequence[str]) -> str:
    return next(iter(names_of(row, fields)), str(row.get("id")))


def alive_of(rows: Sequence[Row], noun: str) -> list[Row]:
    return [row for row in rows if row.get("status") not in DEAD.get(noun, ())]


def living(rows: Sequence[Row], noun: str) -> list[Row]:
    """The living ones; if none lives and the noun has states, the newest, which the API lists last."""
    alive = alive_of(rows, noun)
    return alive or (list(rows[-1:]) if noun in DEAD else list(rows))


def suggestion(rows: Sequence[Row], value: str, fields: Sequence[str], noun: str) -> str:
    """`; did you mean …?`, if a living one has a similar name."""
    from mooring_cli.main import close_to

    near = close_to(value, [name for row in alive_of(rows, noun) for name in names_of(row, fields)])
    return f"; did you mean {near}?" if near else ""
