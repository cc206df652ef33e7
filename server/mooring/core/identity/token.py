"""Tokens: opaque and short-lived; the database stores only their SHA-256.

There are five kinds: `session` (a person signed in), `personal` (made by a person, for example for the command line,
and optionally limited to some actions), `service_account` and `node` (in exchange for a signed assertion), and
`break_glass` (a platform admin inside a tenant). A token never allows more than its holder may do at the moment of
use: roles and lists of actions are read each time and not copied into the token.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.permissions import ACTIONS, RETIRED_ACTIONS, beyond_ceiling, is_app_action

SESSION_LIFETIME: Final = timedelta(hours=1)
BROWSER_SESSION_LIFETIME: Final = timedelta(hours=12)
"""A working day: a browser keeps it where no script can read it, and its owner and their admins can end it."""
SERVICE_ACCOUNT_LIFETIME: Final = timedelta(minutes=15)
NODE_LIFETIME: Final = timedelta(minutes=30)
BREAK_GLASS_LIFETIME: Final = timedelta(minutes=30)
PERSONAL_LIFETIME_MAX: Final = timedelta(days=90)
PERSONAL_TOKENS_MAX: Final = 50
ACTIONS_MAX: Final = 200
USER_AGENT_LENGTH_MAX: Final = 200
REMOTE_ADDRESS_LENGTH_MAX: Final = 100


class TokenKind(StrEnum):
    """What a token is for."""

    SESSION = "session"
    PERSONAL = "personal"
    SERVICE_ACCOUNT = "service_account"
    BREAK_GLASS = "break_glass"
    NODE = "node"


TOKEN_PREFIX: Final = {
    TokenKind.SESSION: "mrgs_",
    TokenKind.PERSONAL: "mrgp_",
    TokenKind.SERVICE_ACCOUNT: "mrga_",
    TokenKind.BREAK_GLASS: "mrgb_",
    TokenKind.NODE: "mrgn_",
}
"""How a token begins, so that secret scanners recognise a leaked one."""


@dataclass(frozen=True, slots=True)
class TokenMaker:
    """From where, and with which program, a person made a token: what they recognise it by."""

    remote_address: str | None = None
    user_agent: str | None = None


UNKNOWN_MAKER: Final = TokenMaker()


def token_maker(remote_address: str | None, user_agent: str | None) -> TokenMaker:
    """The maker of a token, with the program's own name bounded and free of what does not print."""
    shown = "".join(each for each in user_agent or "" if each.isprintable())[:USER_AGENT_LENGTH_MAX].strip()
    return TokenMaker((remote_address or "")[:REMOTE_ADDRESS_LENGTH_MAX] or None, shown or None)


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret."""

    id: str
    kind: str
    name: str
    tenant_id: str | None
    user_id: str | None
    service_account_id: str | None
    key_id: str | None
    break_glass_id: str | None
    actions: list[str] | None
    revision: int
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    last_used_at: datetime | None = None
    node_id: str | None = None
    remote_address: str | None = None
    user_agent: str | None = None


@dataclass(frozen=True, slots=True)
class FreshToken:
    """The id and the hash of a new token, and who made it; the token itself goes only to the caller."""

    id: str
    hash: bytes
    maker: TokenMaker = UNKNOWN_MAKER


@dataclass(frozen=True, slots=True)
class PersonalTokenSpec:
    """A personal token that a person asks for; `actions` of None means all that they may do themselves."""

    name: str
    lifetime: timedelta
    actions: list[str] | None = None


def session_token(
    context: DecisionContext, fresh: FreshToken, user_id: str, tenant_id: str | None, *, in_browser: bool = False
) -> Token:
    lifetime = BROWSER_SESSION_LIFETIME if in_browser else SESSION_LIFETIME
    token = _token(context, fresh, TokenKind.SESSION, lifetime, tenant_id=tenant_id, user_id=user_id)
    return replace(token, name="browser") if in_browser else token


def personal_token(
    context: DecisionContext,
    fresh: FreshToken,
    spec: PersonalTokenSpec,
    *,
    user_id: str,
    tenant_id: str | None,
    limit: frozenset[str] | None,
) -> Token:
    """A token that a person makes for themselves.

    `limit` holds the actions that the caller's own token is limited to; the new token cannot have more.
    """
    actions = spec.actions
    if not timedelta(minutes=1) <= spec.lifetime <= PERSONAL_LIFETIME_MAX:
        raise validation.invalid("expires_in_seconds", f"60 to {int(PERSONAL_LIFETIME_MAX.total_seconds())}")
    token = _token(context, fresh, TokenKind.PERSONAL, spec.lifetime, tenant_id=tenant_id, user_id=user_id)
    if actions is None and limit is not None:
        actions = sorted(limit)
    listed = None if actions is None else sorted(check_actions(actions))
    if limit is not None and (beyond := beyond_ceiling(listed or (), limit)):
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            "a limited token cannot make a token with more actions",
            {"missing_actions": list(beyond)},
        )
    return replace(token, name=validation.display_name(spec.name, "name", 100), actions=listed)


def _token(
    context: DecisionContext,
    fresh: FreshToken,
    kind: TokenKind,
    lifetime: timedelta,
    *,
    tenant_id: str | None,
    user_id: str | None = None,
    service_account_id: str | None = None,
    key_id: str | None = None,
    break_glass_id: str | None = None,
    node_id: str | None = None,
) -> Token:
    return Token(
        id=fresh.id,
        kind=kind.value,
        name="",
        tenant_id=tenant_id,
        user_id=user_id,
        service_account_id=service_account_id,
        key_id=key_id,
        break_glass_id=break_glass_id,
        actions=None,
        revision=0,
        created_at=context.now,
        expires_at=context.now + lifetime,
        revoked_at=None,
        node_id=node_id,
        remote_address=fresh.maker.remote_address,
        user_agent=fresh.maker.user_agent,
    )


def service_account_token(
    context: DecisionContext, fresh: FreshToken, tenant_id: str, service_account_id: str, key_id: str
) -> Token:
    return _token(
        context,
        fresh,
        TokenKind.SERVICE_ACCOUNT,
        SERVICE_ACCOUNT_LIFETIME,
        tenant_id=tenant_id,
        service_account_id=service_account_id,
        key_id=key_id,
    )


def node_token(context: DecisionContext, fresh: FreshToken, node_id: str) -> Token:
    """The token of a node's agent. It never needs to be revoked: retiring the node invalidates it."""
    return _token(context, fresh, TokenKind.NODE, NODE_LIFETIME, tenant_id=None, node_id=node_id)


