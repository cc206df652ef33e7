"""Endpoints of memberships, in each kind of place."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.schemas.identity.tenancy import CreateMembership, MembershipView, membership_view
from mooring.commands.identity import membership as commands
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import membership as memberships

PLACES = (Scope.PLATFORM, Scope.TENANT, Scope.PROJECT)


@route_in(
    PLACES,
    "GET",
    "/memberships",
    Declared("membership", "list", "membership.read", answer=Page[MembershipView]),
)
async def list_memberships(call: Call, query: PageQuery) -> Page[MembershipView]:
    """List who has which role in exactly this place."""
    after = start(query, "membership")
    rows = await memberships.page(call.services.database, call.acting, call.place.project_id, after, query.limit + 1)
    return page(rows, query, "membership", lambda row: membership_view(call.caller.authority, row))


@route_in(
    PLACES,
    "POST",
    "/memberships",
    Declared(
        "membership", "create", "membership.create", 201, MembershipView,
        errors=(Code.NAME_TAKEN, Code.GRANT_EXCEEDS_CEILING),
    ),
)  # fmt: skip
async def create_membership(call: Call, body: CreateMembership) -> Answered:
    """Give a user a role here; nobody gives more than he holds himself."""
    work = call.work(partial(membership_view, call.caller.authority))
    return await commands.create(work, commands.home(work, call.place), body.user_id, body.role)


@route_in(
    PLACES,
    "GET",
    "/memberships/{membership_id}",
    Declared("membership", "get", "membership.read", answer=MembershipView),
)
async def get_membership(call: Call, membership_id: str) -> MembershipView:
    """Read a membership."""
    row = await memberships.find(call.services.database, call.acting, call.place.project_id, membership_id)
    return membership_view(call.caller.authority, found(row, "membership"))


@route_in(
    PLACES,
    "DELETE",
    "/memberships/{membership_id}",
    Declared("membership", "delete", "membership.delete", 204, errors=(Code.LAST_ADMIN, Code.GRANT_EXCEEDS_CEILING)),
)
async def delete_membership(call: Call, membership_id: str) -> Answered:
    """Take a role away; no place loses its last admin."""
    return await commands.delete(call.work(lambda _: None), call.place, membership_id)
