"""Builds the methods of both clients from the table of operations.

A method is a real function with a real signature, so that `help()`, `inspect.signature`, errors about arguments and
tracebacks look as if it were written by hand: its source is rendered from the operation and compiled, as
`dataclasses` does. That happens on first use; until then a small descriptor takes its place. Type checkers and
editors read `methods.pyi`, which is generated from the same signatures.

Path parameters are positional, all others are keyword-only. A list also has an iterator, an event stream a follower.
The default of an optional parameter is left to the server.
"""

import keyword
import linecache
from collections.abc import AsyncGenerator, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from types import FunctionType
from typing import Any, Final

from msgspec import UNSET, UnsetType

from mooring_sdk.calls import UNCHANGED, Call, given
from mooring_sdk.operation import Operation, OperationTable, Parameter
from mooring_sdk.settings import CallOptions

RESERVED: Final = frozenset({"options", "self", "most"})


@dataclass(frozen=True, slots=True)
class Style:
    """The differences between the methods of the two clients."""

    define: str
    wait: str
    generator: str


SYNC: Final = Style("def", "", "Generator[{item}, None, None]")
ASYNC: Final = Style("async def", "await ", "AsyncGenerator[{item}, None]")


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a client, as source text."""

    name: str
    operation: Operation
    style: Style

    @property
    def header(self) -> str:
        """From `def` to the colon, on one line."""
        define = self.style.define if self._is_call else "def"
        return f"{define} {self.name}({', '.join(self.parameters)}) -> {self.returns}:"

    @property
    def parameters(self) -> list[str]:
        positional = [f"{argument(name)}: str" for name in self.operation.path_parameters]
        values = [*self._query, *(self._body if self._is_call else ())]
        named = [annotated(each) for each in sorted(values, key=lambda value: not value.required)]
        if self._is_follower:
            named.append("cursor: str | None = None")
        elif self._is_iterator:
            named.append("most: int | None = None")
        return ["self", *positional, "*", *named, "options: CallOptions = UNCHANGED"]

    @property
    def returns(self) -> str:
        if self._is_call:
            return self.operation.answer or "None"
        return self.style.generator.format(item=self.operation.item)

    @property
    def doc(self) -> str:
        if self._is_iterator:
            return f"{self.operation.summary}; iterates over all pages, and stops after `most` items if that is given."
        parts = [f"{self.operation.summary}.", self.operation.description]
        if self.operation.shows_secret_once:
            parts.append("The answer contains a secret that is shown only once.")
        return "\n\n".join(part for part in parts if part)

    @property
    def statement(self) -> str:
        operation = self.operation
        if self._is_follower:
            return f"return self.follow({self._call}, {operation.item}, cursor)"
        if self._is_iterator:
            return f"return self.pages({self._call}, {operation.answer}, most)"
        if operation.answer is None:
            return f"{self.style.wait}self.execute({self._call})"
        return f"return {self.style.wait}self.call({self._call}, {operation.answer})"

    @property
    def _is_follower(self) -> bool:
        return self.operation.is_stream

    @property
    def _is_iterator(self) -> bool:
        return not self._is_follower and self.name != self.operation.name

    @property
    def _is_call(self) -> bool:
        return not self._is_follower and not self._is_iterator

    @property
    def _query(self) -> tuple[Parameter, ...]:
        if self._is_call:
            return self.operation.query
        return tuple(each for each in self.operation.query if each.name != "cursor")

    @property
    def _body(self) -> tuple[Parameter, ...]:
        return self.operation.body or ()

    @property
    def _call(self) -> str:
        arguments = ["OPERATION", mapping(self.operation.path_parameters), mapping(each.name for each in self._query)]
        if self._is_call and self.operation.body is not None:
            arguments.append(self._body_text)
        return f"Call({', '.join(arguments)}, options=options)"

    @property
    def _body_text(self) -> str:
        if self.operation.body_is_one_value:
            return self._body[0].name
        always = mapping(each.name for each in self._body if sends_null(each))
        if all(sends_null(each) for each in self._body):
            return f"given({always})"
        return f"given({always}, {mapping(each.name for each in self._body if not sends_null(each))})"


def argument(name: str) -> str:
    """The Python name of a parameter."""
    return f"{name}_" if keyword.iskeyword(name) or name in RESERVED else name


def mapping(names: Any) -> str:
    """The text of a dict from the API's names to the arguments."""
    return "{" + ", ".join(f"{name!r}: {argument(name)}" for name in names) + "}"


def annotated(parameter: Parameter) -> str:
    """A parameter with its type and its default."""
    name, kind = argument(parameter.name), parameter.type
    if parameter.required:
        return f"{name}: {kind}"
    if parameter.null_is_a_value:
        without_none = parameter.type_without_none
        return f"{name}: {without_none} | UnsetType{kind[len(without_none) :]} = UNSET"
    return f"{name}: {kind if kind == 'Any' or kind.endswith('| None') else f'{kind} | None'} = None"


def sends_null(parameter: Parameter) -> bool:
    """Whether None is sent as null, instead of leaving the value out."""
    return parameter.required or parameter.null_is_a_value


def method_names(operation: str, flags: list[str]) -> Iterator[str]:
    rest = operation.partition("_")[2]
    if "is_stream" in flags:
        yield f"follow_{rest}"
    elif "is_raw" not in flags:
        yield operation
        if "has_pages" in flags:
            yield f"iter_{rest}"


def install(owner: type, style: Style, table: OperationTable) -> None:
    """Give a class the methods of every operation."""
    for operation in table:
        for name in method_names(operation, table.flags(operation)):
            setattr(owner, name, LazyMethod(owner, name, operation, style=style, table=table))


class LazyMethod:
    """Takes the place of a method until it is first used, and then replaces itself by the function."""

    __slots__ = ("_name", "_operation", "_owner", "_style", "_table")

    def __init__(self, owner: type, name: str, operation: str, *, style: Style, table: OperationTable) -> None:
        self._owner, self._name, self._operation = owner, name, operation
        self._style, self._table = style, table

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        function = compiled(Method(self._name, self._table[self._operation], self._style), self._owner)
        setattr(self._owner, self._name, function)
        return function.__get__(instance, kind)


def compiled(method: Method, owner: type) -> FunctionType:
    """Compile a method as a function of this class."""
    from mooring_sdk import models

    source = f"{method.header}\n    {method.statement}\n"
    file = f"<{owner.__module__}.{owner.__qualname__}.{method.name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
    names: dict[str, Any] = {
        "Any": Any,
        "AsyncGenerator": AsyncGenerator,
        "Call": Call,
        "CallOptions": CallOptions,
        "Generator": Generator,
        "OPERATION": method.operation,
        "UNCHANGED": UNCHANGED,
        "UNSET": UNSET,
        "UnsetType": UnsetType,
        "__name__": owner.__module__,
        "datetime": datetime,
        "given": given,
        "models": models,
    }
    exec(compile(source, file, "exec"), names)
    function: FunctionType = names[method.name]
    function.__doc__ = method.doc
    function.__qualname__ = f"{owner.__qualname__}.{method.name}"
    return function