def break_glass_token(
    context: DecisionContext, fresh: FreshToken, tenant_id: str, user_id: str, entry_id: str
) -> Token:
    return _token(
        context,
        fresh,
        TokenKind.BREAK_GLASS,
        BREAK_GLASS_LIFETIME,
        tenant_id=tenant_id,
        user_id=user_id,
        break_glass_id=entry_id,
    )


def issue(token: Token, fresh: FreshToken, *, action: str, project_id: str | None = None) -> Decision[Token]:
    """Store a new token, and record in the audit trail for whom."""
    row = {name: getattr(token, name) for name in Token.__slots__ if name != "last_used_at"} | {"hash": fresh.hash}
    holder = token.user_id or token.service_account_id or token.node_id
    data = {"kind": token.kind, "holder_id": holder, "expires_at": token.expires_at.isoformat()}
    return Decision(
        result=token,
        writes=(Insert("token", row),),
        events=(EventRecord(EventType.TOKEN_ISSUED, "token", token.id, token.tenant_id, project_id, data=data),),
        audits=(AuditRecord(action, "token", token.id, token.tenant_id, project_id, after=data),),
    )


def revoke_token(context: DecisionContext, token: Token, *, action: str = "token.revoke") -> Decision[Token]:
    """Revoke a token; revoking it again changes nothing and is not an error."""
    if token.revoked_at is not None:
        return Decision(result=token)
    return Decision(
        result=replace(token, revoked_at=context.now, revision=token.revision + 1),
        writes=(Update("token", token.id, token.revision, {"revoked_at": context.now}),),
        events=(EventRecord(EventType.TOKEN_REVOKED, "token", token.id, token.tenant_id, data={"kind": token.kind}),),
        audits=(AuditRecord(action, "token", token.id, token.tenant_id, before=_holder(token)),),
    )


def _holder(token: Token) -> dict[str, object]:
    return {"kind": token.kind, "holder_id": token.user_id or token.service_account_id or token.node_id}


def check_actions(actions: Iterable[str], path: str = "actions") -> frozenset[str]:
    """Accept only known action keys and an app's own keys (`app.<slug>.<action>`); retired ones are left out."""
    wanted = frozenset(actions) - RETIRED_ACTIONS
    if len(wanted) > ACTIONS_MAX:
        raise validation.invalid(path, f"at most {ACTIONS_MAX} action keys")
    unknown = sorted(key for key in wanted if key not in ACTIONS and not is_app_action(key))
    if unknown:
        raise Refusal(
            Code.VALIDATION_FAILED,
            f"{path}: there is no action {unknown[0]!r}; `mooring explain actions` lists them",
            {"path": path, "unknown_actions": unknown[:20]},
        )
    return wanted
