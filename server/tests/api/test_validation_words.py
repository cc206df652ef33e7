"""Refused values in words."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from mooring.api.parse import decode_body
from mooring.api.validation_words import FORMS, in_words
from mooring.core.kernel.errors import Refusal
from tests.support.rows import every_row


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """One field of each kind."""

    need: str
    name: Annotated[str, Meta(min_length=3, max_length=5, pattern="^[a-z]+$")] | None = None
    count: Annotated[int, Meta(ge=1, le=9)] | None = None
    share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    kind: Literal["x", "y"] | None = None
    actions: Annotated[list[Annotated[str, Meta(min_length=2)]], Meta(max_length=1)] | None = None
    on: bool | None = None


@every_row(
    ("given", "said"),
    [
        ({"name": "x"}, "name: at least 3 characters"),
        ({"name": "xxxxxx"}, "name: at most 5 characters"),
        ({"name": "ABC"}, "name: does not have the form ^[a-z]+$"),
        ({"name": 5}, "name: must be text, not a whole number"),
        ({"count": 0}, "count: at least 1"),
        ({"count": 10}, "count: at most 9"),
        ({"share": 0}, "share: more than 0"),
        ({"share": 1}, "share: less than 1"),
        ({"kind": "z"}, "kind: 'z' is not one of the allowed values"),
        ({"actions": ["x"]}, "actions[0]: at least 2 characters"),
        ({"actions": ["xx", "yy"]}, "actions: at most 1 items"),
        ({"on": 1}, "on: must be true or false, not a whole number"),
        ({"other": 1}, "other: is not known here"),
        ({"need": None}, "need: must be text, not null"),
    ],
)
def test_a_refused_value_is_explained_in_our_words_not_the_library_s(given: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal) as refused:
        decode_body(msgspec.json.encode({"need": "", **given}), Body, None)
    assert refused.value.detail == said
    assert refused.value.details["path"] == said.partition(":")[0]


def test_every_form_that_people_type_is_said_in_words_and_exists() -> None:
    """A pattern of the contract that changes takes its words with it."""
    document = (Path(__file__).resolve().parents[3] / "openapi" / "openapi.json").read_text(encoding="utf-8")
    used = {pattern: in_words(f"Expected `str` matching regex {pattern!r}") for pattern in FORMS}
    assert [each for each in used if msgspec.json.encode(each).decode() not in document] == []
    assert set(used.values()) == {f"must be {words}" for words in FORMS.values()}
    for pattern, said in {
        "^prj_[0-7][0-9a-hjkmnp-tv-z]{25}$": "must be an id that begins with prj_",
        "^(done|denied)$": "must be one of done, denied",
        "^x$": "does not have the form ^x$",
    }.items():
        assert in_words(f"Expected `str` matching regex {pattern!r}") == said


def test_a_missing_value_is_named() -> None:
    with pytest.raises(Refusal, match="need: is missing"):
        decode_body(b"{}", Body, None)
