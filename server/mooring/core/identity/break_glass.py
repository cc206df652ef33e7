"""Break-glass: a platform admin enters a tenant for a bounded time, with a stated reason.

The tenant sees each entry: as a row, as an event in its stream and as an audit row. Everything that the admin does
or reads inside leaves an audit row too, with the id of the entry. A platform role has no other access to a tenant's
data.
"""

from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

from mooring.core.identity.token import BREAK_GLASS_LIFETIME, FreshToken, Token, break_glass_token, issue
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role

ROLES: Final = (Role.PROJECT_VIEWER, Role.TENANT_ADMIN)
"""The roles that an entry may have: one to read, one to act."""


@dataclass(frozen=True, slots=True)
class BreakGlass:
    """One entry into one tenant."""

    id: str
    tenant_id: str
    user_id: str
    role: str
    reason: str
    expires_at: datetime
    created_at: datetime


@dataclass(frozen=True, slots=True)
class BreakGlassEntry:
    """An entry and the token for it."""

    entry: BreakGlass
    token: Token


def open_break_glass(
    context: DecisionContext,
    tenant_id: str,
    role: Role,
    reason: str,
    fresh: FreshToken,
    *,
    limit: frozenset[str] | None = None,
) -> Decision[BreakGlassEntry]:
    """Enter a tenant: create the entry, its token, and the records that the tenant sees.

    `limit` holds the actions that the caller's token is limited to; the new token gets the same limit.
    """
    if role not in ROLES:
        raise validation.invalid("role", f"one of {', '.join(ROLES)}")
    entry = BreakGlass(
        id=context.mint(Prefix.BREAK_GLASS),
        tenant_id=tenant_id,
        user_id=context.actor.id,
        role=role.value,
        reason=validation.reason(reason),
        expires_at=context.now + BREAK_GLASS_LIFETIME,
        created_at=context.now,
    )
    token = break_glass_token(context, fresh, tenant_id, context.actor.id, entry.id)
    token = replace(token, actions=None if limit is None else sorted(limit))
    issued = issue(token, fresh, action="break_glass.open")
    data = {"user_id": entry.user_id, "role": entry.role, "reason": entry.reason}
    return Decision(
        result=BreakGlassEntry(entry, token),
        writes=(Insert("break_glass", asdict(entry)), *issued.writes),
        events=(EventRecord(EventType.BREAK_GLASS_OPENED, "break_glass", entry.id, tenant_id, data=data),),
        audits=(AuditRecord("break_glass.open", "break_glass", entry.id, tenant_id, after=data, reason=entry.reason),),
    )
