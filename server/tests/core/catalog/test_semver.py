"""Versions have one text and one order, and the order is the same for the database."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooring.core.catalog.semver import VERSION_PATTERN, SemVer, read_range, read_version
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.json_schema import compiled
from tests.support.rows import every_row

# The order that the specification gives as its example, and some that are easily mistaken.
IN_ORDER = [
    "0.0.0-0", "0.0.0", "0.0.1", "0.2.0", "0.10.0", "1.0.0-0", "1.0.0-2", "1.0.0-11", "1.0.0--", "1.0.0-alpha",
    "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-alpha-1", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1",
    "1.0.0", "1.0.1-rc", "1.9.0", "1.10.0", "2.0.0", "10.0.0", "999999999999999999.0.0",
]  # fmt: skip

number = st.integers(0, 10**18 - 1) | st.integers(0, 20)
word = st.sampled_from(["-", "--", "-1", "0a", "1-", "A", "a", "a-", "aB", "alpha", "alpha1", "beta", "rc", "z9"])
versions = st.builds(
    SemVer, number, number, number, st.lists(st.integers(0, 30) | number | word, max_size=3).map(tuple)
)


def precedence(version: SemVer) -> tuple[object, ...]:
    """The specification's rules, said a second time: numbers below words, fewer identifiers below more."""
    identifiers = [(0, each, "") if isinstance(each, int) else (1, 0, each) for each in version.prerelease]
    return version.major, version.minor, version.patch, not version.prerelease, identifiers


@settings(max_examples=80)
@given(versions, versions)
def test_versions_compare_by_the_rules_of_the_specification(one: SemVer, other: SemVer) -> None:
    expected = precedence(one) < precedence(other)

    assert (one < other) is expected
    assert (one.order < other.order) is expected
    assert (one.order.encode() < other.order.encode()) is expected
    assert (one == other) is (one.order == other.order)


@settings(max_examples=40)
@given(versions)
def test_a_version_is_read_back_from_its_text(version: SemVer) -> None:
    if len(str(version)) <= 100:
        assert read_version(str(version)) == version
        assert compiled(VERSION_PATTERN).fullmatch(str(version))


def test_the_examples_of_the_specification_stand_in_their_order() -> None:
    read = [read_version(text) for text in IN_ORDER]
    backwards = read[::-1]

    assert sorted(backwards) == read
    assert [str(version) for version in read] == IN_ORDER
    assert sorted(IN_ORDER, key=lambda text: read_version(text).order) == IN_ORDER


@every_row(
    "text",
    [
        "", "1", "1.0", "v1.0.0", "1.0.0 ", "1.0.0\n", "01.0.0", "1.00.0", "1.0.0-", "1.0.0-01", "1.0.0-a..b",
        "1.0.0-ä", "1.0.0+build", "1.0.0-rc.1+5", "latest", "stable", "-1.0.0", "1.0.0-" + "a" * 100,
        "1000000000000000000.0.0", "1.0.0-1000000000000000000", "１.0.0",
    ],
)  # fmt: skip
def test_a_malformed_version_is_refused_and_named(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_version(text)
    assert (refused.value.code, refused.value.details) == (Code.VALIDATION_FAILED, {"path": "version"})


def test_build_metadata_is_refused_with_its_reason() -> None:
    with pytest.raises(Refusal, match="has no rank"):
        read_version("1.0.0+exp.sha")


@every_row(
    ("text", "inside", "outside"),
    [
        (">=1.2.0 <2.0.0", ["1.2.0", "1.9.9", "2.0.0-rc.1"], ["1.1.9", "1.2.0-rc.1", "2.0.0"]),
        ("1.2.3", ["1.2.3"], ["1.2.4", "1.2.3-rc"]),
        ("=1.2.3", ["1.2.3"], ["1.2.4"]),
        (">1.0.0", ["1.0.1"], ["1.0.0"]),
        ("<=1.0.0", ["1.0.0", "1.0.0-a"], ["1.0.1"]),
        ("  >=1.0.0   <1.0.0 ", [], ["1.0.0", "0.9.0"]),
    ],
)
def test_a_range_takes_what_lies_between_its_bounds(text: str, inside: list[str], outside: list[str]) -> None:
    read = read_range(text)

    assert all(read_version(version) in read for version in inside)
    assert not any(read_version(version) in read for version in outside)
    assert read_range(str(read)) == read


@every_row("text", ["", " ", "~1.0.0", "^1.0.0", ">=1.0", ">= 1.0.0", "1.x", " ".join([">1.0.0"] * 11)])
def test_a_malformed_range_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_range(text, "versions")
    assert refused.value.details == {"path": "versions"}
