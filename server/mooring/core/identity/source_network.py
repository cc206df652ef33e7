"""The networks from which a tenant's users and service accounts may call the platform.

An empty list means from everywhere. Nodes and platform staff are not affected, not even inside a break-glass entry: so
somebody can always help a tenant that has locked itself out.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final

from mooring.core.identity.tenant import Tenant, require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.address import plain
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType

NETWORKS_MAX: Final = 100
ACTION: Final = "source_network.update"


@lru_cache(maxsize=20_000)
def is_allowed(networks: tuple[str, ...], address: str | None) -> bool:
    """Whether a caller with this address may call; one whose address is unknown may not. Every request asks this."""
    try:
        actual = plain(ip_address((address or "").partition("%")[0]))
    except ValueError:
        return False
    return any(actual in ip_network(network) for network in networks)


def not_allowed(address: str | None) -> Refusal:
    return Refusal(
        Code.CALLER_ADDRESS_DENIED,
        "the tenant does not allow requests from this address",
        {"address": address},
    )


def read_networks(texts: Iterable[str]) -> tuple[str, ...]:
    """The networks in their one canonical form, sorted and without repetitions."""
    networks = set()
    for index, text in enumerate(texts):
        try:
            networks.add(str(ip_network(text.strip())))
        except ValueError as error:
            raise validation.invalid(f"networks[{index}]", f"a network such as 192.0.2.0/24 ({error})") from error
    if len(networks) > NETWORKS_MAX:
        raise validation.invalid("networks", f"at most {NETWORKS_MAX} networks")
    return tuple(sorted(networks))


def limit_sources(
    context: DecisionContext,
    tenant: Tenant,
    networks: tuple[str, ...],
    revision_seen: int | None,
    *,
    caller_address: str | None,
    forced: bool,
) -> Decision[Tenant]:
    """Replace the list. Unless forced, it must include the caller's address: nobody locks themselves out by mistake."""
    require_revision(tenant.revision, revision_seen)
    if networks and not forced and not is_allowed(networks, caller_address):
        raise Refusal(
            Code.WOULD_LOCK_OUT,
            f"your own address {caller_address} is in none of these networks, so you would lock yourself out",
            {"address": caller_address},
        )
    if networks == tenant.source_networks:
        return Decision(result=tenant)
    data = {"source_networks": list(networks)}
    return Decision(
        result=replace(tenant, source_networks=networks, revision=tenant.revision + 1),
        writes=(Update("tenant", tenant.id, tenant.revision, data),),
        events=(EventRecord(EventType.TENANT_UPDATED, "tenant", tenant.id, tenant.id, data=data),),
        audits=(
            AuditRecord(
                ACTION,
                "tenant",
                tenant.id,
                tenant.id,
                before={"source_networks": list(tenant.source_networks)},
                after=data | {"forced": forced},
            ),
        ),
    )
