"""How many tasks a node's agent holds at once, so that one tenant's queue never fills what its neighbours need.

A claim offers the tasks of a node's allocations in turn, and never more of one allocation or tenant than these bounds:
what is over them stays queued, without a lease, until the agent reports the end of another one. Tasks that end an owner
are always offered. The agent has the bounds of what runs at once (`mooring_agent/tasks/room.py`).
"""

from enum import IntEnum
from typing import Final


class Lane(IntEnum):
    """What a task waits for; the database has the same table (`task_lane`)."""

    TEARDOWN = 0  # for nothing
    BESIDE = 1  # for a place among the tunnels and log reads
    ORDERED = 2  # for its owner's earlier tasks


LANES: Final = {
    "sandbox.destroy": Lane.TEARDOWN,
    "teardown.verify": Lane.TEARDOWN,
    "tunnel.open": Lane.BESIDE,
    "log.read": Lane.BESIDE,
}
"""Every other type is in the lane ORDERED."""

HELD_OF_ALLOCATION: Final = {Lane.BESIDE: 64, Lane.ORDERED: 32}
HELD_OF_TENANT: Final = {Lane.BESIDE: 128, Lane.ORDERED: 64}
"""On one node, running or waiting for their turn."""
