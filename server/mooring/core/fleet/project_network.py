"""A project's network on a node: one subnet for each project on each machine, one address for each sandbox.

Sandboxes of one project on one machine reach each other; those of two projects never do, since they are in two
networks. A subnet is the project's as long as something of it stands on the machine, and is kept afterwards until
another project needs one and no fresh one is left. Every placement that uses a network touches its row, so that it is
not handed on while somebody moves in; that no two have one address is said by the database as well.

A machine that keeps no two projects apart has a single network, and so takes one project at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network
from typing import Final

from mooring.core.kernel.decision import DecisionContext, Insert, Update
from mooring.core.kernel.ids import Prefix

POOL: Final = "10.64.0.0/10"
"""Where subnets come from, unless a node's label `network_pool` names another part of 10.0.0.0/8."""
POOL_LABEL: Final = "network_pool"
SUBNET_BITS: Final = 24
FIRST_HOST: Final = 2  # the first address is the machine's own
LAST_HOST: Final = 254
NETWORK_SUBNETS_MAX: Final = 16_384
_PRIVATE: Final = IPv4Network("10.0.0.0/8")


@dataclass(frozen=True, slots=True)
class ProjectNetwork:
    """A subnet of a node, and the project that it was given to last."""

    id: str
    node_id: str
    tenant_id: str
    project_id: str
    subnet: str
    revision: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class NodeNeighbour:
    """Something that stands on the node."""

    allocation_id: str
    project_id: str
    name: str
    address: str | None


@dataclass(frozen=True, slots=True)
class NodeNetworks:
    """All networks of a node, and who is in them."""

    networks: tuple[ProjectNetwork, ...] = ()
    neighbours: tuple[NodeNeighbour, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The subnet of a project on a node, fresh addresses in it, and the row that makes it so."""

    subnet: str
    addresses: tuple[str, ...]
    peers: tuple[NodeNeighbour, ...]
    write: Insert | Update


def pool_of(label: str | None) -> IPv4Network:
    """The part of 10.0.0.0/8 that a node takes its subnets from; a label that is no such part is not heeded."""
    try:
        pool = IPv4Network(label or POOL)
    except ValueError:
        return IPv4Network(POOL)
    fits = pool.prefixlen <= SUBNET_BITS and pool.subnet_of(_PRIVATE)
    return pool if fits else IPv4Network(POOL)


def plan_network(
    context: DecisionContext,
    home: tuple[str, str, str],
    seen: NodeNetworks,
    pool: IPv4Network,
    count: int,
    *,
    single: bool,
) -> NetworkPlan | None:
    """Where `count` new sandboxes of a project go on a node; none where there is no room.

    `home` is node, tenant and project. With `single` the node has one network for all of its life.
    """
    node_id, tenant_id, project_id = home
    own = next((each for each in seen.networks if each.project_id == project_id), None)
    if own is not None:
        subnet: str | None = own.subnet
        write: Insert | Update = Update("project_network", own.id, own.revision, {})
    else:
        subnet = _fresh(seen, pool, single=single)
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
        if subnet is None and (left := _left(seen)) is not None:
            subnet = left.subnet
            heir = {"tenant_id": tenant_id, "project_id": project_id}
            write = Update("project_network", left.id, left.revision, heir)
    if subnet is None:
        return None
    addresses = _addresses(subnet, seen.neighbours, count)
    peers = tuple(each for each in seen.neighbours if each.project_id == project_id and each.address is not None)
    return None if addresses is None else NetworkPlan(subnet, addresses, peers, write)


def _fresh(seen: NodeNetworks, pool: IPv4Network, *, single: bool) -> str | None:
    """The first subnet that nobody ever had here."""
    taken = {each.subnet for each in seen.networks}
    most = 1 if single else min(NETWORK_SUBNETS_MAX, 1 << (SUBNET_BITS - pool.prefixlen))
    first = int(pool.network_address)
    for number in range(most):
        subnet = str(IPv4Network((first + number * 256, SUBNET_BITS)))
        if subnet not in taken:
            return subnet
    return None


def _left(seen: NodeNetworks) -> ProjectNetwork | None:
    """The network that has been empty the longest, as far as its id says."""
    used = {each.project_id for each in seen.neighbours}
    return min((each for each in seen.networks if each.project_id not in used), key=lambda each: each.id, default=None)


def _addresses(subnet: str, neighbours: Sequence[NodeNeighbour], count: int) -> tuple[str, ...] | None:
    taken = {each.address for each in neighbours}
    base = IPv4Network(subnet).network_address
    free = (str(base + host) for host in range(FIRST_HOST, LAST_HOST + 1) if str(base + host) not in taken)
    chosen = tuple(address for address, _ in zip(free, range(count), strict=False))
    return chosen if len(chosen) == count else None
