"""A project's network on a node: one subnet for each project on each machine, one address for each sandbox.

Sandboxes of one project on one machine reach each other; those of two projects never do, because they are in different
networks. A subnet belongs to the project while the project has an allocation on the machine, and stays reserved for it
until another project needs a subnet and no unused one is left. Every placement updates the row of its network, so that
a network cannot be reassigned while a sandbox moves in; the database also refuses two equal addresses.

A machine that cannot isolate projects has a single network, and so takes one project at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network
from typing import Final

from mooring.core.kernel.decision import DecisionContext, Insert, Update
from mooring.core.kernel.ids import Prefix

POOL: Final = "10.64.0.0/10"
"""The pool of subnets, unless a node's label `network_pool` names another part of 10.0.0.0/8."""
POOL_LABEL: Final = "network_pool"
SUBNET_BITS: Final = 24
FIRST_HOST: Final = 2  # the first address is the machine's own
LAST_HOST: Final = 254
NETWORK_SUBNETS_MAX: Final = 16_384
_PRIVATE: Final = IPv4Network("10.0.0.0/8")


@dataclass(frozen=True, slots=True)
class ProjectNetwork:
    """A subnet of a node, and the project that had it last."""

    id: str
    node_id: str
    tenant_id: str
    project_id: str
    subnet: str
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NodeNeighbour:
    """An allocation on the same node."""

    allocation_id: str
    project_id: str
    name: str
    address: str | None


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    """All networks of a node, and the allocations in them."""

    networks: tuple[ProjectNetwork, ...] = ()
    neighbours: tuple[NodeNeighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The subnet of a project on a node, new addresses in it, and the write that reserves it."""

    subnet: str
    addresses: tuple[str, ...]
    peers: tuple[NodeNeighbour, ...]
    write: Insert | Update


def pool_of(label: str | None) -> IPv4Network:
    """The part of 10.0.0.0/8 that a node takes its subnets from; an invalid label is ignored."""
    try:
        pool = IPv4Network(label or POOL)
    except ValueError:
        return IPv4Network(POOL)
    fits = pool.prefixlen <= SUBNET_BITS and pool.subnet_of(_PRIVATE)
    return pool if fits else IPv4Network(POOL)


def plan_network(
    context: DecisionContext,
    present: NodeNetworks,
    pool: IPv4Network,
    count: int,
    *,
    node_id: str,
    tenant_id: str,
    project_id: str,
    single: bool,
) -> NetworkPlan | None:
    """Addresses for `count` new sandboxes of a project on a node; None when there is no room.

    With `single` the node has one network for all of its life.
    """
    own = next((each for each in present.networks if each.project_id == project_id), None)
    if own is not None:
        subnet: str | None = own.subnet
        write: Insert | Update = Update("project_network", own.id, own.revision, {})
    else:
        subnet = _fresh(present, pool, single=single)
        row = {
            "id": context.mint(Prefix.PROJECT_NETWORK),
            "node_id": node_id,
            "tenant_id": tenant_id,
            "project_id": project_id,
            "subnet": subnet,
            "revision": 0,
            "created_at": context.now,
        }
        write = Insert("project_network", row)
        if subnet is None and (unused := _unused(present)) is not None:
            subnet = unused.subnet
            new_owner = {"tenant_id": tenant_id, "project_id": project_id}
            write = Update("project_network", unused.id, unused.revision, new_owner)
    if subnet is None:
        return None
    addresses = _addresses(subnet, present.neighbours, count)
    peers = tuple(each for each in present.neighbours if each.project_id == project_id and each.address is not None)
    return None if addresses is None else NetworkPlan(subnet, addresses, peers, write)


def _fresh(present: NodeNetworks, pool: IPv4Network, *, single: bool) -> str | None:
    """The first subnet that no project ever had on this node."""
    taken = {each.subnet for each in present.networks}
    most = 1 if single else min(NETWORK_SUBNETS_MAX, 1 << (SUBNET_BITS - pool.prefixlen))
    first = int(pool.network_address)
    for number in range(most):
        subnet = str(IPv4Network((first + number * 256, SUBNET_BITS)))
        if subnet not in taken:
            return subnet
    return None


def _unused(present: NodeNetworks) -> ProjectNetwork | None:
    """The oldest network whose project has no allocation on the node any more."""
    used = {each.project_id for each in present.neighbours}
    return min(
        (each for each in present.networks if each.project_id not in used), key=lambda each: each.id, default=None
    )


def _addresses(subnet: str, neighbours: Sequence[NodeNeighbour], count: int) -> tuple[str, ...] | None:
    taken = {each.address for each in neighbours}
    base = IPv4Network(subnet).network_address
    free = (str(base + host) for host in range(FIRST_HOST, LAST_HOST + 1) if str(base + host) not in taken)
    chosen = tuple(address for address, _ in zip(free, range(count), strict=False))
    return chosen if len(chosen) == count else None
