"""Nodes, slots and tokens as the tests of their decisions begin with them."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from mooring.core.fleet.enrolment import EnrolmentToken, JoinRequest
from mooring.core.fleet.inventory import Gpu, Inventory
from mooring.core.fleet.node import HostKind, Node
from mooring.core.fleet.slot import Slot
from mooring.core.kernel.decision import DecisionContext, PrincipalKind
from mooring.core.kernel.ids import Prefix
from server.tests.support.decision_context import NOW, context, minter

_mint = minter()
NODE_ID, OTHER_NODE = _mint(Prefix.NODE), _mint(Prefix.NODE)
ALLOCATION = _mint(Prefix.ALLOCATION)
GPU = Gpu(0, 0, "made-up", 80 * 2**30, simulated=True)
INVENTORY = Inventory("1.0.0", HostKind.SIMULATED, 16, 64 * 2**30, gpus=(GPU, replace(GPU, index=1, numa=1)))


def a_node(status: str = "ready", **other: Any) -> Node:
    """A node in this state."""
    inventory = None if status == "enrolled" else INVENTORY.document()
    node = Node(
        NODE_ID, "machine", "simulated", "local", {}, b"k" * 32, b"s" * 32, status, 3, 5, NOW, inventory=inventory
    )
    return replace(node, **other)


def a_slot(index: int = 0, status: str = "free", **other: Any) -> Slot:
    """A slot of the node; one that is held is the allocation's."""
    held = ALLOCATION if status in ("claimed", "cleanup_blocked") else None
    slot = Slot(f"slt_{index}", NODE_ID, index, index % 2, "made-up", 80 * 2**30, True, status, held, 7, NOW)
    return replace(slot, **other)


def a_token(**other: Any) -> EnrolmentToken:
    """A token that somebody may join with."""
    token = EnrolmentToken("enr_1", "north", {"rack": "a"}, "usr_1", 2, NOW, NOW + timedelta(minutes=15))
    return replace(token, **other)


def joining(**other: Any) -> JoinRequest:
    """A machine that joins."""
    requested = JoinRequest("machine", HostKind.NAMESPACE, {"rack": "b", "row": "7"}, b"k" * 32, b"s" * 32)
    return replace(requested, **other)


def as_node() -> DecisionContext:
    """A node acts, now."""
    return context(NODE_ID, PrincipalKind.NODE)
