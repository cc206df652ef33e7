"""Identity providers: OpenID Connect, set up by the admin of a tenant for its users, or of the platform for its own.

A user is found by the provider and its subject, never by an e-mail address alone: an address can be given to somebody
else, a subject cannot. An admin may let a verified address link a user who exists to a subject once (`link_by_email`),
and let people whom the platform does not know come in (`create_users`).

Groups of the provider give roles. The list is part of the provider, so who changes it must hold every key of each role
in its place, as for a membership. The issuer never changes: another issuer is another provider.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from mooring.core.identity.membership import place_of, require_ceiling
from mooring.core.kernel import validation
from mooring.core.kernel.address import read_url
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import ROLE_SCOPE, Authority, Role
from mooring.core.kernel.secret import Sealed

PROVIDERS_MAX: Final = 10
"""How many providers a tenant, or the platform, may have."""
GROUP_ROLES_MAX: Final = 200
SCOPES_MAX: Final = 20
EMAIL_DOMAINS_MAX: Final = 100
SECRET_LENGTH_MAX: Final = 1_000
SEALED_FOR: Final = "identity_provider"
DOMAIN_PATTERN: Final = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"
SCOPE_PATTERN: Final = r"^[\x21\x23-\x5b\x5d-\x7e]{1,100}$"
_DOMAIN: Final = re.compile(DOMAIN_PATTERN)
_SCOPE: Final = re.compile(SCOPE_PATTERN)


class GroupRole(NamedTuple):
    """A role that every member of a group of the provider has, in the tenant or in one project."""

    group: str
    role: str
    project_id: str | None = None


@dataclass(frozen=True, slots=True)
class IdentityProvider:
    """A provider, without the secret of its client."""

    id: str
    tenant_id: str | None
    name: str
    issuer: str
    client_id: str
    secret_id: str | None
    scopes: list[str]
    email_domains: list[str]
    groups_claim: str
    group_roles: list[dict[str, str | None]]
    create_users: bool
    link_by_email: bool
    vouches_for_email: bool
    revision: int
    created_at: datetime
    disabled_at: datetime | None = None

    @property
    def roles(self) -> list[GroupRole]:
        return [GroupRole(str(each["group"]), str(each["role"]), each["project_id"]) for each in self.group_roles]


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """The properties of a provider that may change; None leaves one as it is."""

    name: str | None = None
    client_id: str | None = None
    scopes: Sequence[str] | None = None
    email_domains: Sequence[str] | None = None
    groups_claim: str | None = None
    group_roles: Sequence[GroupRole] | None = None
    create_users: bool | None = None
    link_by_email: bool | None = None
    vouches_for_email: bool | None = None
    disabled: bool | None = None
    sealed: Sealed | None = None


def create_provider(
    context: DecisionContext,
    giver: Authority,
    tenant_id: str | None,
    issuer: str,
    spec: ProviderSpec,
    *,
    present: int,
) -> Decision[IdentityProvider]:
    """Set up a provider at a place that has `present` of them already."""
    if present >= PROVIDERS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"there are at most {PROVIDERS_MAX} providers", {"limit": PROVIDERS_MAX})
    blank = IdentityProvider(
        id=context.mint(Prefix.IDENTITY_PROVIDER),
        tenant_id=tenant_id,
        name="",
        issuer=check_issuer(issuer),
        client_id="",
        secret_id=None,
        scopes=["openid", "email", "profile"],
        email_domains=[],
        groups_claim="groups",
        group_roles=[],
        create_users=True,
        link_by_email=False,
        vouches_for_email=False,
        revision=0,
        created_at=context.now,
    )
    provider = replace(blank, **_changes(context, giver, blank, spec))
    return Decision(
        result=provider,
        writes=(*_secret(context, spec), Insert("identity_provider", asdict(provider))),
        events=(_happened(provider, "created"),),
        audits=(_audited("identity_provider.update", provider, after=_summary(provider)),),
    )


def update_provider(
    context: DecisionContext, giver: Authority, provider: IdentityProvider, spec: ProviderSpec
) -> Decision[IdentityProvider]:
    """Change a provider; sessions and roles that it gave stay until the next sign-in of their users."""
    changes = _changes(context, giver, provider, spec)
    changed = {name: value for name, value in changes.items() if getattr(provider, name) != value}
    if not changed:
        return Decision(result=provider)
    after = replace(provider, revision=provider.revision + 1, **changed)
    return Decision(
        result=after,
        writes=(*_secret(context, spec), Update("identity_provider", provider.id, provider.revision, changed)),
        events=(_happened(after, "updated"),),
        audits=(_audited("identity_provider.update", provider, before=_summary(provider), after=_summary(after)),),
    )


def delete_provider(context: DecisionContext, provider: IdentityProvider) -> Decision[IdentityProvider]:
    """Delete a provider with what it knows of users; the users stay, with the roles that they have."""
    return Decision(
        result=provider,
        writes=(Remove("identity_provider", provider.id, provider.revision),),
        events=(_happened(provider, "deleted"),),
        audits=(_audited("identity_provider.update", provider, before=_summary(provider)),),
    )


def check_issuer(issuer: str) -> str:
    """Check that an issuer is an address without query or fragment; where it leads is checked when it is dialled."""
    read_url(issuer, "issuer")
    if "?" in issuer or "#" in issuer or issuer.endswith("/.well-known/openid-configuration"):
        raise validation.invalid("issuer", "the address before /.well-known/openid-configuration")
    return issuer


def _changes(
    context: DecisionContext, giver: Authority, provider: IdentityProvider, spec: ProviderSpec
) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: value
        for name in ("create_users", "link_by_email", "vouches_for_email")
        if (value := getattr(spec, name)) is not None
    }
    if spec.name is not None:
        found["name"] = validation.display_name(spec.name, "name", 100)
    for name in ("client_id", "groups_claim"):
        if (text := getattr(spec, name)) is not None:
            found[name] = validation.display_name(text, name)
    if spec.scopes is not None:
        found["scopes"] = _scopes(spec.scopes)
    if spec.email_domains is not None:
        found["email_domains"] = _domains(spec.email_domains)
    if spec.group_roles is not None:
        found["group_roles"] = _group_roles(giver, provider.tenant_id, spec.group_roles)
    if spec.disabled is not None:
        found["disabled_at"] = (provider.disabled_at or context.now) if spec.disabled else None
    if spec.sealed is not None:
        found["secret_id"] = spec.sealed.id
    return found


def _scopes(scopes: Sequence[str]) -> list[str]:
    if len(scopes) > SCOPES_MAX or not all(_SCOPE.fullmatch(each) for each in scopes):
        raise validation.invalid("scopes", f"at most {SCOPES_MAX} scopes, without spaces and quotes")
    return list(dict.fromkeys(["openid", *scopes]))


def _domains(domains: Sequence[str]) -> list[str]:
    lowered = sorted({each.strip().lower().removeprefix("@") for each in domains})
    if len(lowered) > EMAIL_DOMAINS_MAX or not all(_DOMAIN.fullmatch(each) for each in lowered):
        raise validation.invalid("email_domains", f"at most {EMAIL_DOMAINS_MAX} domains such as example.org")
    return lowered


def _group_roles(
    giver: Authority, tenant_id: str | None, group_roles: Sequence[GroupRole]
) -> list[dict[str, str | None]]:
    if len(group_roles) > GROUP_ROLES_MAX:
        raise validation.invalid("group_roles", f"at most {GROUP_ROLES_MAX}")
    for index, each in enumerate(group_roles):
        role, place = Role(each.role), place_of(tenant_id, each.project_id)
        if ROLE_SCOPE[role] is not place.scope:
            fitting = ", ".join(other for other in Role if ROLE_SCOPE[other] is place.scope)
            raise validation.invalid(f"group_roles[{index}].role", f"for a {place.scope} choose from {fitting}")
        require_ceiling(giver, place, role)
    return [each._asdict() for each in dict.fromkeys(group_roles)]


def _secret(context: DecisionContext, spec: ProviderSpec) -> tuple[Insert, ...]:
    return () if spec.sealed is None else (Insert("secret", spec.sealed.row(context.now)),)


def _summary(provider: IdentityProvider) -> dict[str, object]:
    hidden = ("id", "tenant_id", "secret_id", "revision", "created_at", "disabled_at")
    shown = {name: value for name, value in asdict(provider).items() if name not in hidden}
    return shown | {"disabled": provider.disabled_at is not None, "has_secret": provider.secret_id is not None}


def _happened(provider: IdentityProvider, change: str) -> EventRecord:
    data = {"change": change, "name": provider.name, "issuer": provider.issuer}
    type_ = EventType.IDENTITY_PROVIDER_CHANGED
    return EventRecord(type_, "identity_provider", provider.id, provider.tenant_id, data=data)


def _audited(
    action: str,
    provider: IdentityProvider,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(action, "identity_provider", provider.id, provider.tenant_id, before=before, after=after)
