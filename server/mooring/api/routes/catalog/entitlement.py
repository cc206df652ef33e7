"""Endpoints for entitlements: which apps a project may launch, and on which terms. Only people may change them.

The tenant and the operator of the platform agree on what a project may launch, so an admin of either may switch it on
and off; the tenant's audit trail says who did.
"""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.catalog.entitlement import (
    CreateEntitlement,
    EntitlementView,
    SwitchEntitlement,
    UpdateEntitlement,
    entitlement_view,
    request_of,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.catalog import entitlement as commands
from mooring.commands.catalog.entitlement import EntitlementWithNeeds
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.workload_adapter import OperatedBy
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import entitlement as entitlements
from mooring.storage.catalog.workload_adapter import operated_by

PLACES = (Scope.PROJECT,)
PATH = "/entitlements"
ONE = PATH + "/{entitlement_id}"


def _showing(request: RequestContext) -> Work[EntitlementWithNeeds]:
    return request.work(
        lambda made: entitlement_view(
            request.caller.authority, made.entitlement, made.required_actions, made.operated_by
        )
    )


@route_in(
    PLACES,
    "GET",
    PATH,
    RouteSpec("entitlement", "list", "entitlement.read", answer=Page[EntitlementView], platform_too=True),
)
async def list_entitlements(request: RequestContext, query: PageQuery) -> Page[EntitlementView]:
    """List the entitlements of a project; its catalog shows what it may actually launch."""
    database, project_id = request.services.database, str(request.place.project_id)
    rows = await entitlements.page(database, request.acting, project_id, page_window(query, "entitlement"))
    required = await entitlements.required_actions(database, request.acting, [each.app_id for each in rows])
    operated = await operated_by(database, [each.service_account_id or "" for each in rows])
    return page(
        rows,
        query,
        "entitlement",
        lambda row: entitlement_view(
            request.caller.authority,
            row,
            required.get(row.app_id, []),
            operated.get(row.service_account_id or "", OperatedBy.NOBODY),
        ),
    )


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "entitlement",
        "create",
        "entitlement.update",
        201,
        EntitlementView,
        platform_too=True,
        errors=(Code.GRANT_EXCEEDS_CEILING, Code.NAME_TAKEN),
    ),
)
async def create_entitlement(request: RequestContext, body: CreateEntitlement) -> Answered:
    """Entitle a project to an app, or state that it is not entitled.

    The answer shows the actions that the newest offered version requires for its operator account, and which of them
    nobody has agreed to. A version that requires more than was agreed cannot be launched.
    """
    return await commands.create(_showing(request), str(request.place.project_id), body.app_id, request_of(body))


@route_in(
    PLACES, "GET", ONE, RouteSpec("entitlement", "get", "entitlement.read", answer=EntitlementView, platform_too=True)
)
async def get_entitlement(request: RequestContext, entitlement_id: str, query: WaitQuery) -> EntitlementView:
    """Read an entitlement."""
    database, project_id = request.services.database, str(request.place.project_id)

    async def read() -> EntitlementView:
        row = require(await entitlements.find(database, request.acting, project_id, entitlement_id), "entitlement")
        required = await entitlements.required_actions(database, request.acting, [row.app_id])
        account_id = row.service_account_id or ""
        operated = (await operated_by(database, [account_id])).get(account_id, OperatedBy.NOBODY)
        return entitlement_view(request.caller.authority, row, required.get(row.app_id, []), operated)

    return await waited(request, query, entitlement_id, read)


@route_in(
    PLACES,
    "PUT",
    ONE,
    RouteSpec(
        "entitlement",
        "update",
        "entitlement.update",
        answer=EntitlementView,
        platform_too=True,
        errors=(Code.GRANT_EXCEEDS_CEILING, Code.REVISION_CONFLICT),
    ),
)
async def update_entitlement(request: RequestContext, entitlement_id: str, body: UpdateEntitlement) -> Answered:
    """Replace an entitlement's terms: on or off, versions, rules, and the agreed actions."""
    project_id = str(request.place.project_id)
    return await commands.update(_showing(request), project_id, entitlement_id, request_of(body), body.revision)


@route_in(
    PLACES,
    "POST",
    ONE + "/enable",
    RouteSpec("entitlement", "enable", "entitlement.update", answer=EntitlementView, platform_too=True),
)
async def enable_entitlement(request: RequestContext, entitlement_id: str, body: SwitchEntitlement) -> Answered:
    """Switch an entitlement on without changing its terms."""
    return await commands.switch(_showing(request), str(request.place.project_id), entitlement_id, True, body.reason)


@route_in(
    PLACES,
    "POST",
    ONE + "/disable",
    RouteSpec("entitlement", "disable", "entitlement.update", answer=EntitlementView, platform_too=True),
)
async def disable_entitlement(request: RequestContext, entitlement_id: str, body: SwitchEntitlement) -> Answered:
    """Switch an entitlement off; its terms stay, running instances continue, new ones are refused."""
    return await commands.switch(_showing(request), str(request.place.project_id), entitlement_id, False, body.reason)


@route_in(PLACES, "DELETE", ONE, RouteSpec("entitlement", "delete", "entitlement.update", 204, platform_too=True))
async def delete_entitlement(request: RequestContext, entitlement_id: str) -> Answered:
    """Delete an entitlement; running instances continue, new ones are refused."""
    return await commands.delete(request.work(lambda _: None), str(request.place.project_id), entitlement_id)
