"""Schemas of an author: what a form can show is taken, what could cost without bound is not."""

import re
import time
from typing import Any

import jsonschema_rs
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.kernel.finding import Finding
from mooring.core.kernel.form_schema import (
    FIELDS_MAX,
    FORM_DEFINITION,
    HINTS_DEFINITION,
    WIDGETS,
    read_form,
    value_findings,
)
from mooring.core.kernel.safe_regex import PATTERN_LENGTH_MAX, why_not_taken
from server.tests.support.manifests import FORM
from tests.support.rows import every_row

Plain = dict[str, Any]


def form(**fields: Plain) -> Plain:
    return {"type": "object", "properties": fields}


def only(findings: tuple[Finding, ...]) -> tuple[str, str]:
    (finding,) = findings
    return finding.pointer, finding.rule


# Schemas


def test_a_form_with_hints_is_taken_and_is_json_schema() -> None:
    assert read_form(FORM) == ()
    jsonschema_rs.meta.validate(FORM)
    jsonschema_rs.meta.validate({"$defs": {"form": FORM_DEFINITION, "hints": HINTS_DEFINITION}})


@every_row(
    ("field", "pointer", "rule"),
    [
        ({"type": "string", "minimum": 1}, "/minimum", "form_keyword"),
        ({"type": "integer", "pattern": "^a$"}, "/pattern", "form_keyword"),
        ({"type": "integer", "writeOnly": True}, "/writeOnly", "form_keyword"),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "/minLength", "form_bounds"),
        ({"type": "number", "minimum": 5, "maximum": 2}, "/minimum", "form_bounds"),
        ({"type": "array"}, "", "form_unbounded"),
        ({"type": "array", "items": {"type": "string"}}, "", "form_unbounded"),
        ({"type": "object", "required": ["a"]}, "/required", "form_required"),
        ({"type": "string", "pattern": "^a+$"}, "/pattern", "pattern_unbounded"),
        ({"type": "string", "pattern": "^(a+)+$", "maxLength": 10}, "/pattern", "pattern_refused"),
        ({"type": "string", "writeOnly": True, "default": "x"}, "", "secret_in_form"),
        ({"type": "string", "default": 1}, "/default", "form_value"),
        ({"type": "string", "enum": ["a", 2]}, "/enum/1", "form_value"),
        ({"type": "string", "enum": ["a"], "default": "b"}, "/default", "form_value"),
        ({"type": "integer", "maximum": 3, "examples": [1, 4]}, "/examples/1", "form_value"),
        ({"type": "string", "pattern": "^a$", "maxLength": 9, "default": "b"}, "/default", "form_value"),
        ({"type": "string", "x-form": {"widget": "slider"}}, "/x-form/widget", "form_widget"),
        ({"type": "integer", "x-form": {"widget": "slider"}}, "/x-form/widget", "form_widget"),
        ({"type": "string", "x-form": {"widget": "select"}}, "/x-form/widget", "form_widget"),
        ({"type": "string", "x-form": {"widget": "password"}}, "/x-form/widget", "form_widget"),
        ({"type": "string", "x-form": {"widget": "dial"}}, "/x-form/widget", "enum"),
        ({"type": "null"}, "/type", "enum"),
        ({"type": "string", "anyOf": []}, "/anyOf", "unknown"),
        ({"$ref": "#/x", "type": "string"}, "/$ref", "unknown"),
        ({"title": "x"}, "", "missing"),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_meant_is_named(field: Plain, pointer: str, rule: str) -> None:
    findings = read_form(form(f=field))

    assert (f"/properties/f{pointer}", rule) in {(each.pointer, each.rule) for each in findings}
    assert len(findings) <= 2


@every_row(("widget", "types"), WIDGETS.items())
def test_each_widget_shows_the_types_that_it_can(widget: str, types: frozenset[str]) -> None:
    more: dict[str, Plain] = {
        "string": {"enum": ["a"]} if widget != "password" else {"writeOnly": True},
        "integer": {"minimum": 0, "maximum": 1, "enum": [1]},
        "number": {"minimum": 0, "maximum": 1, "enum": [1]},
        "boolean": {},
        "array": {"items": {"type": "string"}, "maxItems": 3},
        "object": {},
    }
    for type_, keywords in more.items():
        findings = read_form(form(f={"type": type_, "x-form": {"widget": widget}, **keywords}))
        assert (findings == ()) is (type_ in types), (widget, type_, findings)


def test_a_form_begins_with_an_object() -> None:
    assert only(read_form({"type": "string"})) == ("", "form_is_an_object")


def test_a_form_is_bounded_in_size_and_depth() -> None:
    wide = form(**{f"f{number}": {"type": "string"} for number in range(FIELDS_MAX)})
    assert only(read_form(wide)) == ("", "form_too_large")
    deep: Plain = {"type": "string"}
    for _ in range(6):
        deep = form(f=deep)
    assert only(read_form(deep)) == ("/properties/f" * 6, "too_deep")
    endless: Any = {"type": "string"}
    for _ in range(5_000):
        endless = {"type": "array", "items": endless}
    assert only(read_form(endless)) == ("", "too_deep")


# Values


@every_row(
    ("value", "wrong"),
    [
        ({"queue": "main"}, []),
        ({"queue": "main", "depth": 3}, []),
        ({}, [("", "missing")]),
        ({"queue": "Main"}, [("/queue", "pattern")]),
        ({"queue": "main\n"}, [("/queue", "pattern")]),
        ({"queue": "a" * 41}, [("/queue", "too_many")]),
        ({"queue": "main", "depth": 101}, [("/depth", "maximum")]),
        ({"queue": "main", "depth": True}, [("/depth", "type")]),
        ({"queue": "main", "colour": "red"}, [("/colour", "unknown")]),
        ([], [("", "type")]),
    ],
)
def test_what_a_launcher_fills_in_is_checked_by_the_authors_schema(value: object, wrong: list[tuple[str, str]]) -> None:
    assert [(each.pointer, each.rule) for each in value_findings(value, FORM)] == wrong


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    value: Any = 1
    for _ in range(5_000):
        value = [value]
    assert only(value_findings(value, FORM)) == ("", "too_deep")


scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text("ab", max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner)
)
fields = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-3, 0), "maximum": st.integers(0, 3), "multipleOf": st.integers(1, 3)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("number")}, optional={"minimum": st.integers(-3, 0), "maximum": st.integers(0, 3)}
    ),
    st.fixed_dictionaries(
        {"type": st.just("string")}, optional={"minLength": st.integers(0, 1), "maxLength": st.integers(1, 3)}
    ),
    st.fixed_dictionaries({"type": st.just("boolean")}),
    st.fixed_dictionaries(
        {
            "type": st.just("string"),
            "pattern": st.sampled_from(["^a*$", "^[ab]{1,2}$", "^(a|b)b?$"]),
            "maxLength": st.just(9),
        }
    ),
)
schemas = st.recursive(
    fields,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner, "maxItems": st.integers(0, 3)},
            optional={"uniqueItems": st.booleans()},
        ),
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("ab"), inner)},
            optional={"additionalProperties": st.booleans()},
        ),
    ),
    max_leaves=4,
)


