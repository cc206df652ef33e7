"""Masks secrets in everything textual that leaves the node: results, last lines, logs and failure texts.

A service gets its secrets when it starts, and its log is read by other tasks much later, also by an agent that was
restarted meanwhile. So the agent remembers for each allocation which secrets it delivered there: in its journal, sealed
to this node as they came, until the allocation is torn down.

A mask has as many bytes as what it hides, since parts of a log are addressed by offsets. Hidden are a secret as it is,
without white space around it, and each long line of one with several lines. A program can still print a secret in
another form.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mooring_agent.control_plane.keys import NodeKeys, SecretUnreadable
from mooring_agent.control_plane.messages import SealedSecret, Task
from mooring_agent.tasks.journal import Journal

MASK: Final = b"[secret]"
SECRET_MIN_BYTES: Final = 4
"""Shorter secrets occur in any text by chance; masking them would spoil the output and hide nothing."""
LINE_MIN_BYTES: Final = 16
REMEMBERED_MAX: Final = 256
"""How many secrets of one allocation are remembered; the oldest are forgotten first."""


@dataclass(frozen=True, slots=True)
class MaskedSpan:
    """Where a secret is, and the bytes that replace it."""

    begin: int
    end: int
    mask: bytes


@dataclass(frozen=True, slots=True)
class SecretMask:
    """Hides some secrets in bytes and text."""

    patterns: tuple[bytes, ...] = ()
    _expression: "re.Pattern[bytes] | None" = field(default=None, repr=False)

    @classmethod
    def of(cls, secrets: Iterable[bytes]) -> "SecretMask":
        found: set[bytes] = set()
        for secret in secrets:
            stripped = secret.strip()
            found |= {secret, stripped}
            lines = stripped.splitlines()
            if len(lines) > 1:
                found |= {line.strip() for line in lines if len(line.strip()) >= LINE_MIN_BYTES}
        patterns = tuple(sorted((each for each in found if len(each) >= SECRET_MIN_BYTES), key=len, reverse=True))
        return cls(patterns, re.compile(b"|".join(map(re.escape, patterns))) if patterns else None)

    @property
    def margin(self) -> int:
        """How many bytes around a part must be known, to find every secret that reaches into it."""
        return len(self.patterns[0]) - 1 if self.patterns else 0

    def hide(self, data: bytes) -> bytes:
        """The same number of bytes, with every secret replaced."""
        return data if self._expression is None else self._expression.sub(_masked, data)

    def spans(self, data: bytes) -> list[MaskedSpan]:
        found = () if self._expression is None else self._expression.finditer(data)
        return [MaskedSpan(each.start(), each.end(), _masked(each)) for each in found]

    def hide_text(self, text: str) -> str:
        return text if self._expression is None else self.hide(text.encode()).decode(errors="replace")

    def hide_lines(self, lines: Sequence[str]) -> list[str]:
        """The same lines; a secret may reach over several."""
        return self.hide_text("\n".join(lines)).split("\n") if lines and self.patterns else list(lines)

    def unfinished(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a secret that is not written to its end yet."""
        longest = 0
        for pattern in self.patterns:
            start = data.find(pattern[:SECRET_MIN_BYTES], max(0, len(data) - len(pattern) + 1))
            while start != -1:
                if pattern.startswith(data[start:]):
                    longest = max(longest, len(data) - start)
                    break
                start = data.find(pattern[:SECRET_MIN_BYTES], start + 1)
        return longest


def _masked(found: "re.Match[bytes]") -> bytes:
    length = len(found[0])
    return MASK.ljust(length, b"*") if length >= len(MASK) else b"*" * length


def _delivered_names(arguments: Mapping[str, Any]) -> set[str]:
    """The secrets that programs get, as variables or files; others, such as a registry's token, only the agent uses."""
    variables: Mapping[str, str] = arguments.get("environment_secrets", {})
    files: Sequence[Mapping[str, Any]] = arguments.get("files", ())
    return {*variables.values(), *(each["secret"] for each in files if "secret" in each)}


class SecretMasks:
    """The secrets that were delivered to the allocations of this node."""

    def __init__(self, journal: Journal, keys: NodeKeys) -> None:
        self._journal = journal
        self._keys = keys
        self._secrets: dict[str, list[bytes]] = {}
        self._masks: dict[str, SecretMask] = {}
        for each in journal.delivered_secrets():
            try:
                value = keys.open(each.sealed, each.node_id, each.task_id)
            except SecretUnreadable:  # sealed to earlier keys of this machine: nothing here can print it any more
                continue
            self._secrets.setdefault(each.allocation_id, []).append(value)

    def of(self, allocation_id: str) -> SecretMask:
        if allocation_id not in self._secrets:
            return SecretMask()
        if allocation_id not in self._masks:
            self._masks[allocation_id] = SecretMask.of(self._secrets[allocation_id])
        return self._masks[allocation_id]

    def remember(self, task: Task, opened: Mapping[str, bytes], now: float) -> None:
        """Remember what a task delivers, before it does."""
        delivered = _delivered_names(task.arguments)
        for sealed in task.secrets:
            if sealed.name in delivered and sealed.name in opened:
                self._remember(task, sealed, opened[sealed.name], now)

    def forget(self, allocation_id: str) -> None:
        if self._secrets.pop(allocation_id, None) is not None:
            self._masks.pop(allocation_id, None)
            self._journal.forget_secrets(allocation_id)

    def _remember(self, task: Task, sealed: SealedSecret, value: bytes, now: float) -> None:
        known = self._secrets.setdefault(task.allocation_id, [])
        if value in known:
            return
        self._journal.record_secret(task, sealed, now, REMEMBERED_MAX)
        known.append(value)
        del known[:-REMEMBERED_MAX]
        self._masks.pop(task.allocation_id, None)
