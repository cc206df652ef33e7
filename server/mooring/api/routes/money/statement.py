"""Endpoints for statements: tenants read them, and a platform admin closes a month by hand."""

from functools import partial

from mooring.api.page import AFTER_ALL, Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.money.statement import (
    BreakdownQuery,
    StatementGroupView,
    StatementLineView,
    StatementQuery,
    StatementView,
    group_view,
    line_view,
    statement_view,
)
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.commands.money import statement as commands
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.core.money.statement import Statement, StatementKey
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money import statement as statements
from mooring.storage.money import statement_line as lines

ALL = "/tenants/{tenant_id}/statements"
ONE = ALL + "/{statement_id}"


@route("GET", ALL, Scope.TENANT, RouteSpec("statement", "list", "billing.read", answer=Page[StatementView]))
async def list_statements(request: RequestContext, query: StatementQuery) -> Page[StatementView]:
    """List the tenant's statements, the newest first; those that are not closed are previews."""
    return await _listed(request, query, request.place.tenant_id)


@route(
    "GET",
    "/platform/statements",
    Scope.PLATFORM,
    RouteSpec("statement", "list", "billing.statement.close", answer=Page[StatementView]),
)
async def list_platform_statements(request: RequestContext, query: StatementQuery) -> Page[StatementView]:
    """List the statements of all tenants, the newest first: months and totals, without lines."""
    return await _listed(request, query, None)


@route("GET", ONE, Scope.TENANT, RouteSpec("statement", "get", "billing.read", answer=StatementView))
async def get_statement(request: RequestContext, statement_id: str) -> StatementView:
    """Read a statement: its total, and when it is closed the digest over its lines and the chain."""
    row = await _find(request, statement_id)
    owed = await statements.owed(request.services.database, request.acting, [row])
    return _view(request, owed, row)


@route(
    "GET",
    ONE + "/lines",
    Scope.TENANT,
    RouteSpec("statement_line", "list", "billing.read", answer=Page[StatementLineView]),
)
async def list_statement_lines(request: RequestContext, statement_id: str, query: PageQuery) -> Page[StatementLineView]:
    """List the lines of a statement; covered usage costs nothing, and shows what it would have cost."""
    row = await _find(request, statement_id)
    window = page_window(query, "statement_line")
    found = await lines.page(request.services.database, request.acting, row, window)
    return page(found, query, "statement_line", line_view)


@route(
    "GET",
    ONE + "/breakdown",
    Scope.TENANT,
    RouteSpec("statement_group", "list", "billing.read", answer=Page[StatementGroupView]),
)
async def list_statement_groups(
    request: RequestContext, statement_id: str, query: BreakdownQuery
) -> Page[StatementGroupView]:
    """Break a statement down by project, app, instance, member, SKU or unit."""
    row = await _find(request, statement_id)
    name = f"statement_group.{query.group_by}"
    window = page_window(query, name)
    found = await lines.breakdown(request.services.database, request.acting, row, query.group_by, window)
    return page(found, query, name, partial(group_view, row.currency))


@route(
    "POST",
    ONE + "/close",
    Scope.TENANT,
    RouteSpec(
        "statement",
        "close",
        "billing.statement.close",
        answer=StatementView,
        platform_too=True,
        errors=(Code.CONFLICT, Code.ILLEGAL_TRANSITION),
    ),
)
async def close_statement(request: RequestContext, statement_id: str) -> Answered:
    """Close a month whose last hour is charged, without the wait of a day.

    From now on nothing counts in the month any more. A worker computes the totals and the digest; the statement is
    closed some seconds later.
    """
    tenant_id = str(request.place.tenant_id)
    row = await _find(request, statement_id)
    owed = await statements.owed(request.services.database, PLATFORM, [row])
    work = request.work(partial(_view, request, owed), acting=PLATFORM)
    return await commands.close_statement(work, tenant_id, statement_id)


async def _listed(request: RequestContext, query: StatementQuery, tenant_id: str | None) -> Page[StatementView]:
    database, window = request.services.database, page_window(query, "statement", AFTER_ALL)
    status = None if query.status is None else query.status.value
    rows = await statements.page(database, request.acting, tenant_id, window, status)
    owed = await statements.owed(database, request.acting, rows)
    return page(rows, query, "statement", partial(_view, request, owed))


async def _find(request: RequestContext, statement_id: str) -> Statement:
    tenant_id = str(request.place.tenant_id)
    return require(
        await statements.find(request.services.database, request.acting, tenant_id, statement_id), "statement"
    )


def _view(request: RequestContext, owed: dict[StatementKey, int], row: Statement) -> StatementView:
    key = StatementKey(row.tenant_id, row.currency, row.period)
    return statement_view(request.caller.authority, request.place, owed.get(key, 0), row)
