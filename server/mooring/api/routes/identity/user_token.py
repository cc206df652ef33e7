"""Endpoints by which admins see and end the sessions and personal tokens of users."""

from functools import partial
from typing import Annotated

from msgspec import Meta

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.identity.access import UserTokenView, user_token_view
from mooring.api.schemas.identity.tenancy import UserView, user_view
from mooring.api.schemas.kernel.fields import UserId
from mooring.commands.identity import token as commands
from mooring.commands.identity import user as user_commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.user import UserChange
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import token as tokens

HOMES = (Scope.PLATFORM, Scope.TENANT)


class UserTokenQuery(PageQuery):
    """Whose tokens to list."""

    user_id: Annotated[UserId, Meta(description="Only the tokens of this user.")] | None = None


@route_in(HOMES, "GET", "/user-tokens", RouteSpec("user_token", "list", "user_token.read", answer=Page[UserTokenView]))
async def list_user_tokens(request: RequestContext, query: UserTokenQuery) -> Page[UserTokenView]:
    """List the sessions and personal tokens of users that are valid now, never their secrets."""
    rows = await tokens.list_of_users(
        request.services.database,
        request.acting,
        request.context.now,
        page_window(query, "user_token"),
        user_id=query.user_id,
    )
    return page(rows, query, "user_token", partial(user_token_view, used=request.caller.actor.token_id))


@route_in(
    HOMES,
    "GET",
    "/user-tokens/{user_token_id}",
    RouteSpec("user_token", "get", "user_token.read", answer=UserTokenView),
)
async def get_user_token(request: RequestContext, user_token_id: str) -> UserTokenView:
    """Read a session or a personal token of a user, never its secret."""
    row = await tokens.find_of_users(request.services.database, request.acting, user_token_id)
    return user_token_view(require(row, "token"), request.caller.actor.token_id)


@route_in(
    HOMES,
    "DELETE",
    "/user-tokens/{user_token_id}",
    RouteSpec("user_token", "revoke", "user_token.revoke", answer=UserTokenView),
)
async def revoke_user_token(request: RequestContext, user_token_id: str) -> Answered:
    """End a session of a user, or revoke one of their personal tokens, and close its open streams."""
    return await commands.revoke_of_user(request.work(user_token_view), user_token_id)


@route_in(
    HOMES,
    "POST",
    "/users/{user_id}/sign-out",
    RouteSpec("user", "sign_out", "user_token.revoke", answer=UserView),
)
async def sign_user_out(request: RequestContext, user_id: str) -> Answered:
    """End every session of a user and revoke all their personal tokens; their password stays."""
    work = request.work(partial(user_view, request.caller.authority))
    return await user_commands.change(work, user_id, UserChange.SIGN_OUT)
