"""Slot: a GPU of a node with its NUMA node, and which allocation has it.

A slot is free, or claimed by one allocation. It is free again only after a clean receipt; until then it is
`cleanup_blocked`. When its node is retired it is `quarantined` for good. Every change names the revision that it was
decided on, so of two claims one wins; and the database checks the node's state, so that no claim slips past a drain.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from mooring.core.kernel.decision import Update
from mooring.core.kernel.errors import Code, Refusal


class SlotStatus(StrEnum):
    FREE = "free"
    CLAIMED = "claimed"
    CLEANUP_BLOCKED = "cleanup_blocked"
    QUARANTINED = "quarantined"


class SlotUse(StrEnum):
    """A slot's status as a map of the machines shows it: what is claimed is held or in use."""

    FREE = "free"
    HELD = "held"  # claimed by an allocation that is made or torn down
    IN_USE = "in_use"  # claimed by an active allocation
    CLEANUP_BLOCKED = "cleanup_blocked"
    QUARANTINED = "quarantined"


SLOT_MEANING: Final[Mapping[SlotStatus, str]] = {
    SlotStatus.FREE: "no allocation has it",
    SlotStatus.CLAIMED: "one allocation has it",
    SlotStatus.CLEANUP_BLOCKED: "its allocation was torn down, but no clean receipt proves that nothing is left",
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
        """Whether an allocation has it, or its teardown is not proven yet."""
        return self.status in (SlotStatus.CLAIMED, SlotStatus.CLEANUP_BLOCKED)


def claim_slots(slots: Sequence[Slot], allocation_id: str) -> tuple[Update, ...]:
    """Give free slots to an allocation; the slower of two claims finds a changed revision and loses."""
    return _changed(slots, SlotStatus.CLAIMED, allocation_id)


def free_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Return slots to the pool; the caller must have a clean receipt."""
    return _changed(slots, SlotStatus.FREE, None)


def block_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Block slots whose teardown was not proven; they stay with their allocation."""
    claimed = [slot for slot in slots if slot.status != SlotStatus.CLEANUP_BLOCKED]
    return tuple(
        change for slot in claimed for change in _changed([slot], SlotStatus.CLEANUP_BLOCKED, slot.allocation_id)
    )


def quarantine_slots(slots: Iterable[Slot]) -> tuple[Update, ...]:
    """Take the slots of a retired node out of use; `allocation_id` still names their last allocation."""
    left = [slot for slot in slots if slot.status != SlotStatus.QUARANTINED]
    return tuple(change for slot in left for change in _changed([slot], SlotStatus.QUARANTINED, slot.allocation_id))


def _changed(slots: Iterable[Slot], status: SlotStatus, allocation_id: str | None) -> tuple[Update, ...]:
    changes = []
    for slot in slots:
        if status not in _LEGAL[SlotStatus(slot.status)]:
            raise Refusal(
                Code.ILLEGAL_TRANSITION,
                f"slot {slot.index} is {slot.status} and cannot become {status}",
                {"slot_id": slot.id, "state": slot.status, "allowed": sorted(_LEGAL[SlotStatus(slot.status)])},
            )
        changes.append(Update("slot", slot.id, slot.revision, {"status": status.value, "allocation_id": allocation_id}))
    return tuple(changes)
