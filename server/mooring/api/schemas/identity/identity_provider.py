"""Request and response bodies for identity providers and for signing in with them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from mooring.api.schemas.kernel.fields import Revision, Shown, Slug, Strict, Time, allowed
from mooring.core.identity import identity_provider as core
from mooring.core.identity.identity_provider import IdentityProvider, ProviderSpec
from mooring.core.kernel.ids import Prefix, pattern
from mooring.core.kernel.permissions import Authority, Place, Role, Scope

ProviderName = Annotated[
    str, Meta(min_length=1, max_length=100, description="What the button of the sign-in page calls it.")
]
Issuer = Annotated[
    str,
    Meta(
        min_length=8,
        max_length=500,
        description="The provider's own address; below it is /.well-known/openid-configuration. It never changes.",
    ),
]
ClientId = Annotated[str, Meta(min_length=1, max_length=200, description="The name of this platform at the provider.")]
ClientSecret = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=core.SECRET_LENGTH_MAX,
        pattern=r"^[\x20-\x7e]+$",
        description="The secret of that client; it is never shown again.",
        extra_json_schema={"writeOnly": True},
    ),
]
Scopes = Annotated[
    list[Annotated[str, Meta(pattern=core.SCOPE_PATTERN)]],
    Meta(max_length=core.SCOPES_MAX, description="What is asked of the provider, besides `openid`."),
]
EmailDomains = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=253)]],
    Meta(
        max_length=core.EMAIL_DOMAINS_MAX,
        description="Only people with a verified address in one of these domains sign in; empty: whatever the domain.",
    ),
]
GroupsClaim = Annotated[
    str, Meta(min_length=1, max_length=200, description="The claim that has the names of a person's groups.")
]
CreateUsers = Annotated[
    bool, Meta(description="Whether somebody whom the platform does not know becomes a user with the first sign-in.")
]
LinkByEmail = Annotated[
    bool,
    Meta(description="Whether a verified address may link a user who exists to a person of the provider, once."),
]
VouchesForEmail = Annotated[
    bool,
    Meta(description="Whether the provider's addresses count as verified although it does not say so."),
]
ReturnPath = Annotated[
    str,
    Meta(
        max_length=500,
        pattern=r"^/([A-Za-z0-9_.~!$&'()*+,;=:@?%-][A-Za-z0-9_.~!$&'()*+,;=:@?%/-]*)?$",
        description="The page of the console to come back to.",
    ),
]


class GroupRoleBody(Strict):
    """A role that every member of a group has; without `project_id` in the tenant or the platform itself."""

    group: Annotated[str, Meta(min_length=1, max_length=256)]
    role: Role
    project_id: Annotated[str, Meta(pattern=pattern(Prefix.PROJECT))] | None = None


GroupRoles = Annotated[
    list[GroupRoleBody],
    Meta(
        max_length=core.GROUP_ROLES_MAX,
        description="Which groups give which roles. They are given and taken at each sign-in.",
    ),
]


class CreateIdentityProvider(Strict):
    """A provider to sign in with."""

    name: ProviderName
    issuer: Issuer
    client_id: ClientId
    client_secret: ClientSecret | None = None
    scopes: Scopes = msgspec.field(default_factory=lambda: ["openid", "email", "profile"])
    email_domains: EmailDomains = msgspec.field(default_factory=list)
    groups_claim: GroupsClaim = "groups"
    group_roles: GroupRoles = msgspec.field(default_factory=list)
    create_users: CreateUsers = True
    link_by_email: LinkByEmail = False
    vouches_for_email: VouchesForEmail = False


class UpdateIdentityProvider(Strict):
    """Changes of a provider; omitted fields stay unchanged."""

    name: ProviderName | None = None
    client_id: ClientId | None = None
    client_secret: ClientSecret | None = None
    scopes: Scopes | None = None
    email_domains: EmailDomains | None = None
    groups_claim: GroupsClaim | None = None
    group_roles: GroupRoles | None = None
    create_users: CreateUsers | None = None
    link_by_email: LinkByEmail | None = None
    vouches_for_email: VouchesForEmail | None = None
    disabled: bool | None = None
    revision: Revision | None = None


class GroupRoleView(Shown):
    """A role that every member of a group has."""

    group: str
    role: Role
    project_id: str | None


class IdentityProviderView(Shown):
    """An OpenID Connect provider that people sign in with, without the secret of its client."""

    id: str
    tenant_id: str | None
    name: str
    issuer: str
    client_id: str
    has_secret: bool
    scopes: list[str]
    email_domains: list[str]
    groups_claim: str
    group_roles: list[GroupRoleView]
    create_users: bool
    link_by_email: bool
    vouches_for_email: bool
    redirect_uri: Annotated[
        str | None, Meta(description="What the provider must accept as this client's redirect URI.")
    ]
    disabled_at: Time | None
    created_at: Time
    revision: int
    etag: str
    allowed_actions: list[str]


class SignInMethodsQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where somebody wants to sign in."""

    tenant: Annotated[Slug, Meta(description="The tenant's slug; none: the platform itself.")] | None = None


