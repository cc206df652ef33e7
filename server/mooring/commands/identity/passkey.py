"""Use cases of passkeys: their owners register and manage them, and sign in with them."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.identity.passkey import (
    NewCredential,
    Passkey,
    PasskeyContext,
    creation_options,
    delete_passkey,
    register_passkey,
    rename_passkey,
    request_options,
    sign_in_with_passkey,
)
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.identity.token import FreshToken, Token, TokenKind, TokenMaker
from mooring.core.identity.user import User
from mooring.core.kernel.decision import Actor, AuditRecord, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.validation import invalid
from mooring.gateways.passkeys import (
    AnswerRefused,
    decode,
    read_client_data,
    verify_registration,
    verify_sign_in,
)
from mooring.gateways.passwords import digest, new_token
from mooring.storage.identity import passkey as passkeys
from mooring.storage.identity import sign_in_challenge as challenges
from mooring.storage.identity import tenant as tenants
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.kernel.unit_of_work import Origin, StaleWrite

REGISTRATION: Final = "passkey_registration"
SIGN_IN: Final = "passkey_sign_in"
CHALLENGE_LIFETIME: Final = timedelta(minutes=5)
ACTION: Final = "sign_in"


@dataclass(frozen=True, slots=True)
class RegistrationAnswer:
    """What an authenticator answers when it made a passkey, and at which addresses this platform's pages are."""

    credential_id: str
    client_data: str
    attestation: str
    transports: list[str]
    host_of: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class SignInAnswer:
    """What an authenticator answers when somebody signs in, and at which addresses this platform's pages are."""

    credential_id: str
    client_data: str
    authenticator_data: str
    signature: str
    user_handle: str | None
    host_of: Callable[[str], str | None]


@dataclass(frozen=True, slots=True)
class _Registration:
    """A verified credential, and what the platform knows of the user who registers it."""

    known: PasskeyContext
    credential: NewCredential


@dataclass(frozen=True, slots=True)
class SignedInWithPasskey:
    """A new session with its secret, which goes only into the cookie, and its holder."""

    secret: str
    token: Token
    user: User


async def registration_options(
    services: Services, acting: Acting, context: DecisionContext, host: str
) -> dict[str, Any]:
    """What the browser needs to make a passkey for the caller."""
    user = require(await users.find(services.database, acting, context.actor.id), "user")
    present = await passkeys.own(services.database, acting, user.id)
    challenge = secrets.token_urlsafe(32)
    expires_at = context.now + CHALLENGE_LIFETIME
    await challenges.store(services.database, acting, challenge, REGISTRATION, expires_at, user_id=user.id)
    return creation_options(user, challenge, host, present)


async def sign_in_options(services: Services, context: DecisionContext, host: str) -> dict[str, Any]:
    """What the browser needs to sign somebody in with a passkey."""
    challenge = secrets.token_urlsafe(32)
    await challenges.store(services.database, PLATFORM, challenge, SIGN_IN, context.now + CHALLENGE_LIFETIME)
    return request_options(challenge, host)


async def register(work: Work[Passkey], name: str, answer: RegistrationAnswer) -> Answered:
    """Store the caller's new passkey."""
    user_id, now = work.context.actor.id, work.context.now

    async def load() -> _Registration:
        try:
            challenge, credential = _registered(answer)
        except AnswerRefused as refused:
            raise invalid("attestation", str(refused)) from refused
        user = require(await users.find(work.database, work.acting, user_id), "user")
        known = await challenges.is_of_user(work.database, work.acting, challenge, REGISTRATION, now, user_id=user_id)
        if not known:
            raise invalid("client_data", "its challenge is unknown, expired or answered already")
        present = len(await passkeys.own(work.database, work.acting, user_id))
        return _Registration(PasskeyContext(user, present, challenges.challenge_id(challenge)), credential)

    def decide(made: _Registration) -> Decision[Passkey]:
        return register_passkey(work.context, made.known, name, made.credential)

    return await work.execute(load, decide)


async def rename(work: Work[Passkey], passkey_id: str, name: str) -> Answered:
    return await work.execute(
        lambda: _load(work, passkey_id), lambda passkey: rename_passkey(work.context, passkey, name)
    )


