"""Endpoints of users, of the platform's and of each tenant's."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, start
from mooring.api.request_context import Call
from mooring.api.route import Declared, route_in
from mooring.api.schemas.identity.tenancy import CreateUser, UserCreated, UserView, user_created, user_view
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import user as commands
from mooring.commands.kernel.lookup import found
from mooring.commands.kernel.work import Answered
from mooring.core.identity.user import UserChange
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.gateways.passwords import new_one_time_code
from mooring.storage.identity import user as users

HOMES = (Scope.PLATFORM, Scope.TENANT)


@route_in(HOMES, "GET", "/users", Declared("user", "list", "user.read", answer=Page[UserView]))
async def list_users(call: Call, query: PageQuery) -> Page[UserView]:
    """List users."""
    rows = await users.page(call.services.database, call.acting, start(query, "user"), query.limit + 1)
    return page(rows, query, "user", lambda row: user_view(call.caller.authority, row))


@route_in(
    HOMES,
    "POST",
    "/users",
    Declared("user", "create", "user.create", 201, UserCreated, one_time_secret=True, errors=(Code.NAME_TAKEN,)),
)
async def create_user(call: Call, body: CreateUser) -> Answered:
    """Make a user with a one-time sign-in.

    The code is told once. A membership gives the user something to do.
    """
    code = new_one_time_code()
    work = call.work(partial(user_created, call.caller.authority, code=code))
    return await commands.create(work, (body.email, body.display_name), code)


@route_in(HOMES, "GET", "/users/{user_id}", Declared("user", "get", "user.read", answer=UserView))
async def get_user(call: Call, user_id: str, query: WaitQuery) -> UserView:
    """Read a user."""

    async def read() -> UserView:
        row = found(await users.find(call.services.database, call.acting, user_id), "user")
        return user_view(call.caller.authority, row)

    return await waited(call, query, user_id, read)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/disable",
    Declared("user", "disable", "user.update", answer=UserView, errors=(Code.LAST_ADMIN,)),
)
async def disable_user(call: Call, user_id: str) -> Answered:
    """Disable a user: its tokens count no more, until it is enabled again."""
    work = call.work(partial(user_view, call.caller.authority))
    return await commands.change(work, user_id, UserChange.DISABLE)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/enable",
    Declared("user", "enable", "user.update", answer=UserView, errors=(Code.LAST_ADMIN,)),
)
async def enable_user(call: Call, user_id: str) -> Answered:
    """Enable a user again."""
    work = call.work(partial(user_view, call.caller.authority))
    return await commands.change(work, user_id, UserChange.ENABLE)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/reset",
    Declared(
        "user",
        "reset",
        "user.update",
        answer=UserCreated,
        one_time_secret=True,
        errors=(Code.GRANT_EXCEEDS_CEILING,),
    ),
)
async def reset_user(call: Call, user_id: str) -> Answered:
    """Replace a user's password, and every token, by a new one-time sign-in, which is told once."""
    code = new_one_time_code()
    work = call.work(partial(user_created, call.caller.authority, code=code))
    return await commands.change(work, user_id, UserChange.RESET, code)
