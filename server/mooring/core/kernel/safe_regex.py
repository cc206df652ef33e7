r"""A subset of regular expressions, for patterns that strangers write and the platform runs.

An app's author writes patterns for the fields of a launch form, and the platform matches them against input from a
third party. Thirty characters of pattern can keep a backtracking matcher busy for ever, so these patterns never reach
Python's `re`: RE2 runs them, whose time grows with the length of the text times the size of the compiled pattern, and
both have a bound. What a match costs at most is known before it is done, and is paid from the document's budget.

Accepted is a subset that all common engines read the same way, so that a browser can check a form as well:

- it is anchored by `^` and `$`, and alternatives stand in a group;
- characters, escapes such as `\d` or `\.`, classes such as `[a-z0-9]`, the dot, groups `(…)` and `(?:…)`;
- `*`, `+`, `{m,n}` repeat one character or class, never a group; a group may only be optional (`?`);
- no look-around, back references, flags, lazy or possessive repeats.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from mooring.core.kernel.work_budget import VALUE_STEPS_MAX, WorkBudget

PATTERN_LENGTH_MAX: Final = 300
LENGTH_MAX: Final = 65_536
"""The longest text that a pattern is matched against."""
MEMORY_BYTES_MAX: Final = 524_288
"""What one compiled pattern may take. RE2 keeps the last 128, so all of them take at most 64 MiB."""
REPEATS_MAX: Final = 4_000
"""To how much the bounded repeats of a pattern may add up: each of them is written out in the compiled pattern."""
COMPILE_STEPS: Final = 300
"""The price of compiling, for each instruction of the compiled pattern."""
MATCH_STEPS: Final = 2
"""The price of matching, for each instruction and each byte of the text."""
GROUP_DEPTH_MAX: Final = 10

_CLASS: Final = re.compile(r"\[\^?(?:\\[dDwWsS.\-\[\]\\/^$]|[^\[\]\\])+\]")
_ESCAPE: Final = re.compile(r"\\[dDwWsS.\-+*?()\[\]{}|^$\\/]")
_REPEAT: Final = re.compile(r"[*+]|\{(?P<least>[0-9]{1,4})(?P<comma>,(?P<most>[0-9]{1,4})?)?\}")
_SPECIAL: Final = frozenset(r"\[](){}*+?|^$")
_REPEATS_OF_ENGINE: Final = 1_000
"""RE2 refuses to repeat something more often; longer repeats are written as several."""


class PatternRefused(Exception):
    """The pattern is outside of the subset, or too large; the message says why."""


@dataclass(slots=True)
class _Reader:
    """Checks a pattern against the subset, and translates it to RE2's syntax."""

    text: str
    length_max: int
    at: int = 0
    depth: int = 0
    repeats: int = 0  # how often something is repeated in all, where that is bounded
    parts: list[str] = field(default_factory=list)

    def sequence(self) -> None:
        """Read everything up to the next alternative, closing parenthesis, or the end."""
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            self._piece()

    def _piece(self) -> None:
        if self._takes("("):
            self._group()
            return
        one = self._one_character()
        repeat = _REPEAT.match(self.text, self.at)
        if repeat is None:
            self.parts.append(one + "?" if self._takes("?") else one)
            return
        self.at = repeat.end()
        if self.at < len(self.text) and self.text[self.at] in "?+*{":
            raise PatternRefused(f"a repeat of a repeat, or a lazy one, at {self.at}")
        self._repeat(one, repeat)

    def _repeat(self, one: str, repeat: re.Match[str]) -> None:
        if repeat["least"] is None:
            self.parts.append(one + repeat[0])
            return
        least = int(repeat["least"])
        most = least if repeat["comma"] is None else int(repeat["most"]) if repeat["most"] else None
        if most is not None and most < least:
            raise PatternRefused(f"{repeat[0]}: the smaller number comes first")
        if most is not None and most > least and most >= self.length_max:
            most = None  # the text is not longer, and an open repeat costs nothing
        self.repeats += least if most is None else most
        if self.repeats > REPEATS_MAX:
            raise PatternRefused(f"its repeats add up to more than {REPEATS_MAX}; use smaller ones, or * and maxLength")
        self.parts.extend(f"{one}{{{count}}}" for count in _portions(least))
        if most is None:
            self.parts.append(one + "*")
        else:
            self.parts.extend(f"{one}{{0,{count}}}" for count in _portions(most - least))

    def _group(self) -> None:
        if self.text.startswith("?:", self.at):
            self.at += 2
        self.depth += 1
        if self.depth > GROUP_DEPTH_MAX:
            raise PatternRefused(f"groups are nested more than {GROUP_DEPTH_MAX} deep")
        self.parts.append("(?:")
        self.sequence()
        while self._takes("|"):
            self.parts.append("|")
            self.sequence()
        self.depth -= 1
        if not self._takes(")"):
            raise PatternRefused("a group that is not closed")
        if _REPEAT.match(self.text, self.at):
            raise PatternRefused(
                "a group is repeated; only a character or a class can be, a group can only be optional"
            )
        self.parts.append(")?" if self._takes("?") else ")")

    def _one_character(self) -> str:
        begin = self.at
        for form in (_CLASS, _ESCAPE):
            if match := form.match(self.text, self.at):
                self.at = match.end()
                return match[0]
        character = self.text[begin]
        if character in _SPECIAL:
            raise PatternRefused(f"{character!r} at {self.at} is not supported there")
        self.at += 1
        return character

    def _takes(self, character: str) -> bool:
        if self.text.startswith(character, self.at):
            self.at += 1
            return True
        return False


