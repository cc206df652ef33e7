"""Refuses requests of a tenant's users and service accounts from addresses that the tenant does not allow.

The caller's networks are cached with the caller, so that tenants without a list pay for one comparison.
"""

from mooring.api.guess_limits import GuessKind, GuessLimits
from mooring.commands.services import Services
from mooring.core.identity.caller import Caller
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.kernel.decision import AuditRecord, DecisionContext
from mooring.core.kernel.permissions import AccessDecision
from mooring.storage.identity import tenant as tenants
from mooring.storage.kernel.unit_of_work import Origin

REASON = "the address is outside of the tenant's source networks"


async def require_source(
    services: Services, guesses: GuessLimits, caller: Caller, context: DecisionContext, *, action: str, origin: Origin
) -> None:
    """Refuse the request of a caller with networks from an address in none of them; the tenant sees it."""
    if is_allowed(caller.source_networks, origin.remote_address):
        return
    audited = AuditRecord(action, caller.actor.kind.value, caller.actor.id, caller.tenant_id, reason=REASON)
    guesses.wrong(GuessKind.SOURCE, origin.remote_address, caller.actor.id)  # too many: no audit row
    await services.denials.record(services.database, context, audited, AccessDecision.DENIED.value, origin)
    raise not_allowed(origin.remote_address)


async def require_source_of_sign_in(
    services: Services, guesses: GuessLimits, context: DecisionContext, tenant_slug: str, *, origin: Origin
) -> None:
    """Refuse a sign-in at a tenant from an address that it does not allow, as any user."""
    tenant = await tenants.by_slug(services.database, tenant_slug)
    if tenant is None or not tenant.source_networks or is_allowed(tenant.source_networks, origin.remote_address):
        return
    guesses.wrong(GuessKind.SOURCE, origin.remote_address, tenant.id)
    audited = AuditRecord("sign_in", "user", None, tenant.id, reason=REASON)
    await services.denials.record(services.database, context, audited, AccessDecision.DENIED.value, origin)
    raise not_allowed(origin.remote_address)
