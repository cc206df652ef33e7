"""Endpoints for users, on the platform and in tenants."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.identity.tenancy import CreateUser, UserCreated, UserView, user_created, user_view
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import user as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.user import UserChange, UserSpec
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.gateways.passwords import new_one_time_code
from mooring.storage.identity import user as users

HOMES = (Scope.PLATFORM, Scope.TENANT)


@route_in(HOMES, "GET", "/users", RouteSpec("user", "list", "user.read", answer=Page[UserView]))
async def list_users(request: RequestContext, query: PageQuery) -> Page[UserView]:
    """List users."""
    rows = await users.page(request.services.database, request.acting, page_window(query, "user"))
    return page(rows, query, "user", lambda row: user_view(request.caller.authority, row))


@route_in(
    HOMES,
    "POST",
    "/users",
    RouteSpec("user", "create", "user.create", 201, UserCreated, one_time_secret=True, errors=(Code.NAME_TAKEN,)),
)
async def create_user(request: RequestContext, body: CreateUser) -> Answered:
    """Create a user with a one-time sign-in code.

    The code is shown only once. The user can do nothing before a membership gives them a role.
    """
    code = new_one_time_code()
    work = request.work(partial(user_created, request.caller.authority, code=code))
    return await commands.create(work, UserSpec(body.email, body.display_name), code)


@route_in(HOMES, "GET", "/users/{user_id}", RouteSpec("user", "get", "user.read", answer=UserView))
async def get_user(request: RequestContext, user_id: str, query: WaitQuery) -> UserView:
    """Read a user."""

    async def read() -> UserView:
        row = require(await users.find(request.services.database, request.acting, user_id), "user")
        return user_view(request.caller.authority, row)

    return await waited(request, query, user_id, read)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/disable",
    RouteSpec("user", "disable", "user.update", answer=UserView, errors=(Code.LAST_ADMIN,)),
)
async def disable_user(request: RequestContext, user_id: str) -> Answered:
    """Disable a user; their tokens are refused until they are enabled again."""
    work = request.work(partial(user_view, request.caller.authority))
    return await commands.change(work, user_id, UserChange.DISABLE)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/enable",
    RouteSpec("user", "enable", "user.update", answer=UserView, errors=(Code.LAST_ADMIN,)),
)
async def enable_user(request: RequestContext, user_id: str) -> Answered:
    """Enable a user again."""
    work = request.work(partial(user_view, request.caller.authority))
    return await commands.change(work, user_id, UserChange.ENABLE)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/reset",
    RouteSpec(
        "user",
        "reset",
        "user.update",
        answer=UserCreated,
        one_time_secret=True,
        errors=(Code.GRANT_EXCEEDS_CEILING,),
    ),
)
async def reset_user(request: RequestContext, user_id: str) -> Answered:
    """Replace a user's password and all their tokens by a new one-time sign-in code, which is shown only once."""
    code = new_one_time_code()
    work = request.work(partial(user_created, request.caller.authority, code=code))
    return await commands.change(work, user_id, UserChange.RESET, code)
