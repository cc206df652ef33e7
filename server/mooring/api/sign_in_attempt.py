"""How an attempt to sign in is counted, before its credentials are looked at."""

from collections.abc import Callable
from functools import partial

from mooring.api.auth import bearer
from mooring.api.guess_limits import GuessKind
from mooring.api.request_context import RequestContext
from mooring.commands.identity.sign_in import is_from_known_address, is_session_of
from mooring.core.kernel.errors import Code, Refusal

Count = Callable[[], None]


async def begin_sign_in(
    request: RequestContext, tenant_slug: str | None, email: str, *, has_password: bool
) -> tuple[Count, Count]:
    """Two functions: one counts a wrong credential, the other undoes what was counted in advance.

    A password is counted in advance, so that parallel attempts all count. One that the limits refuse passes if it comes
    from an address from which its user signed in before, or with a valid token of its user: a stranger who guesses at
    an account must not lock its owner out.
    """
    guesses, address = request.tools.guesses, request.origin.remote_address
    account = f"{tenant_slug or ''} {email.strip().lower()}"
    if not has_password:
        return partial(guesses.wrong, GuessKind.SIGN_IN, address, account), _nothing
    try:
        return _nothing, guesses.begin_password(address, account, address_known=False)
    except Refusal as refusal:
        holder_id = await _holder_of_token(request)
        if holder_id is not None and await is_session_of(request.services, tenant_slug, email, holder_id):
            return _nothing, guesses.begin(GuessKind.SIGN_IN, holder_id)
        if not await is_from_known_address(request.services, tenant_slug, email, address):
            raise refusal from None
        return _nothing, guesses.begin_password(address, account, address_known=True)


async def _holder_of_token(request: RequestContext) -> str | None:
    """The user with the token that came along, if it is valid."""
    authorization = request.headers.get("authorization")
    try:
        token = bearer(authorization)
        return None if token is None else (await request.tools.authenticator.caller(token)).actor.id
    except Refusal as refusal:
        if refusal.code is Code.UNAUTHENTICATED:
            return None
        raise


def _nothing() -> None:
    """Nothing to count or to undo."""
