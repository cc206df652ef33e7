"""The shape of the table of operations.

`operations.py` holds the table itself, generated from the OpenAPI document as plain tuples: Python loads those
without running code, and a row becomes an `Operation` only when it is needed. The clients' methods and the commands
of the CLI are both built from this table. This module imports only the standard library, so that `mooring --help`
stays fast.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = tuple[Any, ...]


class Parameter(NamedTuple):
    """A value that an operation takes in its query or in its body."""

    name: str
    type: str  # as written in an annotation; ends with `| None` where the API takes null
    required: bool = False
    null_is_a_value: bool = False  # sending null and omitting it mean different things
    is_secret: bool = False
    description: str = ""
    choices: tuple[str, ...] = ()

    @property
    def type_without_none(self) -> str:
        return self.type.removesuffix(" | None")


@dataclass(frozen=True, slots=True)
class Operation:
    """One endpoint, as the OpenAPI document describes it."""

    name: str
    method: str
    path: str  # with the names of its parameters in braces
    is_public: bool = False
    takes_key: bool = False  # an Idempotency-Key
    takes_form: bool = False
    has_pages: bool = False
    is_list: bool = False  # its answer has `items`
    is_stream: bool = False
    is_raw: bool = False  # its answer is neither JSON nor an event stream: the clients have no method for it
    shows_secret_once: bool = False
    scope: str = ""
    summary: str = ""
    description: str = ""
    answer: str | None = None  # the type of the whole answer
    item: str | None = None  # the type of one item of a list or stream
    query: tuple[Parameter, ...] = ()
    body: tuple[Parameter, ...] | None = None
    body_is_one_value: bool = False  # the body is not an object with known fields

    @property
    def path_parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


class OperationTable(Mapping[str, Operation]):
    """The operations by name; each row is parsed on first use."""

    def __init__(self, rows: Mapping[str, Row], objects: Mapping[str, tuple[Row, ...]]) -> None:
        self._rows = rows
        self._objects = objects
        self._read: dict[str, Operation] = {}

    def __getitem__(self, name: str) -> Operation:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._operation(name, self._rows[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def flags(self, name: str) -> list[str]:
        """The boolean properties of an operation, without parsing the rest of its row."""
        flags: str = self._rows[name][3]
        return flags.split()

    def fields_of(self, type_text: str) -> tuple[Parameter, ...]:
        """The fields of an object by the name of its type; empty for any other type."""
        return tuple(_parameter(*row) for row in self._objects.get(type_text.removeprefix("models."), ()))

    def _operation(self, name: str, row: Row) -> Operation:
        method, path, scope, _, answer, item, body, query, summary, description = row
        fields = None if body is None else self.fields_of(body) if isinstance(body, str) else (_parameter(*body),)
        return Operation(
            name,
            method,
            path,
            is_public=scope == "public",
            scope=scope,
            answer=answer,
            item=item,
            body=fields,
            body_is_one_value=isinstance(body, tuple),
            query=tuple(_parameter(*each) for each in query),
            summary=summary,
            description=description,
            **dict.fromkeys(self.flags(name), True),
        )


def _parameter(
    name: str, type_text: str, flags: str, description: str = "", choices: tuple[str, ...] = ()
) -> Parameter:
    true = dict.fromkeys(flags.split(), True)
    return Parameter(name, type_text, description=description, choices=choices, **true)
