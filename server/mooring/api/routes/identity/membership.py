"""Endpoints for memberships on the platform, in tenants and in projects."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.identity.tenancy import CreateMembership, MembershipView, membership_view
from mooring.commands.identity import membership as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import membership as memberships

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)


@route_in(
    PLACES,
    "GET",
    "/memberships",
    RouteSpec("membership", "list", "membership.read", answer=Page[MembershipView]),
)
async def list_memberships(request: RequestContext, query: PageQuery) -> Page[MembershipView]:
    """List who has which role in exactly this place, without the places above and below."""
    window = page_window(query, "membership")
    rows = await memberships.page(request.services.database, request.acting, request.place.project_id, window)
    return page(rows, query, "membership", lambda row: membership_view(request.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    "/memberships",
    RouteSpec(
        "membership",
        "create",
        "membership.create",
        201,
        MembershipView,
        errors=(Code.NAME_TAKEN, Code.GRANT_EXCEEDS_CEILING),
    ),
)
async def create_membership(request: RequestContext, body: CreateMembership) -> Answered:
    """Give a user a role in this place; nobody can grant more than they hold themselves."""
    work = request.work(partial(membership_view, request.caller.authority))
    return await commands.create(work, commands.home(work, request.place), body.user_id, body.role)


@route_in(
    PLACES,
    "GET",
    "/memberships/{membership_id}",
    RouteSpec("membership", "get", "membership.read", answer=MembershipView),
)
async def get_membership(request: RequestContext, membership_id: str) -> MembershipView:
    """Read a membership."""
    row = await memberships.find(request.services.database, request.acting, request.place.project_id, membership_id)
    return membership_view(request.caller.authority, require(row, "membership"))


@route_in(
    PLACES,
    "DELETE",
    "/memberships/{membership_id}",
    RouteSpec("membership", "delete", "membership.delete", 204, errors=(Code.LAST_ADMIN, Code.GRANT_EXCEEDS_CEILING)),
)
async def delete_membership(request: RequestContext, membership_id: str) -> Answered:
    """Take a role away; the last admin of a place cannot be removed."""
    return await commands.delete(request.work(lambda _: None), request.place, membership_id)
