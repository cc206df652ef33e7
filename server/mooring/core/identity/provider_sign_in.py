"""What a sign-in at an identity provider makes of the claims that it vouches for: a user, and their roles.

Pure: the signature, the issuer, the audience, the expiry and the nonce of the ID token are checked before
(`gateways/identity_provider.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from mooring.core.identity.identity_provider import GroupRole, IdentityProvider
from mooring.core.identity.membership import Membership
from mooring.core.identity.token import FreshToken, Token, issue, session_token
from mooring.core.identity.user import User
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    Actor,
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    PrincipalKind,
    Remove,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import Role

ACTION: Final = "sign_in"
GROUPS_MAX: Final = 2_000
SUBJECT_LENGTH_MAX: Final = 255
EMAIL_LENGTH_MAX: Final = 254


@dataclass(frozen=True, slots=True)
class Profile:
    """Whom a provider vouches for."""

    subject: str
    email: str | None  # only one that counts as verified
    name: str | None
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class KnownUser:
    """What the platform knows when somebody comes back from a provider."""

    linked: User | None  # by the provider and its subject
    same_email: User | None
    memberships: Sequence[Membership] = ()  # of the linked user, or of the one with the address
    projects: frozenset[str] = frozenset()  # those of the group roles that exist
    other_admins: int = 0  # how many others administer the place


def refused(reason: str, detail: str) -> Refusal:
    """A refusal whose reason the page of the sign-in explains."""
    return Refusal(Code.SIGN_IN_REFUSED, detail, {"reason": reason})


def read_profile(provider: IdentityProvider, claims: Mapping[str, Any]) -> Profile:
    """The profile in these claims; an address that nobody verified is not in it."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 1 <= len(subject) <= SUBJECT_LENGTH_MAX or not subject.isprintable():
        raise refused("provider_answer_invalid", "the provider names no subject")
    email = claims.get("email")
    verified = claims.get("email_verified") is True or provider.vouches_for_email
    name = claims.get("name") or claims.get("preferred_username")
    return Profile(
        subject,
        _email(email) if isinstance(email, str) and verified else None,
        name if isinstance(name, str) else None,
        _groups(claims.get(provider.groups_claim)),
    )


def require_domain(provider: IdentityProvider, profile: Profile) -> None:
    """Refuse a person whose verified address is in none of the provider's domains, if it has a list of them."""
    if not provider.email_domains:
        return
    domain = "" if profile.email is None else profile.email.rpartition("@")[2]
    if domain not in provider.email_domains:
        raise refused("email_domain", "the provider vouches for no address in a domain that may sign in here")


def sign_in_with(
    context: DecisionContext, provider: IdentityProvider, profile: Profile, known: KnownUser, fresh: FreshToken
) -> Decision[Token]:
    """A session for the user whom the profile means; a new user, a link and roles, where the provider may give them."""
    if provider.disabled_at is not None:
        raise refused("provider_disabled", "the provider is disabled")
    require_domain(provider, profile)
    user, made = _user(context, provider, profile, known)
    if user.disabled_at is not None:
        raise refused("user_disabled", "the user is disabled")
    acting = replace(context, actor=Actor(PrincipalKind.USER, user.id))
    roles = _roles(acting, provider, profile, known, user)
    token = session_token(acting, fresh, user.id, user.tenant_id, in_browser=True)
    issued = issue(token, fresh, action=ACTION)
    parts = (made, roles, issued)
    return Decision(
        result=token,
        writes=tuple(write for part in parts for write in part.writes),
        events=tuple(event for part in parts for event in part.events),
        audits=tuple(audit for part in parts for audit in part.audits),
    )


