"""Endpoints of entitlements: which apps a project may launch, and on which terms. Only people change them.

They are the platform's business too: what a project may launch is agreed between its tenant and whoever runs the
platform, so an admin of either switches it on and off, and the tenant's audit trail says who did.
"""

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.schemas.catalog.entitlement import (
    CreateEntitlement,
    EntitlementView,
    SwitchEntitlement,
    UpdateEntitlement,
    entitlement_view,
    wish_of,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.catalog import entitlement as commands
from mooring.commands.catalog.entitlement import Agreed
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered, Work
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.catalog import entitlement as entitlements

PLACES = (Scope.PROJECT,)
PATH = "/entitlements"
ONE = PATH + "/{entitlement_id}"


def _showing(call: Call) -> Work[Agreed]:
    return call.work(lambda made: entitlement_view(call.caller.authority, made.entitlement, made.required_actions))


@route_in(
    PLACES,
    "GET",
    PATH,
    Declared("entitlement", "list", "entitlement.read", answer=Page[EntitlementView], platform_too=True),
)
async def list_entitlements(call: Call, query: PageQuery) -> Page[EntitlementView]:
    """List what a project was entitled to; what it may launch in the end is in its catalog."""
    database, project_id = call.services.database, str(call.place.project_id)
    rows = await entitlements.page(database, call.acting, project_id, start(query, "entitlement"), query.limit + 1)
    required = await entitlements.required_actions(database, call.acting, [each.app_id for each in rows])
    return page(
        rows,
        query,
        "entitlement",
        lambda row: entitlement_view(call.caller.authority, row, required.get(row.app_id, [])),
    )


@route_in(
    PLACES,
    "POST",
    PATH,
    Declared(
        "entitlement", "create", "entitlement.update", 201, EntitlementView, platform_too=True,
        errors=(Code.GRANT_EXCEEDS_CEILING, Code.NAME_TAKEN),
    ),
)  # fmt: skip
async def create_entitlement(call: Call, body: CreateEntitlement) -> Answered:
    """Entitle a project to an app, or say that it is not.

    The answer shows what the newest offered version requires for its operator account and what of it nobody agreed
    to: a version that requires more than was agreed to is not launched.
    """
    return await commands.create(_showing(call), str(call.place.project_id), body.app_id, wish_of(body))


@route_in(
    PLACES, "GET", ONE, Declared("entitlement", "get", "entitlement.read", answer=EntitlementView, platform_too=True)
)
async def get_entitlement(call: Call, entitlement_id: str, query: WaitQuery) -> EntitlementView:
    """Read an entitlement."""
    database, project_id = call.services.database, str(call.place.project_id)

    async def read() -> EntitlementView:
        row = found(await entitlements.find(database, call.acting, project_id, entitlement_id), "entitlement")
        required = await entitlements.required_actions(database, call.acting, [row.app_id])
        return entitlement_view(call.caller.authority, row, required.get(row.app_id, []))

    return await waited(call, query, entitlement_id, read)


@route_in(
    PLACES,
    "PUT",
    ONE,
    Declared(
        "entitlement", "update", "entitlement.update", answer=EntitlementView, platform_too=True,
        errors=(Code.GRANT_EXCEEDS_CEILING, Code.REVISION_CONFLICT),
    ),
)  # fmt: skip
async def update_entitlement(call: Call, entitlement_id: str, body: UpdateEntitlement) -> Answered:
    """State an entitlement's terms anew: on, off, versions, rules, and the actions that are agreed to."""
    project_id = str(call.place.project_id)
    return await commands.update(_showing(call), project_id, entitlement_id, wish_of(body), body.revision)


@route_in(
    PLACES,
    "POST",
    ONE + "/enable",
    Declared("entitlement", "enable", "entitlement.update", answer=EntitlementView, platform_too=True),
)
async def enable_entitlement(call: Call, entitlement_id: str, body: SwitchEntitlement) -> Answered:
    """Switch an entitlement on, on the terms that it has."""
    return await commands.switch(_showing(call), str(call.place.project_id), entitlement_id, True, body.reason)


@route_in(
    PLACES,
    "POST",
    ONE + "/disable",
    Declared("entitlement", "disable", "entitlement.update", answer=EntitlementView, platform_too=True),
)
async def disable_entitlement(call: Call, entitlement_id: str, body: SwitchEntitlement) -> Answered:
    """Switch an entitlement off; its terms stay, what runs goes on, new instances are refused."""
    return await commands.switch(_showing(call), str(call.place.project_id), entitlement_id, False, body.reason)


@route_in(PLACES, "DELETE", ONE, Declared("entitlement", "delete", "entitlement.update", 204, platform_too=True))
async def delete_entitlement(call: Call, entitlement_id: str) -> Answered:
    """Take an entitlement away; what runs goes on, new instances are refused."""
    return await commands.delete(call.work(lambda _: None), str(call.place.project_id), entitlement_id)
