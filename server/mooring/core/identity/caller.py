"""Callers: who uses a token, and what they may do, evaluated at the moment of use."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from mooring.core.identity.token import TokenKind
from mooring.core.kernel.decision import Actor, PrincipalKind
from mooring.core.kernel.permissions import (
    NODE_ACTIONS,
    ROLE_ACTIONS,
    Authority,
    Role,
    RoleBinding,
    Scope,
    authority_of,
    on_an_account,
)

ENDS_OR_MENDS = frozenset(
    {
        "allocation.release",
        "instance.delete",
        "instance.update",
        "member.drain",
        "member.remove",
        "member.replace",
        "operation.cancel",
        "outbox.replay",
        "service_account.disable",
        "service_account.key.revoke",
        "webhook.delete",
    }
)
"""What a break-glass entry may do besides reading: nothing that leaves access behind when the entry is over."""

_OWN_ACCOUNT = frozenset({"token.create", "self.update"})


class GrantedRole(NamedTuple):
    """A role that a user holds: in one project, or in the whole tenant or platform."""

    role: str
    project_id: str | None


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """All that the database knows about a token and its holder."""

    token_id: str
    kind: str
    tenant_id: str | None
    user_id: str | None
    service_account_id: str | None
    break_glass_id: str | None
    break_glass_role: str | None
    token_actions: Sequence[str] | None
    expires_at: datetime
    user_disabled: bool
    account_status: str | None
    account_project_id: str | None
    account_actions: Sequence[str] | None
    key_counts: bool
    roles: Sequence[GrantedRole]
    node_id: str | None = None
    node_retired: bool = False
    source_networks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and which action keys they hold."""

    actor: Actor
    tenant_id: str | None
    authority: Authority
    expires_at: datetime | None = None
    roles: tuple[GrantedRole, ...] = ()
    token_kind: str | None = None
    source_networks: tuple[str, ...] = ()  # from where it may call; empty: from everywhere


ANONYMOUS = Caller(Actor(PrincipalKind.ANONYMOUS, "anonymous"), None, Authority())


def caller_of(facts: TokenFacts, now: datetime) -> Caller | None:
    """The caller behind a token; None when the token has expired or its holder may no longer act."""
    if facts.expires_at <= now:
        return None
    if facts.node_id is not None:
        return None if facts.node_retired else _node(facts, facts.node_id)
    limit = None if facts.token_actions is None else frozenset(facts.token_actions)
    if facts.service_account_id is not None:
        if facts.account_status != "active" or not facts.key_counts or facts.account_project_id is None:
            return None
        bindings = [RoleBinding(Scope.PROJECT, on_an_account(facts.account_actions or ()), facts.account_project_id)]
        actor = Actor(PrincipalKind.SERVICE_ACCOUNT, facts.service_account_id, facts.token_id)
        return _caller(facts, actor, bindings, limit, ())
    if facts.user_id is None or facts.user_disabled:
        return None
    actor = Actor(PrincipalKind.USER, facts.user_id, facts.token_id, facts.break_glass_id)
    if facts.kind == TokenKind.BREAK_GLASS:
        if not any("break_glass.open" in binding.actions for binding in bindings_of(facts.roles)):
            return None  # an admin who lost the right to enter also loses the open entry
        role = Role(str(facts.break_glass_role))
        held = [RoleBinding(Scope.TENANT, _within_an_entry(ROLE_ACTIONS[role]))]
        return _caller(facts, actor, held, limit, (GrantedRole(role.value, None),))
    return _caller(facts, actor, bindings_of(facts.roles), limit, tuple(facts.roles))


def _node(facts: TokenFacts, node_id: str) -> Caller:
    """A node has only the keys of its agent: it does not read or own tokens like other principals."""
    actor = Actor(PrincipalKind.NODE, node_id, facts.token_id)
    return Caller(actor, None, Authority(node=NODE_ACTIONS), facts.expires_at, (), facts.kind)


def _within_an_entry(actions: frozenset[str]) -> frozenset[str]:
    """The keys of a role that apply inside a break-glass entry. It is an allow-list: new keys are excluded."""
    return frozenset(key for key in actions if key.endswith(".read") or key in ENDS_OR_MENDS)


def bindings_of(roles: Sequence[GrantedRole]) -> list[RoleBinding]:
    """What a user's roles give, and what every user may do with their own account."""
    bindings = [RoleBinding(Scope.SELF, _OWN_ACCOUNT)]
    for name, project_id in roles:
        role = Role(name)
        actions = ROLE_ACTIONS[role]
        if project_id is not None:
            bindings.append(RoleBinding(Scope.PROJECT, actions, project_id))
        else:
            scope = Scope.PLATFORM if role in (Role.PLATFORM_ADMIN, Role.PLATFORM_OPERATOR) else Scope.TENANT
            bindings.append(RoleBinding(scope, actions))
    return bindings


def _caller(
    facts: TokenFacts,
    actor: Actor,
    bindings: list[RoleBinding],
    limit: frozenset[str] | None,
    roles: tuple[GrantedRole, ...],
) -> Caller:
    authority = authority_of(facts.tenant_id, bindings, limit)
    return Caller(actor, facts.tenant_id, authority, facts.expires_at, roles, facts.kind, facts.source_networks)
