"""Semantic versions (2.0.0): their syntax, their order, and ranges.

A version has one canonical text and one position in the order. The order is also available as a text that sorts
bytewise in the same way, so that the database can find the newest version by an index (collation "C").

Build metadata is not allowed, because it has no rank: 1.0.0+a and 1.0.0+b would both be the newest.

A range is a list of bounds that must all hold, such as `>=1.2.0 <2.0.0`. It uses the plain order: 2.0.0-rc.1 is below
2.0.0 and therefore in that range; to exclude it, write `<2.0.0-0`.
"""

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Final

from mooring.core.kernel.validation import invalid

VERSION_LENGTH_MAX: Final = 100
NUMBER_LENGTH_MAX: Final = 18
RANGE_BOUNDS_MAX: Final = 10

_NUMBER: Final = r"0|[1-9][0-9]*"
_IDENTIFIER: Final = r"(?:0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
VERSION_PATTERN: Final = rf"^(?:{_NUMBER})\.(?:{_NUMBER})\.(?:{_NUMBER})(?:-{_IDENTIFIER}(?:\.{_IDENTIFIER})*)?$"
"""The syntax of an app's version: a semantic version without build metadata."""

_VERSION: Final = re.compile(
    rf"(?P<major>{_NUMBER})\.(?P<minor>{_NUMBER})\.(?P<patch>{_NUMBER})"
    rf"(?:-(?P<prerelease>{_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?P<build>\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
_BOUND: Final = re.compile(r"(?P<comparison>>=|<=|>|<|=)?(?P<version>.+)")
_AFTER_EVERY_PRERELEASE: Final = "~"


@total_ordering
@dataclass(frozen=True, slots=True)
class SemVer:
    """A semantic version without build metadata; versions compare by their precedence."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        return f"{text}-{'.'.join(str(each) for each in self.prerelease)}" if self.prerelease else text

    def __lt__(self, other: "SemVer") -> bool:
        return self.order < other.order

    @property
    def order(self) -> str:
        """A text that sorts bytewise in the order of versions; it is equal only for equal versions."""
        numbers = "".join(_number_order(each) for each in (self.major, self.minor, self.patch))
        if not self.prerelease:
            return numbers + _AFTER_EVERY_PRERELEASE
        # Numbers rank below words; "!" sorts below every character of a word, so that a shorter word ranks lower.
        return numbers + "".join(
            f"0{_number_order(each)}" if isinstance(each, int) else f"1{each}!" for each in self.prerelease
        )


@dataclass(frozen=True, slots=True)
class VersionBound:
    """One end of a range."""

    comparison: str
    version: SemVer

    def holds(self, version: SemVer) -> bool:
        if version == self.version:
            return "=" in self.comparison
        return version > self.version if ">" in self.comparison else "<" in self.comparison and version < self.version


@dataclass(frozen=True, slots=True)
class Range:
    """The versions that satisfy all bounds."""

    bounds: tuple[VersionBound, ...]

    def __contains__(self, version: SemVer) -> bool:
        return all(bound.holds(version) for bound in self.bounds)

    def __str__(self) -> str:
        return " ".join(f"{bound.comparison}{bound.version}" for bound in self.bounds)


def read_version(text: str, path: str = "version") -> SemVer:
    """Parse the version of an app."""
    version = _parse(text)
    if isinstance(version, str):
        raise invalid(path, version)
    return version


def read_range(text: str, path: str = "range") -> Range:
    """Parse a range such as `>=1.2.0 <2.0.0`; a single version is a range of only that version."""
    parts = text.split()
    if not 1 <= len(parts) <= RANGE_BOUNDS_MAX:
        raise invalid(path, f"1 to {RANGE_BOUNDS_MAX} bounds such as >=1.2.0 <2.0.0")
    bounds = []
    for part in parts:
        match = _BOUND.fullmatch(part)
        version = _parse(match["version"]) if match else "a bound such as >=1.2.0"
        if match is None or isinstance(version, str):
            raise invalid(path, f"{part[:VERSION_LENGTH_MAX]!r}: {version}")
        bounds.append(VersionBound(match["comparison"] or "=", version))
    return Range(tuple(bounds))


def _parse(text: str) -> SemVer | str:
    """The version, or a text that describes a valid one."""
    match = _VERSION.fullmatch(text) if len(text) <= VERSION_LENGTH_MAX else None
    if match is None:
        return f"a semantic version such as 1.4.0 or 2.0.0-rc.1, of at most {VERSION_LENGTH_MAX} characters"
    if match["build"]:
        return f"a version without build metadata ({match['build']}), which has no rank"
    prerelease = tuple(int(each) if each.isdigit() else each for each in (match["prerelease"] or "").split(".") if each)
    version = SemVer(int(match["major"]), int(match["minor"]), int(match["patch"]), prerelease)
    numbers = [version.major, version.minor, version.patch, *(each for each in prerelease if isinstance(each, int))]
    if max(numbers) >= 10**NUMBER_LENGTH_MAX:
        return f"numbers of at most {NUMBER_LENGTH_MAX} digits"
    return version


def _number_order(number: int) -> str:
    digits = str(number)
    return f"{len(digits):02d}{digits}"