async def delete(work: Work[Passkey], passkey_id: str) -> Answered:
    return await work.execute(lambda: _load(work, passkey_id), lambda passkey: delete_passkey(work.context, passkey))


async def sign_in(
    services: Services,
    context: DecisionContext,
    answer: SignInAnswer,
    origin: Origin,
    *,
    maker: TokenMaker,
    guessed: Callable[[], None],
) -> SignedInWithPasskey:
    """A session for the user whose passkey answered a challenge of this platform.

    `guessed` is called before a refusal is recorded, and may refuse instead.
    """
    user: User | None = None
    try:
        passkey, sign_count = await _answered(services, context, answer)
        user = await users.find(services.database, Acting(passkey.tenant_id), passkey.user_id)
        if user is None:
            raise _refused("there is no such user")
        await _require_source(services, user, origin)
        secret = new_token(TokenKind.SESSION)
        fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret), maker)
        acting = replace(context, actor=Actor(PrincipalKind.USER, user.id))
        decision = sign_in_with_passkey(acting, user, passkey, sign_count, fresh)
    except Refusal as refusal:
        guessed()
        tenant_id, user_id = (None, None) if user is None else (user.tenant_id, user.id)
        audited = AuditRecord(ACTION, "user", user_id, tenant_id, reason=refusal.detail)
        await services.denials.record(services.database, context, audited, "refused", origin)
        raise
    try:
        await apply_and_notify(services, Acting(user.tenant_id), acting, decision, origin=origin)
    except StaleWrite as error:
        raise Refusal(Code.CONFLICT, "this passkey signed in a moment ago; try again") from error
    return SignedInWithPasskey(secret, decision.result, user)


async def _answered(services: Services, context: DecisionContext, answer: SignInAnswer) -> tuple[Passkey, int]:
    """The passkey that answered, and its new counter. The challenge is taken first: an answer has one attempt."""
    try:
        client_data = decode(answer.client_data)
        said = read_client_data(client_data)
        host = answer.host_of(said.origin)
        taken = await challenges.take(services.database, said.challenge, SIGN_IN, context.now)
        if host is None or not taken:
            raise AnswerRefused("its challenge is unknown, expired or answered already, or its page is not ours")
        passkey = await passkeys.by_credential(services.database, decode(answer.credential_id))
        if passkey is None:
            raise AnswerRefused("the passkey is unknown")
        if answer.user_handle is not None and decode(answer.user_handle) != passkey.user_id.encode():
            raise AnswerRefused("the passkey is another user's")
        sign_count = verify_sign_in(
            passkey,
            client_data=client_data,
            authenticator_data=decode(answer.authenticator_data),
            signature=decode(answer.signature),
            host=host,
        )
    except AnswerRefused as refused:
        raise _refused("the passkey is not accepted") from refused
    return passkey, sign_count


def _registered(answer: RegistrationAnswer) -> tuple[str, NewCredential]:
    """The challenge that the authenticator answered, and the verified credential."""
    client_data = decode(answer.client_data)
    said = read_client_data(client_data)
    host = answer.host_of(said.origin)
    if host is None:
        raise AnswerRefused("the page is not one of this platform")
    credential = verify_registration(
        credential_id=decode(answer.credential_id),
        client_data=client_data,
        attestation=decode(answer.attestation),
        host=host,
        transports=answer.transports,
    )
    return said.challenge, credential


async def _require_source(services: Services, user: User, origin: Origin) -> None:
    if user.tenant_id is None:
        return
    tenant = await tenants.find(services.database, PLATFORM, user.tenant_id)
    if tenant is not None and tenant.source_networks and not is_allowed(tenant.source_networks, origin.remote_address):
        raise not_allowed(origin.remote_address)


async def _load(work: Work[Any], passkey_id: str) -> Passkey:
    found = await passkeys.find_own(work.database, work.acting, passkey_id, work.context.actor.id)
    return require(found, "passkey")


def _refused(detail: str) -> Refusal:
    return Refusal(Code.SIGN_IN_REFUSED, detail, {"reason": "passkey_refused"})
