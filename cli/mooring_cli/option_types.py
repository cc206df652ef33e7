"""Options for fields: their click types, and how their text is parsed."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from mooring_cli.nouns import Field

DURATION = re.compile(r"^(\d+)([smhdw])$")
PLACEMENT = "placement-"
UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Seconds(click.ParamType):  # type: ignore[type-arg]
    """A number of seconds, or a duration such as 30d."""

    name = "seconds|30d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        seconds = duration_seconds(value)
        if seconds is None and not value.isdigit():
            self.fail(f"{value!r} is neither seconds nor a duration such as 90s, 15m, 12h, 30d", param, ctx)
        return int(value) if seconds is None else seconds


class TimeOrDuration(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601, or a duration from now."""

    name = "time|30d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        seconds = duration_seconds(value)
        if seconds is not None:
            return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither a time such as 2030-01-31T12:00:00Z nor a duration such as 30d", param, ctx
            )
        return (moment if moment.tzinfo else moment.astimezone()).isoformat()


class TimeAgo(click.ParamType):  # type: ignore[type-arg]
    """A time in ISO 8601, or how long ago it was."""

    name = "time|7d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        seconds = duration_seconds(value)
        if seconds is not None:
            return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
        return TimeOrDuration().convert(value, param, ctx)


class JsonText(click.ParamType):  # type: ignore[type-arg]
    """A JSON value, or @ and the name of a file in JSON or YAML."""

    name = "json|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith("@"):
            from mooring_cli.manifest import read

            return read(value[1:]).values
        try:
            return json.loads(value)
        except ValueError as error:
            self.fail(f"this is not JSON: {error}; use @FILE to read a file", param, ctx)


class PemText(click.ParamType):  # type: ignore[type-arg]
    """PEM text, or @ and the name of a file with it."""

    name = "pem|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return read_text(value[1:]) if value.startswith("@") else str(value)


def duration_seconds(text: str) -> int | None:
    """The seconds of a duration such as 30d; None if it is not one."""
    match = DURATION.match(text)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else None


def option_of(field: Field) -> click.Option:
    names = [*spellings(field), destination(field)]
    about = field.help or ("By id or by name." if field.kind in ("tenant", "project", "reference", "sibling") else "")
    text = f"{about} [required]".strip() if field.required else about
    if field.kind == "boolean":
        flags = "/".join(("--{0}", "--no-{0}"))
        spelled = [flags.format(each.removeprefix("--")) for each in spellings(field)]
        return click.Option([*spelled, destination(field)], default=None, help=text)
    if field.kind == "secret":
        text = f"{text} Read it from this file; - is stdin.".strip()
        return click.Option([f"--{field.option}-file", destination(field)], metavar="FILE", help=text)
    if field.kind == "list":
        names[:0] = [f"{each[:-1]}" for each in spellings(field) if each.endswith("s")]
        return click.Option(names, multiple=True, help=f"{text} Repeatable.".strip())
    if field.choices:
        return click.Option(names, type=click.Choice(field.choices), help=text)
    return click.Option(names, type=type_of(field), help=text or None)


def spellings(field: Field) -> list[str]:
    """The names of a field's option; those of a placement are spelled as in `allocations create`, too."""
    whole = f"--{field.option}"
    return [f"--{field.option.removeprefix(PLACEMENT)}", whole] if field.option.startswith(PLACEMENT) else [whole]


def destination(field: Field) -> str:
    """The parameter name of the option in click."""
    return "__".join(("value", *field.path))


def type_of(field: Field) -> "click.ParamType[Any]":
    if field.kind == "integer":
        return Seconds() if field.path[-1].endswith("_seconds") else click.INT
    if field.path[-1].endswith("_pem"):
        return PemText()
    kinds: dict[str, click.ParamType[Any]] = {"number": click.FLOAT, "time": TimeOrDuration(), "json": JsonText()}
    return kinds.get(field.kind, click.STRING)


def read_text(file: str) -> str:
    """The text of a file; - is stdin."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} cannot be read: {error}") from error
