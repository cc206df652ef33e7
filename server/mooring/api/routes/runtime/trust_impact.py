"""The endpoint that says what would lose its trust without a signer key, before somebody removes it."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.runtime.trust_impact import SignerKeyImpactView, key_impact_view
from mooring.commands.kernel.lookup import require
from mooring.commands.runtime.instance_trust import key_impact
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import signer_key as signer_keys

PLACES = (Scope.PLATFORM, Scope.TENANT)


@route_in(
    PLACES,
    "GET",
    "/signer-keys/{signer_key_id}/impact",
    RouteSpec("signer_key", "impact", "signer_key.read", answer=SignerKeyImpactView),
)
async def get_signer_key_impact(request: RequestContext, signer_key_id: str) -> SignerKeyImpactView:
    """Read what would lose its trust without this key: the running instances, and what the policy would do to them.

    Tenants see the names of their own. The platform sees numbers only.
    """
    key = require(await signer_keys.find(request.services.database, request.acting, signer_key_id), "signer key")
    return key_impact_view(key, await key_impact(request.services, request.acting, key))
