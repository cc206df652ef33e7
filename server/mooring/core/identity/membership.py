"""Memberships: a user's role in a place. Only somebody who holds all keys of the role there can grant it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import ROLE_ACTIONS, ROLE_SCOPE, Authority, Place, Role, Scope, beyond_ceiling
from mooring.core.kernel.validation import invalid


@dataclass(frozen=True, slots=True)
class Membership:
    """One role of one user in one place."""

    id: str
    tenant_id: str | None
    project_id: str | None
    user_id: str
    role: str
    revision: int
    created_at: datetime
    identity_provider_id: str | None = None  # whose groups gave it; None: a person did

    @property
    def place(self) -> Place:
        return place_of(self.tenant_id, self.project_id)


def place_of(tenant_id: str | None, project_id: str | None) -> Place:
    if project_id is not None:
        return Place(Scope.PROJECT, tenant_id, project_id)
    if tenant_id is not None:
        return Place(Scope.TENANT, tenant_id)
    return Place(Scope.PLATFORM)


def create_membership(
    context: DecisionContext, giver: Authority, place: Place, user_id: str, role: Role
) -> Decision[Membership]:
    """Give a user a role; the granting principal must hold every key of the role in that place."""
    if ROLE_SCOPE[role] is not place.scope:
        fitting = ", ".join(each for each in Role if ROLE_SCOPE[each] is place.scope)
        raise invalid("role", f"{role} does not apply to a {place.scope}; choose from {fitting}")
    require_ceiling(giver, place, role)
    membership = Membership(
        id=context.mint(Prefix.MEMBERSHIP),
        tenant_id=place.tenant_id,
        project_id=place.project_id,
        user_id=user_id,
        role=role.value,
        revision=0,
        created_at=context.now,
    )
    given = {"user_id": user_id, "role": role.value}
    return Decision(
        result=membership,
        writes=(Insert("membership", asdict(membership)),),
        events=(_happened(EventType.MEMBERSHIP_CREATED, membership, given),),
        audits=(_audited("membership.create", membership, after=given),),
    )


def delete_membership(
    context: DecisionContext, taker: Authority, membership: Membership, admins_left: int
) -> Decision[Membership]:
    """Take a role away. The caller must be able to grant it, and no place loses its last admin."""
    role = Role(membership.role)
    require_ceiling(taker, membership.place, role)
    if role in (Role.PLATFORM_ADMIN, Role.TENANT_ADMIN) and admins_left < 1:
        raise Refusal(Code.LAST_ADMIN, f"this is the last {role} here", {"role": role.value})
    taken = {"user_id": membership.user_id, "role": membership.role}
    return Decision(
        result=membership,
        writes=(Remove("membership", membership.id, membership.revision),),
        events=(_happened(EventType.MEMBERSHIP_DELETED, membership, taken),),
        audits=(_audited("membership.delete", membership, before=taken),),
    )


def require_ceiling(giver: Authority, place: Place, role: Role) -> None:
    """Refuse unless `giver` holds every key of the role in that place."""
    missing = beyond_ceiling(ROLE_ACTIONS[role], giver.at(place))
    if missing:
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            f"{role} has {len(missing)} action(s) that the caller does not hold here",
            {"role": role.value, "missing_actions": list(missing)},
        )


def _happened(type_: EventType, membership: Membership, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "membership", membership.id, membership.tenant_id, membership.project_id, data=data)


def _audited(
    action: str,
    membership: Membership,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(
        action,
        "membership",
        membership.id,
        membership.tenant_id,
        membership.project_id,
        before=before,
        after=after,
    )
