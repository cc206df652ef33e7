"""Output of commands: a table for people; complete JSON and YAML for programs; names for pipes.

A table has the columns of its noun (`columns.py`), as many as fit on the terminal; a single resource is shown as
sections, without the fields that have no value. Colours appear only on a terminal. Control characters from the server
are removed: a name must not move the cursor.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from mooring_cli.columns import (
    BOOKKEEPING,
    NAME_FIELDS,
    NOTHING,
    Columns,
    Row,
    chosen,
    columns_of,
    is_short,
    read_time,
    value_of,
)

FORMS = ("table", "wide", "json", "yaml", "name")
GAP = 2
CELL_MIN = 8
HEADINGS = {
    "mark": " ",
    "short_digest": "DIGEST",
    "component_key": "COMPONENT",
    "app_slug": "APP",
    "allocation_count": "COUNT",
}
GOOD = {"active", "running", "ready", "healthy", "succeeded", "verified", "released", "delivered", "done"}
BAD = {"failed", "dead", "deleted", "rejected", "revoked", "release_failed", "denied", "refused", "expired", "hidden"}
UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
LEADING = (*NAME_FIELDS, "display_name", "status", "health", "health_detail")
"""Fields that begin the details of a resource."""


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def show(form: str, value: Any, columns: Columns | Sequence[str] = (), *, wide: bool = False) -> None:
    """Print one resource, or a list of them."""
    if form == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif form == "yaml":
        click.echo(as_yaml(value), nl=False)
    elif form == "name":
        for row in value if isinstance(value, list) else [value]:
            click.echo(plain(name_of(row)))
    elif isinstance(value, list):
        show_table(value, columns, wide=wide)
    else:
        show_details(value)


def as_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def name_of(row: Any) -> str:
    """How other commands name a resource: by its name, or by its id if it has none."""
    if isinstance(row, Mapping):
        names = (*NAME_FIELDS, "version" if "app_slug" in row else "", "app_slug", "id", "key", "code")
        for field in names:
            if row.get(field):
                return str(row[field])
    return str(row)


def show_table(rows: Sequence[Row], columns: Columns | Sequence[str] = (), *, wide: bool = False) -> None:
    for line in table_lines(rows, columns, wide=wide):
        click.echo(line)


def table_lines(
    rows: Sequence[Row], columns: Columns | Sequence[str] = (), *, wide: bool = False, coloured: bool | None = None
) -> list[str]:
    """A table, not wider than the terminal unless it is wide; in a pipe nothing is left out."""
    if not isinstance(columns, Columns):
        columns = Columns(tuple(columns)) if columns else columns_of(rows)
    heads, cells = cells_of(rows, chosen(rows, columns, wide=wide))
    if sys.stdout.isatty() and not wide:
        heads, cells = fitted(heads, cells, len(columns.first), terminal_width())
    return plain_lines(heads, cells, coloured=on_terminal() if coloured is None else coloured)


def cells_of(rows: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    now = datetime.now(UTC)
    return [heading(name) for name in columns], [
        [cell(name, value_of(row, name), now) for name in columns] for row in rows
    ]


def fitted(
    heads: Sequence[str], cells: Sequence[Sequence[str]], first: int, room: int
) -> tuple[list[str], list[list[str]]]:
    """The columns that fit into this room, at least the first ones; those are shortened if they do not fit."""
    widths = widths_of(heads, cells)
    count = len(widths)
    while count > first and total(widths[:count]) > room:
        count -= 1
    widths = widths[:count]
    while total(widths) > room and max(widths) > CELL_MIN:
        widest = widths.index(max(widths))
        widths[widest] -= min(total(widths) - room, max(1, widths[widest] - CELL_MIN))
    shortened = [[shorten(text, size) for text, size in zip(row, widths, strict=False)] for row in [heads, *cells]]
    return shortened[0], shortened[1:]


def total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def shorten(text: str, size: int) -> str:
    """A text of at most this width; an ellipsis marks what is missing."""
    if width(text) <= size:
        return text
    kept, used = "", 0
    for each in text:
        used += width(each)
        if used >= size:
            break
        kept += each
    return kept + "…"


def widths_of(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(width(row[number]) for row in [heads, *cells]) for number in range(len(heads))]


def plain_lines(heads: Sequence[str], cells: Sequence[Sequence[str]], *, coloured: bool = False) -> list[str]:
    """Columns separated by spaces."""
    widths = widths_of(heads, cells)
    lines = []
    for number, row in enumerate([heads, *cells]):
        padded = []
        for text, size in zip(row, widths, strict=True):
            styled = text if not coloured else click.style(text, bold=True) if number == 0 else in_colour(text)
            padded.append(styled + " " * (size - width(text)))
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


def show_details(row: Any) -> None:
    """One resource: what it is and how it is, then a section for each part, then its ids."""
    if not isinstance(row, Mapping):
        click.echo(plain(str(row)))
        return
    for number, (title, lines) in enumerate(sections_of(row, coloured=on_terminal())):
        if number:
            click.echo("")
            click.echo(click.style(title, bold=True) if on_terminal() else title)
        for line in lines:
            click.echo(f"{' ' * GAP}{line}" if number else line)


def sections_of(row: Row, *, coloured: bool) -> list[tuple[str, list[str]]]:
    """The details of a resource as titles with lines; fields without a value are left out."""
    now = datetime.now(UTC)
    filled = {name: value for name, value in row.items() if value not in NOTHING and name != "etag"}
    named_by_id = not any(name in filled for name in NAME_FIELDS)
    parts = {name: value for name, value in filled.items() if is_part(value)}
    ids = [name for name in filled if is_id(name) and name not in parts and not (name == "id" and named_by_id)]
    leading = [name for name in LEADING if name in filled and name not in parts]
    others = [name for name in filled if name not in (*parts, *ids, *leading)]
    main = {name: filled[name] for name in (*leading, *others)}
    sections = [("", pair_lines(main, now, row, coloured=coloured))] if main else []
    for name, value in parts.items():
        lines = cell(name, value, now, whole=True).split("\n")
        sections.append((heading(name, row), [wrap for each in lines for wrap in wrapped(each, GAP)]))
    if ids:
        sections.append(("IDS", pair_lines({name: filled[name] for name in ids}, now, row, coloured=coloured)))
    return sections


def is_part(value: Any) -> bool:
    """Whether a value has a section of its own: it is an object, or a list of more than words."""
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))


def is_id(name: str) -> bool:
    """Whether a field is for programs: an id, or bookkeeping."""
    return name == "id" or name.endswith("_id") or name in BOOKKEEPING


def pair_lines(fields: Row, now: datetime, row: Row, *, coloured: bool) -> list[str]:
    """One field per line, and the further lines of a text below its first."""
    pairs = [(heading(name, row), cell(name, value, now, whole=True)) for name, value in fields.items()]
    size = max((width(name) for name, _ in pairs), default=0) + GAP
    lines = []
    for name, text in pairs:
        first, *further = [line for each in text.split("\n") for line in wrapped(each, size + GAP)]
        head = click.style(name, bold=True) if coloured else name
        lines.append((head + " " * (size - width(name)) + (in_colour(first) if coloured else first)).rstrip())
        lines += [" " * size + line for line in further]
    return lines


def wrapped(line: str, indent: int) -> list[str]:
    """A line in pieces that fit on the terminal; words, such as ids and digests, are never broken."""
    return fold(line, terminal_width() - indent) if sys.stdout.isatty() else [line]


def fold(line: str, room: int) -> list[str]:
    """A line in pieces of at most this width, the further ones indented a little more than the first."""
    if width(line) <= room:
        return [line]
    import textwrap

    begins = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line.strip(),
        max(room, CELL_MIN),
        initial_indent=begins,
        subsequent_indent=begins + " " * GAP,
        break_long_words=False,
        break_on_hyphens=False,
    )


def show_text(text: str) -> None:
    """Output of a program, without terminal control sequences."""
    for line in text.splitlines():
        click.echo(plain(line.replace("\t", "    ")))


def heading(name: str, other_names: Iterable[str] = ()) -> str:
    """A field's name as a heading; `created_at` becomes CREATED, unless a field of that name exists."""
    if name in HEADINGS:
        return HEADINGS[name]
    happened = name.removesuffix("_at")
    return (name if happened in other_names else happened).replace("_", " ").upper()


