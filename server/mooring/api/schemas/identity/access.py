"""Request and response bodies for service accounts, tokens, sign-in and break-glass."""

import base64
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mooring.api.schemas.identity.tenancy import UserView
from mooring.api.schemas.kernel.fields import (
    ActionKey,
    Description,
    Email,
    NewPassword,
    Password,
    PublicKey,
    Revision,
    Shown,
    Slug,
    Strict,
    TenantId,
    Time,
    allowed,
)
from mooring.core.identity.break_glass import BreakGlass, BreakGlassEntry
from mooring.core.identity.caller import Caller
from mooring.core.identity.service_account import (
    SERVICE_ACCOUNT,
    ServiceAccount,
    ServiceAccountKey,
    ServiceAccountState,
)
from mooring.core.identity.token import Token, TokenKind
from mooring.core.identity.user import User
from mooring.core.kernel.permissions import Authority, Place, Role, Scope


class CreateServiceAccount(Strict):
    """A new service account."""

    name: Slug
    actions: Annotated[list[ActionKey], Meta(max_length=200)]
    description: Description = ""
    public_key: PublicKey | None = None


class UpdateServiceAccount(Strict):
    """A new list of actions or a new description; omitted fields stay unchanged."""

    actions: Annotated[list[ActionKey], Meta(max_length=200)] | None = None
    description: Description | None = None
    revision: Revision | None = None


class ServiceAccountView(Shown):
    """A principal for automation or an adapter, in one project, with a list of action keys."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    description: str
    actions: list[str]
    status: ServiceAccountState
    created_at: Time
    disabled_at: Time | None
    deleted_at: Time | None
    generation: int
    revision: int
    etag: str
    allowed_actions: list[str]


class CreateKey(Strict):
    """A further public key."""

    public_key: PublicKey
    expires_at: Time | None = None


class KeyView(Shown):
    """A public key of a service account."""

    id: str
    service_account_id: str
    algorithm: str
    public_key: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None


class SignIn(Strict):
    """A person's credentials: a password, or a one-time code with a new password."""

    email: Email
    tenant: Slug | None = None
    password: Password | None = None
    one_time_code: Annotated[str, Meta(min_length=1, max_length=100)] | None = None
    new_password: NewPassword | None = None


class SignedInView(Shown):
    """A new session token; it is shown only once."""

    token: str
    token_id: str
    expires_at: Time
    user: UserView


class BrowserSessionView(Shown):
    """A new session of a browser; its token is in a cookie that no script can read."""

    token_id: str
    expires_at: Time
    user: UserView


class TokenGrant(Strict):
    """An assertion to exchange for a token (RFC 7523)."""

    grant_type: Annotated[str, Meta(pattern="^urn:ietf:params:oauth:grant-type:jwt-bearer$")]
    assertion: Annotated[str, Meta(min_length=1, max_length=4000)]


class AccessToken(Shown):
    """A short-lived token of a service account or a node; it is shown only once."""

    access_token: str
    token_type: str
    expires_in: int


class ChangePassword(Strict):
    """The caller's own new password."""

    current_password: Password
    new_password: NewPassword