class OfferedProvider(Shown):
    """A provider to continue with."""

    id: str
    name: str


class SignInMethods(Shown):
    """How people of a tenant, or of the platform, can sign in here."""

    password: bool
    passkey: Annotated[
        bool, Meta(description="Whether passkeys work at the address that this request came to; they need a name.")
    ]
    identity_providers: list[OfferedProvider]


class BeginProviderSignIn(Strict):
    """A provider to sign in with, and the page of the console to come back to."""

    identity_provider_id: Annotated[str, Meta(pattern=pattern(Prefix.IDENTITY_PROVIDER))]
    to: ReturnPath = "/"


class ProviderSignInBegun(Shown):
    """Where the browser has to go."""

    authorization_url: str


class ProviderAnswerQuery(msgspec.Struct, kw_only=True):
    """What a provider adds to the address that the browser comes back to; what else it adds is ignored."""

    code: Annotated[str, Meta(max_length=4_096)] | None = None
    state: Annotated[str, Meta(max_length=200)] | None = None
    error: Annotated[str, Meta(max_length=500)] | None = None
    iss: Annotated[str, Meta(max_length=500)] | None = None


def provider_spec(body: CreateIdentityProvider | UpdateIdentityProvider) -> ProviderSpec:
    """The properties that a body names."""
    roles = body.group_roles
    return ProviderSpec(
        name=body.name,
        client_id=body.client_id,
        scopes=body.scopes,
        email_domains=body.email_domains,
        groups_claim=body.groups_claim,
        group_roles=None
        if roles is None
        else [core.GroupRole(each.group, each.role, each.project_id) for each in roles],
        create_users=body.create_users,
        link_by_email=body.link_by_email,
        vouches_for_email=body.vouches_for_email,
        disabled=body.disabled if isinstance(body, UpdateIdentityProvider) else None,
    )


def provider_view(authority: Authority, address: str | None, provider: IdentityProvider) -> IdentityProviderView:
    """The view for this caller; `address` is the platform's, as the provider must know it."""
    place = Place(Scope.PLATFORM) if provider.tenant_id is None else Place(Scope.TENANT, provider.tenant_id)
    return IdentityProviderView(
        id=provider.id,
        tenant_id=provider.tenant_id,
        name=provider.name,
        issuer=provider.issuer,
        client_id=provider.client_id,
        has_secret=provider.secret_id is not None,
        scopes=provider.scopes,
        email_domains=provider.email_domains,
        groups_claim=provider.groups_claim,
        group_roles=[
            GroupRoleView(group=each.group, role=Role(each.role), project_id=each.project_id) for each in provider.roles
        ],
        create_users=provider.create_users,
        link_by_email=provider.link_by_email,
        vouches_for_email=provider.vouches_for_email,
        redirect_uri=None if address is None else redirect_uri(address, provider.id),
        disabled_at=provider.disabled_at,
        created_at=provider.created_at,
        revision=provider.revision,
        etag=str(provider.revision),
        allowed_actions=allowed(authority, place, ("identity_provider.update",)),
    )


def redirect_uri(address: str, provider_id: str) -> str:
    """Where this provider, and no other, sends the browser back to."""
    return f"{address}/api/v1/sign-in/providers/{provider_id}/callback"