def _portions(count: int) -> Iterator[int]:
    for begin in range(0, count, _REPEATS_OF_ENGINE):
        yield min(_REPEATS_OF_ENGINE, count - begin)


def _read(pattern: str, length_max: int) -> _Reader:
    """The pattern without its anchors, as RE2 takes it for texts up to this length."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise PatternRefused(f"it is longer than {PATTERN_LENGTH_MAX} characters")
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        raise PatternRefused("it is not anchored by ^ and $")
    reader = _Reader(pattern[1:-1], length_max)
    reader.sequence()
    if reader.at < len(reader.text):
        outer = reader.text[reader.at] == "|"
        raise PatternRefused(
            "alternatives stand outside of a group; write ^(…|…)$" if outer else "a group is closed twice"
        )
    return reader


def _options() -> Any:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.never_capture = True  # only yes or no is asked, which RE2 answers faster
    options.log_errors = False
    return options


_OPTIONS: Final = _options()


@dataclass(slots=True)
class Patterns:
    """The patterns of one document: each is compiled once, and all of them are paid from the document's budget."""

    budget: WorkBudget = field(default_factory=WorkBudget)
    _compiled: dict[tuple[str, int], Any] = field(default_factory=dict)

    def matches(self, pattern: str, text: str, length_max: int = LENGTH_MAX) -> bool:
        """Whether the whole text has this form; raises `PatternRefused` when the pattern is not accepted.

        The text is at most `length_max` characters long.
        """
        compiled = self._get(pattern, length_max)
        encoded = text.encode("utf-8", "surrogatepass")
        self.budget.spend(MATCH_STEPS * compiled.programsize * (len(encoded) + 1))
        return compiled.fullmatch(encoded) is not None

    def why_refused(self, pattern: str, length_max: int = LENGTH_MAX) -> str | None:
        """Why this pattern is not accepted for texts up to this length; None when it is."""
        try:
            compiled = self._get(pattern, length_max)
        except PatternRefused as refused:
            return str(refused)
        if MATCH_STEPS * compiled.programsize * (length_max + 1) > VALUE_STEPS_MAX // 2:
            return (
                f"matching {length_max} characters could take more than {VALUE_STEPS_MAX // 2} steps; "
                "use smaller repeats, repeat with *, or lower maxLength"
            )
        return None

    def _get(self, pattern: str, length_max: int) -> Any:
        found = self._compiled.get((pattern, length_max))
        if found is None:
            try:
                found = self._compile(pattern, length_max)
            except PatternRefused as refused:
                found = refused
            self._compiled[pattern, length_max] = found
        if isinstance(found, PatternRefused):
            raise found
        return found

    def _compile(self, pattern: str, length_max: int) -> Any:
        read = _read(pattern, length_max)
        self.budget.spend(read.repeats**2 // 2)  # RE2 needs as long
        try:
            compiled = re2.compile("".join(read.parts), options=_OPTIONS)
        except re2.error as wrong:
            reason = wrong.args[0].decode(errors="replace") if isinstance(wrong.args[0], bytes) else str(wrong)
            if "too large" in reason:
                raise PatternRefused("it is too large when compiled; use smaller repeats") from wrong
            raise PatternRefused(f"it cannot be read: {reason[:200]}") from wrong
        self.budget.spend(COMPILE_STEPS * compiled.programsize)
        return compiled


def why_not_taken(pattern: str, length_max: int) -> str | None:
    """Why this pattern is refused for texts of up to `length_max` characters; None when it is accepted."""
    return Patterns().why_refused(pattern, length_max)
