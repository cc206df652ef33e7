"""The exchange of a signed assertion for a short-lived token, by which service accounts and nodes sign in.

The subject of the assertion claims an identity, and the public key that the platform has for that principal proves it.
The other checks (audience, lifetime, single use) are the same for both kinds of principals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.services import Services
from mooring.core.identity.assertion import Assertion, check_assertion, read_assertion, refused
from mooring.core.identity.source_network import is_allowed, not_allowed
from mooring.core.identity.token import FreshToken, Token, TokenKind, issue, node_token, service_account_token
from mooring.core.kernel.decision import Actor, AuditRecord, DecisionContext, Insert, PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix, is_id
from mooring.gateways.passwords import digest, new_token
from mooring.gateways.signing.signatures import verifies
from mooring.storage.identity import node_key as node_keys
from mooring.storage.identity import service_account as accounts
from mooring.storage.identity import tenant as tenants
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin

ACTION = "token.exchange"
NODE_KEY = "signing"
"""The name of a node's one key in its assertions."""


@dataclass(frozen=True, slots=True)
class ExchangedToken:
    """A new token with its secret, which is shown only once."""

    secret: str
    token: Token


@dataclass(frozen=True, slots=True)
class AssertionHolder:
    """The principal that an assertion claims to come from, as the platform knows it."""

    kind: PrincipalKind
    id: str
    public_key: bytes | None  # None: it has no such key, or the key is revoked or expired
    refusal: str | None  # why it may not act; None when it may
    tenant_id: str | None = None
    project_id: str | None = None
    source_networks: tuple[str, ...] = ()


async def exchange_token(
    services: Services,
    context: DecisionContext,
    text: str,
    audiences: tuple[str, ...],
    origin: Origin,
    *,
    guessed: Callable[[str], None],
) -> ExchangedToken:
    """Issue a short-lived token to the service account or the node whose key signed this assertion.

    `guessed` is called with the claimed holder before a refusal is recorded, and may refuse instead.
    """
    claimed = ""
    holder: AssertionHolder | None = None
    try:
        assertion = read_assertion(text)
        claimed = assertion.holder_id
        holder = await _holder(services, context, assertion)
        if holder is None or holder.public_key is None:
            raise refused("the key is unknown or revoked, or did not sign this assertion")
        if not verifies(holder.public_key, assertion.signature, assertion.signed):
            raise refused("the key is unknown or revoked, or did not sign this assertion")
        check_assertion(assertion, audiences, context.now)
        if holder.refusal is not None:
            raise refused(holder.refusal)
        if holder.source_networks and not is_allowed(holder.source_networks, origin.remote_address):
            raise not_allowed(origin.remote_address)
        return await _exchanged(services, context, assertion, holder, origin)
    except Refusal as refusal:
        if refusal.code in (Code.ASSERTION_REFUSED, Code.CALLER_ADDRESS_DENIED):
            guessed(claimed)
            await services.denials.record(services.database, context, _audited(holder, refusal), "refused", origin)
        raise


def _audited(holder: AssertionHolder | None, refusal: Refusal) -> AuditRecord:
    if holder is None:
        return AuditRecord(ACTION, "service_account", None, None, None, reason=refusal.detail)
    return AuditRecord(ACTION, holder.kind.value, holder.id, holder.tenant_id, holder.project_id, reason=refusal.detail)


async def _holder(services: Services, context: DecisionContext, assertion: Assertion) -> AssertionHolder | None:
    if is_id(assertion.holder_id, Prefix.NODE):
        return await _node(services, assertion)
    if not is_id(assertion.holder_id, Prefix.SERVICE_ACCOUNT):
        return None
    account = await accounts.find_anywhere(services.database, assertion.holder_id)
    if account is None:
        return None
    key = await accounts.key(services.database, PLATFORM, account.id, assertion.key_id)
    tenant = await tenants.find(services.database, PLATFORM, account.tenant_id)
    is_valid = key is not None and key.revoked_at is None and (key.expires_at is None or key.expires_at > context.now)
    return AssertionHolder(
        PrincipalKind.SERVICE_ACCOUNT,
        account.id,
        key.public_key if key is not None and is_valid else None,
        None if account.status == "active" else "the service account is not active",
        account.tenant_id,
        account.project_id,
        () if tenant is None else tenant.source_networks,
    )


async def _node(services: Services, assertion: Assertion) -> AssertionHolder | None:
    node = await node_keys.find(services.database, assertion.holder_id)
    if node is None:
        return None
    known = assertion.key_id == NODE_KEY
    return AssertionHolder(
        PrincipalKind.NODE,
        node.node_id,
        node.public_key if known else None,
        "the node is retired: its key is no longer accepted" if node.retired else None,
    )


async def _exchanged(
    services: Services, context: DecisionContext, assertion: Assertion, holder: AssertionHolder, origin: Origin
) -> ExchangedToken:
    acting = replace(context, actor=Actor(holder.kind, holder.id))
    is_node = holder.kind is PrincipalKind.NODE
    secret = new_token(TokenKind.NODE if is_node else TokenKind.SERVICE_ACCOUNT)
    fresh = FreshToken(context.mint(Prefix.TOKEN), digest(secret))
    once = {"jti": assertion.jti, "expires_at": assertion.expires_at}
    if is_node:
        token = node_token(acting, fresh, holder.id)
        used = Insert("node_assertion", {"node_id": holder.id, **once})
    else:
        token = service_account_token(acting, fresh, str(holder.tenant_id), holder.id, assertion.key_id)
        used = Insert("assertion", {"key_id": assertion.key_id, **once})
    decision = issue(token, fresh, action=ACTION, project_id=holder.project_id)
    # Thousands of agents fetch a token every half hour: each is in the audit trail, but none in the event stream.
    decision = replace(decision, writes=(used, *decision.writes), events=() if is_node else decision.events)
    await apply_and_notify(services, PLATFORM, acting, decision, origin=origin)
    return ExchangedToken(secret, token)
