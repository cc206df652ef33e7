"""The log of a whole instance: lines of all its programs, filtered, and merged by the time that they print.

A node stores what a program wrote, and not when. So the time of a line is the one that it begins with, if it does, or
that of the line before it; lines of a program that prints no times come in the order in which they were read. A cursor
says for each program how far it was read; it names nothing that the caller could not name themselves.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from typing import Any, Final

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.safe_regex import PatternRefused, Patterns
from mooring.core.kernel.validation import invalid
from mooring.core.kernel.work_budget import BudgetSpent, WorkBudget
from mooring.core.runtime.member import Member
from mooring.core.runtime.member_log import LogPart, MemberProgram

PROGRAMS_MAX: Final = 12
"""How many programs are read at once; a project may have 16 reads open on one node."""
LINE_BYTES_MAX: Final = 16_384
"""Longer lines are cut into several: a pattern is matched against at most so much."""
TIME_WITHIN: Final = 64
_LOG: Final = re.compile("[0-9a-z]{0,32}")
_TIME: Final = re.compile(
    rb"[^0-9]{0,12}([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,6})?)[0-9]*"
    rb"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


@dataclass(frozen=True, slots=True)
class LogProgram:
    """A program of a member, whose log is one of those that are merged."""

    member: Member
    program: MemberProgram

    @property
    def key(self) -> str:
        return f"{self.member.id}/{self.program.name}"


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line; one that does not end is continued by the program's next one."""

    source: LogProgram
    offset: int
    at: datetime | None
    text: str
    ends: bool


@dataclass(frozen=True, slots=True)
class LogPlace:
    """How far a program's log was read."""

    offset: int
    log: str = ""


@dataclass(slots=True)
class LineFilter:
    """Which lines are shown; a pattern costs time linear in what it is matched against, and that has a bound."""

    text: str = ""
    is_pattern: bool = False
    ignores_case: bool = False
    is_spent: bool = False
    """Whether the request has cost enough; the next one goes on where this one stopped."""
    _patterns: Patterns = field(init=False)

    def __post_init__(self) -> None:
        self._patterns = Patterns(WorkBudget())
        if self.is_pattern:
            self.text = f"^.*(?:{self.text}).*$"
            why = self._refused()
            if why is not None:
                raise invalid("grep", f"the pattern is not accepted: {why}")
        elif self.ignores_case:
            self.text = self.text.casefold()

    def of(self, lines: Sequence[LogLine]) -> list[LogLine] | None:
        """Those of the lines that are shown; None if judging them all would cost too much now."""
        try:
            return [each for each in lines if self._takes(each.text)] if self.text else list(lines)
        except BudgetSpent:
            self.is_spent = True
            return None

    def _takes(self, line: str) -> bool:
        if self.is_pattern:
            return self._patterns.matches(self.text, line, LINE_BYTES_MAX)
        return self.text in (line.casefold() if self.ignores_case else line)

    def _refused(self) -> str | None:
        try:
            self._patterns.matches(self.text, "", LINE_BYTES_MAX)
        except PatternRefused as refused:
            return str(refused)
        except BudgetSpent:
            return "it is too large"
        return None


def lines_of(source: LogProgram, part: LogPart, before: datetime | None = None) -> list[LogLine]:
    """The lines of a part of a log; one without a time of its own has that of the line before it."""
    found: list[LogLine] = []
    offset, at = part.offset, before
    for whole in part.content.splitlines(keepends=True):
        at = time_of(whole) or at
        for begin in range(0, len(whole), LINE_BYTES_MAX):
            piece = whole[begin : begin + LINE_BYTES_MAX]
            ends = begin + LINE_BYTES_MAX >= len(whole) and piece.endswith((b"\n", b"\r"))
            text = piece.rstrip(b"\r\n") if ends else piece
            found.append(LogLine(source, offset, at, text.decode(errors="replace"), ends))
            offset += len(piece)
    return found


def time_of(line: bytes) -> datetime | None:
    """The time that a line begins with, in the form of ISO 8601; without an offset it is UTC."""
    found = _TIME.match(line[:TIME_WITHIN])
    if found is None:
        return None
    text = found[1].decode().replace(",", ".").replace(" ", "T")
    zone = (found[2] or b"Z").decode()
    try:
        parsed = datetime.fromisoformat(text + ("+00:00" if zone == "Z" else zone))
    except ValueError:
        return None
    return parsed.astimezone(UTC)


def merged(of_each: Iterable[Sequence[LogLine]], now: datetime) -> list[LogLine]:
    """The lines of several programs by time; the lines of one program stay in their order."""
    return [line for _, line in merge(*(_keyed(each, now) for each in of_each), key=lambda keyed: keyed[0])]


def _keyed(lines: Sequence[LogLine], now: datetime) -> list[tuple[datetime, LogLine]]:
    """Each line with the time by which it is merged: its own, but never before that of an earlier line."""
    keyed: list[tuple[datetime, LogLine]] = []
    latest = next((line.at for line in lines if line.at is not None), now)
    for line in lines:
        latest = max(latest, line.at or latest)
        keyed.append((latest, line))
    return keyed


def cursor_of(places: dict[str, LogPlace]) -> str:
    plain = {key: [place.offset, place.log] for key, place in places.items()}
    return base64.urlsafe_b64encode(json.dumps(plain, separators=(",", ":")).encode()).decode().rstrip("=")


def places_of(cursor: str) -> dict[str, LogPlace]:
    """How far each program was read, as a cursor says."""
    try:
        plain = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        places = {str(key): LogPlace(offset, log) for key, (offset, log) in plain.items()}
        if all(_is_place(*each) for each in plain.values()):
            return places
    except (AttributeError, RecursionError, TypeError, ValueError):
        pass  # it was changed, or is of another list
    raise Refusal(Code.CURSOR_INVALID, "this is not a cursor of this log")


def _is_place(offset: Any, log: Any) -> bool:
    return type(offset) is int and 0 <= offset <= 2**53 and isinstance(log, str) and _LOG.fullmatch(log) is not None
