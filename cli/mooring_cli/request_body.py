"""The query and the body of a request, from options, files and prompts.

A secret is never an option, because everybody can see the options of a process. It is read from a file, from stdin,
or at a prompt that does not echo.
"""

import json
from collections.abc import Iterable
from typing import Any

import click

from mooring_cli.invocation import Invocation
from mooring_cli.nouns import Field
from mooring_cli.option_types import destination, read_text, type_of

MISSING = object()


def gather_query(fields: Iterable[Field], given: dict[str, Any]) -> dict[str, Any]:
    values = {field.path[0]: given.get(destination(field)) for field in fields}
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if value not in (None, ())
    }


def gather_body(
    invocation: Invocation,
    fields: tuple[Field, ...],
    given: dict[str, Any],
    file: str | None,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A body from a file and the options, which override it; missing values are asked for on a terminal."""
    body = {**(before or {}), **(read_body(file) if file else {})}
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
    """Prompt for a value, on stderr."""
    words = " ".join(field.path).replace("_", " ")
    if field.kind == "secret":
        return click.prompt(words, hide_input=True, err=True)
    if field.kind == "list":
        return click.prompt(f"{words} (separated by spaces)", err=True).split()
    kind = click.Choice(field.choices) if field.choices else type_of(field)
    return click.prompt(words, type=kind, err=True)


def put(body: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a value in a body."""
    for name in path[:-1]:
        inner = body.setdefault(name, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"{name} in the file is not an object")
        body = inner
    body[path[-1]] = value


def has(body: Any, path: tuple[str, ...]) -> bool:
    return get(body, path, default=MISSING) is not MISSING


def get(body: Any, path: tuple[str, ...], default: Any = None) -> Any:
    """A value in a body."""
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
        raise click.UsageError(f"{file} does not contain an object")
    return content


def secret_from(file: str) -> str:
    """A secret from a file: one line without its line break, or several as they are, such as a key in PEM form."""
    text = read_text(file)
    line = text.rstrip("\r\n")
    return text if "\n" in line else line
