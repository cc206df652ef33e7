"""Validation of plain JSON values by a JSON Schema: what is wrong, where, and how to fix it.

The schemas are our own (the manifest's) and, after `form_schema` has checked them, those of an app's author (a launch
form, the input of an action). They use a subset of JSON Schema 2020-12: types, enumerations, bounds, objects, lists,
`$ref` to `$defs`, and `oneOf` only in the form "exactly one of these properties". Any other keyword is a bug of ours:
it raises `UnknownKeyword`, so that no assertion is silently ignored.

Every pattern is anchored (`^…$`) and is matched against the whole text, because `$` alone would accept a line break
at the end. The functions recurse, so callers check the depth of a value first (`depth_exceeds`).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

from mooring.core.kernel.finding import Finding, below, error, shown

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


def unstorable(value: object, pointer: str = "") -> Iterator[Finding]:
    """Texts that PostgreSQL cannot store: with a NUL, or with half of a surrogate pair."""
    if isinstance(value, str):
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in value):
            yield error(pointer, "unstorable", "the text has a NUL or half of a surrogate pair", "remove it")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from unstorable(inner, below(pointer, index))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from unstorable(key, pointer)
            yield from unstorable(inner, below(pointer, key))


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


def same(one: object, other: object) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, and true does not equal 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return one == other


def findings_of(value: object, schema: Schema, pointer: str = "", root: Schema | None = None) -> Iterator[Finding]:
    """Everything in `value` that violates the schema; `root` holds the `$defs` that `$ref` names."""
    root = schema if root is None else root
    if unknown := schema.keys() - KEYWORDS:
        raise UnknownKeyword(f"{pointer or '/'}: {sorted(unknown)}")
    if "$ref" in schema:
        yield from findings_of(value, resolve(root, schema["$ref"]), pointer, root)
    name = type_of(value)
    if (wrong := _wrong_type(value, name, schema)) is not None:
        yield error(pointer, "type", wrong, f"give {_types_text(schema)}")
        return
    if "const" in schema and not same(value, schema["const"]):
        yield error(pointer, "const", f"{shown(value)} is not {shown(schema['const'])}", f"write {schema['const']!r}")
    if "enum" in schema and not any(same(value, each) for each in schema["enum"]):
        listed = ", ".join(str(each) for each in schema["enum"])
        yield error(pointer, "enum", f"{shown(value)} is not one of the choices", f"choose from {listed}")
    if name == "object" and isinstance(value, dict):
        yield from _object(value, schema, pointer, root)
    elif name == "array" and isinstance(value, list):
        yield from _array(value, schema, pointer, root)
    elif name == "string" and isinstance(value, str):
        yield from _string(value, schema, pointer)
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


def _object(value: dict[str, object], schema: Schema, pointer: str, root: Schema) -> Iterator[Finding]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    additional = schema.get("additionalProperties", True)
    yield from _count(len(value), schema, pointer, ("minProperties", "maxProperties"), "entries")
    for name in schema.get("required", ()):
        if name not in value:
            about = properties.get(name, {}).get("description", "")
            yield error(pointer, "missing", f"`{name}` is missing", f"add `{name}`" + (f": {about}" if about else ""))
    if "oneOf" in schema:
        yield from _exactly_one(value, schema["oneOf"], pointer)
    for key, inner in value.items():
        place = below(pointer, key)
        if "propertyNames" in schema:
            yield from findings_of(key, schema["propertyNames"], place, root)
        if key in properties:
            yield from findings_of(inner, properties[key], place, root)
        elif additional is False:
            near = get_close_matches(key, properties, n=1)
            fix = f"did you mean `{near[0]}`?" if near else f"remove it; the known names are {', '.join(properties)}"
            yield error(place, "unknown", f"`{key[:100]}` is not known here", fix)
        elif isinstance(additional, Mapping):
            yield from findings_of(inner, additional, place, root)


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


def _array(value: list[object], schema: Schema, pointer: str, root: Schema) -> Iterator[Finding]:
    yield from _count(len(value), schema, pointer, ("minItems", "maxItems"), "items")
    if schema.get("uniqueItems") and len(value) <= schema.get("maxItems", len(value)):
        for index, each in enumerate(value):
            if any(same(each, other) for other in value[:index]):
                reason = f"{shown(each)} is in the list already"
                yield error(below(pointer, index), "unique", reason, "remove it")
    if "items" in schema:
        for index, each in enumerate(value[: schema.get("maxItems")]):
            yield from findings_of(each, schema["items"], below(pointer, index), root)


def _string(value: str, schema: Schema, pointer: str) -> Iterator[Finding]:
    too_long = len(value) > schema.get("maxLength", len(value))
    yield from _count(len(value), schema, pointer, ("minLength", "maxLength"), "characters")
    if "pattern" in schema and not too_long and not compiled(schema["pattern"]).fullmatch(value):
        form = schema.get("description", f"a text of the form {schema['pattern']}")
        given = "the value" if schema.get("writeOnly") else shown(value)  # a message must not repeat a secret
        yield error(pointer, "pattern", f"{given} does not have the form {schema['pattern']}", f"give {form}")


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
