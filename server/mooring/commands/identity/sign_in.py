"""Sign-in of a person, by password or one-time code.

A sign-in yields a short-lived token and is audited, and so is each refusal. A refusal does not say which part was
wrong, and takes just as long for a user who does not exist. Service accounts and nodes exchange a signed assertion
instead.
"""

import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace

from mooring.commands.identity.password import require_strong
from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.services import Services
from mooring.core.identity.token import FreshToken, Token, TokenKind, issue, session_token, token_maker
from mooring.core.identity.user import User, check_password_form, set_password
from mooring.core.kernel import validation
from mooring.core.kernel.decision import Actor, AuditRecord, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.passwords import digest, new_token
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import Origin, StaleWrite

ACTION = "sign_in"
EXPIRED = (
    "the one-time code has expired; an admin gives a new one with `mooring users reset`, or an operator with "
    "`recover-admin` on the server"
)


@dataclass(frozen=True, slots=True)
class SignInCredentials:
    """What a person presents: a password, or a one-time code together with a new password."""

    tenant_slug: str | None
    email: str
    password: str | None = None
    one_time_code: str | None = None
    new_password: str | None = None


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new token with its secret, which is shown only once, and its holder."""

    secret: str
    token: Token
    user: User


async def sign_in(
    services: Services,
    context: DecisionContext,
    offered: SignInCredentials,
    origin: Origin,
    *,
    guessed: Callable[[], None],
    user_agent: str | None = None,
    in_browser: bool = False,
) -> SignedIn:
    """Issue a session token if the credentials are valid; a Refusal otherwise.

    `guessed` is called before a refusal is recorded, and may refuse instead.
    """
    email = validation.email(offered.email)
    user = await users.find_for_sign_in(services.database, offered.tenant_slug, email)
    if not await _proven(services, user, offered) or user is None:
        guessed()
        await _refuse(services, context, user, origin)
        raise Refusal(Code.SIGN_IN_REFUSED, "the credentials do not match, or the user is disabled")
    if offered.one_time_code is not None:
        await _check_one_time(services, context, user, offered, origin, guessed=guessed)
    acting = replace(context, actor=Actor(PrincipalKind.USER, user.id))
    secret = new_token(TokenKind.SESSION)
    fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret), token_maker(origin.remote_address, user_agent))
    token = session_token(acting, fresh, user.id, user.tenant_id, in_browser=in_browser)
    decision = issue(token, fresh, action=ACTION)
    if offered.one_time_code is not None:
        hashed = await services.passwords.hash(str(offered.new_password))
        changed = set_password(acting, user, hashed)
        user, decision = changed.result, _both(changed, decision)
    try:
        await apply_and_notify(services, Acting(user.tenant_id), acting, decision, origin=origin)
    except StaleWrite as error:
        raise Refusal(Code.SIGN_IN_REFUSED, "the one-time code was used a moment ago") from error
    return SignedIn(secret, token, user)


async def is_from_known_address(
    services: Services, tenant_slug: str | None, email: str, remote_address: str | None
) -> bool:
    """Whether this user signed in from this address before. A user who does not exist takes just as long."""
    user = await users.find_for_sign_in(services.database, tenant_slug, validation.email(email))
    user_id = "" if user is None else user.id
    return remote_address is not None and await users.has_signed_in_from(services.database, user_id, remote_address)


async def is_session_of(services: Services, tenant_slug: str | None, email: str, user_id: str) -> bool:
    """Whether the user whom a sign-in names is the one with this id."""
    user = await users.find_for_sign_in(services.database, tenant_slug, validation.email(email))
    return user is not None and user.id == user_id


async def _check_one_time(
    services: Services,
    context: DecisionContext,
    user: User,
    offered: SignInCredentials,
    origin: Origin,
    *,
    guessed: Callable[[], None],
) -> None:
    """Check what only somebody with the right code learns: that it is still valid, and the new password strong."""
    if user.one_time_expires_at is None or user.one_time_expires_at <= context.now:
        guessed()
        await _refuse(services, context, user, origin)
        raise Refusal(Code.SIGN_IN_REFUSED, EXPIRED, {"reason": "one_time_code_expired"})
    try:
        await require_strong(services, str(offered.new_password), user.email, user.display_name)
    except Refusal:
        guessed()  # it costs time to estimate a password
        raise


async def _proven(services: Services, user: User | None, offered: SignInCredentials) -> bool:
    if (offered.password is None) == (offered.one_time_code is None):
        raise validation.invalid("password", "give either a password, or a one_time_code with a new_password")
    if offered.one_time_code is not None:
        check_password_form(offered.new_password or "", offered.email)
        fits = (
            user is not None
            and user.one_time_hash is not None
            and hmac.compare_digest(user.one_time_hash, digest(offered.one_time_code))
        )
    else:
        stored = None if user is None else user.password_hash
        fits = await services.passwords.verify(stored, str(offered.password))
    return fits and user is not None and user.disabled_at is None


def _both(first: Decision[User], then: Decision[Token]) -> Decision[Token]:
    return Decision(
        result=then.result,
        writes=first.writes + then.writes,
        events=first.events + then.events,
        audits=first.audits + then.audits,
    )


async def _refuse(services: Services, context: DecisionContext, user: User | None, origin: Origin) -> None:
    tenant_id = None if user is None else user.tenant_id
    audited = AuditRecord(ACTION, "user", None if user is None else user.id, tenant_id)
    await services.denials.record(services.database, context, audited, "refused", origin)
