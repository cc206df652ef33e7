"""Signing in: a person by password or one-time code, a service account by a signed assertion.

Both end in a short-lived token, both are audited, and so is each refusal. A refusal does not say which part was
wrong, and takes as long for a user who does not exist.
"""

import hmac
from dataclasses import dataclass, replace

from mooring.commands.work import Services
from mooring.core import names
from mooring.core.assertion import Assertion, check_assertion, read_assertion, refused
from mooring.core.decision import Actor, Audited, Context, Decision, Insert, PrincipalKind
from mooring.core.errors import Code, Refusal
from mooring.core.ids import Prefix, is_id
from mooring.core.service_account import ServiceAccount
from mooring.core.token import FreshToken, Token, TokenKind, issue, service_account_token, session_token
from mooring.core.user import User, check_password_form, set_password
from mooring.gateways.passwords import digest, new_token
from mooring.gateways.signatures import verifies
from mooring.storage import service_account as accounts
from mooring.storage import user as users
from mooring.storage.database import PLATFORM, Acting
from mooring.storage.unit_of_work import Origin, StaleWrite, apply, record_refusal

ACTION = "sign_in"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a person offers: a password, or a one-time code together with the password it shall become."""

    tenant_slug: str | None
    email: str
    password: str | None = None
    one_time_code: str | None = None
    new_password: str | None = None


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A new token, told once, and its holder."""

    secret: str
    token: Token
    user: User


async def sign_in(services: Services, context: Context, offered: Credentials, origin: Origin) -> SignedIn:
    """A session token for the person whom these credentials prove."""
    email = names.email(offered.email)
    user = await users.find_for_sign_in(services.database, offered.tenant_slug, email)
    if not await _proven(services, context, user, offered) or user is None:
        await _refuse(services, context, user, origin)
        raise Refusal(Code.SIGN_IN_REFUSED, "these do not belong together, or the user is disabled")
    acting = replace(context, actor=Actor(PrincipalKind.USER, user.id))
    secret = new_token(TokenKind.SESSION)
    fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret))
    token = session_token(acting, fresh, user.id, user.tenant_id)
    decision = issue(token, fresh, action=ACTION)
    if offered.one_time_code is not None:
        hashed = await services.passwords.hash(check_password_form(str(offered.new_password)))
        changed = set_password(acting, user, hashed)
        user, decision = changed.result, _both(changed, decision)
    try:
        await apply(services.database, Acting(user.tenant_id), acting, decision, origin=origin)
    except StaleWrite as error:
        raise Refusal(Code.SIGN_IN_REFUSED, "the one-time code was used a moment ago") from error
    services.hub.poke(event.type for event in decision.events)
    return SignedIn(secret, token, user)


async def _proven(services: Services, context: Context, user: User | None, offered: Credentials) -> bool:
    if (offered.password is None) == (offered.one_time_code is None):
        raise names.invalid("password", "give either a password, or a one_time_code with a new_password")
    if offered.one_time_code is not None:
        check_password_form(offered.new_password or "")
        fits = (
            user is not None
            and user.one_time_hash is not None
            and user.one_time_expires_at is not None
            and user.one_time_expires_at > context.now
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


async def _refuse(services: Services, context: Context, user: User | None, origin: Origin) -> None:
    tenant_id = None if user is None else user.tenant_id
    audited = Audited(ACTION, "user", None if user is None else user.id, tenant_id)
    await record_refusal(services.database, context, audited, "refused", origin)


@dataclass(frozen=True, slots=True)
class Exchanged:
    """A service account's new token, told once."""

    secret: str
    token: Token


async def exchange(
    services: Services, context: Context, text: str, audiences: tuple[str, ...], origin: Origin
) -> Exchanged:
    """A short-lived token for the service account whose key signed this assertion."""
    account: ServiceAccount | None = None
    try:
        assertion = read_assertion(text)
        if is_id(assertion.account_id, Prefix.SERVICE_ACCOUNT):
            account = await accounts.find_anywhere(services.database, assertion.account_id)
        await _believe(services, context, assertion, account)
        check_assertion(assertion, audiences, context.now)
        if account is None or account.status != "active":
            raise refused("the service account is not active")
        return await _exchanged(services, context, assertion, account, origin)
    except Refusal as refusal:
        if refusal.code is Code.ASSERTION_REFUSED:
            tenant, project = (None, None) if account is None else (account.tenant_id, account.project_id)
            subject = None if account is None else account.id
            audited = Audited("token.exchange", "service_account", subject, tenant, project, reason=refusal.detail)
            await record_refusal(services.database, context, audited, "refused", origin)
        raise


async def _believe(services: Services, context: Context, assertion: Assertion, account: ServiceAccount | None) -> None:
    key = None
    if account is not None:
        key = await accounts.key(services.database, PLATFORM, account.id, assertion.key_id)
    counts = key is not None and key.revoked_at is None and (key.expires_at is None or key.expires_at > context.now)
    if key is None or not counts or not verifies(key.public_key, assertion.signature, assertion.signed):
        raise refused("the key is unknown or revoked, or did not sign this assertion")


async def _exchanged(
    services: Services, context: Context, assertion: Assertion, account: ServiceAccount, origin: Origin
) -> Exchanged:
    acting = replace(context, actor=Actor(PrincipalKind.SERVICE_ACCOUNT, account.id))
    secret = new_token(TokenKind.SERVICE_ACCOUNT)
    fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret))
    token = service_account_token(acting, fresh, account.tenant_id, account.id, assertion.key_id)
    decision = issue(token, fresh, action="token.exchange", project_id=account.project_id)
    used = Insert("assertion", {"key_id": assertion.key_id, "jti": assertion.jti, "expires_at": assertion.expires_at})
    decision = replace(decision, writes=(used, *decision.writes))
    await apply(services.database, PLATFORM, acting, decision, origin=origin)
    services.hub.poke(event.type for event in decision.events)
    return Exchanged(secret, token)
