"""Operator accounts: the service account under which an app's adapter acts in a project.

Entitling a project to an app makes one. Its list is what the admin was shown and agreed to, no more and no less, and
changes when the agreement does; its key is the app's adapter's, where one is known. Whoever agrees does not need to
hold the keys himself: what an operator account may hold at the most is the entitlement's own rule. Switching an
entitlement off leaves the account, since what runs goes on. Taking the entitlement away leaves it what operating needs
and no more, and deletes it once nothing runs.
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
"""What an account keeps at the most whose entitlement is taken away while something runs."""
NAME_LENGTH_MAX: Final = 40
HEAD: Final = "app-"


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """What an operator account is made from: where, for which app, with which list and which key."""

    tenant_id: str
    project_id: str
    app_slug: str
    actions: tuple[str, ...]
    adapter_key: bytes | None
    app_id: str | None = None


@dataclass(frozen=True, slots=True)
class OperatorKeys:
    """An operator account and its keys, revoked ones too."""

    account: ServiceAccount
    keys: Sequence[ServiceAccountKey]


def account_name(app_slug: str, account_id: str, taken: Collection[str]) -> str:
    """`app-<slug>`, cut to length, and told apart where somebody has that name already."""
    plain = f"{HEAD}{app_slug}"[:NAME_LENGTH_MAX].rstrip("-")
    if plain not in taken:
        return plain
    own = account_id.rpartition("_")[2][-8:].lower()
    return f"{plain[: NAME_LENGTH_MAX - len(own) - 1].rstrip('-')}-{own}"


def make_operator(
    context: DecisionContext, operated: OperatorSpec, taken: Collection[str], accounts_there: int
) -> Decision[ServiceAccount]:
    """A new operator account, with the adapter's key where there is one."""
    if accounts_there >= ACCOUNTS_MAX:
        raise Refusal(
            Code.LIMIT_REACHED, f"a project has at most {ACCOUNTS_MAX} service accounts", {"limit": ACCOUNTS_MAX}
        )
    account_id = context.mint(Prefix.SERVICE_ACCOUNT)
    account = ServiceAccount(
        id=account_id,
        tenant_id=operated.tenant_id,
        project_id=operated.project_id,
        name=account_name(operated.app_slug, account_id, taken),
        description=f"operates {operated.app_slug} in this project",
        actions=sorted(operated.actions),
        status=SERVICE_ACCOUNT.initial.value,
        generation=0,
        revision=0,
        created_at=context.now,
        app_id=operated.app_id,
    )
    told = {"name": account.name, "actions": account.actions, "app": operated.app_slug}
    made: Decision[ServiceAccount] = Decision(
        account,
        (Insert("service_account", asdict(account), born=(SERVICE_ACCOUNT,)),),
        (_happened(EventType.SERVICE_ACCOUNT_CREATED, account, told),),
        (_audited("service_account.create", account, told),),
    )
    if operated.adapter_key is None:
        return made
    keyed = _add_key(context, account, operated.adapter_key)
    return Decision(account, made.writes + keyed.writes, made.events + keyed.events, made.audits + keyed.audits)


def agree_operator(account: ServiceAccount, actions: Collection[str]) -> Decision[ServiceAccount]:
    """The account holds what is agreed to now; where that is what it holds, nothing is written."""
    wanted = sorted(actions)
    if account.actions == wanted or account.status == ServiceAccountState.DELETED:
        return Decision(account)
    after = replace(account, actions=wanted, revision=account.revision + 1)
    told: dict[str, object] = {"actions": wanted}
    return Decision(
        after,
        (Update("service_account", account.id, account.revision, told, account.generation),),
        (_happened(EventType.SERVICE_ACCOUNT_UPDATED, after, told),),
        (_audited("service_account.update", after, told),),
    )


def rekey_operator(
    context: DecisionContext, rekeyed: OperatorKeys, new: bytes | None, old: Collection[bytes]
) -> Decision[ServiceAccount]:
    """The adapter's new key is added, and keys that counted for the adapter before are revoked."""
    account = rekeyed.account
    live = {key.public_key: key for key in rekeyed.keys if key.revoked_at is None}
    gone = [live[each] for each in sorted(old) if each in live and each != new]
    writes = tuple(Update("service_account_key", key.id, key.revision, {"revoked_at": context.now}) for key in gone)
    events = tuple(_happened(EventType.SERVICE_ACCOUNT_KEY_REVOKED, account, {"key_id": key.id}) for key in gone)
    audits = tuple(_audited("service_account.key.revoke", account, {"key_id": key.id}) for key in gone)
    if new is None or new in live or len(live) - len(gone) >= KEYS_MAX:
        return Decision(account, writes, events, audits)
    before = next((key for key in rekeyed.keys if key.public_key == new), None)
    added = _add_key(context, account, new) if before is None else _count_again(account, before)
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


def _count_again(account: ServiceAccount, key: ServiceAccountKey) -> Decision[ServiceAccount]:
    """A key that was revoked, and is the adapter's once more."""
    return Decision(
        account,
        (Update("service_account_key", key.id, key.revision, {"revoked_at": None, "expires_at": None}),),
        (_happened(EventType.SERVICE_ACCOUNT_KEY_ADDED, account, {"key_id": key.id}),),
        (_audited("service_account.key.create", account, {"key_id": key.id}),),
    )


def _happened(type_: EventType, account: ServiceAccount, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "service_account", account.id, account.tenant_id, account.project_id, data=data)


def _audited(action: str, account: ServiceAccount, told: Mapping[str, object]) -> AuditRecord:
    return AuditRecord(action, "service_account", account.id, account.tenant_id, account.project_id, after=told)
