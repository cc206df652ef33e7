"""Tenants: the customers of the cloud. A tenant is created together with its first admin."""

from dataclasses import asdict, dataclass, replace
from datetime import datetime

from mooring.core.identity.user import OneTime, User, UserSpec, new_user
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role


@dataclass(frozen=True, slots=True)
class Tenant:
    """A customer of the cloud, who owns projects, users and everything in them."""

    id: str
    slug: str
    display_name: str
    revision: int
    created_at: datetime
    source_networks: tuple[str, ...] = ()  # from where its users and service accounts may call; empty: everywhere


@dataclass(frozen=True, slots=True)
class CreatedTenant:
    """A new tenant with its first admin."""

    tenant: Tenant
    first_admin: User


def create_tenant(
    context: DecisionContext, slug: str, display_name: str, first_admin: UserSpec, one_time: OneTime
) -> Decision[CreatedTenant]:
    """Create a tenant together with its first admin, so that it is never without one."""
    tenant = Tenant(
        id=context.mint(Prefix.TENANT),
        slug=validation.slug(slug),
        display_name=validation.display_name(display_name),
        revision=0,
        created_at=context.now,
    )
    made = new_user(context, tenant.id, first_admin, one_time, path="first_admin")
    membership_id = context.mint(Prefix.MEMBERSHIP)
    membership = {
        "id": membership_id,
        "tenant_id": tenant.id,
        "project_id": None,
        "user_id": made.user.id,
        "role": Role.TENANT_ADMIN.value,
        "created_at": context.now,
    }
    role = {"user_id": made.user.id, "role": Role.TENANT_ADMIN.value}
    return Decision(
        result=CreatedTenant(tenant, made.user),
        writes=(Insert("tenant", asdict(tenant)), made.insert, Insert("membership", membership)),
        events=(
            EventRecord(EventType.TENANT_CREATED, "tenant", tenant.id, tenant.id, data={"slug": tenant.slug}),
            EventRecord(EventType.USER_CREATED, "user", made.user.id, tenant.id),
            EventRecord(EventType.MEMBERSHIP_CREATED, "membership", membership_id, tenant.id, data=role),
        ),
        audits=(
            AuditRecord(
                "tenant.create",
                "tenant",
                tenant.id,
                tenant.id,
                after={"slug": tenant.slug, "display_name": tenant.display_name, "first_admin": made.user.id},
            ),
        ),
    )


def update_tenant(
    context: DecisionContext, tenant: Tenant, display_name: str, revision_seen: int | None
) -> Decision[Tenant]:
    """Change the display name. The slug and the id never change, because scripts refer to them."""
    require_revision(tenant.revision, revision_seen)
    name = validation.display_name(display_name)
    after = replace(tenant, display_name=name, revision=tenant.revision + 1)
    return Decision(
        result=after,
        writes=(Update("tenant", tenant.id, tenant.revision, {"display_name": name}),),
        events=(EventRecord(EventType.TENANT_UPDATED, "tenant", tenant.id, tenant.id, data={"display_name": name}),),
        audits=(
            AuditRecord(
                "tenant.update",
                "tenant",
                tenant.id,
                tenant.id,
                before={"display_name": tenant.display_name},
                after={"display_name": name},
            ),
        ),
    )


def require_revision(revision: int, revision_seen: int | None) -> None:
    """Refuse a change that was based on an older revision; None means that the caller did not say which."""
    if revision_seen is not None and revision_seen != revision:
        raise Refusal(
            Code.REVISION_CONFLICT,
            f"the current revision is {revision}, not {revision_seen}",
            {"revision": revision, "revision_seen": revision_seen},
        )
