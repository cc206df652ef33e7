"""`mooring schema`: the JSON Schemas of a noun, out of the server's OpenAPI document."""

from typing import Any

import click

from mooring_cli import output
from mooring_cli.invocation import current
from mooring_cli.main import MooringCommand, close_to


@click.command(cls=MooringCommand)
@click.argument("noun", required=False)
def schema(noun: str | None) -> None:
    """Show the JSON Schemas of a noun: the bodies and answers of its commands. Without a noun, list the nouns."""
    invocation = current()
    document = invocation.public_call("get_openapi")
    by_noun = operations_by_noun(document)
    if noun is None:
        rows = [{"noun": name, "operations": ", ".join(each)} for name, each in sorted(by_noun.items())]
        output.show(invocation.output, rows, ("noun", "operations"))
        return
    wanted = noun.replace("-", "_")
    singular = next((name for name in by_noun if wanted in (name, f"{name}s", f"{name[:-1]}ies")), None)
    if singular is None:
        near = close_to(wanted, list(by_noun))
        raise click.UsageError(f"there is no noun {noun!r}" + (f"; did you mean {near}?" if near else ""))
    value = schemas_of(document, by_noun[singular])
    output.show("json" if invocation.output == "table" else invocation.output, value)


def operations_by_noun(document: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in document["paths"].values():
        for operation in item.values():
            found.setdefault(operation["x-mooring"]["noun"], []).append(operation["operationId"])
    return found


def schemas_of(document: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The bodies and answers of operations, with every schema that they refer to."""
    schemas = document["components"]["schemas"]
    needed: dict[str, Any] = {}
    left: list[Any] = []
    for item in document["paths"].values():
        for operation in item.values():
            if operation["operationId"] in names:
                left.append(operation.get("requestBody", {}))
                left += [answer for status, answer in operation["responses"].items() if status < "300"]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            name = str(value.get("$ref", "")).rpartition("/")[2]
            if name and name not in needed:
                needed[name] = schemas[name]
                left.append(schemas[name])
            left += value.values()
        elif isinstance(value, list):
            left += value
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "components": {"schemas": dict(sorted(needed.items()))},
    }
