"""Sign-in at an identity provider: OpenID Connect, authorization code with PKCE.

The browser begins with a cookie that holds one random value, the flow's secret. `state`, `nonce` and the PKCE verifier
are derived from it, so the server stores nothing but the hash of `state`, which is taken once. What comes back counts
only together with the cookie: a link that somebody else began with (login CSRF) has none that fits, and the address of
the answer names the provider, so that one provider's answer is never taken for another's (RFC 9700, 4.4).
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.services import Services
from mooring.core.identity.identity_provider import IdentityProvider
from mooring.core.identity.provider_sign_in import ACTION, KnownUser, Profile, read_profile, refused, sign_in_with
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.identity.token import FreshToken, Token, TokenKind, TokenMaker
from mooring.core.kernel.decision import Actor, AuditRecord, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.identity_provider import CODE_LENGTH_MAX, ProviderClient, Redirect
from mooring.gateways.passwords import digest, new_token
from mooring.gateways.secrets import CannotUnseal
from mooring.storage.identity import identity_provider as providers
from mooring.storage.identity import membership as memberships
from mooring.storage.identity import sign_in_challenge as challenges
from mooring.storage.identity import tenant as tenants
from mooring.storage.identity import user as users
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.kernel.unit_of_work import Origin, StaleWrite

PURPOSE: Final = "identity_provider"
FLOW_LIFETIME: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """What the browser brings back: the answer's parameters, and the flow's secret from its cookie."""

    provider_id: str
    redirect_uri: str
    flow_secret: str
    state: str | None
    code: str | None
    error: str | None
    issuer: str | None


@dataclass(frozen=True, slots=True)
class SignedInAtProvider:
    """A new session with its secret, which goes only into the cookie."""

    secret: str
    token: Token


async def begin(
    services: Services, context: DecisionContext, provider_id: str, redirect_uri: str, flow_secret: str
) -> str:
    """Where the browser goes to sign in at the provider."""
    provider = await providers.find_anywhere(services.database, provider_id)
    if provider is None or provider.disabled_at is not None:
        raise Refusal(Code.NOT_FOUND, "there is no such identity provider, or it is disabled")
    state = _derived(flow_secret, provider_id, "state")
    url = await _client(services, context, provider).authorization_url(
        redirect_uri,
        state=state,
        nonce=_derived(flow_secret, provider_id, "nonce"),
        verifier=_derived(flow_secret, provider_id, "verifier"),
    )
    await challenges.store(services.database, PLATFORM, state, PURPOSE, context.now + FLOW_LIFETIME)
    return url


async def finish(
    services: Services,
    context: DecisionContext,
    answer: ProviderAnswer,
    origin: Origin,
    *,
    maker: TokenMaker,
    guessed: Callable[[], None],
) -> SignedInAtProvider:
    """A session for the person for whom the provider vouches; a Refusal otherwise, which the audit trail has too.

    `guessed` is called before a refusal is recorded, and may refuse instead.
    """
    provider = await providers.find_anywhere(services.database, answer.provider_id)
    try:
        if provider is None:
            raise refused("provider_unknown", "there is no such identity provider")
        profile = await _profile(services, context, provider, answer)
        return await _signed_in(services, context, provider, profile, origin=origin, maker=maker)
    except Refusal as refusal:
        guessed()
        tenant_id = None if provider is None else provider.tenant_id
        audited = AuditRecord(ACTION, "identity_provider", answer.provider_id, tenant_id, reason=refusal.detail)
        await services.denials.record(services.database, context, audited, "refused", origin)
        raise


async def _profile(
    services: Services, context: DecisionContext, provider: IdentityProvider, answer: ProviderAnswer
) -> Profile:
    """Whom the provider vouches for, in answer to a sign-in that this browser began."""
    state = _derived(answer.flow_secret, provider.id, "state")
    if not answer.flow_secret or answer.state is None or not hmac.compare_digest(state, answer.state[:200]):
        raise refused("flow_unknown", "this browser did not begin this sign-in")
    if not await challenges.take(services.database, state, PURPOSE, context.now):
        raise refused("flow_over", "this sign-in took too long, or it is over already")
    client = _client(services, context, provider)
    if (answer.issuer is not None or (await client.metadata()).names_itself) and answer.issuer != provider.issuer:
        raise refused("id_token_refused", "the answer comes from another provider")
    if answer.error is not None or not answer.code or len(answer.code) > CODE_LENGTH_MAX:
        raise refused("provider_refused", "the provider did not sign the person in")
    redirect = Redirect(
        answer.code,
        answer.redirect_uri,
        _derived(answer.flow_secret, provider.id, "verifier"),
        _derived(answer.flow_secret, provider.id, "nonce"),
    )
    return read_profile(provider, await client.claims(redirect, await _secret(services, provider)))


async def _signed_in(
    services: Services,
    context: DecisionContext,
    provider: IdentityProvider,
    profile: Profile,
    *,
    origin: Origin,
    maker: TokenMaker,
) -> SignedInAtProvider:
    await _require_source(services, provider, origin)
    known = await _known(services, provider, profile)
    secret = new_token(TokenKind.SESSION)
    fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret), maker)
    decision = sign_in_with(context, provider, profile, known, fresh)
    acting = replace(context, actor=Actor(PrincipalKind.USER, str(decision.result.user_id)))
    try:
        await apply_and_notify(services, Acting(provider.tenant_id), acting, decision, origin=origin)
    except StaleWrite as error:
        raise Refusal(Code.CONFLICT, "the roles of this user changed a moment ago; sign in again") from error
    return SignedInAtProvider(secret, decision.result)


async def _known(services: Services, provider: IdentityProvider, profile: Profile) -> KnownUser:
    database, acting = services.database, Acting(provider.tenant_id)
    linked = await providers.linked_user(database, provider.id, profile.subject)
    same_email = None
    if linked is None and profile.email is not None:
        same_email = await users.find_by_email(database, provider.tenant_id, profile.email)
    user = linked or same_email
    wanted = [each.project_id for each in provider.roles if each.project_id is not None]
    return KnownUser(
        linked,
        same_email,
        () if user is None else await memberships.of_user(database, acting, user.id),
        await providers.existing_projects(database, provider.tenant_id, wanted),
        0 if user is None else await memberships.other_admins(database, acting, user.id),
    )


async def _require_source(services: Services, provider: IdentityProvider, origin: Origin) -> None:
    if provider.tenant_id is None:
        return
    tenant = await tenants.find(services.database, PLATFORM, provider.tenant_id)
    if tenant is not None and tenant.source_networks and not is_allowed(tenant.source_networks, origin.remote_address):
        raise not_allowed(origin.remote_address)


async def _secret(services: Services, provider: IdentityProvider) -> str | None:
    sealed = await providers.secret(services.database, provider.id)
    try:
        return None if sealed is None else services.secrets.unseal(sealed).decode()
    except CannotUnseal as error:
        raise refused("provider_secret", "the secret of the provider's client cannot be unsealed") from error


def _client(services: Services, context: DecisionContext, provider: IdentityProvider) -> ProviderClient:
    return ProviderClient(services.outbound, services.providers, provider, context.now)


def _derived(flow_secret: str, provider_id: str, purpose: str) -> str:
    """A value that only who has the flow's secret can make, for this provider, and that does not give it away."""
    made = hmac.digest(flow_secret.encode(), f"{purpose} {provider_id}".encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(made).rstrip(b"=").decode()
