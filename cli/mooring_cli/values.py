"""From options to a body: types of values, files, and what is asked for when it is missing.

A secret is never an option: the list of processes shows options to everybody. It is read from a file, from
stdin, or at a prompt that does not echo.
"""

import json
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from mooring_cli.invocation import Invocation
from mooring_cli.nouns import Field

DURATION = re.compile(r"^(\d+)([smhdw])$")
MISSING = object()
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


class Moment(click.ParamType):  # type: ignore[type-arg]
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
            self.fail(f"this is not JSON: {error}; @ and a name reads a file", param, ctx)


class PemText(click.ParamType):  # type: ignore[type-arg]
    """Text in PEM form, or @ and the name of a file with it."""

    name = "pem|@file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return read_text(value[1:]) if value.startswith("@") else str(value)


def duration_seconds(text: str) -> int | None:
    """The seconds of a duration such as 30d; None where it is none."""
    match = DURATION.match(text)
    return int(match[1]) * UNIT_SECONDS[match[2]] if match else None


def option_of(field: Field) -> click.Option:
    """The click option of a field."""
    names = [f"--{field.option}", destination(field)]
    about = field.help or ("By id or by name." if field.kind in ("tenant", "project", "reference", "sibling") else "")
    text = f"{about} [required]".strip() if field.required else about
    if field.kind == "boolean":
        return click.Option([f"--{field.option}/--no-{field.option}", destination(field)], default=None, help=text)
    if field.kind == "secret":
        text = f"{text} Read from this file; - is stdin.".strip()
        return click.Option([f"--{field.option}-file", destination(field)], metavar="FILE", help=text)
    if field.kind == "list":
        if field.option.endswith("s"):
            names.insert(0, f"--{field.option[:-1]}")
        return click.Option(names, multiple=True, help=f"{text} Repeat it for several.".strip())
    if field.choices:
        return click.Option(names, type=click.Choice(field.choices), help=text)
    return click.Option(names, type=type_of(field), help=text or None)


def destination(field: Field) -> str:
    """The name under which click hands the value over."""
    return "__".join(("value", *field.path))


def type_of(field: Field) -> "click.ParamType[Any]":
    """How the text of an option is read."""
    if field.kind == "integer":
        return Seconds() if field.path[-1].endswith("_seconds") else click.INT
    if field.path[-1].endswith("_pem"):
        return PemText()
    kinds: dict[str, click.ParamType[Any]] = {"number": click.FLOAT, "time": Moment(), "json": JsonText()}
    return kinds.get(field.kind, click.STRING)


def gather_query(fields: Iterable[Field], given: dict[str, Any]) -> dict[str, Any]:
    """The values of a query."""
    values = {field.path[0]: given.get(destination(field)) for field in fields}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, ())
    }


def gather_body(
    invocation: Invocation, fields: tuple[Field, ...], given: dict[str, Any], file: str | None
) -> dict[str, Any]:
    """A body out of a file and the options, which win; what is missing is asked for, where somebody can
    answer.
    """
    body = read_body(file) if file else {}
    for field in fields:
        value = given.get(destination(field))
        if value in (None, ()):
            continue
        put(
            body,
            field.path,
            secret_from(value) if field.kind == "secret" else list(value) if isinstance(value, tuple) else value,
        )
    missing = [field for field in fields if field.required and not has(body, field.path)]
    if missing and (not invocation.may_ask or file):
        names = ", ".join(f"--{field.option}{'-file' if field.kind == 'secret' else ''}" for field in missing)
        raise click.UsageError(f"missing: {names}")
    for field in missing:
        put(body, field.path, ask(field))
    return body


def ask(field: Field) -> Any:
    """Ask a person for a value, on stderr."""
    words = " ".join(field.path).replace("_", " ")
    if field.kind == "secret":
        return click.prompt(words, hide_input=True, err=True)
    if field.kind == "list":
        return click.prompt(f"{words} (separated by spaces)", err=True).split()
    kind = click.Choice(field.choices) if field.choices else type_of(field)
    return click.prompt(words, type=kind, err=True)


def put(body: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value inside of a body."""
    for name in path[:-1]:
        inner = body.setdefault(name, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"{name} in the file is no object")
        body = inner
    body[path[-1]] = value


def has(body: Any, path: tuple[str, ...]) -> bool:
    """Whether a value is there."""
    return get(body, path, default=MISSING) is not MISSING


def get(body: Any, path: tuple[str, ...], default: Any = None) -> Any:
    """A value inside of a body."""
    for name in path:
        if not isinstance(body, dict) or name not in body:
            return default
        body = body[name]
    return body


def read_body(file: str) -> dict[str, Any]:
    """A whole body from a file in JSON or YAML; - is stdin."""
    text = read_text(file)
    try:
        content = json.loads(text)
    except ValueError:
        import yaml

        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise click.UsageError(f"{file} is neither JSON nor YAML: {error}") from error
    if not isinstance(content, dict):
        raise click.UsageError(f"{file} holds no object with fields")
    return content


def secret_from(file: str) -> str:
    """A secret from a file; the end of the last line does not belong to it."""
    return read_text(file).rstrip("\r\n")


def read_text(file: str) -> str:
    """The text of a file; - is stdin."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{file} cannot be read: {error}") from error
