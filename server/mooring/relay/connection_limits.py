"""How many connections the relay serves: for all, for an address, for a visit and for a tenant.

A connection counts for its address until it has shown what it is for. From then on it counts for its visit and its
tenant instead, so that many viewers behind one address, or a proxy in front of the relay, are not one stranger. A
node's tunnel counts only for the whole relay: each answers a request of the relay itself.
"""

from collections import Counter
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit

RETRY_SECONDS: Final = 5
CONNECTIONS_MAX: Final = 4_000
IPV6_PREFIX_BITS: Final = 64
"""One customer of a provider usually has all addresses of IPv6 that begin with these bits."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """How many connections each address, visit and tenant may have open; 0 means no limit."""

    per_address: int
    per_visit: int
    per_tenant: int


class TooManyConnections(Refusal):
    """There is no room for this connection now."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(code, detail, {"retry_after_seconds": RETRY_SECONDS})


@dataclass(slots=True)
class ConnectionLimits:
    """The open connections of one relay."""

    bounds: ConnectionBounds
    connections_max: int = CONNECTIONS_MAX
    open: int = 0
    _strangers: Counter[str] = field(default_factory=Counter)
    _visits: Counter[str] = field(default_factory=Counter)
    _tenants: Counter[str] = field(default_factory=Counter)

    def enter(self, address: str | None) -> "ConnectionPlace":
        """Count a new connection, or refuse it."""
        if self.open >= self.connections_max:
            raise TooManyConnections(Code.TEMPORARILY_UNAVAILABLE, "the relay serves as many connections as it can")
        name = _network_of(address)
        if _is_over(self._strangers[name], self.bounds.per_address):
            raise TooManyConnections(
                Code.RATE_LIMITED,
                f"{self.bounds.per_address} connections of this address have not said what they are for",
            )
        self.open += 1
        self._strangers[name] += 1
        return ConnectionPlace(self, name)

    def leave(self, place: "ConnectionPlace") -> None:
        self.open -= 1
        self._uncount(place)

    def identify(self, place: "ConnectionPlace", visit: Visit | None) -> None:
        """Count a connection for its visit and tenant from here on, or for neither if it is a node's."""
        if visit is not None and place.visit_id == visit.id:
            return
        if visit is not None and _is_over(self._visits[visit.id], self.bounds.per_visit):
            raise TooManyConnections(
                Code.RATE_LIMITED, f"this visit has {self.bounds.per_visit} connections, which is as many as it may"
            )
        if visit is not None and _is_over(self._tenants[visit.tenant_id], self.bounds.per_tenant):
            raise TooManyConnections(
                Code.RATE_LIMITED, f"this tenant has {self.bounds.per_tenant} connections, which is as many as it may"
            )
        self._uncount(place)
        place.address = None
        place.visit_id, place.tenant_id = (None, None) if visit is None else (visit.id, visit.tenant_id)
        if visit is not None:
            self._visits[visit.id] += 1
            self._tenants[visit.tenant_id] += 1

    def _uncount(self, place: "ConnectionPlace") -> None:
        for counter, name in (
            (self._strangers, place.address),
            (self._visits, place.visit_id),
            (self._tenants, place.tenant_id),
        ):
            if name is not None:
                counter[name] -= 1
                if counter[name] <= 0:
                    del counter[name]


@dataclass(slots=True)
class ConnectionPlace:
    """What one connection counts for."""

    limits: ConnectionLimits
    address: str | None
    visit_id: str | None = None
    tenant_id: str | None = None

    def identify(self, visit: Visit | None) -> None:
        self.limits.identify(self, visit)

    def leave(self) -> None:
        self.limits.leave(self)


def _is_over(count: int, bound: int) -> bool:
    return bound > 0 and count >= bound


def _network_of(address: str | None) -> str:
    """The address, of IPv6 the network that it is in."""
    try:
        parsed = ip_address((address or "").partition("%")[0])
    except ValueError:
        return ""
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    bits = 128 - IPV6_PREFIX_BITS
    return str(IPv6Address(int(parsed) >> bits << bits))
