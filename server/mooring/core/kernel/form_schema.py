"""Schemas that an app's author writes: the values that a launcher fills in, and an action's input and output.

They use a subset of JSON Schema that can be shown as a form and checked at a bounded cost: one type per value, bounds,
enumerations, lists, objects, no references and no combinations. `x-form` holds hints for the form; a client that does
not know them shows a plain field. `writeOnly` marks a secret: the API never returns it, and it has no default.

`FORM_DEFINITION` is that subset as a schema; the manifest's published schema contains it. `schema_findings` checks what
a schema cannot express: which keyword belongs to which type, that a default fits, that a pattern is harmless.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from mooring.core.kernel.finding import Finding, below, bounded, error, warning
from mooring.core.kernel.json_schema import (
    author_findings,
    contains,
    count_exceeds,
    depth_exceeds,
    paid_findings,
    unstorable,
)
from mooring.core.kernel.safe_regex import LENGTH_MAX, Patterns
from mooring.core.kernel.work_budget import NODE_STEPS, VALUE_STEPS_MAX, WorkBudget, until_spent

FIELDS_MAX: Final = 200
DEPTH_MAX: Final = 6
NESTING_MAX: Final = 2 * DEPTH_MAX + 6
TEXT_LENGTH_MAX: Final = LENGTH_MAX
ITEMS_MAX: Final = 1_000
CHOICES_MAX: Final = 200

WIDGETS: Final[Mapping[str, frozenset[str]]] = {
    "text": frozenset({"string"}),
    "textarea": frozenset({"string"}),
    "code": frozenset({"string"}),
    "password": frozenset({"string"}),
    "select": frozenset({"string", "integer", "number"}),
    "radio": frozenset({"string", "integer", "number"}),
    "slider": frozenset({"integer", "number"}),
    "number": frozenset({"integer", "number"}),
    "checkbox": frozenset({"boolean"}),
    "list": frozenset({"array"}),
    "fieldset": frozenset({"object"}),
}
"""The widgets that a schema may ask for, and the types that each can show."""

_EVERY_TYPE: Final = frozenset({"type", "title", "description", "default", "enum", "x-form", "examples"})
_KEYWORDS_OF: Final[Mapping[str, frozenset[str]]] = {
    "string": _EVERY_TYPE | {"minLength", "maxLength", "pattern", "format", "writeOnly"},
    "integer": _EVERY_TYPE | {"minimum", "maximum", "multipleOf"},
    "number": _EVERY_TYPE | {"minimum", "maximum"},
    "boolean": _EVERY_TYPE,
    "array": _EVERY_TYPE | {"items", "minItems", "maxItems", "uniqueItems"},
    "object": _EVERY_TYPE | {"properties", "required", "additionalProperties"},
}
_PAIRS: Final = (("minLength", "maxLength"), ("minimum", "maximum"), ("minItems", "maxItems"))
_LENGTH: Final = {"type": "integer", "minimum": 0, "maximum": TEXT_LENGTH_MAX}
_COUNT: Final = {"type": "integer", "minimum": 0, "maximum": ITEMS_MAX}
PROPERTY_NAME_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"

HINTS_DEFINITION: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "hints for a form; they change how it asks for a value, never which values are valid",
    "additionalProperties": False,
    "properties": {
        "widget": {"type": "string", "enum": list(WIDGETS), "description": "the field that is shown"},
        "order": {
            "type": "integer",
            "minimum": 0,
            "maximum": 10_000,
            "description": "fields with a lower number come first",
        },
        "group": {"type": "string", "maxLength": 80, "description": "the heading above the field"},
        "placeholder": {"type": "string", "maxLength": 200, "description": "what an empty field shows"},
        "help": {"type": "string", "maxLength": 1_000, "description": "a sentence beside the field"},
        "advanced": {"type": "boolean", "description": "whether it is folded away at first"},
    },
}
FORM_DEFINITION: Final[Mapping[str, Any]] = {
    "type": "object",
    "description": "a value that a user fills in: a subset of JSON Schema 2020-12, with hints for a form in `x-form`",
    "required": ["type"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "maxLength": 200, "description": "the JSON Schema dialect: 2020-12"},
        "type": {"type": "string", "enum": list(_KEYWORDS_OF), "description": "the one type of the value"},
        "title": {"type": "string", "maxLength": 120, "description": "the label of the field"},
        "description": {"type": "string", "maxLength": 2_000, "description": "what the value means"},
        "default": {"description": "the value when the field is left empty"},
        "enum": {"type": "array", "minItems": 1, "maxItems": CHOICES_MAX, "uniqueItems": True},
        "examples": {"type": "array", "maxItems": 20},
        "format": {"type": "string", "maxLength": 40, "description": "a hint such as `uri`; it is not checked"},
        "writeOnly": {"type": "boolean", "description": "whether it is a secret, which the API never returns"},
        "minLength": _LENGTH,
        "maxLength": _LENGTH,
        "pattern": {"type": "string", "maxLength": 300, "description": "an anchored pattern of bounded cost"},
        "minimum": {"type": "number"},
        "maximum": {"type": "number"},
        "multipleOf": {"type": "integer", "minimum": 1},
        "items": {"$ref": "#/$defs/form"},
        "minItems": _COUNT,
        "maxItems": _COUNT,
        "uniqueItems": {"type": "boolean"},
        "properties": {
            "type": "object",
            "maxProperties": FIELDS_MAX,
            "propertyNames": {"type": "string", "pattern": PROPERTY_NAME_PATTERN},
            "additionalProperties": {"$ref": "#/$defs/form"},
        },
        "required": {"type": "array", "items": {"type": "string"}, "maxItems": FIELDS_MAX, "uniqueItems": True},
        "additionalProperties": {"type": "boolean", "description": "whether other fields are allowed"},
        "x-form": {"$ref": "#/$defs/hints"},
    },
}
_ROOT: Final = {"$defs": {"form": FORM_DEFINITION, "hints": HINTS_DEFINITION}}

Form = Mapping[str, Any]


def read_form(value: object, pointer: str = "") -> tuple[Finding, ...]:
    """All mistakes in a stand-alone schema: first its structure, then the rules that a schema cannot express."""
    if depth_exceeds(value, NESTING_MAX):
        return (too_deep(pointer),)
    patterns = Patterns()
    shape = bounded(until_spent(paid_findings(value, FORM_DEFINITION, pointer, patterns.budget, root=_ROOT), pointer))
    if shape or not isinstance(value, dict):
        return shape
    return bounded(until_spent(schema_findings(value, patterns, pointer), pointer))


def too_deep(pointer: str) -> Finding:
    return error(pointer, "too_deep", "it is nested too deeply", "use fewer levels")


def schema_findings(schema: Form, patterns: Patterns, pointer: str = "") -> Iterator[Finding]:
    """The mistakes that `FORM_DEFINITION` cannot express; the caller has checked the structure before.

    Raises `BudgetSpent` when the document's budget, which the patterns hold, is spent.
    """
    if schema["type"] != "object":
        yield error(pointer, "form_is_an_object", f"its type is {schema['type']}", 'begin with "type": "object"')
    count = _count_fields(schema)
    if count > FIELDS_MAX:
        yield error(pointer, "form_too_large", f"it has {count} fields", f"give at most {FIELDS_MAX}")
        return
    yield from _node(schema, patterns, pointer, 1)


def value_findings(value: object, schema: Form, pointer: str = "") -> tuple[Finding, ...]:
    """The mistakes in a value that a user filled in, by the author's schema.

    The caller has checked with `plain_findings` that the value can be stored and is not too large.
    """
    if depth_exceeds(value, NESTING_MAX):
        return (too_deep(pointer),)
    patterns = Patterns(WorkBudget(VALUE_STEPS_MAX))
    return bounded(until_spent(author_findings(value, schema, pointer, patterns), pointer))


def plain_findings(value: object, bytes_max: int, pointer: str = "") -> tuple[Finding, ...]:
    """What keeps a JSON value from being stored: too much nesting or text, or text that PostgreSQL rejects."""
    if count_exceeds(value, bytes_max // 2):  # each has a character and a comma at least
        return (error(pointer, "too_large", f"it has more than {bytes_max // 2} values", "send less"),)
    if depth_exceeds(value, NESTING_MAX):
        return (too_deep(pointer),)
    return bounded(unstorable(value, pointer))


def hidden_places(value: object, schema: Form, pointer: str = "") -> Iterator[str]:
    """The pointers to the secrets (`writeOnly`) in a value that fits the schema."""
    if schema.get("writeOnly"):
        yield pointer
    elif isinstance(value, Mapping):
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from hidden_places(value[name], inner, below(pointer, name))
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            yield from hidden_places(each, schema["items"], below(pointer, index))


def without_hidden(value: Any, hidden: Collection[str], pointer: str = "") -> Any:
    """The value as the API shows it: with null in place of each secret. What has no secret is not copied."""
    tree: dict[str, Any] = {}
    for each in hidden:
        if each == pointer:
            return None
        if each.startswith(f"{pointer}/"):
            _add_place(tree, each.removeprefix(f"{pointer}/").split("/"))
    return _without(value, tree) if tree else value


def _add_place(tree: dict[str, Any], steps: list[str]) -> None:
    """Add the way to a secret; an empty dictionary is its end."""
    for index, step in enumerate(steps):
        name = step.replace("~1", "/").replace("~0", "~")
        if index == len(steps) - 1:
            tree[name] = {}
        elif tree.get(name) == {}:
            return  # all of it is secret already
        tree = tree.setdefault(name, {})


def _without(value: Any, tree: Mapping[str, Any]) -> Any:
    if not tree:
        return None
    if isinstance(value, Mapping):
        return {name: _without(inner, tree[name]) if name in tree else inner for name, inner in value.items()}
    if isinstance(value, list):
        return [_without(each, tree[str(index)]) if str(index) in tree else each for index, each in enumerate(value)]
    return value


def hidden_values(value: Any, hidden: Collection[str], pointer: str = "") -> dict[str, Any]:
    """The secrets in the value, by pointer: what `without_hidden` leaves out."""
    if pointer in hidden:
        return {pointer: value}
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    found: dict[str, Any] = {}
    for name, each in inner:
        found |= hidden_values(each, hidden, below(pointer, name))
    return found


def with_hidden(value: Any, secrets: Mapping[str, Any], pointer: str = "") -> Any:
    """The whole value again, from its two parts."""
    if pointer in secrets:
        return secrets[pointer]
    if isinstance(value, Mapping):
        return {name: with_hidden(inner, secrets, below(pointer, name)) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_hidden(each, secrets, below(pointer, index)) for index, each in enumerate(value)]
    return value


def _count_fields(schema: Form) -> int:
    inner = list(schema.get("properties", {}).values()) + ([schema["items"]] if "items" in schema else [])
    return 1 + sum(_count_fields(each) for each in inner)


def _node(schema: Form, patterns: Patterns, pointer: str, depth: int) -> Iterator[Finding]:
    type_ = schema["type"]
    patterns.budget.spend(5 * NODE_STEPS)
    if depth > DEPTH_MAX:
        yield too_deep(pointer)
        return
    if foreign := sorted(schema.keys() - _KEYWORDS_OF[type_] - {"$schema"}):
        reason = f"`{foreign[0]}` does not apply to a value of type {type_}"
        yield error(below(pointer, foreign[0]), "form_keyword", reason, "remove it, or change the type")
        return
    for least, most in _PAIRS:
        if least in schema and most in schema and schema[least] > schema[most]:
            reason = f"{least} is above {most}, so no value is valid"
            yield error(below(pointer, least), "form_bounds", reason, "swap the two")
    yield from _pattern(schema, patterns, pointer)
    yield from _given_values(schema, patterns, pointer)
    yield from _widget(schema, pointer)
    if type_ == "array" and not {"items", "maxItems"} <= schema.keys():
        reason = "a list without `items` and `maxItems` has no bound"
        yield error(pointer, "form_unbounded", reason, f"add `items`, and `maxItems` of at most {ITEMS_MAX}")
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            reason = f"`{name}` is required but not described"
            yield error(below(pointer, "required"), "form_required", reason, f"describe `{name}` in `properties`")
    for name, inner in schema.get("properties", {}).items():
        yield from _node(inner, patterns, below(pointer, "properties", name), depth + 1)
    if "items" in schema:
        yield from _node(schema["items"], patterns, below(pointer, "items"), depth + 1)


def _pattern(schema: Form, patterns: Patterns, pointer: str) -> Iterator[Finding]:
    if "pattern" not in schema:
        return
    place = below(pointer, "pattern")
    if "maxLength" not in schema:
        reason = "the cost of a pattern without `maxLength` has no bound"
        yield error(place, "pattern_unbounded", reason, "add `maxLength`")
    elif (why := patterns.why_refused(schema["pattern"], schema["maxLength"])) is not None:
        yield error(
            place, "pattern_refused", why, "use characters, classes and bounded repeats: ^[a-z][a-z0-9-]{0,38}$"
        )


def _given_values(schema: Form, patterns: Patterns, pointer: str) -> Iterator[Finding]:
    """Check that the author's default, choices and examples fit the schema itself."""
    if schema.get("writeOnly") and ("default" in schema or "enum" in schema):
        reason = "everybody can read a secret's default or choices in the manifest"
        yield error(pointer, "secret_in_form", reason, "remove `default` and `enum`")
    length_max = schema.get("maxLength", TEXT_LENGTH_MAX)
    accepted = "pattern" not in schema or patterns.why_refused(schema["pattern"], length_max) is None
    bare = {
        key: each for key, each in schema.items() if key not in ("enum", "pattern") or (key == "pattern" and accepted)
    }
    given = [(below(pointer, "enum", index), each) for index, each in enumerate(schema.get("enum", ()))]
    given += [(below(pointer, "examples", index), each) for index, each in enumerate(schema.get("examples", ()))]
    if "default" in schema:
        given.append((below(pointer, "default"), schema["default"]))
    for place, value in given:
        if wrong := bounded(author_findings(value, bare, place, patterns)):
            yield error(
                wrong[0].pointer, "form_value", f"it does not fit its own schema: {wrong[0].reason}", wrong[0].fix
            )
    if {"default", "enum"} <= schema.keys() and not contains(schema["enum"], schema["default"], patterns.budget):
        yield error(
            below(pointer, "default"), "form_value", "the default is not one of the choices", "choose one of `enum`"
        )


def _widget(schema: Form, pointer: str) -> Iterator[Finding]:
    widget = schema.get("x-form", {}).get("widget")
    place = below(pointer, "x-form", "widget")
    if widget is not None and schema["type"] not in WIDGETS[widget]:
        fitting = ", ".join(name for name, types in WIDGETS.items() if schema["type"] in types)
        yield error(place, "form_widget", f"{widget} cannot show a value of type {schema['type']}", f"use {fitting}")
    if widget == "slider" and not {"minimum", "maximum"} <= schema.keys():
        yield error(place, "form_widget", "a slider needs two ends", "add `minimum` and `maximum`")
    if widget in ("select", "radio") and "enum" not in schema:
        yield error(place, "form_widget", f"{widget} has nothing to choose from", "add `enum`")
    if widget == "password" and not schema.get("writeOnly"):
        reason = "the form hides the value, but the API would return it"
        yield warning(place, "form_widget", reason, 'add "writeOnly": true')