def _user(
    context: DecisionContext, provider: IdentityProvider, profile: Profile, known: KnownUser
) -> tuple[User, Decision[None]]:
    """The user, with what has to be written so that the provider's subject means them."""
    if known.linked is not None:
        return known.linked, Decision(result=None)
    if profile.email is None:
        raise refused("email_missing", "the provider vouches for no verified e-mail address")
    if known.same_email is not None:
        if not provider.link_by_email:
            raise refused(
                "email_taken", "a user with this address exists, and the provider may not sign in as them yet"
            )
        return known.same_email, _link(context, provider, profile, known.same_email)
    if not provider.create_users:
        raise refused("user_unknown", "the provider's user is not known here, and it may not bring in new ones")
    user = User(
        id=context.mint(Prefix.USER),
        tenant_id=provider.tenant_id,
        email=profile.email,
        display_name=_shown_name(profile),
        password_hash=None,
        one_time_hash=None,
        one_time_expires_at=None,
        disabled_at=None,
        revision=0,
        created_at=context.now,
    )
    linked = _link(context, provider, profile, user)
    audit = AuditRecord(
        "user.create", "user", user.id, user.tenant_id, after={"email": user.email, "identity_provider": provider.id}
    )
    return user, Decision(
        result=None,
        writes=(Insert("user", asdict(user)), *linked.writes),
        events=(EventRecord(EventType.USER_CREATED, "user", user.id, user.tenant_id), *linked.events),
        audits=(audit, *linked.audits),
    )


def _link(context: DecisionContext, provider: IdentityProvider, profile: Profile, user: User) -> Decision[None]:
    row = {
        "id": context.mint(Prefix.USER_IDENTITY),
        "tenant_id": provider.tenant_id,
        "user_id": user.id,
        "identity_provider_id": provider.id,
        "subject": profile.subject,
        "created_at": context.now,
    }
    linked = {"change": "identity_linked", "identity_provider": provider.id, "subject": profile.subject}
    return Decision(
        result=None,
        writes=(Insert("user_identity", row),),
        audits=(AuditRecord("user.update", "user", user.id, user.tenant_id, after=linked),),
    )


def _roles(
    context: DecisionContext, provider: IdentityProvider, profile: Profile, known: KnownUser, user: User
) -> Decision[None]:
    """Give the roles of the groups, and take away those that only this provider gave and no group gives any more."""
    wanted = {
        (each.role, each.project_id)
        for each in provider.roles
        if each.group in profile.groups and (each.project_id is None or each.project_id in known.projects)
    }
    held = {(each.role, each.project_id) for each in known.memberships}
    writes: list[Write] = []
    events: list[EventRecord] = []
    audits: list[AuditRecord] = []
    for role, project_id in sorted(wanted - held, key=str):
        made = _membership(context, provider, user, GroupRole("", role, project_id))
        given = {"user_id": user.id, "role": role, "identity_provider": provider.id}
        writes.append(Insert("membership", asdict(made)))
        events.append(_happened(EventType.MEMBERSHIP_CREATED, made, given))
        audits.append(AuditRecord("membership.create", "membership", made.id, made.tenant_id, project_id, after=given))
    for each in known.memberships:
        if each.identity_provider_id != provider.id or (each.role, each.project_id) in wanted:
            continue
        if each.role in (Role.TENANT_ADMIN, Role.PLATFORM_ADMIN) and known.other_admins < 1:
            continue  # the last admin stays: nobody would be left who could mend a wrong list of groups
        taken = {"user_id": user.id, "role": each.role, "identity_provider": provider.id}
        writes.append(Remove("membership", each.id, each.revision))
        events.append(_happened(EventType.MEMBERSHIP_DELETED, each, taken))
        audits.append(
            AuditRecord("membership.delete", "membership", each.id, each.tenant_id, each.project_id, before=taken)
        )
    return Decision(result=None, writes=tuple(writes), events=tuple(events), audits=tuple(audits))


def _membership(context: DecisionContext, provider: IdentityProvider, user: User, given: GroupRole) -> Membership:
    return Membership(
        id=context.mint(Prefix.MEMBERSHIP),
        tenant_id=provider.tenant_id,
        project_id=given.project_id,
        user_id=user.id,
        role=given.role,
        revision=0,
        created_at=context.now,
        identity_provider_id=provider.id,
    )


def _happened(type_: EventType, membership: Membership, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "membership", membership.id, membership.tenant_id, membership.project_id, data=data)


def _email(text: str) -> str | None:
    if len(text) > EMAIL_LENGTH_MAX:
        return None
    try:
        return validation.email(text)
    except Refusal:
        return None


def _shown_name(profile: Profile) -> str:
    """The name that people see: the provider's if it can be shown, else the address."""
    try:
        return validation.display_name((profile.name or "")[:200])
    except Refusal:
        return str(profile.email)[:200]


def _groups(value: object) -> frozenset[str]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list):
        return frozenset()
    return frozenset(each for each in listed[:GROUPS_MAX] if isinstance(each, str))
