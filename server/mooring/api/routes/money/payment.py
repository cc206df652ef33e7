"""Endpoints for payments and credits of tenants."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.money.payment import CreatePayment, PaymentView, payment_spec, payment_view
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money import payment as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.money.payment import Payment
from mooring.storage.kernel.database import Acting
from mooring.storage.money import payment as payments


@route(
    "GET",
    "/tenants/{tenant_id}/payments",
    Scope.TENANT,
    RouteSpec("payment", "list", "billing.budget.read", answer=Page[PaymentView], platform_too=True),
)
async def list_payments(request: RequestContext, query: PageQuery) -> Page[PaymentView]:
    """List the payments and credits of a tenant."""
    window = page_window(query, "payment")
    rows = await payments.page(request.services.database, request.acting, str(request.place.tenant_id), window)
    return page(rows, query, "payment", payment_view)


@route(
    "POST",
    "/tenants/{tenant_id}/payments",
    Scope.PLATFORM,
    RouteSpec(
        "payment",
        "create",
        "billing.payment.create",
        201,
        PaymentView,
        errors=(Code.NAME_TAKEN, Code.NOT_FOUND),
    ),
)
async def create_payment(request: RequestContext, body: CreatePayment) -> Answered:
    """Book a payment or a credit of a tenant into the ledger; a negative amount is a refund."""
    work: Work[Payment] = request.work(payment_view, acting=Acting(request.caller.tenant_id))
    return await commands.create(work, str(request.place.tenant_id), payment_spec(body))
