"""What names may look like."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core import names
from mooring.core.errors import Code, Refusal


def refusal_of(check: Callable[[str], str], text: str) -> Refusal:
    with pytest.raises(Refusal) as refused:
        check(text)
    assert refused.value.code is Code.VALIDATION_FAILED
    return refused.value


@pytest.mark.parametrize("text", ["abc", "a-b", "a1b", "a" * 40, "team-7", "a--b"])
def test_a_slug_is_taken_as_it_is(text: str) -> None:
    assert names.slug(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "ab", "a" * 41, "Abc", "1abc", "-abc", "abc-", "a_c", "a.c", "a c", "abc\n", "\nabc", "äbc", "abc\x00", "a/b"],
)
def test_what_is_no_slug_is_refused_and_named(text: str) -> None:
    assert refusal_of(lambda given: names.slug(given, "tenant.slug"), text).details == {"path": "tenant.slug"}


@settings(max_examples=40)
@given(st.text(max_size=45))
def test_the_check_of_slugs_and_the_published_pattern_agree(text: str) -> None:
    try:
        taken = names.slug(text) == text
    except Refusal:
        taken = False
    assert taken == bool(re.fullmatch(names.SLUG_PATTERN, text))


@pytest.mark.parametrize(
    ("text", "kept"), [("x", "x"), ("  Ada Lovelace ", "Ada Lovelace"), ("研究室 🚀", "研究室 🚀")]
)
def test_a_display_name_is_any_printable_line(text: str, kept: str) -> None:
    assert names.display_name(text) == kept


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "x" * 201,
        "two\nlines",
        "nul\x00",
        "bell\x07",
        "right-to-left \u202e",
        "zero\u200bwidth",
        "half \ud800",
        "line\u2028separator",
        "private \ue000",
    ],
)
def test_a_display_name_that_hides_something_is_refused(text: str) -> None:
    assert refusal_of(names.display_name, text).details == {"path": "display_name"}


def test_a_display_name_may_be_as_long_as_it_is_told() -> None:
    assert names.display_name("x" * 200) == "x" * 200
    refusal_of(lambda text: names.display_name(text, "name", 100), "x" * 101)


def test_a_remark_may_be_empty_and_is_bounded() -> None:
    assert names.remark("", "description") == ""
    assert names.remark(" why ", "description") == "why"
    refusal_of(lambda text: names.remark(text, "description"), "x" * 501)
    refusal_of(lambda text: names.remark(text, "description"), "a\tb")


@pytest.mark.parametrize("text", ["", "too short", " " * 20, "x" * 1001, "a reason with\na second line"])
def test_a_reason_has_to_say_something(text: str) -> None:
    assert refusal_of(names.reason, text).details == {"path": "reason"}


def test_a_reason_is_kept_without_the_space_around_it() -> None:
    assert names.reason("  ticket 4711: tenant asked for help  ") == "ticket 4711: tenant asked for help"


@pytest.mark.parametrize(
    ("text", "kept"),
    [("a@b", "a@b"), (" Ada@Example.ORG ", "ada@example.org"), ("ada+x@example.org\n", "ada+x@example.org")],
)
def test_an_address_is_kept_in_lower_case(text: str, kept: str) -> None:
    assert names.email(text) == kept


@pytest.mark.parametrize(
    "text",
    ["", "@", "a@", "@b", "a b@c", "a@b@c", "x" * 65 + "@b", "a@" + "x" * 190, "a\n@b", "a@b\x00", "a@b\u200b"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert refusal_of(names.email, text).details == {"path": "email"}


@settings(max_examples=40)
@given(st.text(max_size=300))
def test_whatever_is_taken_stays_as_it_is_when_it_is_checked_again(text: str) -> None:
    for check in (names.slug, names.display_name, names.reason, names.email):
        try:
            kept = check(text)
        except Refusal:
            continue
        assert check(kept) == kept
