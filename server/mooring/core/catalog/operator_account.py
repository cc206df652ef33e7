"""Operator accounts: the service account under which an app's adapter acts in a project.

Entitling a project to an app creates one. Its list of actions is exactly what the admin saw and agreed to, and changes
with the agreement; its key is that of the app's adapter, if that is known. The admin does not need to hold these
actions themselves: the entitlement has its own rule for what an operator account may have. Switching an entitlement off
leaves the account unchanged, because running instances continue. Deleting the entitlement reduces the account to what
operating needs, and the account is deleted once nothing runs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from mooring.core.identity.service_account import (
    ACCOUNTS_MAX,
    KEYS_MAX,
    SERVICE_ACCOUNT,
    ServiceAccount,
    ServiceAccountKey,
    ServiceAccountState,
)
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix

OPERATING: Final = frozenset(
    {"runtime.claim", "runtime.report", "secret.create", "secret.grant", "task.create", "task.read", "usage.report"}
)
"""The most that an account keeps when its entitlement is deleted while instances run."""
NAME_LENGTH_MAX: Final = 40
NAME_PREFIX: Final = "app-"


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """The properties of a new operator account: its project, its app, its actions and its key."""

    tenant_id: str
    project_id: str
    app_slug: str
    actions: tuple[str, ...]
    adapter_key: bytes | None
    app_id: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorKeys:
    """An operator account with all its keys, including revoked ones."""

    account: ServiceAccount
    keys: Sequence[ServiceAccountKey]


def account_name(app_slug: str, account_id: str, taken: Collection[str]) -> str:
    """`app-<slug>`, cut to the maximum length, with a suffix when that name is taken."""
    plain = f"{NAME_PREFIX}{app_slug}"[:NAME_LENGTH_MAX].rstrip("-")
    if plain not in taken:
        return plain
    own = account_id.rpartition("_")[2][-8:].lower()
    return f"{plain[: NAME_LENGTH_MAX - len(own) - 1].rstrip('-')}-{own}"


def make_operator(
    context: DecisionContext, spec: OperatorSpec, taken: Collection[str], account_count: int
) -> Decision[ServiceAccount]:
    """Create an operator account, with the adapter's key if there is one; `taken` are the names in use."""
    if account_count >= ACCOUNTS_MAX:
        raise Refusal(
            Code.LIMIT_REACHED, f"a project has at most {ACCOUNTS_MAX} service accounts", {"limit": ACCOUNTS_MAX}
        )
    account_id = context.mint(Prefix.SERVICE_ACCOUNT)
    account = ServiceAccount(
        id=account_id,
        tenant_id=spec.tenant_id,
        project_id=spec.project_id,
        name=account_name(spec.app_slug, account_id, taken),
        description=f"operates {spec.app_slug} in this project",
        actions=sorted(spec.actions),
        status=SERVICE_ACCOUNT.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
        app_id=spec.app_id,
    )
    data = {"name": account.name, "actions": account.actions, "app": spec.app_slug}
    made: Decision[ServiceAccount] = Decision(
        account,
        (Insert("service_account", asdict(account), born=(SERVICE_ACCOUNT,)),),
        (_happened(EventType.SERVICE_ACCOUNT_CREATED, account, data),),
        (_audited("service_account.create", account, data),),
    )
    if spec.adapter_key is None:
        return made
    keyed = _add_key(context, account, spec.adapter_key)
    return Decision(account, made.writes + keyed.writes, made.events + keyed.events, made.audits + keyed.audits)


def agree_operator(account: ServiceAccount, actions: Collection[str]) -> Decision[ServiceAccount]:
    """Give the account exactly the agreed actions; nothing is written if it has them already."""
    wanted = sorted(actions)
    if account.actions == wanted or account.status == ServiceAccountState.DELETED:
        return Decision(account)
    after = replace(account, actions=wanted, revision=account.revision + 1)
    data: dict[str, object] = {"actions": wanted}
    return Decision(
        after,
        (Update("service_account", account.id, account.revision, data, account.generation),),
        (_happened(EventType.SERVICE_ACCOUNT_UPDATED, after, data),),
        (_audited("service_account.update", after, data),),
    )


def rekey_operator(
    context: DecisionContext, rekeyed: OperatorKeys, new: bytes | None, old: Collection[bytes]
) -> Decision[ServiceAccount]:
    """Add the adapter's new key, and revoke the adapter's old keys."""
    account = rekeyed.account
    live = {key.public_key: key for key in rekeyed.keys if key.revoked_at is None}
    gone = [live[each] for each in sorted(old) if each in live and each != new]
    writes = tuple(Update("service_account_key", key.id, key.revision, {"revoked_at": context.now}) for key in gone)
    events = tuple(_happened(EventType.SERVICE_ACCOUNT_KEY_REVOKED, account, {"key_id": key.id}) for key in gone)
    audits = tuple(_audited("service_account.key.revoke", account, {"key_id": key.id}) for key in gone)
    if new is None or new in live or len(live) - len(gone) >= KEYS_MAX:
        return Decision(account, writes, events, audits)
    before = next((key for key in rekeyed.keys if key.public_key == new), None)
    added = _add_key(context, account, new) if before is None else _reactivate_key(account, before)
    return Decision(account, writes + added.writes, events + added.events, audits + added.audits)


def _add_key(context: DecisionContext, account: ServiceAccount, public_key: bytes) -> Decision[ServiceAccount]:
    key = ServiceAccountKey(
        id=context.mint(Prefix.KEY),
        tenant_id=account.tenant_id,
        service_account_id=account.id,
        algorithm="ed25519",
        public_key=public_key,
        revision=0,
        created_at=context.now,
        expires_at=None,
        revoked_at=None,
    )
    return Decision(
        account,
        (Insert("service_account_key", asdict(key)),),
        (_happened(EventType.SERVICE_ACCOUNT_KEY_ADDED, account, {"key_id": key.id}),),
        (_audited("service_account.key.create", account, {"key_id": key.id}),),
    )


def _reactivate_key(account: ServiceAccount, key: ServiceAccountKey) -> Decision[ServiceAccount]:
    """Reactivate a revoked key that is the adapter's key again."""
    return Decision(
        account,
        (Update("service_account_key", key.id, key.revision, {"revoked_at": None, "expires_at": None}),),
        (_happened(EventType.SERVICE_ACCOUNT_KEY_ADDED, account, {"key_id": key.id}),),
        (_audited("service_account.key.create", account, {"key_id": key.id}),),
    )


def _happened(type_: EventType, account: ServiceAccount, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "service_account", account.id, account.tenant_id, account.project_id, data=data)


def _audited(action: str, account: ServiceAccount, data: Mapping[str, object]) -> AuditRecord:
    return AuditRecord(action, "service_account", account.id, account.tenant_id, account.project_id, after=data)
