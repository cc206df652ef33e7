"""What names may look like."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.kernel import validation
from mooring.core.kernel.errors import Code, Refusal
from tests.support.rows import every_row


def refusal_of(check: Callable[[str], str], text: str) -> Refusal:
    with pytest.raises(Refusal) as refused:
        check(text)
    assert refused.value.code is Code.VALIDATION_FAILED
    return refused.value


@every_row("text", ["abc", "a-b", "a1b", "a" * 40, "team-7", "a--b"])
def test_a_slug_is_taken_as_it_is(text: str) -> None:
    assert validation.slug(text) == text


@every_row(
    "text",
    ["", "ab", "a" * 41, "Abc", "1abc", "-abc", "abc-", "a_c", "a.c", "a c", "abc\n", "\nabc", "äbc", "abc\x00", "a/b"],
)
def test_a_malformed_slug_is_refused_and_named(text: str) -> None:
    assert refusal_of(lambda given: validation.slug(given, "tenant.slug"), text).details == {"path": "tenant.slug"}


@settings(max_examples=40)
@given(st.text(max_size=45))
def test_the_check_of_slugs_and_the_published_pattern_agree(text: str) -> None:
    try:
        taken = validation.slug(text) == text
    except Refusal:
        taken = False
    assert taken == bool(re.fullmatch(validation.SLUG_PATTERN, text))


@every_row(("text", "kept"), [("x", "x"), ("  Ada Lovelace ", "Ada Lovelace"), ("研究室 🚀", "研究室 🚀")])
def test_a_display_name_is_any_printable_line(text: str, kept: str) -> None:
    assert validation.display_name(text) == kept


@every_row(
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
    assert refusal_of(validation.display_name, text).details == {"path": "display_name"}


def test_a_display_name_may_be_as_long_as_the_given_limit() -> None:
    assert validation.display_name("x" * 200) == "x" * 200
    refusal_of(lambda text: validation.display_name(text, "name", 100), "x" * 101)


def test_a_remark_may_be_empty_and_is_bounded() -> None:
    assert validation.remark("", "description") == ""
    assert validation.remark(" why ", "description") == "why"
    refusal_of(lambda text: validation.remark(text, "description"), "x" * 501)
    refusal_of(lambda text: validation.remark(text, "description"), "a\tb")


@every_row("text", ["", "too short", " " * 20, "x" * 1001, "a reason with\na second line"])
def test_a_reason_has_to_say_something(text: str) -> None:
    assert refusal_of(validation.reason, text).details == {"path": "reason"}


def test_a_reason_is_kept_without_the_space_around_it() -> None:
    assert validation.reason("  ticket 4711: tenant asked for help  ") == "ticket 4711: tenant asked for help"


@every_row(
    ("text", "kept"),
    [("a@b", "a@b"), (" Ada@Example.ORG ", "ada@example.org"), ("ada+x@example.org\n", "ada+x@example.org")],
)
def test_an_address_is_kept_in_lower_case(text: str, kept: str) -> None:
    assert validation.email(text) == kept


@every_row(
    "text",
    ["", "@", "a@", "@b", "a b@c", "a@b@c", "x" * 65 + "@b", "a@" + "x" * 190, "a\n@b", "a@b\x00", "a@b\u200b"],
)
def test_a_malformed_email_address_is_refused(text: str) -> None:
    assert refusal_of(validation.email, text).details == {"path": "email"}


@settings(max_examples=40)
@given(st.text(max_size=300))
def test_whatever_is_taken_stays_as_it_is_when_it_is_checked_again(text: str) -> None:
    for check in (validation.slug, validation.display_name, validation.reason, validation.email):
        try:
            kept = check(text)
        except Refusal:
            continue
        assert check(kept) == kept
