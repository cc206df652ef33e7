"""Service account: a principal of exactly one project, for automation and adapters.

Disabling is temporary; deleting is permanent, but the row stays readable, so that audit rows and events never refer to
something unknown. Only an active account gets tokens.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from mooring.core.identity.tenant import require_revision
from mooring.core.identity.token import check_actions
from mooring.core.kernel import validation
from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    StateChange,
    Update,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who
from mooring.core.kernel.permissions import (
    SERVICE_ACCOUNT_CEILING,
    Authority,
    Place,
    Scope,
    beyond_ceiling,
    is_app_action,
)


class ServiceAccountState(StrEnum):
    ACTIVE = "active"
    DISABLED = "disabled"
    DELETED = "deleted"


class ServiceAccountTrigger(StrEnum):
    DISABLE = "disable"
    ENABLE = "enable"
    DELETE = "delete"


S, T = ServiceAccountState, ServiceAccountTrigger

SERVICE_ACCOUNT = Lifecycle(
    name="service_account",
    about="A principal of exactly one project, for automation and adapters.",
    states=ServiceAccountState,
    triggers=ServiceAccountTrigger,
    initial=S.ACTIVE,
    meaning={
        S.ACTIVE: "it may exchange a signed assertion for a token and do what its list of actions allows",
        S.DISABLED: "it gets no token, and its tokens are refused, until it is enabled again",
        S.DELETED: "permanently deleted; its row stays for the records that refer to it",
    },
    edges=(
        Transition(S.ACTIVE, T.DISABLE, S.DISABLED, Who.USER, "An admin of the project switches it off for now."),
        Transition(S.ACTIVE, T.DELETE, S.DELETED, Who.USER, "An admin of the project deletes it permanently."),
        Transition(S.DISABLED, T.ENABLE, S.ACTIVE, Who.USER, "An admin of the project switches it on again."),
        Transition(S.DISABLED, T.DELETE, S.DELETED, Who.USER, "It was switched off, and an admin deletes it."),
    ),
    requires={S.DISABLED: frozenset({"disabled_at"}), S.DELETED: frozenset({"deleted_at"})},
)


ED25519_KEY_BYTES: Final = 32
KEYS_MAX: Final = 10
EXPIRY_MAX: Final = datetime(9999, 1, 1, tzinfo=UTC)  # later times of some zones cannot be expressed in UTC
ACCOUNTS_MAX: Final = 500

_EVENT_OF: Final = {
    T.DISABLE: EventType.SERVICE_ACCOUNT_DISABLED,
    T.ENABLE: EventType.SERVICE_ACCOUNT_ENABLED,
    T.DELETE: EventType.SERVICE_ACCOUNT_DELETED,
}


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """A principal for automation, with one project, an explicit list of action keys, and its own Ed25519 keys."""

    id: str
    tenant_id: str
    project_id: str
    name: str
    description: str
    actions: list[str]
    status: str
    generation: int
    revision: int
    created_at: datetime
    disabled_at: datetime | None = None
    deleted_at: datetime | None = None
    app_id: str | None = None  # the app whose operator account this is; None for other accounts


@dataclass(frozen=True, slots=True)
class ServiceAccountKey:
    """The public half of a key pair; the platform never sees the private half."""

    id: str
    tenant_id: str
    service_account_id: str
    algorithm: str
    public_key: bytes
    revision: int
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True)
class ServiceAccountSpec:
    """The properties of an account that the caller asks for."""

    name: str
    description: str
    actions: tuple[str, ...]
    public_key: bytes | None = None


def create_service_account(
    context: DecisionContext, giver: Authority, place: Place, spec: ServiceAccountSpec, account_count: int
) -> Decision[ServiceAccount]:
    """Create an account, with at most the actions that its creator holds in this project, and optionally a first key.

    `account_count` is the number of accounts that the project has already.
    """
    if account_count >= ACCOUNTS_MAX:
        raise Refusal(
            Code.LIMIT_REACHED,
            f"a project has at most {ACCOUNTS_MAX} service accounts",
            {"limit": ACCOUNTS_MAX},
        )
    account = ServiceAccount(
        id=context.mint(Prefix.SERVICE_ACCOUNT),
        tenant_id=str(place.tenant_id),
        project_id=str(place.project_id),
        name=validation.slug(spec.name, "name"),
        description=validation.remark(spec.description, "description"),
        actions=_allowed_actions(giver, place, spec.actions),
        status=SERVICE_ACCOUNT.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
    )
    writes: list[Write] = [Insert("service_account", asdict(account), born=(SERVICE_ACCOUNT,))]
    events = [_happened(EventType.SERVICE_ACCOUNT_CREATED, account, {"name": account.name, "actions": account.actions})]
    if spec.public_key is not None:
        key = _key(context, account, spec.public_key, None)
        writes.append(Insert("service_account_key", asdict(key)))
        events.append(_happened(EventType.SERVICE_ACCOUNT_KEY_ADDED, account, {"key_id": key.id}))
    return Decision(
        result=account,
        writes=tuple(writes),
        events=tuple(events),
        audits=(_audited("service_account.create", account, after={"name": account.name, "actions": account.actions}),),
    )


def update_service_account(
    context: DecisionContext,
    giver: Authority,
    account: ServiceAccount,
    spec: ServiceAccountSpec,
    revision_seen: int | None,
) -> Decision[ServiceAccount]:
    """Change the list of actions or the description; `giver` must hold every action that is added to the list."""
    require_revision(account.revision, revision_seen)
    if account.status == S.DELETED:
        raise Refusal(Code.NOT_FOUND, "the service account is deleted")
    place = Place(Scope.PROJECT, account.tenant_id, account.project_id)
    _allowed_actions(giver, place, tuple(set(spec.actions) - set(account.actions)))
    wanted = sorted(check_actions(spec.actions))
    description = validation.remark(spec.description, "description")
    after = replace(account, actions=wanted, description=description, revision=account.revision + 1)
    changed: dict[str, object] = {"actions": wanted, "description": description}
    return Decision(
        result=after,
        writes=(Update("service_account", account.id, account.revision, changed, account.generation),),
        events=(_happened(EventType.SERVICE_ACCOUNT_UPDATED, after, changed),),
        audits=(_audited("service_account.update", account, before={"actions": account.actions}, after=changed),),
    )


def move_service_account(
    context: DecisionContext, account: ServiceAccount, trigger: ServiceAccountTrigger
) -> Decision[ServiceAccount]:
    """Disable, enable or delete an account."""
    edge = SERVICE_ACCOUNT.step(S(account.status), trigger)
    dates: dict[ServiceAccountTrigger, dict[str, object]] = {
        T.DISABLE: {"disabled_at": context.now},
        T.ENABLE: {"disabled_at": None},
        T.DELETE: {"deleted_at": context.now},
    }
    moved: dict[str, object] = {"status": edge.target.value}
    after = replace(account, status=edge.target.value, generation=account.generation + 1, **dates[trigger])  # type: ignore[arg-type]
    move = StateChange(
        "service_account",
        account.id,
        SERVICE_ACCOUNT,
        edge,
        account.generation,
        account.tenant_id,
        set=dates[trigger],
    )
    return Decision(
        result=after,
        writes=(move,),
        events=(_happened(_EVENT_OF[trigger], after, moved),),
        audits=(_audited(f"service_account.{trigger}", account, before={"status": account.status}, after=moved),),
    )


def add_key(
    context: DecisionContext,
    account: ServiceAccount,
    live_keys: int,
    public_key: bytes,
    expires_at: datetime | None,
    *,
    giver: Authority,
) -> Decision[ServiceAccountKey]:
    """Add a public key. To rotate: add the new key, switch to it, revoke the old one.

    The holder of a key acts as the account, so nobody may add a key to an account that may do more than they may. An
    account may always rotate its own keys.
    """
    if account.status == S.DELETED:
        raise Refusal(Code.NOT_FOUND, "the service account is deleted")
    if context.actor.id != account.id:
        place = Place(Scope.PROJECT, account.tenant_id, account.project_id)
        _allowed_actions(giver, place, tuple(account.actions))
    if live_keys >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a service account has at most {KEYS_MAX} keys", {"limit": KEYS_MAX})
    if expires_at is not None and not context.now < expires_at < EXPIRY_MAX:
        raise validation.invalid("expires_at", "a time in the future, before the year 9999")
    key = _key(context, account, public_key, expires_at)
    return Decision(
        result=key,
        writes=(Insert("service_account_key", asdict(key)),),
        events=(_happened(EventType.SERVICE_ACCOUNT_KEY_ADDED, account, {"key_id": key.id}),),
        audits=(_audited("service_account.key.create", account, after={"key_id": key.id}),),
    )


def revoke_key(
    context: DecisionContext, account: ServiceAccount, key: ServiceAccountKey
) -> Decision[ServiceAccountKey]:
    """Revoke a key and the tokens that were issued with it; revoking it again changes nothing."""
    if key.revoked_at is not None:
        return Decision(result=key)
    return Decision(
        result=replace(key, revoked_at=context.now, revision=key.revision + 1),
        writes=(Update("service_account_key", key.id, key.revision, {"revoked_at": context.now}),),
        events=(_happened(EventType.SERVICE_ACCOUNT_KEY_REVOKED, account, {"key_id": key.id}),),
        audits=(_audited("service_account.key.revoke", account, before={"key_id": key.id}),),
    )


def _allowed_actions(giver: Authority, place: Place, actions: tuple[str, ...]) -> list[str]:
    wanted = check_actions(actions)
    ceiling = giver.at(place) & SERVICE_ACCOUNT_CEILING
    beyond = [key for key in beyond_ceiling(wanted, ceiling) if not _app_key_is_held(key, giver, place)]
    if beyond:
        raise Refusal(
            Code.GRANT_EXCEEDS_CEILING,
            f"no service account may have {beyond[0]}, or the caller does not hold it in this project",
            {"missing_actions": beyond},
        )
    return sorted(wanted)


def _app_key_is_held(key: str, giver: Authority, place: Place) -> bool:
    """Who may launch any app may also grant an app's own action keys."""
    return is_app_action(key) and "instance.create" in giver.at(place)


def _key(
    context: DecisionContext, account: ServiceAccount, public_key: bytes, expires_at: datetime | None
) -> ServiceAccountKey:
    if len(public_key) != ED25519_KEY_BYTES:
        raise validation.invalid("public_key", f"the {ED25519_KEY_BYTES} bytes of an Ed25519 public key, in base64")
    return ServiceAccountKey(
        id=context.mint(Prefix.KEY),
        tenant_id=account.tenant_id,
        service_account_id=account.id,
        algorithm="ed25519",
        public_key=public_key,
        revision=0,
        created_at=context.now,
        expires_at=expires_at,
        revoked_at=None,
    )


def _happened(type_: EventType, account: ServiceAccount, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "service_account", account.id, account.tenant_id, account.project_id, data=data)


def _audited(
    action: str,
    account: ServiceAccount,
    *,
    before: Mapping[str, object] | None = None,
    after: Mapping[str, object] | None = None,
) -> AuditRecord:
    return AuditRecord(
        action,
        "service_account",
        account.id,
        account.tenant_id,
        account.project_id,
        before=before,
        after=after,
    )
