"""Slot: a GPU of a node with its NUMA place, and whether somebody has it.

A slot is free, or claimed by one allocation. It is free again only after a clean receipt; until then it is
`cleanup_blocked`. When its node is retired it is `quarantined`, for ever. Whoever changes a slot names the revision
that he saw, so of two claims one wins; and the database asks the node, so that no claim slips past a drain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import Update
from mooring.core.kernel.errors import Code, Refusal


class SlotStatus(StrEnum):
    """Who has a slot."""

    FREE = "free"
    CLAIMED = "claimed"
    CLEANUP_BLOCKED = "cleanup_blocked"
    QUARANTINED = "quarantined"


SLOT_MEANING: Final[Mapping[SlotStatus, str]] = {
    SlotStatus.FREE: "nobody has it",
    SlotStatus.CLAIMED: "one allocation has it",
    SlotStatus.CLEANUP_BLOCKED: "its allocation was torn down, and no clean receipt says that nothing is left",
    SlotStatus.QUARANTINED: "its node is retired: it is never used again",
}
_LEGAL: Final[Mapping[SlotStatus, frozenset[SlotStatus]]] = {
    SlotStatus.FREE: frozenset({SlotStatus.CLAIMED, SlotStatus.QUARANTINED}),
    SlotStatus.CLAIMED: frozenset({SlotStatus.FREE, SlotStatus.CLEANUP_BLOCKED, SlotStatus.QUARANTINED}),
    SlotStatus.CLEANUP_BLOCKED: frozenset({SlotStatus.FREE, SlotStatus.QUARANTINED}),
    SlotStatus.QUARANTINED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU of a node."""

    id: str
    node_id: str
    index: int
    numa: int
    gpu_model: str
    memory_bytes: int
    simulated: bool
    status: str
    allocation_id: str | None
    revision: int
    created_at: datetime

    @property
    def is_held(self) -> bool:
        """Whether it is somebody's, or owes somebody a look."""
        return self.status in (SlotStatus.CLAIMED, SlotStatus.CLEANUP_BLOCKED)


def claim_slots(slots: Sequence[Slot], allocation_id: str) -> tuple[Update, ...]:
    """Free slots become an allocation's; whoever was slower finds another revision."""
    return _changed(slots, SlotStatus.CLAIMED, allocation_id)


def free_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Slots return to the pool; the caller has the clean receipt in his hands."""
    return _changed(slots, SlotStatus.FREE, None)


def block_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Slots whose teardown was not proven stay with their allocation."""
    claimed = [slot for slot in slots if slot.status != SlotStatus.CLEANUP_BLOCKED]
    return tuple(
        change for slot in claimed for change in _changed([slot], SlotStatus.CLEANUP_BLOCKED, slot.allocation_id)
    )


def quarantine_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Slots of a node that goes for ever; whose they were stays readable."""
    left = [slot for slot in slots if slot.status != SlotStatus.QUARANTINED]
    return tuple(change for slot in left for change in _changed([slot], SlotStatus.QUARANTINED, slot.allocation_id))


def _changed(slots: Iterable[Slot], status: SlotStatus, allocation_id: str | None) -> tuple[Update, ...]:
    changes = []
    for slot in slots:
        if status not in _LEGAL[SlotStatus(slot.status)]:
            raise Refusal(
                Code.ILLEGAL_TRANSITION,
                f"slot {slot.index} is {slot.status}: it does not become {status}",
                {"slot_id": slot.id, "state": slot.status, "allowed": sorted(_LEGAL[SlotStatus(slot.status)])},
            )
        changes.append(Update("slot", slot.id, slot.revision, {"status": status.value, "allocation_id": allocation_id}))
    return tuple(changes)
