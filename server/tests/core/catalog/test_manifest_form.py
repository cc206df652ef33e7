"""Schemas of an author: what a form can show is taken, what could cost without bound is not."""

import re
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
    plain_findings,
    read_form,
    value_findings,
    without_hidden,
)
from mooring.core.kernel.safe_regex import PATTERN_LENGTH_MAX, Patterns, why_not_taken
from mooring.core.kernel.work_budget import STEPS_MAX
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


@every_row(
    ("hidden", "shown"),
    [
        ([], {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": {"e": 4}}),
        (["/a/0/b", "/a/1/b"], {"a": [{"b": None, "c/~": 2}, {"b": None}], "d": {"e": 4}}),
        (["/a/0/c~1~0", "/d"], {"a": [{"b": 1, "c/~": None}, {"b": 3}], "d": None}),
        (["/d", "/d/e"], {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": None}),
        (["/d/e", "/d"], {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": None}),
        (["/x", "/a/7"], {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": {"e": 4}}),
        ([""], None),
    ],
)  # fmt: skip
def test_secrets_are_hidden_and_nothing_else(hidden: list[str], shown: object) -> None:
    value = {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": {"e": 4}}
    assert without_hidden(value, hidden) == shown
    assert value == {"a": [{"b": 1, "c/~": 2}, {"b": 3}], "d": {"e": 4}}, "the stored value stays as it is"


def test_a_value_that_must_be_too_large_is_not_looked_through() -> None:
    for large in ({"a": [0] * 40_000}, [[""] * 10] * 4_000, {str(index): 0 for index in range(33_000)}):
        assert [each.rule for each in plain_findings(large, 65_536)] == ["too_large"]
    assert plain_findings({"a": [0] * 30_000}, 65_536) == ()


def test_a_message_stays_short_whatever_the_document_has() -> None:
    """A finding repeats names and choices; a hundred findings must not repeat a hundred kilobytes each."""
    long = "x" * 100_000
    wrong: dict[str, Plain] = {
        "many": {"type": "array", "maxItems": 200, "items": {"type": "string", "enum": [long, "b"]}},
        "open": {"type": "object", "properties": {f"{index:03}" * 20: {"type": "string"} for index in range(150)}},
    }
    value = {"many": [long + str(index) for index in range(90)], "open": {long: 1}}
    schema = form(**wrong) | {"additionalProperties": False}
    schema["properties"]["open"]["additionalProperties"] = False
    findings = (*value_findings(value, schema), *plain_findings({long: ["\0"] * 90}, 1 << 20))
    assert len(findings) == 181
    assert all(len(each.pointer) + len(each.reason) + len(each.fix) < 4_000 for each in findings)


# Patterns


@every_row(
    "pattern",
    [
        "^$", "^abc$", "^[a-z][a-z0-9-]{1,38}[a-z0-9]$", r"^\d+\.\d+$", "^(main|dev)$", "^(?:v)?[0-9]{1,3}$",
        r"^[^/]+$", "^https://[a-z0-9.-]{1,63}(:[0-9]{1,5})?(/[a-z]*)?$", "^.{0,100}$", "^(a(b|c)?d)?$", r"^[\w.-]*$",
        "^ä+$", r"^\$\{x\}$", "^a{3}$", "^a{2,}$", "^a*a*a*a*$", "^" + "a?" * 40 + "$", "^a{0,5000}$",
        "^[^<>]{1,9999}$",
    ],
)  # fmt: skip
def test_ordinary_patterns_are_taken(pattern: str) -> None:
    assert why_not_taken(pattern, 5_000) is None


@every_row(
    ("pattern", "why"),
    [
        ("abc", "anchored"), ("^abc", "anchored"), ("abc$", "anchored"), ("^", "anchored"), ("", "anchored"),
        (r"^abc\$", "supported"), ("^(a+)+$", "group is repeated"), ("^(a|a)*$", "group is repeated"),
        ("^(a|b){2}$", "group is repeated"), ("^(?=a)b$", "supported"), ("^(?i)a$", "supported"),
        ("^(?P<x>a)$", "supported"), (r"^(a)\1$", "supported"), ("^a*?$", "lazy"), ("^a**$", "repeat of a repeat"),
        ("^a++$", "repeat of a repeat"), ("^a|b$", "outside of a group"), ("^a)$", "closed twice"),
        ("^(a$", "not closed"), ("^[a$", "supported"), ("^[z-a]$", "cannot be read"), ("^a{3,1}$", "smaller number"),
        ("^a^b$", "supported"), ("^a$b$", "supported"), (r"^\bA$", "supported"), ("^a{\u0663}$", "supported"),
        ("^" + "[^a]{0,999}" * 4 + "$", "too large"),
        ("^" + "a{0,999}" * 5 + "$", "repeats add up"), ("^[ab]*a[ab]{2000}$", "could take more than"),
        ("^" + "a" * PATTERN_LENGTH_MAX + "$", "longer"),
        ("^" + "(" * 20 + ")" * 20 + "$", "groups are nested"), ("^*$", "supported"), ("^{2}$", "supported"),
    ],
)  # fmt: skip
def test_patterns_beyond_the_part_that_is_taken_are_refused(pattern: str, why: str) -> None:
    assert why in (why_not_taken(pattern, 5_000) or "")


pieces = st.sampled_from(["a", "b", "[ab]", ".", r"\w", "a*", "a+", "[ab]{0,9}", "b?", ".*", "(a|ab)?", "(?:b|a)"])


@settings(max_examples=200)
@given(st.lists(pieces, max_size=6).map(lambda parts: f"^{''.join(parts)}$"), st.text("ab!\n", max_size=8))
def test_a_pattern_means_what_it_means_elsewhere(pattern: str, text: str) -> None:
    assert Patterns().matches(pattern, text) is (re.compile(pattern[1:-1], re.ASCII).fullmatch(text) is not None)


@every_row(
    ("repeat", "lengths"),
    [
        ("{1500}", {1500}), ("{0,1500}", {0, 1, 1000, 1001, 1500}), ("{1200,}", {1200, 5000}),
        ("{1500,2700}", {1500, 2000, 2700}), ("{999,1001}", {999, 1000, 1001}),
    ],
)  # fmt: skip
def test_a_repeat_beyond_the_engines_own_limit_counts_exactly(repeat: str, lengths: set[int]) -> None:
    limit = 5_000
    tried = {0, 1, 998, 999, 1000, 1001, 1002, 1199, 1200, 1499, 1500, 1501, 2000, 2700, 2701, 5000}
    taken = {length for length in tried if Patterns().matches(f"^[a-z]{repeat}$", "x" * length, limit)}

    bounds = re.compile(f"[a-z]{repeat}")
    assert taken == {length for length in tried if bounds.fullmatch("x" * length)} >= lengths


@every_row(
    ("pattern", "text"),
    [
        ("^a*a*a*a*a*a*a*a*a*a*!$", "a" * 5_000),  # a backtracking matcher needs years for it
        ("^(a|b)?(a|b)?" + "(a|b)?" * 30 + "a*a*a*!$", "ab" * 2_000),
        ("^[ab]*a[ab]{900}$", "aab" * 2_000),  # too many states for RE2's fast way
    ],
)  # fmt: skip
def test_the_worst_text_for_a_pattern_is_refused_in_the_end(pattern: str, text: str) -> None:
    assert not Patterns().matches(pattern, text)


def test_a_pattern_and_a_text_that_cost_too_much_are_named_and_not_run() -> None:
    """A form with such a pattern is refused when it is published; one of before is not run."""
    schema = {"type": "string", "maxLength": 60_000, "pattern": "^[ab]*a[ab]{900}$"}

    assert only(read_form(form(f=schema))) == ("/properties/f/pattern", "pattern_refused")
    assert only(value_findings("ab" * 30_000, schema)) == ("", "too_costly")
    assert value_findings("ab" * 500 + "a" * 901, schema) == ()


def test_a_repeat_that_no_text_can_exceed_costs_nothing() -> None:
    patterns = Patterns()
    assert patterns.matches("^[^<>]{2,1000}$", "ab" * 500, 1_000)
    assert not patterns.matches("^[^<>]{2,1000}$", "a", 1_000)
    assert STEPS_MAX - patterns.budget.left < 100_000