class CreateToken(Strict):
    """A personal access token."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    expires_in_seconds: Annotated[int, Meta(ge=60, le=90 * 86400)] = 7 * 86400
    actions: Annotated[list[ActionKey], Meta(max_length=200)] | None = None


class TokenView(Shown, kw_only=True):
    """A token, without its secret."""

    id: str
    kind: TokenKind
    name: str
    actions: list[str] | None
    created_at: Time
    expires_at: Time
    revoked_at: Time | None
    last_used_at: Time | None
    remote_address: Annotated[str | None, Meta(description="From where it was made, where that is known.")] = None
    user_agent: Annotated[
        str | None, Meta(description="What the program that made it called itself, at most 200 characters; no proof.")
    ] = None
    current: Annotated[bool, Meta(description="Whether this request was made with it.")] = False


class UserTokenView(TokenView, kw_only=True):
    """A session or personal token of a user, without its secret."""

    user_id: str


class TokenCreated(TokenView, kw_only=True):
    """A new token; it is shown only once."""

    token: str


class RoleView(Shown):
    """A role that the caller holds."""

    role: Role
    project_id: str | None


class WhoAmI(Shown, kw_only=True):
    """Who the caller is, and what they may do."""

    kind: str
    id: str
    email: Annotated[str | None, Meta(description="Of a person.")] = None
    display_name: Annotated[str | None, Meta(description="Of a person.")] = None
    tenant_id: str | None
    token_id: str | None
    token_kind: TokenKind | None
    expires_at: Time | None
    break_glass_id: str | None
    roles: list[RoleView]
    platform_actions: list[str]
    tenant_actions: list[str]
    project_actions: dict[str, list[str]]
    project_slugs: Annotated[
        dict[str, str], Meta(description="The slug of a service account's own project, by its id.")
    ] = msgspec.field(default_factory=dict)


class OpenBreakGlass(Strict):
    """Enter a tenant, and say why."""

    tenant_id: TenantId
    reason: Annotated[str, Meta(min_length=10, max_length=1000)]
    role: Role = Role.PROJECT_VIEWER


class BreakGlassView(Shown):
    """An entry into a tenant."""

    id: str
    tenant_id: str
    user_id: str
    role: Role
    reason: str
    created_at: Time
    expires_at: Time


class BreakGlassOpened(BreakGlassView):
    """A new entry with its token, which is shown only once."""

    token: str


def service_account_view(authority: Authority, account: ServiceAccount) -> ServiceAccountView:
    """The view for this caller: `allowed_actions` has what the account's state accepts and the caller may do."""
    place = Place(Scope.PROJECT, account.tenant_id, account.project_id)
    state = ServiceAccountState(account.status)
    moves = [f"service_account.{trigger}" for trigger in SERVICE_ACCOUNT.allowed(state)]
    if state is not ServiceAccountState.DELETED:
        moves += ["service_account.update", "service_account.key.create", "service_account.key.revoke"]
    return ServiceAccountView(
        id=account.id,
        tenant_id=account.tenant_id,
        project_id=account.project_id,
        name=account.name,
        description=account.description,
        actions=list(account.actions),
        status=state,
        created_at=account.created_at,
        disabled_at=account.disabled_at,
        deleted_at=account.deleted_at,
        generation=account.generation,
        revision=account.revision,
        etag=f"{account.generation}.{account.revision}",
        allowed_actions=allowed(authority, place, moves),
    )


def key_view(key: ServiceAccountKey) -> KeyView:
    return KeyView(
        id=key.id,
        service_account_id=key.service_account_id,
        algorithm=key.algorithm,
        public_key=encode_key(key.public_key),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )


def encode_key(key: bytes) -> str:
    return base64.b64encode(key).decode()


def token_view(token: Token, used: str | None = None) -> TokenView:
    """The view for the caller who used the token with the id `used`."""
    return TokenView(**_token_fields(token, used))


def user_token_view(token: Token, used: str | None = None) -> UserTokenView:
    return UserTokenView(**_token_fields(token, used), user_id=str(token.user_id))


def token_created(token: Token, secret: str) -> TokenCreated:
    return TokenCreated(**_token_fields(token, None), token=secret)


def _token_fields(token: Token, used: str | None) -> dict[str, Any]:
    return {
        "id": token.id,
        "kind": TokenKind(token.kind),
        "name": token.name,
        "actions": token.actions,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
        "last_used_at": token.last_used_at,
        "remote_address": token.remote_address,
        "user_agent": token.user_agent,
        "current": token.id == used,
    }


def who_am_i(caller: Caller, user: User | None, project_slugs: dict[str, str]) -> WhoAmI:
    authority = caller.authority
    return WhoAmI(
        kind=caller.actor.kind.value,
        id=caller.actor.id,
        email=None if user is None else user.email,
        display_name=None if user is None else user.display_name,
        tenant_id=caller.tenant_id,
        token_id=caller.actor.token_id,
        token_kind=None if caller.token_kind is None else TokenKind(caller.token_kind),
        expires_at=caller.expires_at,
        break_glass_id=caller.actor.break_glass_id,
        roles=[RoleView(role=Role(role), project_id=project) for role, project in caller.roles],
        platform_actions=sorted(authority.platform),
        tenant_actions=sorted(authority.tenant),
        project_actions={project: sorted(keys) for project, keys in authority.projects.items()},
        project_slugs=project_slugs,
    )


def break_glass_view(entry: BreakGlass) -> BreakGlassView:
    return BreakGlassView(**_entry_fields(entry))


def break_glass_opened(entered: BreakGlassEntry, secret: str) -> BreakGlassOpened:
    return BreakGlassOpened(**_entry_fields(entered.entry), token=secret)


def _entry_fields(entry: BreakGlass) -> dict[str, Any]:
    return {
        "id": entry.id,
        "tenant_id": entry.tenant_id,
        "user_id": entry.user_id,
        "role": Role(entry.role),
        "reason": entry.reason,
        "created_at": entry.created_at,
        "expires_at": entry.expires_at,
    }
