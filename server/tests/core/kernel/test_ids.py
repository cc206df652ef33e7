"""Ids say their noun and their time, sort by it, and nothing else passes for one."""

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event import BEGINNING, StreamPosition, read_cursor
from mooring.core.kernel.ids import (
    ALPHABET,
    BODY_LENGTH,
    ENTROPY_BYTES,
    Prefix,
    encode,
    is_id,
    made_at_milliseconds,
    pattern,
)
from tests.support.rows import every_row

times = st.integers(0, 2**48 - 1)
chances = st.binary(min_size=ENTROPY_BYTES, max_size=ENTROPY_BYTES)
prefixes = st.sampled_from(Prefix)
positions = st.builds(StreamPosition, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@settings(max_examples=40)
@given(prefixes, times, chances)
def test_an_id_names_its_noun_and_gives_its_time_back(prefix: Prefix, time: int, chance: bytes) -> None:
    text = encode(prefix, time, chance)

    assert made_at_milliseconds(text) == time
    assert [each for each in Prefix if is_id(text, each)] == [prefix]
    assert re.fullmatch(pattern(prefix), text)


@settings(max_examples=40)
@given(prefixes, st.tuples(times, chances), st.tuples(times, chances))
def test_ids_sort_as_text_by_time_and_then_by_chance(
    prefix: Prefix, one: tuple[int, bytes], other: tuple[int, bytes]
) -> None:
    first, second = encode(prefix, *one), encode(prefix, *other)

    assert (first < second) == (one < other)
    assert (first.encode() < second.encode()) == (one < other)


def test_an_id_looks_as_it_is_documented() -> None:
    assert encode(Prefix.INSTANCE, 1_469_918_176_385, bytes(10)) == "ins_01aryz6s41" + "0" * 16
    assert encode(Prefix.OPERATION, 0, b"\xff" * 10) == "op_0000000000zzzzzzzzzzzzzzzz"
    assert encode(Prefix.OPERATION, 2**48 - 1, b"\xff" * 10) == "op_7" + "z" * 25


@every_row(("time", "chance"), [(-1, bytes(10)), (2**48, bytes(10)), (0, bytes(9)), (0, bytes(11))])
def test_time_and_chance_out_of_bounds_make_no_id(time: int, chance: bytes) -> None:
    with pytest.raises(ValueError):
        encode(Prefix.TENANT, time, chance)


@settings(max_examples=40)
@given(st.one_of(st.text(max_size=40), st.from_regex(r"ten_[0-9a-zA-Z_]{24,28}", fullmatch=True)))
def test_the_check_and_the_published_pattern_agree(text: str) -> None:
    assert is_id(text, Prefix.TENANT) == bool(re.fullmatch(pattern(Prefix.TENANT), text))


@every_row(
    "text",
    [
        "",
        "ten_",
        "_" + "0" * 26,
        "ten_" + "0" * 25,
        "ten_" + "0" * 27,
        "ten_8" + "0" * 25,  # more than 128 bits
        "ten_" + "0" * 25 + "i",  # not in the alphabet
        "ten_" + "0" * 25 + "Z",
        "TEN_" + "0" * 26,
        "ten_" + "0" * 26 + "\n",
        "x_ten_" + "0" * 26,
        "ten-" + "0" * 26,
    ],
)
def test_what_is_not_quite_an_id_is_none(text: str) -> None:
    assert not is_id(text, Prefix.TENANT)


def test_prefixes_are_short_and_belong_to_one_noun_each() -> None:
    values = [prefix.value for prefix in Prefix]

    assert len(set(values)) == len(values)
    assert all(re.fullmatch("[a-z]{2,3}", value) for value in values)
    assert (len(ALPHABET), len(set(ALPHABET)), BODY_LENGTH * 5) == (32, 32, 130)


# Cursors of the event stream


@settings(max_examples=40)
@given(positions)
def test_a_cursor_gives_its_place_back(position: StreamPosition) -> None:
    cursor = position.cursor()

    assert read_cursor(cursor) == position
    assert re.fullmatch("[A-Za-z0-9_-]+", cursor)


@settings(max_examples=40)
@given(positions, positions)
def test_two_places_never_share_a_cursor(one: StreamPosition, other: StreamPosition) -> None:
    assert (one.cursor() == other.cursor()) == (one == other)


@settings(max_examples=40)
@given(positions, st.data())
def test_a_cursor_that_was_touched_is_refused_or_another_whole_one(
    position: StreamPosition, data: st.DataObject
) -> None:
    """There is one text for one place: nothing that is merely similar is taken."""
    text = position.cursor()
    at = data.draw(st.integers(0, len(text) - 1))
    touched = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    try:
        outcome: object = read_cursor(touched).cursor()
    except Refusal as refusal:
        outcome = refusal.code
    assert outcome in (touched, Code.CURSOR_INVALID)


@every_row(
    "plain",
    [
        "",
        "e1",
        "e1.1.2",
        "e1.1.2.3.4",
        "e2.1.2.3",
        "e1.1.x.2.3",
        "e1.01.2.3",
        "e1.-1.2.3",
        "e1. 1.2.3",
        "e1.١.2.3",
        "e1.1.2.9223372036854775808",
        "e1.2147483648.1.1",
        "e1.1.1." + "9" * 5000,
    ],
)
def test_a_cursor_that_this_platform_did_not_make_is_refused(plain: str) -> None:
    text = base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")

    with pytest.raises(Refusal) as refused:
        read_cursor(text)
    assert refused.value.code is Code.CURSOR_INVALID


@every_row("text", ["", "=", "é", "\x00", "!!!!", " " + BEGINNING.cursor(), BEGINNING.cursor() + "="])
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_cursor(text)
    assert refused.value.code is Code.CURSOR_INVALID


def test_places_are_ordered_by_epoch_then_transaction_then_sequence() -> None:
    assert (
        BEGINNING
        < StreamPosition(0, 5, 1)
        < StreamPosition(0, 5, 2)
        < StreamPosition(0, 6, 1)
        < StreamPosition(1, 0, 0)
    )