@settings(max_examples=60)
@given(schemas, values)
def test_values_are_judged_as_an_independent_validator_does(schema: Plain, value: object) -> None:
    assert (value_findings(value, schema) == ()) is jsonschema_rs.is_valid(schema, value)


# Patterns


@every_row(
    "pattern",
    [
        "^$", "^abc$", "^[a-z][a-z0-9-]{1,38}[a-z0-9]$", r"^\d+\.\d+$", "^(main|dev)$", "^(?:v)?[0-9]{1,3}$",
        r"^[^/]+$", "^https://[a-z0-9.-]{1,63}(:[0-9]{1,5})?(/[a-z]*)?$", "^.{0,100}$", "^(a(b|c)?d)?$", r"^[\w.-]*$",
        "^ä+$", r"^\$\{x\}$", "^a{3}$", "^a{2,}$",
    ],
)  # fmt: skip
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    assert why_not_taken(pattern, 200) is None


@every_row(
    ("pattern", "why"),
    [
        ("abc", "anchored"), ("^abc", "anchored"), ("abc$", "anchored"), ("^", "anchored"), ("", "anchored"),
        (r"^abc\$", "supported"), ("^(a+)+$", "group is repeated"), ("^(a|a)*$", "group is repeated"),
        ("^(a|b){2}$", "group is repeated"), ("^(?=a)b$", "supported"), ("^(?i)a$", "supported"),
        ("^(?P<x>a)$", "supported"), (r"^(a)\1$", "supported"), ("^a*?$", "lazy"), ("^a**$", "repeat of a repeat"),
        ("^a++$", "repeat of a repeat"), ("^a|b$", "outside of a group"), ("^a)$", "closed twice"),
        ("^(a$", "not closed"), ("^[a$", "supported"), ("^[z-a]$", "cannot be read"), ("^a{3,1}$", "smaller number"),
        ("^a^b$", "supported"), ("^a$b$", "supported"), (r"^\bA$", "supported"), ("^a*a*a*a*$", "steps"),
        ("^" + "a?" * 40 + "$", "steps"), ("^" + "a" * PATTERN_LENGTH_MAX + "$", "longer"),
        ("^" + "(" * 20 + ")" * 20 + "$", "groups are nested"), ("^*$", "supported"), ("^{2}$", "supported"),
    ],
)  # fmt: skip
def test_patterns_beyond_the_part_that_is_taken_are_refused(pattern: str, why: str) -> None:
    assert why in (why_not_taken(pattern, 200) or "")


pieces = st.sampled_from(["a", "b", "[ab]", ".", r"\w", "a*", "a+", "[ab]{0,9}", "b?", ".*", "(a|ab)?", "(?:b|a)"])


@settings(max_examples=50, deadline=None)
@given(st.lists(pieces, max_size=8).map(lambda parts: f"^{''.join(parts)}$"))
def test_what_is_taken_ends_soon_on_the_worst_text(pattern: str) -> None:
    if why_not_taken(pattern, 60) is None:
        begun = time.process_time()
        re.compile(pattern[1:-1]).fullmatch("a" * 59 + "!")
        assert time.process_time() - begun < 1.0
