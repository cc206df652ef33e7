"""Parses the OpenAPI document into what the generators need: operations, their parameters, and schemas.

It supports only the conventions of Mooring's own document, not all of OpenAPI: references point into
`components.schemas`, a nullable value is an `anyOf` with `null` or a list of types, and every operation has
`x-mooring`. Anything else stops the generation with a message that says where it is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
REFERENCE = "#/components/schemas/"
METHODS = ("get", "post", "put", "patch", "delete")

Schema = dict[str, Any]


class DocumentRefused(Exception):
    """The document has something that the generators do not support."""


@dataclass(frozen=True)
class Value:
    """A path or query parameter, or a field of a body."""

    name: str
    schema: Schema
    required: bool
    description: str = ""

    @property
    def is_nullable(self) -> bool:
        return is_nullable(self.schema)


@dataclass(frozen=True)
class ApiOperation:
    name: str
    method: str
    path: str
    summary: str
    description: str
    noun: str
    verb: str
    action: str
    scope: str
    takes_key: bool
    one_time_secret: bool
    pages: bool
    streams: bool
    in_path: tuple[Value, ...]
    in_query: tuple[Value, ...]
    body: Schema | None
    takes_form: bool
    answer: Schema | None
    is_json: bool
    errors: tuple[str, ...]

    @property
    def is_public(self) -> bool:
        return self.scope == "public"


class OpenApiDocument:
    def __init__(self, content: dict[str, Any]) -> None:
        self._content = content
        self.schemas: dict[str, Schema] = content["components"]["schemas"]
        self.operations = sorted(self._operations(), key=lambda each: each.name)
        names = [each.name for each in self.operations]
        if len(names) != len(set(names)):
            raise DocumentRefused("the document has a duplicate operationId")

    @property
    def codes(self) -> list[str]:
        """All error codes."""
        return list(self.schemas["Code"]["enum"])

    def meanings(self) -> dict[str, str]:
        """The meaning of each error code, from the descriptions of the responses that have it."""
        found: dict[str, str] = {}
        for answer in self._content["components"].get("responses", {}).values():
            found.update(split_meanings(answer["description"]))
        return found

    def resolve(self, schema: Schema) -> Schema:
        """The schema behind a reference, without null."""
        schema = without_null(schema)
        while "$ref" in schema:
            schema = without_null(self.schemas[reference_name(schema)])
        return schema

    def fields(self, schema: Schema) -> tuple[Value, ...]:
        """The fields of an object, the required ones first."""
        plain = self.resolve(schema)
        required = set(plain.get("required", ()))
        values = [
            Value(name, each, name in required, description_of(each))
            for name, each in plain.get("properties", {}).items()
        ]
        return tuple(sorted(values, key=lambda value: not value.required))

    def is_object(self, schema: Schema) -> bool:
        """Whether this is an object with known fields."""
        return bool(self.resolve(schema).get("properties"))

    def _operations(self) -> Iterator[ApiOperation]:
        for path, item in self._content["paths"].items():
            for method in METHODS:
                if method in item:
                    yield self._operation(path, method, item[method])

    def _operation(self, path: str, method: str, content: dict[str, Any]) -> ApiOperation:
        said = content.get("x-mooring")
        if said is None:
            raise DocumentRefused(f"{method.upper()} {path} has no x-mooring")
        body, form = self._body(content)
        media_type, answer = self._answer(content)
        values = [
            (
                each["in"],
                Value(each["name"], each["schema"], each.get("required", False), each.get("description", "")),
            )
            for each in content.get("parameters", ())
        ]
        return ApiOperation(
            name=content["operationId"],
            method=method.upper(),
            path=path,
            summary=content["summary"],
            description=content.get("description", ""),
            noun=said["noun"],
            verb=said["verb"],
            action=said["action"],
            scope=said["scope"],
            takes_key=said["idempotent"],
            one_time_secret=said["one_time_secret"],
            pages=said["pages"],
            streams=said["streams"],
            in_path=tuple(value for where, value in values if where == "path"),
            in_query=tuple(value for where, value in values if where == "query"),
            body=body,
            takes_form=form,
            answer=answer,
            is_json=media_type in (None, JSON),
            errors=tuple(said["errors"]),
        )

    def _body(self, content: dict[str, Any]) -> tuple[Schema | None, bool]:
        if "requestBody" not in content:
            return None, False
        taken = content["requestBody"]["content"]
        for media_type in (JSON, FORM):  # a batch may come in other forms besides
            if media_type in taken:
                return taken[media_type]["schema"], media_type == FORM
        raise DocumentRefused(f"{content['operationId']} takes {', '.join(taken)}")

    def _answer(self, content: dict[str, Any]) -> tuple[str | None, Schema | None]:
        for status, answer in content["responses"].items():
            if 200 <= int(status) < 300:
                for media_type, described in answer.get("content", {}).items():
                    return media_type, described["schema"]
        return None, None


def reference_name(schema: Schema) -> str:
    return str(schema["$ref"]).removeprefix(REFERENCE)


def is_nullable(schema: Schema) -> bool:
    kinds = schema.get("type")
    return (isinstance(kinds, list) and "null" in kinds) or {"type": "null"} in schema.get("anyOf", ())


def without_null(schema: Schema) -> Schema:
    """The schema without null."""
    if {"type": "null"} in schema.get("anyOf", ()):
        others = [each for each in schema["anyOf"] if each != {"type": "null"}]
        rest = {name: value for name, value in schema.items() if name != "anyOf"}
        return {**rest, **others[0]} if len(others) == 1 else {**rest, "anyOf": others}
    kinds = schema.get("type")
    if isinstance(kinds, list) and "null" in kinds:
        others = [each for each in kinds if each != "null"]
        return {**schema, "type": others[0] if len(others) == 1 else others}
    return schema


def description_of(schema: Schema) -> str:
    """The description of a value, wherever it is in its schema."""
    plain = without_null(schema)
    return str(schema.get("description") or plain.get("description") or "")


def split_meanings(text: str) -> dict[str, str]:
    """Parse "`code`: meaning; `code`: meaning"."""
    parts = re.split(r"(?:^|; )`([a-z_]+)`: ", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))
