"""Validation of plain JSON values by a JSON Schema: what is wrong, where, and how to fix it.

The schemas are our own (the manifest's) and, after `form_schema` has checked them, those of an app's author (a launch
form, the input of an action). They use a subset of JSON Schema 2020-12: types, enumerations, bounds, objects, lists,
`$ref` to `$defs`, and `oneOf` only in the form "exactly one of these properties". Any other keyword is a bug of ours:
it raises `UnknownKeyword`, so that no assertion is silently ignored.

Every pattern is anchored (`^…$`) and is matched against the whole text, because `$` alone would accept a line break
at the end. Our own patterns run on Python's `re`; those of an app's author only on RE2 (`safe_regex`). The functions
recurse, so callers check the depth of a value first (`depth_exceeds`).

The cost grows with the size of the value and never faster, and a document has a budget of it (`work_budget`).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from mooring.core.kernel.finding import Finding, below, error, listed, shown
from mooring.core.kernel.safe_regex import LENGTH_MAX, PatternRefused, Patterns
from mooring.core.kernel.work_budget import NODE_STEPS, WorkBudget, until_spent

Schema = Mapping[str, Any]

TYPE_TEXT: Final[Mapping[str, str]] = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
ANNOTATIONS: Final = frozenset(
    {"$schema", "$id", "$defs", "title", "description", "default", "examples", "format", "writeOnly", "x-form"}
)
ASSERTIONS: Final = frozenset(
    {
        "$ref", "type", "enum", "const", "oneOf", "properties", "required", "additionalProperties", "propertyNames",
        "minProperties", "maxProperties", "items", "minItems", "maxItems", "uniqueItems", "minimum", "maximum",
        "multipleOf", "minLength", "maxLength", "pattern",
    }
)  # fmt: skip
KEYWORDS: Final = ANNOTATIONS | ASSERTIONS
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class UnknownKeyword(ValueError):
    """A schema uses a keyword that this validator does not implement, so it would not be checked."""


def depth_exceeds(value: object, limit: int) -> bool:
    """Whether lists and objects are nested deeper than `limit`. It does not recurse, so any value is safe."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return False
    return True


