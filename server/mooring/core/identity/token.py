"""Tokens: opaque, short-lived, kept only as their SHA-256.

Five kinds: `session` (a person signed in), `personal` (a person's own, for the command line, made narrower if he
likes), `service_account` and `node` (in exchange for a signed assertion), `break_glass` (a platform admin inside a
tenant). A token never holds more than its holder does at the moment of use: roles and lists are read anew, not copied
into it.
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
from mooring.core.kernel.permissions import ACTIONS, beyond_ceiling, is_app_action

SESSION_LIFETIME: Final = timedelta(hours=1)
SERVICE_ACCOUNT_LIFETIME: Final = timedelta(minutes=15)
NODE_LIFETIME: Final = timedelta(minutes=30)
BREAK_GLASS_LIFETIME: Final = timedelta(minutes=30)
PERSONAL_LIFETIME_MAX: Final = timedelta(days=90)
PERSONAL_TOKENS_MAX: Final = 50
ACTIONS_MAX: Final = 200


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
"""How a token begins, so that one that leaked is recognized."""


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


@dataclass(frozen=True, slots=True)
class FreshToken:
    """Id and hash of a token that was just made; the token itself goes to the caller and nowhere else."""

    id: str
    hash: bytes


def session_token(context: DecisionContext, fresh: FreshToken, user_id: str, tenant_id: str | None) -> Token:
    """The token of a person who signed in."""
    return _token(context, fresh, TokenKind.SESSION, SESSION_LIFETIME, tenant_id=tenant_id, user_id=user_id)


def personal_token(
    context: DecisionContext,
    fresh: FreshToken,
    holder: tuple[str, str | None],
    wanted: tuple[str, timedelta, list[str] | None],
    *,
    limit: frozenset[str] | None,
) -> Token:
    """A person's own token; `holder` is user and tenant, `wanted` its name, lifetime and narrower list.

    `limit` is what the token that asks for it was narrowed to: a narrow token makes no wider one.
    """
    name, lifetime, actions = wanted
    if not timedelta(minutes=1) <= lifetime <= PERSONAL_LIFETIME_MAX:
        raise validation.invalid("expires_in_seconds", f"60 to {int(PERSONAL_LIFETIME_MAX.total_seconds())}")
    token = _token(context, fresh, TokenKind.PERSONAL, lifetime, tenant_id=holder[1], user_id=holder[0])
    if actions is None and limit is not None:
        actions = sorted(limit)
    listed = None if actions is None else sorted(check_actions(actions))
    if limit is not None and (beyond := beyond_ceiling(listed or (), limit)):
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            "a token that was narrowed makes none that is wider",
            {"missing_actions": list(beyond)},
        )
    return replace(token, name=validation.display_name(name, "name", 100), actions=listed)


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
    )


def service_account_token(
    context: DecisionContext, fresh: FreshToken, tenant_id: str, service_account_id: str, key_id: str
) -> Token:
    """The token that a signed assertion is exchanged for."""
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
    """The token of a node's agent. It needs none of its own revoked: with the node's retirement it counts no more."""
    return _token(context, fresh, TokenKind.NODE, NODE_LIFETIME, tenant_id=None, node_id=node_id)


def break_glass_token(
    context: DecisionContext, fresh: FreshToken, tenant_id: str, user_id: str, entry_id: str
) -> Token:
    """The token of a platform admin inside a tenant."""
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
    """A token becomes valid, and the audit trail says for whom."""
    row = {name: getattr(token, name) for name in Token.__slots__ if name != "last_used_at"} | {"hash": fresh.hash}
    holder = token.user_id or token.service_account_id or token.node_id
    told = {"kind": token.kind, "holder_id": holder, "expires_at": token.expires_at.isoformat()}
    return Decision(
        result=token,
        writes=(Insert("token", row),),
        events=(EventRecord(EventType.TOKEN_ISSUED, "token", token.id, token.tenant_id, project_id, data=told),),
        audits=(AuditRecord(action, "token", token.id, token.tenant_id, project_id, after=told),),
    )


def revoke_token(context: DecisionContext, token: Token, *, action: str = "token.revoke") -> Decision[Token]:
    """A token stops being valid; revoking it again changes nothing and is no error."""
    if token.revoked_at is not None:
        return Decision(result=token)
    return Decision(
        result=replace(token, revoked_at=context.now, revision=token.revision + 1),
        writes=(Update("token", token.id, token.revision, {"revoked_at": context.now}),),
        events=(EventRecord(EventType.TOKEN_REVOKED, "token", token.id, token.tenant_id, data={"kind": token.kind}),),
        audits=(AuditRecord(action, "token", token.id, token.tenant_id, before={"kind": token.kind}),),
    )


def check_actions(actions: Iterable[str], path: str = "actions") -> frozenset[str]:
    """Only keys of the table, and an app's own (`app.<slug>.<action>`), are taken."""
    wanted = frozenset(actions)
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
