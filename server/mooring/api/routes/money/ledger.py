"""Endpoints for the ledger: what was booked for a tenant or a project, and the balances."""

from mooring.api.page import AFTER_ALL, Page, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.money.ledger import (
    LedgerBalanceView,
    LedgerQuery,
    LedgerTransactionView,
    balance_view,
    transaction_view,
)
from mooring.core.kernel.permissions import Scope
from mooring.storage.money import ledger as ledgers

HERE = (Scope.TENANT, Scope.PROJECT)
PATH = "/ledger"


@route_in(
    HERE, "GET", PATH, RouteSpec("ledger_transaction", "list", "billing.read", answer=Page[LedgerTransactionView])
)
async def list_ledger_transactions(request: RequestContext, query: LedgerQuery) -> Page[LedgerTransactionView]:
    """List what was booked, with its entries, the newest first."""
    wanted = ledgers.LedgerFilter(
        request.acting.tenant_id or "", request.place.project_id, query.kind, query.since, query.until
    )
    window = page_window(query, "ledger_transaction", AFTER_ALL)
    rows = await ledgers.page(request.services.database, request.acting, wanted, window)
    return page(rows, query, "ledger_transaction", transaction_view)


@route_in(
    HERE,
    "GET",
    PATH + "/balances",
    RouteSpec("ledger_balance", "list", "billing.read", answer=Page[LedgerBalanceView]),
)
async def list_ledger_balances(request: RequestContext) -> Page[LedgerBalanceView]:
    """List the balance of each account in each currency, as the sum of its entries."""
    tenant_id = request.acting.tenant_id or ""
    rows = await ledgers.balances(request.services.database, request.acting, tenant_id, request.place.project_id)
    return Page(items=[balance_view(each) for each in rows])
