"""Slots: every change from every status, and what it names."""

from collections.abc import Callable

import pytest

from mooring.core.fleet.slot import (
    SLOT_MEANING,
    Slot,
    SlotStatus,
    block_slots,
    claim_slots,
    free_slots,
    quarantine_slots,
)
from mooring.core.kernel.decision import Update
from mooring.core.kernel.errors import Code, Refusal
from server.tests.support.node_rows import ALLOCATION, a_slot
from tests.support.rows import every_row

LEGAL = {
    ("free", "claimed"), ("free", "quarantined"), ("claimed", "free"), ("claimed", "cleanup_blocked"),
    ("claimed", "quarantined"), ("cleanup_blocked", "free"), ("cleanup_blocked", "quarantined"),
}  # fmt: skip
WAYS: dict[str, Callable[[Slot], tuple[Update, ...]]] = {
    "claimed": lambda slot: claim_slots([slot], ALLOCATION),
    "free": lambda slot: free_slots([slot]),
    "cleanup_blocked": lambda slot: block_slots([slot]),
    "quarantined": lambda slot: quarantine_slots([slot]),
}
AGAIN = {("cleanup_blocked", "cleanup_blocked"), ("quarantined", "quarantined")}
"""What has happened already is not done again, and is no error."""


@every_row("source", list(SlotStatus))
@every_row("target", list(SlotStatus))
def test_every_change_of_a_slot(source: SlotStatus, target: SlotStatus) -> None:
    slot, change = a_slot(0, source.value), WAYS[target]
    if (source, target) in LEGAL:
        (made,) = change(slot)
        assert (made.id, made.revision_expected, made.set["status"]) == (slot.id, slot.revision, target)
    elif (source, target) in AGAIN:
        assert change(slot) == ()
    else:
        with pytest.raises(Refusal) as refused:
            change(slot)
        assert refused.value.code is Code.ILLEGAL_TRANSITION


def test_a_claim_names_its_allocation_and_a_freed_slot_is_nobodys() -> None:
    assert claim_slots([a_slot(0), a_slot(1)], ALLOCATION) == tuple(
        Update("slot", f"slt_{index}", 7, {"status": "claimed", "allocation_id": ALLOCATION}) for index in (0, 1)
    )
    (freed,) = free_slots([a_slot(0, "cleanup_blocked")])
    assert freed.set == {"status": "free", "allocation_id": None}


def test_a_slot_that_is_held_says_so_and_each_status_has_a_meaning() -> None:
    assert [status.value for status in SlotStatus if a_slot(0, status.value).is_held] == ["claimed", "cleanup_blocked"]
    assert set(SLOT_MEANING) == set(SlotStatus)
