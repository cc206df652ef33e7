"""Nouns, their verbs, and the endpoints behind them: `commands.py` makes click commands of them.

`noun_table.py`, generated from the OpenAPI document, lists the operations of each noun and verb. Their parameters and
answers are in the SDK's table of operations, which is loaded when a command is called, and not for `mooring --help`.
A new noun of the API gets its commands by generating both tables again.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mooring_sdk.operation import Operation, OperationTable, Parameter

PREFIX = "/api/v1"
SCOPES = {"project_id": f"{PREFIX}/projects/{{project_id}}/", "tenant_id": f"{PREFIX}/tenants/{{tenant_id}}/"}
KINDS = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "datetime": "time",
    "list[str]": "list",
}
OBJECT_DEPTH_MAX = 3
REMOVALS = (
    "detach_attachment",
    "release_allocation",
    "release_allocation_group",
    "remove_member",
    "retire_node",
    "stop_instance",
    "write_off_node",
)
"""Operations that end something for good without DELETE: they ask for confirmation too."""


class Field(NamedTuple):
    """A value that a command takes: an option for a field of the body or of the query."""

    path: tuple[str, ...]  # where it is in the body; one name for a query
    kind: str  # text, integer, number, boolean, time, list, json, secret, reference, sibling, tenant, project
    required: bool
    help: str = ""
    choices: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The name of its option, without the leading hyphens."""
        words = "-".join(self.path).replace("_", "-")
        return words.removesuffix("-id") if self.kind in ("tenant", "project", "reference") else words


class CommandEndpoint(NamedTuple):
    """An operation of the API in one scope."""

    operation: str
    scope: str  # self, platform, tenant, project
    scope_parameter: str  # the path parameter that an option for the scope sets; otherwise empty
    arguments: tuple[str, ...] = ()
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] = ()
    lists: bool = False
    pages: bool = False
    deletes: bool = False
    takes_body: bool = False
    objects: tuple[str, ...] = ()  # parts of the body that are sent even when they are empty
    one_time_secret: bool = False


class Verb(NamedTuple):
    """What can be done with a noun, in one scope or in several."""

    name: str
    summary: str
    description: str
    endpoints: tuple[CommandEndpoint, ...]


class Noun(NamedTuple):
    """A group of commands."""

    name: str
    singular: str
    operations: dict[str, tuple[str, ...]]  # by verb, one for each scope
    below: tuple["Noun", ...] = ()

    @property
    def summary(self) -> str:
        words = self.name.replace("-", " ")
        names = ", ".join(self.operations)
        return f"{words[:1].upper()}{words[1:]}: {names}." if names else f"{words.capitalize()}."

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return tuple(self.verb(name) for name in self.operations)

    def verb(self, name: str, table: "OperationTable | None" = None) -> Verb:
        """A verb with its endpoints, from the SDK's table unless another is given."""
        if table is None:
            from mooring_sdk.operations import BY_NAME

            table = BY_NAME
        operations = [table[each] for each in self.operations[name]]
        endpoints = tuple(endpoint_of(each, table) for each in operations)
        return Verb(name, operations[0].summary, operations[0].description, endpoints)


def endpoint_of(operation: "Operation", table: "OperationTable") -> CommandEndpoint:
    parameter = next((name for name, start in SCOPES.items() if operation.path.startswith(start)), "")
    body = operation.body or ()
    return CommandEndpoint(
        operation.name,
        operation.scope,
        parameter,
        arguments=tuple(name for name in operation.path_parameters if name != parameter),
        query=tuple(field_of(each) for each in operation.query if each.name not in ("cursor", "limit")),
        body=tuple(body_fields(body, table)),
        lists=operation.is_list,
        pages=operation.has_pages,
        deletes=operation.method == "DELETE",
        takes_body=operation.body is not None,
        objects=tuple(each.name for each in body if each.required and table.fields_of(each.type)),
        one_time_secret=operation.shows_secret_once,
    )


def body_fields(
    parameters: tuple["Parameter", ...], table: "OperationTable", path: tuple[str, ...] = ()
) -> Iterator[Field]:
    """The options of a body; the fields of a nested object are options too, and required if the object is."""
    for each in parameters:
        inside = table.fields_of(each.type_without_none)
        if inside and len(path) + 1 < OBJECT_DEPTH_MAX:
            for field in body_fields(inside, table, (*path, each.name)):
                yield field._replace(required=field.required and each.required)
        else:
            yield field_of(each, path)


def field_of(parameter: "Parameter", path: tuple[str, ...] = ()) -> Field:
    where = (*path, parameter.name)
    return Field(where, kind_of(parameter), parameter.required, parameter.description, parameter.choices)


def kind_of(parameter: "Parameter") -> str:
    """How the text of an option is parsed, and what a name in it refers to."""
    name, type_text = parameter.name, parameter.type_without_none
    if parameter.is_secret:
        return "secret"
    if name in ("tenant_id", "project_id"):
        return name.removesuffix("_id")
    if name == "superseded_by":
        return "sibling"
    if name.endswith("_id") and type_text == "str":
        return "reference"
    return KINDS.get(type_text, "json")
