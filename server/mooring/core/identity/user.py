"""Users: people who sign in. A user belongs to one tenant, or to the platform itself, and owns nothing.

A new user has a one-time code instead of a password, and sets a password with it. The database stores only the
SHA-256 of the code, until it is used or expires. Several tenants may each have a user with the same e-mail address;
none of them learns about the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Remove, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.permissions import ROLE_ACTIONS, Authority, Role, beyond_ceiling

PASSWORD_LENGTH_MIN = 12
PASSWORD_LENGTH_MAX = 200
LOCAL_PART_LENGTH_MIN = 3
"""A shorter local part of an e-mail address occurs in passwords by chance."""


@dataclass(frozen=True, slots=True)
class User:
    """A person who signs in.

    Tokens made before `tokens_from` are invalid, except the session token with the id `tokens_except`. Sessions made
    before `sessions_from` are invalid, except `sessions_except`.
    """

    id: str
    tenant_id: str | None
    email: str
    display_name: str
    password_hash: str | None
    one_time_hash: bytes | None
    one_time_expires_at: datetime | None
    disabled_at: datetime | None
    revision: int
    created_at: datetime
    tokens_from: datetime | None = None
    tokens_except: str | None = None
    sessions_from: datetime | None = None
    sessions_except: str | None = None


@dataclass(frozen=True, slots=True)
class OneTime:
    """The hash of a one-time sign-in code; the code itself is shown once and never stored."""

    hash: bytes
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UserSpec:
    """The properties of a new user."""

    email: str
    display_name: str


@dataclass(frozen=True, slots=True)
class NewUser:
    """A new user and the insert that stores them."""

    user: User
    insert: Insert


class UserChange(StrEnum):
    """What an admin may do to a user."""

    DISABLE = "disable"
    ENABLE = "enable"
    RESET = "reset"
    SIGN_OUT = "sign_out"


def new_user(
    context: DecisionContext, tenant_id: str | None, spec: UserSpec, one_time: OneTime, path: str = ""
) -> NewUser:
    """A new user; `path` names the part of the request that describes them, for refusals."""
    prefix = f"{path}." if path else ""
    user = User(
        id=context.mint(Prefix.USER),
        tenant_id=tenant_id,
        email=validation.email(spec.email, f"{prefix}email"),
        display_name=validation.display_name(spec.display_name, f"{prefix}display_name"),
        password_hash=None,
        one_time_hash=one_time.hash,
        one_time_expires_at=one_time.expires_at,
        disabled_at=None,
        revision=0,
        created_at=context.now,
    )
    row = {name: getattr(user, name) for name in User.__slots__}
    return NewUser(user, Insert("user", row))


def create_user(context: DecisionContext, tenant_id: str | None, spec: UserSpec, one_time: OneTime) -> Decision[User]:
    """Create a user without a role; only a membership lets them do something."""
    made = new_user(context, tenant_id, spec, one_time)
    user = made.user
    return Decision(
        result=user,
        writes=(made.insert,),
        events=(EventRecord(EventType.USER_CREATED, "user", user.id, tenant_id),),
        audits=(AuditRecord("user.create", "user", user.id, tenant_id, after={"email": user.email}),),
    )


def change_user(
    context: DecisionContext,
    user: User,
    change: UserChange,
    one_time: OneTime | None,
    passkeys: Sequence[Remove] = (),
) -> Decision[User]:
    """Disable, enable, reset (a new one-time code replaces the password and every token), or end every token.

    A reset removes the `passkeys`, too: an admin does it when an account was taken over.
    """
    if user.id == context.actor.id and change in (UserChange.DISABLE, UserChange.ENABLE):
        raise Refusal(Code.LAST_ADMIN, "users cannot disable themselves", {"user_id": user.id})
    if change is UserChange.DISABLE:
        after = replace(user, disabled_at=user.disabled_at or context.now)
    elif change is UserChange.ENABLE:
        after = replace(user, disabled_at=None)
    elif change is UserChange.SIGN_OUT:
        after = replace(user, tokens_from=context.now, tokens_except=None)
        return _changed(user, after, action="user_token.revoke", change=change.value)
    elif one_time is None:
        raise ValueError("a reset needs a one-time code")
    else:
        after = replace(
            user,
            password_hash=None,
            one_time_hash=one_time.hash,
            one_time_expires_at=one_time.expires_at,
            tokens_from=context.now,
            tokens_except=None,
        )
    decision = _changed(user, after, action="user.update", change=change.value)
    return replace(decision, writes=(*decision.writes, *passkeys)) if change is UserChange.RESET else decision


def require_reach(giver: Authority, roles: Iterable[str]) -> None:
    """A limited token cannot reset a user who may do more, because the new code would circumvent the limit."""
    if giver.limit is None:
        return
    held: frozenset[str] = frozenset().union(*(ROLE_ACTIONS[Role(role)] for role in roles))
    if missing := beyond_ceiling(held, giver.limit):
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            "the user may do more than the token that asks for the reset",
            {"missing_actions": list(missing)},
        )


def set_password(context: DecisionContext, user: User, password_hash: str) -> Decision[User]:
    """Set the user's own new password; it invalidates the one-time code and every older token but the one in use."""
    after = replace(
        user,
        password_hash=password_hash,
        one_time_hash=None,
        one_time_expires_at=None,
        tokens_from=context.now,
        tokens_except=context.actor.token_id,
    )
    return _changed(user, after, action="self.update", change="password")


def end_other_sessions(context: DecisionContext, user: User) -> Decision[User]:
    """End every session of the user except the one in use; personal tokens stay."""
    after = replace(user, sessions_from=context.now, sessions_except=context.actor.token_id)
    return _changed(user, after, action="self.update", change="other_sessions_ended")


def check_password_form(password: str, email: str) -> str:
    """Check the length: long enough to resist guessing, short enough to be hashed in bounded time; and that it does
    not contain what everybody knows of the user.
    """
    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise validation.invalid("new_password", f"{PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters")
    local_part = email.partition("@")[0].casefold()
    if len(local_part) >= LOCAL_PART_LENGTH_MIN and local_part in password.casefold():
        raise validation.invalid("new_password", "must not contain the part of your e-mail address before the @")
    return password


def _changed(user: User, after: User, *, action: str, change: str) -> Decision[User]:
    columns = (
        "password_hash",
        "one_time_hash",
        "one_time_expires_at",
        "disabled_at",
        "tokens_from",
        "tokens_except",
        "sessions_from",
        "sessions_except",
    )
    changed = {name: getattr(after, name) for name in columns if getattr(after, name) != getattr(user, name)}
    if not changed:
        return Decision(result=user)
    disabled = {"disabled": after.disabled_at is not None}
    return Decision(
        result=replace(after, revision=user.revision + 1),
        writes=(Update("user", user.id, user.revision, changed),),
        events=(EventRecord(EventType.USER_UPDATED, "user", user.id, user.tenant_id, data={"change": change}),),
        audits=(
            AuditRecord(
                action,
                "user",
                user.id,
                user.tenant_id,
                before={"disabled": user.disabled_at is not None},
                after={"change": change, **disabled},
            ),
        ),
    )
