"""Request and response bodies for tenants, projects, users and memberships."""

from typing import Annotated, Any

from msgspec import Meta

from mooring.api.schemas.kernel.fields import (
    DisplayName,
    Email,
    OneTimeCode,
    Revision,
    Shown,
    Slug,
    Strict,
    Time,
    UserId,
    allowed,
)
from mooring.core.identity.membership import Membership
from mooring.core.identity.project import Project
from mooring.core.identity.source_network import NETWORKS_MAX
from mooring.core.identity.tenant import CreatedTenant, Tenant
from mooring.core.identity.user import User
from mooring.core.kernel.permissions import Authority, Place, Role, Scope


class FirstAdminBody(Strict):
    """The first admin of the new tenant."""

    email: Email
    display_name: DisplayName


class CreateTenant(Strict):
    """A new tenant."""

    slug: Slug
    display_name: DisplayName
    first_admin: FirstAdminBody


class Rename(Strict):
    """A new display name."""

    display_name: DisplayName
    revision: Revision | None = None


class TenantView(Shown):
    """A customer: projects, memberships and bills belong to it."""

    id: str
    slug: str
    display_name: str
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class PutSourceNetworks(Strict):
    """The networks from which the tenant's users and service accounts may call; none means from everywhere."""

    networks: Annotated[
        list[Annotated[str, Meta(min_length=2, max_length=64)]],
        Meta(max_length=NETWORKS_MAX, description="Networks in CIDR form, such as 192.0.2.0/24 or 2001:db8::/32."),
    ]
    force: Annotated[
        bool, Meta(description="Accept a list without the caller's own address; for platform admins only.")
    ] = False
    revision: Revision | None = None


class SourceNetworksView(Shown):
    """The networks from which the tenant's users and service accounts may call; none means from everywhere."""

    networks: list[str]
    your_address: Annotated[str | None, Meta(description="The caller's address, as the platform sees it.")]
    revision: int
    etag: str


class UserView(Shown):
    """A person who signs in, of one tenant or of the platform."""

    id: str
    tenant_id: str | None
    email: str
    display_name: str
    disabled: bool
    has_password: bool
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class TenantCreated(TenantView):
    """A new tenant with its first admin and the admin's one-time sign-in code."""

    first_admin: UserView
    one_time_code: OneTimeCode


class UserCreated(UserView):
    """A user with a new one-time sign-in code."""

    one_time_code: OneTimeCode


class CreateProject(Strict):
    """A new project."""

    slug: Slug
    display_name: DisplayName


class ProjectView(Shown):
    """The part of a tenant to which instances, service accounts and usage belong."""

    id: str
    tenant_id: str
    slug: str
    display_name: str
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class CreateUser(Strict):
    """A new user."""

    email: Email
    display_name: DisplayName


class CreateMembership(Strict):
    """A role for a user."""

    user_id: UserId
    role: Role


class MembershipView(Shown, kw_only=True):
    """A role of a user in a place."""

    id: str
    tenant_id: str | None
    project_id: str | None
    user_id: str
    role: Role
    created_at: Time
    identity_provider_id: Annotated[
        str | None, Meta(description="The provider whose groups gave the role; it takes it away at a later sign-in.")
    ] = None
    allowed_actions: list[str]


def tenant_view(authority: Authority, tenant: Tenant) -> TenantView:
    return TenantView(**_tenant_fields(authority, tenant))


def source_networks_view(your_address: str | None, tenant: Tenant) -> SourceNetworksView:
    return SourceNetworksView(
        networks=list(tenant.source_networks),
        your_address=your_address,
        revision=tenant.revision,
        etag=str(tenant.revision),
    )


def _tenant_fields(authority: Authority, tenant: Tenant) -> dict[str, Any]:
    place = Place(Scope.TENANT, tenant.id, platform_too=True)
    return {
        "id": tenant.id,
        "slug": tenant.slug,
        "display_name": tenant.display_name,
        "created_at": tenant.created_at,
        "revision": tenant.revision,
        "etag": str(tenant.revision),
        "allowed_actions": allowed(authority, place, ("tenant.update", "project.create", "user.create")),
    }


def tenant_created(authority: Authority, made: CreatedTenant, code: str) -> TenantCreated:
    fields = _tenant_fields(authority, made.tenant)
    return TenantCreated(**fields, first_admin=user_view(authority, made.first_admin), one_time_code=code)


def project_view(authority: Authority, project: Project) -> ProjectView:
    place = Place(Scope.PROJECT, project.tenant_id, project.id)
    actions = (
        () if project.deleted_at else ("project.update", "project.delete", "service_account.create", "webhook.create")
    )
    return ProjectView(
        id=project.id,
        tenant_id=project.tenant_id,
        slug=project.slug,
        display_name=project.display_name,
        created_at=project.created_at,
        revision=project.revision,
        etag=str(project.revision),
        allowed_actions=allowed(authority, place, actions),
    )


def user_view(authority: Authority, user: User) -> UserView:
    return UserView(**_user_fields(authority, user))


def user_created(authority: Authority, user: User, code: str) -> UserCreated:
    return UserCreated(**_user_fields(authority, user), one_time_code=code)


def _user_fields(authority: Authority, user: User) -> dict[str, Any]:
    place = Place(Scope.PLATFORM) if user.tenant_id is None else Place(Scope.TENANT, user.tenant_id)
    return {
        "id": user.id,
        "tenant_id": user.tenant_id,
        "email": user.email,
        "display_name": user.display_name,
        "disabled": user.disabled_at is not None,
        "has_password": user.password_hash is not None,
        "created_at": user.created_at,
        "revision": user.revision,
        "etag": str(user.revision),
        "allowed_actions": allowed(authority, place, ("user.update", "membership.create")),
    }


def membership_view(authority: Authority, membership: Membership) -> MembershipView:
    return MembershipView(
        id=membership.id,
        tenant_id=membership.tenant_id,
        project_id=membership.project_id,
        user_id=membership.user_id,
        role=Role(membership.role),
        created_at=membership.created_at,
        identity_provider_id=membership.identity_provider_id,
        allowed_actions=allowed(authority, membership.place, ("membership.delete",)),
    )