def cell(name: str, value: Any, now: datetime, *, whole: bool = False) -> str:
    """A value for people."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict | list) and not whole and (words := brief(value)):
        return plain(words)
    if isinstance(value, list) and not whole and not any(isinstance(each, dict | list) for each in value):
        return plain(", ".join(map(str, value))) or "-"
    if isinstance(value, list):
        return "\n".join(inner_lines(value)) or "-"
    if isinstance(value, dict) and whole:
        return "\n".join(part_lines(value)) or "-"
    if isinstance(value, dict):
        return plain(nested(value)) if value else "-"
    if name.endswith("_at") and isinstance(value, str) and (moment := read_time(value)) is not None:
        return f"{relative(moment, now)} ({plain(value)})" if whole else relative(moment, now)
    return "\n".join(plain(line) for line in str(value).splitlines()) if whole else plain(str(value))


def brief(value: Any) -> str:
    """A short form of a value for a table; empty if there is none."""
    if not is_short(value):
        return ""
    if isinstance(value, dict):
        return f"{value['version']} ({value['status']})"
    return ", ".join(map(hindrance, value)) if isinstance(value, list) else str(value)


def hindrance(each: Mapping[str, Any]) -> str:
    """Why an app may not be launched, in a word; with the actions if that is what an admin has to agree to."""
    missing = (each.get("details") or {}).get("missing_actions")
    return f"{each['obstacle']} ({', '.join(missing)})" if missing and "obstacle" in each else str(each["code"])


def inner_lines(items: Sequence[Any]) -> list[str]:
    """A list in the details: objects as a small table, words in one line, other items one per line."""
    if items and all(isinstance(each, dict) for each in items):
        found = columns_of(items)
        columns = [name for name in (*found.first, *found.others, *found.wide) if name != "id"]
        heads, cells = cells_of(items, columns)
        if sys.stdout.isatty():
            heads, cells = fitted(heads, cells, 1, terminal_width() - GAP)
        return plain_lines(heads, cells)
    if all(isinstance(each, str) and " " not in each for each in items):
        return [plain(", ".join(items))]
    return [plain(nested(each)) for each in items]


def part_lines(part: Row) -> list[str]:
    """An object in the details: its values, one per line; bookkeeping of a nested resource is left out."""
    hidden = BOOKKEEPING if "id" in part else ()
    filled = {key: each for key, each in part.items() if key not in hidden and each not in NOTHING}
    size = max((width(key) for key in filled), default=0) + GAP
    return [plain(f"{key}{' ' * (size - width(key))}{flat(each)}") for key, each in filled.items()]


def flat(value: Any) -> str:
    """A value in one line: objects as `key=value`, lists with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict) and all(not isinstance(each, dict | list) for each in value.values()):
        return ", ".join(f"{key}={nested(each)}" for key, each in value.items())
    if isinstance(value, list) and all(not isinstance(each, dict | list) for each in value):
        return ", ".join(map(str, value))
    return nested(value).replace("\n", " ")


