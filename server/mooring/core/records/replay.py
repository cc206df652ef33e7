"""An instance, its members and its operations as they were at a moment, from the log of transitions.

The log has every transition with the time of its decision, so what had been decided by a moment can be read back for
as long as the instance is known. Actions that only read are not replayed: they change nothing, and are deleted early.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

MEMBERS_MAX: Final = 1_000
OPERATIONS_MAX: Final = 200
"""A replay has the newest ones if there are more."""


@dataclass(frozen=True, slots=True)
class StateAt:
    """The state of one subject at a moment, and the transition that led to it."""

    noun: str
    id: str
    name: str
    component_key: str | None
    status: str
    since: datetime
    trigger: str
    generation: int
    correlation_id: str


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition of the instance, a member or an operation; `id` orders them and is the position of a page."""

    id: str
    noun: str
    subject_id: str
    name: str
    generation: int
    source: str | None
    trigger: str
    target: str
    occurred_at: datetime
    correlation_id: str


@dataclass(frozen=True, slots=True)
class InstanceReplay:
    """What had been decided by a moment, and the moments before and after it at which something changed."""

    at: datetime
    instance: StateAt
    members: Sequence[StateAt]
    operations: Sequence[StateAt]
    previous_at: datetime | None
    next_at: datetime | None

    @property
    def changed_at(self) -> datetime:
        """The time of the last change up to this moment: since then nothing is different."""
        return max(each.since for each in (self.instance, *self.members, *self.operations))
