"""Findings: what is wrong in a document that somebody wrote, where, why, and what to do about it.

The place is a JSON pointer (RFC 6901), because the core sees values and not text; whoever has the text turns the
pointer into a line. A document is not read to its first mistake and sent back: all findings come at once, up to a
bound.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

FINDINGS_MAX: Final = 100
SHOWN_LENGTH_MAX: Final = 60


class Severity(StrEnum):
    """Whether a finding stands in the way."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong at one place."""

    pointer: str
    rule: str
    severity: Severity
    reason: str
    fix: str

    def told(self) -> Mapping[str, object]:
        """The finding as the plain values of a problem document."""
        return asdict(self) | {"severity": self.severity.value}


def error(pointer: str, rule: str, reason: str, fix: str) -> Finding:
    """A finding that stands in the way."""
    return Finding(pointer, rule, Severity.ERROR, reason, fix)


def warning(pointer: str, rule: str, reason: str, fix: str) -> Finding:
    """A finding that its author should know of."""
    return Finding(pointer, rule, Severity.WARNING, reason, fix)


def bounded(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first findings: a document that is wrong everywhere does not cost without end."""
    return tuple(islice(findings, FINDINGS_MAX))


def errors_in(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that stand in the way."""
    return tuple(each for each in findings if each.severity is Severity.ERROR)


def below(pointer: str, *steps: str | int) -> str:
    """The pointer to what is found by these steps from `pointer`."""
    return pointer + "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps)


def shown(value: object) -> str:
    """A value as a message may show it: short, and on one line."""
    if isinstance(value, int) and value.bit_length() > 256:  # Python does not write very long numbers out
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:SHOWN_LENGTH_MAX]}…"
