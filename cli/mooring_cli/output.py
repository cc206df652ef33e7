"""Output of commands: a table for people; complete JSON and YAML for programs; names for pipes.

A table shows the most useful fields of a resource, times as "3 minutes ago", and colours only on a terminal. The
columns follow from the fields themselves, so a new noun needs no entry here. Control characters from the server are
removed: a name must not move the cursor.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

FORMS = ("table", "json", "yaml", "name")
COLUMNS_MAX = 7
INNER_COLUMNS_MAX = 10
BOOKKEEPING = {
    "revision",
    "generation",
    "etag",
    "allowed_actions",
    "tenant_id",
    "project_id",
    "org_id",
    "trace_id",
    "cursor",
    "correlation_id",
    "actor_kind",
    "source_type",
    "media_type",
}
MATTERS = {"status", "promotion", "trust", "enabled", "launchable", "version", "hindrances"}
"""Fields that a table always shows."""
GOOD = {"active", "running", "ready", "healthy", "succeeded", "verified", "released", "delivered", "done"}
BAD = {"failed", "dead", "deleted", "rejected", "revoked", "release_failed", "denied", "refused", "expired", "hidden"}
UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))

Row = Mapping[str, Any]


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def show(form: str, value: Any, columns: Sequence[str] = ()) -> None:
    """Print one resource, or a list of them."""
    if form == "json":
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))
    elif form == "yaml":
        click.echo(as_yaml(value), nl=False)
    elif form == "name":
        for row in value if isinstance(value, list) else [value]:
            click.echo(plain(name_of(row)))
    elif isinstance(value, list):
        show_table(value, columns or columns_of(value))
    else:
        show_record(value)


def as_yaml(value: Any) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text


def name_of(row: Any) -> str:
    """The id, which names a resource in other commands."""
    if isinstance(row, Mapping):
        for field in ("id", "slug", "name", "key", "code"):
            if row.get(field):
                return str(row[field])
    return str(row)


def columns_of(rows: Sequence[Row], most: int = COLUMNS_MAX) -> list[str]:
    """The fields for a table: values of one line that are set, without bookkeeping."""
    found: dict[str, bool] = {}
    for row in rows:
        for name, value in row.items():
            if name not in BOOKKEEPING:
                found[name] = found.get(name, False) or bool(brief(value))
    filled = [name for name, is_filled in found.items() if is_filled]
    room = most - len(MATTERS.intersection(filled))
    others = [name for name in filled if name not in MATTERS][:room]
    return [name for name in filled if name in MATTERS or name in others]


def brief(value: Any) -> str:
    """A short form of a value for a table; empty if there is none."""
    if isinstance(value, dict):
        return f"{value['version']} ({value['status']})" if {"version", "status"} <= value.keys() else ""
    if isinstance(value, list):
        codes = [each["code"] for each in value if isinstance(each, dict) and "code" in each]
        return ", ".join(codes) if len(codes) == len(value) else ""
    return "" if value is None or "\n" in str(value) else str(value)


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    heads, cells = cells_of(rows, columns)
    if on_terminal():
        _rich_table(heads, cells)
        return
    for line in plain_lines(heads, cells):
        click.echo(line)


def cells_of(rows: Sequence[Row], columns: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    now = datetime.now(UTC)
    return [heading(name) for name in columns], [[cell(name, row.get(name), now) for name in columns] for row in rows]


def plain_lines(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    """Columns separated by spaces, never truncated."""
    widths = [max(width(row[number]) for row in [heads, *cells]) for number in range(len(heads))]
    lines = []
    for row in [heads, *cells]:
        padded = [text + " " * (size - width(text)) for text, size in zip(row, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    return lines


def _rich_table(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head == "ID")
    for row in cells:
        table.add_row(*(Text(text, style=style_of(text)) for text in row))
    Console(highlight=False).print(table)


def show_record(row: Any) -> None:
    """One resource, one field per line."""
    if not isinstance(row, Mapping):
        click.echo(plain(str(row)))
        return
    now = datetime.now(UTC)
    pairs = [(heading(name, row), cell(name, value, now, whole=True)) for name, value in row.items() if name != "etag"]
    size = max((width(name) for name, _ in pairs), default=0)
    coloured = on_terminal()
    for name, text in pairs:
        lines = text.split("\n")
        shown = click.style(lines[0], fg=colour_of(lines[0])) if coloured and colour_of(lines[0]) else lines[0]
        head = click.style(name, bold=True) if coloured else name
        click.echo((head + " " * (size - width(name) + 2) + shown).rstrip())
        for line in lines[1:]:
            click.echo(" " * (size + 2) + line)


def show_text(text: str) -> None:
    """Output of a program, without terminal control sequences."""
    for line in text.splitlines():
        click.echo(plain(line.replace("\t", "    ")))


def heading(name: str, other_names: Collection[str] = ()) -> str:
    """A field's name as a heading; `created_at` becomes CREATED, unless a field of that name exists."""
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
        hidden = BOOKKEEPING if "id" in value else ()  # hidden in a nested resource, but not in labels
        pairs = (plain(f"{key}: {nested(each)}") for key, each in value.items() if key not in hidden)
        return "\n".join(pairs) or "-"
    if isinstance(value, dict):
        return plain(nested(value)) if value else "-"
    if name.endswith("_at") and isinstance(value, str) and (moment := read_time(value)) is not None:
        return f"{relative(moment, now)} ({plain(value)})" if whole else relative(moment, now)
    return "\n".join(plain(line) for line in str(value).splitlines()) if whole else plain(str(value))


def inner_lines(items: Sequence[Any]) -> list[str]:
    """A list in a record: objects as a small table, other items one per line."""
    if not items or not all(isinstance(each, dict) for each in items):
        return [plain(nested(each)) for each in items]
    heads, cells = cells_of(items, [name for name in columns_of(items, INNER_COLUMNS_MAX) if name != "id"])
    return plain_lines(heads, cells)


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


def read_time(text: str) -> datetime | None:
    """Parse a time of the API; None if it is not one."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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


def style_of(text: str) -> str:
    """The colour of a status; none for other fields."""
    return colour_of(text) or ""


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
