"""Where a member stands, as the rendering has to know it."""

from typing import Final

from mooring_adapter.instance_view import Member
from mooring_workload.render import Placement

INVENTORY: Final = "architecture"
"""A fact that every node has: where it is told, what is not told is not there."""


class NotPlaced(Exception):
    """The member's allocation is gone."""


def placement_of(member: Member) -> Placement:
    """The member's host, and whether it runs containers."""
    allocation = member.allocation
    if allocation is None:
        raise NotPlaced(f"{member.name or member.id} stands nowhere any more")
    host = allocation.host or "namespace"
    knows_none = INVENTORY in allocation.facts and "podman" not in allocation.facts and host != "simulated"
    return Placement(member.id, host, host != "process" and not knows_none)
