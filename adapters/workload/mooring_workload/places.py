"""Where a member stands, as the rendering has to know it."""

from typing import Final

from mooring_adapter.world import Member
from mooring_workload.render import Place

INVENTORY: Final = "architecture"
"""A fact that every node has: where it is told, what is not told is not there."""


class Nowhere(Exception):
    """The member's allocation is gone."""


def place_of(member: Member) -> Place:
    """The member's host, and whether it runs containers."""
    allocation = member.allocation
    if allocation is None:
        raise Nowhere(f"{member.name or member.id} stands nowhere any more")
    host = allocation.host or "namespace"
    knows_none = INVENTORY in allocation.facts and "podman" not in allocation.facts and host != "simulated"
    return Place(member.id, host, host != "process" and not knows_none)
