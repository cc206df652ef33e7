"""Findings: what is wrong in a document that a user wrote, where, why, and how to fix it.

The place is a JSON pointer (RFC 6901), because the core sees values and not text; a client that has the text turns
the pointer into a line number. A check reports all findings at once, up to a limit, and not only the first one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from reprlib import Repr
from typing import Final

FINDINGS_MAX: Final = 100
SHOWN_LENGTH_MAX: Final = 60
LISTED_LENGTH_MAX: Final = 1_000
POINTER_LENGTH_MAX: Final = 1_000


_SHORT: Final = Repr()
_SHORT.maxdict = _SHORT.maxlist = 20  # each item is longer than a twentieth of what is shown
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 2 * SHOWN_LENGTH_MAX


class Severity(StrEnum):
    """Whether a finding is fatal."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake at one place of a document."""

    pointer: str
    rule: str
    severity: Severity
    reason: str
    fix: str

    def as_dict(self) -> Mapping[str, object]:
        """The finding as the plain values of a problem document."""
        return asdict(self) | {"severity": self.severity.value}


def error(pointer: str, rule: str, reason: str, fix: str) -> Finding:
    """A finding that makes the document invalid."""
    return Finding(_cut(pointer), rule, Severity.ERROR, reason, fix)


def warning(pointer: str, rule: str, reason: str, fix: str) -> Finding:
    """A finding that the author should know, though the document is valid."""
    return Finding(_cut(pointer), rule, Severity.WARNING, reason, fix)


def _cut(pointer: str) -> str:
    """The pointer, which a stranger's long names could make longer than the document."""
    return pointer if len(pointer) <= POINTER_LENGTH_MAX else f"{pointer[:POINTER_LENGTH_MAX]}…"


def bounded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first findings, so that the cost is limited even for a document that is wrong everywhere."""
    return tuple(islice(findings, FINDINGS_MAX))


def errors_in(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(each for each in findings if each.severity is Severity.ERROR)


def below(pointer: str, *steps: str | int) -> str:
    """The JSON pointer that leads from `pointer` down these steps."""
    return pointer + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def shown(value: object) -> str:
    """A value for a message: short, and on one line."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to format very long integers
        return f"a number of {value.bit_length()} bits"
    text = repr(value[: SHOWN_LENGTH_MAX + 1]) if isinstance(value, str) else _SHORT.repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"


def listed(values: Iterable[object]) -> str:
    """Choices for a message, which leaves out those that would make it too long."""
    shown_values: list[str] = []
    room = LISTED_LENGTH_MAX
    for each in values:
        text = each if isinstance(each, str) else shown(each)
        room -= len(text)
        if room < 0:
            return ", ".join([*shown_values, "…"])
        shown_values.append(text)
    return ", ".join(shown_values)