def count_exceeds(value: object, limit: int) -> bool:
    """Whether there are more values than `limit` in lists and objects; it stops as soon as that is known."""
    count, waiting = 0, [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            count += len(each)
            if count > limit:
                return True
            inside = each.values() if isinstance(each, dict) else each
            waiting.extend(inner for inner in inside if isinstance(inner, dict | list))
    return False


def unstorable(value: object, pointer: str = "") -> Iterator[Finding]:
    """Texts that PostgreSQL cannot store: with a NUL, or with half of a surrogate pair."""
    # The way to a value is written only where something is wrong: a long name above many values would be copied for
    # each of them. A large document may have a hundred thousand texts, so only lists and objects are put aside.
    waiting: list[tuple[object, _Steps | None]] = [([value], None)]
    is_wrong = _UNSTORABLE.search
    while waiting:
        each, steps = waiting.pop()
        if isinstance(each, dict):
            for key in each:
                if is_wrong(key):
                    yield _unstorable(_pointer(pointer, steps))
        inside = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
        for step, inner in inside:
            if isinstance(inner, str):
                if is_wrong(inner):
                    yield _unstorable(_pointer(pointer, _Steps(steps, step)))
            elif inner and isinstance(inner, dict | list):
                waiting.append((inner, _Steps(steps, step)))


def _unstorable(pointer: str) -> Finding:
    return error(pointer, "unstorable", "the text has a NUL or half of a surrogate pair", "remove it")


@dataclass(frozen=True, slots=True)
class _Steps:
    """The way from the document's root to a value, backwards."""

    before: "_Steps | None"
    step: str | int


def _pointer(root: str, steps: _Steps | None) -> str:
    way: list[str | int] = []
    while steps is not None:
        way.append(steps.step)
        steps = steps.before
    return below(root, *reversed(way[:-1]))  # the first step leads into the list around the document


def type_of(value: object) -> str:
    """The JSON type of a plain value; a number without a fraction is an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    for type_, name in ((float, "number"), (str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, type_):
            return name
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def identity(value: object, budget: WorkBudget) -> object:
    """A key that two JSON values share if they are equal: 1 equals 1.0, and true does not equal 1.

    By it a value is found in a list without comparing it to each. A list and an object never have the key of a text
    or a number, which are their own keys.
    """
    budget.spend(NODE_STEPS // 10)
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, list):
        return (list, tuple(identity(each, budget) for each in value))
    if isinstance(value, dict):
        return (dict, frozenset((key, identity(inner, budget)) for key, inner in value.items()))
    return value


def contains(values: Sequence[object], value: object, budget: WorkBudget) -> bool:
    """Whether a list has a value that is equal to this one."""
    return identity(value, budget) in {identity(each, budget) for each in values}


@dataclass(frozen=True, slots=True)
class _Check:
    """What the check of one document goes by."""

    root: Schema  # holds the `$defs` that `$ref` names
    budget: WorkBudget
    patterns: Patterns | None = None  # of an author's schema; None for our own, whose patterns run on Python's `re`
    choices: dict[int, frozenset[object]] = field(default_factory=dict)  # of each `enum`, by the id of its list

    def is_choice(self, value: object, choices: Sequence[object]) -> bool:
        known = self.choices.get(id(choices))
        if known is None:
            known = self.choices[id(choices)] = frozenset(identity(each, self.budget) for each in choices)
        return identity(value, self.budget) in known


def findings_of(value: object, schema: Schema, pointer: str = "", root: Schema | None = None) -> Iterator[Finding]:
    """Everything in `value` that violates one of our own schemas; `root` holds the `$defs` that `$ref` names."""
    return until_spent(paid_findings(value, schema, pointer, WorkBudget(), root=root), pointer)


def paid_findings(
    value: object, schema: Schema, pointer: str, budget: WorkBudget, *, root: Schema | None = None
) -> Iterator[Finding]:
    """The same, paid from a budget that other work shares; raises `BudgetSpent`."""
    return _findings(value, schema, pointer, _Check(schema if root is None else root, budget))


def author_findings(value: object, schema: Schema, pointer: str, patterns: Patterns) -> Iterator[Finding]:
    """Everything in `value` that violates a schema of an app's author; raises `BudgetSpent`."""
    return _findings(value, schema, pointer, _Check(schema, patterns.budget, patterns))


def _findings(value: object, schema: Schema, pointer: str, check: _Check) -> Iterator[Finding]:
    check.budget.spend(NODE_STEPS + len(pointer))
    if unknown := schema.keys() - KEYWORDS:
        raise UnknownKeyword(f"{pointer or '/'}: {sorted(unknown)}")
    if "$ref" in schema:
        yield from _findings(value, resolve(check.root, schema["$ref"]), pointer, check)
    name = type_of(value)
    if (wrong := _wrong_type(value, name, schema)) is not None:
        yield error(pointer, "type", wrong, f"give {_types_text(schema)}")
        return
    if "const" in schema and not contains([schema["const"]], value, check.budget):
        yield error(pointer, "const", f"{shown(value)} is not {shown(schema['const'])}", f"write {schema['const']!r}")
    if "enum" in schema and not check.is_choice(value, schema["enum"]):
        reason = f"{shown(value)} is not one of the choices"
        yield error(pointer, "enum", reason, f"choose from {listed(schema['enum'])}")
    if name == "object" and isinstance(value, dict):
        yield from _object(value, schema, pointer, check)
    elif name == "array" and isinstance(value, list):
        yield from _array(value, schema, pointer, check)
    elif name == "string" and isinstance(value, str):
        yield from _string(value, schema, pointer, check)
    elif isinstance(value, int | float) and name in ("integer", "number"):
        yield from _number(value, schema, pointer)


def resolve(root: Schema, reference: str) -> Schema:
    """The schema that a reference such as `#/$defs/port` names."""
    head, _, name = reference.rpartition("/")
    if head != "#/$defs":
        raise UnknownKeyword(f"$ref: {reference}")
    found: Schema = root["$defs"][name]
    return found


@lru_cache(maxsize=1000)
def compiled(pattern: str) -> re.Pattern[str]:
    """The compiled expression between the anchors of a pattern; match it with `fullmatch`."""
    if not (pattern.startswith("^") and pattern.endswith("$")):
        raise UnknownKeyword(f"the pattern {pattern!r} is not anchored by ^ and $")
    return re.compile(pattern[1:-1], re.ASCII)


def _wrong_type(value: object, name: str, schema: Schema) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a JSON number"
    types = _types(schema)
    if not types or name in types or (name == "integer" and "number" in types):
        return None
    return f"the value is {TYPE_TEXT[name]}"


def _types(schema: Schema) -> Sequence[str]:
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else types


def _types_text(schema: Schema) -> str:
    wanted = " or ".join(TYPE_TEXT[each] for each in _types(schema)) or "another value"
    return f"{wanted}: {schema['description']}" if "description" in schema else wanted


def _object(value: dict[str, object], schema: Schema, pointer: str, check: _Check) -> Iterator[Finding]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    additional = schema.get("additionalProperties", True)
    yield from _count(len(value), schema, pointer, ("minProperties", "maxProperties"), "entries")
    check.budget.spend(5 * len(schema.get("required", ())))
    for name in schema.get("required", ()):
        if name not in value:
            about = properties.get(name, {}).get("description", "")
            yield error(pointer, "missing", f"`{name}` is missing", f"add `{name}`" + (f": {about}" if about else ""))
    if "oneOf" in schema:
        yield from _exactly_one(value, schema["oneOf"], pointer)
    for key, inner in value.items():
        place = below(pointer, key)
        if "propertyNames" in schema:
            yield from _findings(key, schema["propertyNames"], place, check)
        if key in properties:
            yield from _findings(inner, properties[key], place, check)
        elif additional is False:
            check.budget.spend(10 * NODE_STEPS * len(properties))
            near = get_close_matches(key[:100], properties, n=1)
            fix = f"did you mean `{near[0]}`?" if near else f"remove it; the known names are {listed(properties)}"
            yield error(place, "unknown", f"`{key[:100]}` is not known here", fix)
        elif isinstance(additional, Mapping):
            yield from _findings(inner, additional, place, check)


def _exactly_one(value: Mapping[str, object], branches: Sequence[Schema], pointer: str) -> Iterator[Finding]:
    """The one supported form of `oneOf`: each branch requires one property."""
    for branch in branches:
        if branch.keys() != {"required"} or len(branch["required"]) != 1:
            raise UnknownKeyword(f"{pointer}: oneOf is used only for exactly one of several properties")
    names = [branch["required"][0] for branch in branches]
    found = [name for name in names if name in value]
    if len(found) != 1:
        listed = ", ".join(f"`{name}`" for name in names)
        reason = f"`{'` and `'.join(found)}` exclude each other" if found else f"none of {listed} is given"
        yield error(pointer, "one_of", reason, f"give exactly one of {listed}")


def _array(value: list[object], schema: Schema, pointer: str, check: _Check) -> Iterator[Finding]:
    yield from _count(len(value), schema, pointer, ("minItems", "maxItems"), "items")
    if schema.get("uniqueItems") and len(value) <= schema.get("maxItems", len(value)):
        seen: set[object] = set()
        for index, each in enumerate(value):
            before = len(seen)
            seen.add(identity(each, check.budget))
            if len(seen) == before:
                reason = f"{shown(each)} is in the list already"
                yield error(below(pointer, index), "unique", reason, "remove it")
    if "items" in schema:
        for index, each in enumerate(value[: schema.get("maxItems")]):
            yield from _findings(each, schema["items"], below(pointer, index), check)


def _string(value: str, schema: Schema, pointer: str, check: _Check) -> Iterator[Finding]:
    too_long = len(value) > schema.get("maxLength", len(value))
    yield from _count(len(value), schema, pointer, ("minLength", "maxLength"), "characters")
    if "pattern" not in schema or too_long:
        return
    pattern = schema["pattern"]
    try:
        fits = (
            compiled(pattern).fullmatch(value) is not None
            if check.patterns is None
            else check.patterns.matches(pattern, value, schema.get("maxLength", LENGTH_MAX))
        )
    except PatternRefused as refused:  # of a version that was published when the rules were others
        yield error(
            pointer, "pattern", f"its pattern is not accepted: {refused}", "ask the app's publisher to change it"
        )
        return
    if not fits:
        form = schema.get("description", f"a text of the form {pattern}")
        given = "the value" if schema.get("writeOnly") else shown(value)  # a message must not repeat a secret
        yield error(pointer, "pattern", f"{given} does not have the form {pattern}", f"give {form}")


def _number(value: int | float, schema: Schema, pointer: str) -> Iterator[Finding]:
    if "minimum" in schema and value < schema["minimum"]:
        yield error(pointer, "minimum", f"{shown(value)} is too small", f"give at least {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        yield error(pointer, "maximum", f"{shown(value)} is too large", f"give at most {schema['maximum']}")
    if "multipleOf" in schema and value % schema["multipleOf"]:
        step = schema["multipleOf"]
        yield error(pointer, "multiple", f"{shown(value)} is not a multiple of {step}", f"give a multiple of {step}")


def _count(count: int, schema: Schema, pointer: str, bounds: tuple[str, str], noun: str) -> Iterator[Finding]:
    least, most = schema.get(bounds[0]), schema.get(bounds[1])
    if least is not None and count < least:
        yield error(pointer, "too_few", f"{count} {noun}", f"give at least {least} {noun}")
    if most is not None and count > most:
        yield error(pointer, "too_many", f"{count} {noun}", f"give at most {most} {noun}")