def nested(value: Any) -> str:
    """A value inside another."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def plain(text: str) -> str:
    """Text without terminal control characters."""
    return "".join(each if unicodedata.category(each) not in ("Cc", "Cf", "Cs") else "�" for each in text)


def width(text: str) -> int:
    """The width of a text on a terminal."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def relative(moment: datetime, now: datetime) -> str:
    """How long ago, or how long until."""
    seconds = (now - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    for size, unit in UNITS:
        count = int(abs(seconds) // size)
        if count:
            words = f"{count} {unit}{'s' if count != 1 else ''}"
            return f"{words} ago" if seconds > 0 else f"in {words}"
    return "now"


def in_colour(text: str) -> str:
    """A text, coloured if it is a state."""
    colour = colour_of(text)
    return click.style(text, fg=colour) if colour else text


def colour_of(text: str) -> str | None:
    """Green for healthy states, red for failed ones."""
    return "green" if text in GOOD else "red" if text in BAD else None


def note(text: str) -> None:
    """Print a remark on stderr, next to the output."""
    click.echo(text, err=True)


def show_lines(form: str, rows: Iterable[Row], line: Any) -> None:
    """Print items as they arrive: one JSON object, YAML document or line of text each."""
    for row in rows:
        if form == "json":
            click.echo(json.dumps(row, ensure_ascii=False))
        elif form == "yaml":
            click.echo("---\n" + as_yaml(row), nl=False)
        elif form == "name":
            click.echo(plain(name_of(row)))
        else:
            click.echo(line(row))
