"""Where a member runs, as far as the rendering depends on it."""

from typing import Final

from mooring_adapter.instance_view import Member
from mooring_workload.render import MemberPlacement

INVENTORY: Final = "architecture"
"""A fact that every node with an inventory has: if it is known, missing facts mean missing features."""


class NotPlaced(Exception):
    """The member has no allocation any more."""


def placement_of(member: Member) -> MemberPlacement:
    """The member's host, and whether it runs containers."""
    allocation = member.allocation
    if allocation is None:
        raise NotPlaced(f"{member.name or member.id} has no allocation any more")
    host = allocation.host or "namespace"
    knows_none = INVENTORY in allocation.facts and "podman" not in allocation.facts and host != "simulated"
    return MemberPlacement(member.id, host, host != "process" and not knows_none)
