r"""A subset of regular expressions with a bounded cost, for patterns that strangers write and the platform runs.

An app's author writes patterns for the fields of a launch form, and the platform matches them against input from a
third party. Thirty characters of pattern can keep a backtracking matcher busy for ever. So only a subset of regular
expressions is accepted, small enough that the worst case can be computed before the pattern runs:

- it is anchored by `^` and `$`, and alternatives stand in a group;
- characters, escapes such as `\d` or `\.`, classes such as `[a-z0-9]`, the dot, groups `(…)` and `(?:…)`;
- `*`, `+`, `{m,n}` repeat one character or class, never a group; a group may only be optional (`?`);
- no look-around, back references, flags, lazy or possessive repeats.

Without nested repeats the matcher tries at most the product of the lengths that the repeats can have, times the
alternatives. That product, for the longest text that the schema allows, must stay below `STEPS_MAX`.
"""

import re
from dataclasses import dataclass
from typing import Final

PATTERN_LENGTH_MAX: Final = 300
STEPS_MAX: Final = 2_000_000
GROUP_DEPTH_MAX: Final = 10

_CLASS: Final = re.compile(r"\[\^?(?:\\[dDwWsS.\-\[\]\\/^$]|[^\[\]\\])+\]")
_ESCAPE: Final = re.compile(r"\\[dDwWsS.\-+*?()\[\]{}|^$\\/]")
_REPEAT: Final = re.compile(r"[*+]|\{(?P<least>\d{1,4})(?P<comma>,(?P<most>\d{1,4})?)?\}")
_SPECIAL: Final = frozenset(r"\[](){}*+?|^$")


class _Refused(Exception):
    """The pattern is outside of the subset; the message says why."""


@dataclass(slots=True)
class _Reader:
    text: str
    length_max: int
    at: int = 0
    depth: int = 0

    def sequence(self) -> int:
        """The cost of everything up to the next alternative, closing parenthesis, or the end."""
        cost = 1
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            cost *= self._piece()
            if cost > STEPS_MAX:
                raise _Refused(
                    f"it could take more than {STEPS_MAX} steps for a text of {self.length_max} characters; "
                    "use fewer repeats, bound them by {m,n}, or lower maxLength"
                )
        return cost

    def _piece(self) -> int:
        if self._takes("("):
            return self._group()
        self._one_character()
        repeat = _REPEAT.match(self.text, self.at)
        if repeat is None:
            return 2 if self._takes("?") else 1
        self.at = repeat.end()
        if self.at < len(self.text) and self.text[self.at] in "?+*{":
            raise _Refused(f"a repeat of a repeat, or a lazy one, at {self.at}")
        return self._choices(repeat)

    def _choices(self, repeat: re.Match[str]) -> int:
        """How many different lengths the repeat can match."""
        if repeat["least"] is None:
            return self.length_max + 1
        least = int(repeat["least"])
        if repeat["comma"] is None:
            return 1
        most = int(repeat["most"]) if repeat["most"] else self.length_max
        if most < least:
            raise _Refused(f"{repeat[0]}: the smaller number comes first")
        return min(most, self.length_max) - min(least, self.length_max) + 1

    def _group(self) -> int:
        if self.text.startswith("?:", self.at):
            self.at += 2
        self.depth += 1
        if self.depth > GROUP_DEPTH_MAX:
            raise _Refused(f"groups are nested more than {GROUP_DEPTH_MAX} deep")
        cost = self.sequence()
        while self._takes("|"):
            cost += self.sequence()
        self.depth -= 1
        if not self._takes(")"):
            raise _Refused("a group that is not closed")
        if _REPEAT.match(self.text, self.at):
            raise _Refused("a group is repeated; only a character or a class can be, a group can only be optional")
        return cost + 1 if self._takes("?") else cost

    def _one_character(self) -> None:
        for form in (_CLASS, _ESCAPE):
            if match := form.match(self.text, self.at):
                self.at = match.end()
                return
        character = self.text[self.at]
        if character in _SPECIAL:
            raise _Refused(f"{character!r} at {self.at} is not supported there")
        self.at += 1

    def _takes(self, character: str) -> bool:
        if self.text.startswith(character, self.at):
            self.at += 1
            return True
        return False


def why_not_taken(pattern: str, length_max: int) -> str | None:
    """Why this pattern is refused for texts of up to `length_max` characters; None when it is accepted."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        return f"it is longer than {PATTERN_LENGTH_MAX} characters"
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$":
        return "it is not anchored by ^ and $"
    reader = _Reader(pattern[1:-1], length_max)
    try:
        reader.sequence()
        if reader.at < len(reader.text):
            outer = reader.text[reader.at] == "|"
            return "alternatives stand outside of a group; write ^(…|…)$" if outer else "a group is closed twice"
        re.compile(reader.text, re.ASCII)
    except _Refused as refused:
        return str(refused)
    except re.error as wrong:
        return f"it cannot be read: {wrong}"
    return None
