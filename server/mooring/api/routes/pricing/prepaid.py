"""Endpoints for tenants that pay in advance."""

from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.pricing.prepaid import BalanceView, PrepaidView, PutPrepaid, balance_view, prepaid_view
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.pricing import prepaid as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.pricing.prepaid import PrepaidAccount, PrepaidSpec
from mooring.storage.identity import tenant as tenants
from mooring.storage.kernel.database import Acting


@route(
    "GET",
    "/tenants/{tenant_id}/balance",
    Scope.TENANT,
    RouteSpec("balance", "get", "billing.budget.read", answer=BalanceView, platform_too=True),
)
async def get_balance(request: RequestContext) -> BalanceView:
    """Read what a tenant that pays in advance has left: paid, charged, estimated and reserved."""
    tenant_id = str(request.place.tenant_id)
    require(await tenants.find(request.services.database, request.acting, tenant_id), "tenant")
    return balance_view(await commands.standing(request.services, request.acting, tenant_id))


@route(
    "PUT",
    "/tenants/{tenant_id}/balance",
    Scope.PLATFORM,
    RouteSpec(
        "balance",
        "prepay",
        "billing.payment.create",
        answer=PrepaidView,
        errors=(Code.REVISION_CONFLICT, Code.NOT_FOUND),
    ),
)
async def update_prepaid(request: RequestContext, body: PutPrepaid) -> Answered:
    """Let a tenant pay in advance.

    Its launches then reserve their price, and when its balance is used up its instances are stopped and its
    allocations released. Book a payment first: the balance must be positive.
    """
    work: Work[PrepaidAccount] = request.work(prepaid_view, acting=Acting(request.caller.tenant_id))
    spec = PrepaidSpec(body.currency, body.low_minor, body.reason)
    return await commands.put(work, str(request.place.tenant_id), spec, body.revision)
