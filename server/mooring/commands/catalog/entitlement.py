"""Use cases for entitlements. The actions that the manifest requires are read too, so that the answer shows both.

An entitlement that is switched on has an operator account. The same decision that changes the entitlement creates the
account and sets its list of actions to what was agreed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work, system_context
from mooring.commands.services import Services
from mooring.core.catalog.app import App
from mooring.core.catalog.entitlement import (
    Entitlement,
    EntitlementKey,
    EntitlementRequest,
    change_entitlement,
    create_entitlement,
    delete_entitlement,
    switched,
)
from mooring.core.catalog.operator_account import (
    OPERATING,
    OperatorKeys,
    OperatorSpec,
    agree_operator,
    make_operator,
    rekey_operator,
)
from mooring.core.catalog.workload_adapter import OperatedBy, operating_key
from mooring.core.identity.service_account import (
    ServiceAccount,
    ServiceAccountKey,
    ServiceAccountState,
    ServiceAccountTrigger,
    move_service_account,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.ids import Prefix
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import entitlement as entitlements
from mooring.storage.catalog import workload_adapter as workload_adapters
from mooring.storage.identity import project as projects
from mooring.storage.identity import service_account as accounts
from mooring.storage.kernel.database import PLATFORM

IDLE_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class EntitlementWithNeeds:
    """An entitlement, and the actions that the newest offered version requires."""

    entitlement: Entitlement
    required_actions: list[str]
    operated_by: OperatedBy


@dataclass(frozen=True, slots=True)
class EntitlementContext:
    """The facts that a change of an entitlement depends on."""

    app: App | None
    required: list[str]
    names: set[str]  # names of the project's service accounts that look like operator accounts
    accounts: int
    app_id: str
    adapter_key: bytes | None = None  # of the adapter that operates the app in this project
    account_keys: Sequence[ServiceAccountKey] = ()
    workload_keys: Sequence[bytes] = ()  # current and former keys of the platform's workload adapter
    entitlement: Entitlement | None = None
    account: ServiceAccount | None = None

    @property
    def is_operated(self) -> bool:
        """Whether there is an operator account already."""
        return self.account is not None and self.account.status != ServiceAccountState.DELETED

    @property
    def own_keys(self) -> list[ServiceAccountKey]:
        """The valid keys of the account that are not the workload adapter's."""
        valid = [each for each in self.account_keys if each.revoked_at is None]
        return [each for each in valid if each.public_key not in self.workload_keys]


async def end_idle_operators(services: Services) -> int:
    """Delete the operator accounts that are no longer needed; returns how many."""
    ended = 0
    for account in await accounts.idle_operators(services.database, IDLE_BATCH):
        context = system_context(services)
        decision = move_service_account(context, account, ServiceAccountTrigger.DELETE)
        # After a lost race the account is still listed, or no longer idle: the next sweep finds out.
        ended += await apply_once(services, PLATFORM, context, decision)
    return ended


async def create(
    work: Work[EntitlementWithNeeds], project_id: str, app_id: str, request: EntitlementRequest
) -> Answered:
    async def load() -> EntitlementContext:
        require(await projects.find(work.database, work.acting, project_id), "project")
        app = require(await apps.find_in_sight(work.database, work.acting, app_id), "app")
        return await _context(work, project_id, app, None)

    def decide(facts: EntitlementContext) -> Decision[EntitlementWithNeeds]:
        app = require(facts.app, "app")
        entitled = EntitlementKey(str(work.acting.tenant_id), project_id, app.id, app.slug)
        made = _operator(work, facts, request, entitled)
        account_id = None if made is None else made.result.id
        entitlement_id = work.context.mint(Prefix.ENTITLEMENT)
        decided = create_entitlement(work.context, entitlement_id, entitled, request, account_id)
        return _agreed(decided, facts, made)

    return await work.execute(load, decide)


async def update(
    work: Work[EntitlementWithNeeds],
    project_id: str,
    entitlement_id: str,
    request: EntitlementRequest,
    revision_seen: int | None,
) -> Answered:
    """Replace all terms of an entitlement."""
    return await work.execute(
        lambda: _load_context(work, project_id, entitlement_id),
        lambda facts: _changed(work, facts, request, revision_seen),
    )


async def switch(
    work: Work[EntitlementWithNeeds], project_id: str, entitlement_id: str, enabled: bool, reason: str
) -> Answered:
    """Switch an entitlement on or off without changing its terms."""

    def decide(facts: EntitlementContext) -> Decision[EntitlementWithNeeds]:
        return _changed(work, facts, switched(require(facts.entitlement, "entitlement"), enabled, reason), None)

    return await work.execute(lambda: _load_context(work, project_id, entitlement_id), decide)


@dataclass(frozen=True, slots=True)
class _EntitlementOperator:
    """An entitlement with its operator account, and whether that account still operates an instance."""

    entitlement: Entitlement
    account: ServiceAccount | None
    operates: bool


async def delete(work: Work[Entitlement], project_id: str, entitlement_id: str) -> Answered:
    """Delete an entitlement; running instances continue, and the operator account stays as long as one runs."""

    async def load() -> _EntitlementOperator:
        entitlement = await _load(work, project_id, entitlement_id)
        account = await _account(work, entitlement)
        operates = account is not None and await accounts.operates(work.database, work.acting, account.id)
        return _EntitlementOperator(entitlement, account, operates)

    def decide(loaded: _EntitlementOperator) -> Decision[Entitlement]:
        entitlement, account = loaded.entitlement, loaded.account
        decided = delete_entitlement(work.context, entitlement)
        if account is None or account.status == ServiceAccountState.DELETED:
            return decided
        changed = (
            agree_operator(account, OPERATING & set(account.actions))
            if loaded.operates
            else (move_service_account(work.context, account, ServiceAccountTrigger.DELETE))
        )
        return Decision(
            entitlement,
            decided.writes + changed.writes,
            decided.events + changed.events,
            decided.audits + changed.audits,
        )

    return await work.execute(load, decide)


def _changed(
    work: Work[EntitlementWithNeeds], facts: EntitlementContext, request: EntitlementRequest, revision_seen: int | None
) -> Decision[EntitlementWithNeeds]:
    entitlement = require(facts.entitlement, "entitlement")
    entitled = EntitlementKey(entitlement.tenant_id, entitlement.project_id, entitlement.app_id, entitlement.app_slug)
    made = _operator(work, facts, request, entitled)
    new_id = made.result.id if made is not None and made.result.id != entitlement.service_account_id else None
    return _agreed(change_entitlement(work.context, entitlement, request, revision_seen, new_id), facts, made)


def _operator(
    work: Work[Any], facts: EntitlementContext, request: EntitlementRequest, entitled: EntitlementKey
) -> Decision[ServiceAccount] | None:
    """Create the operator account, or set its actions to the agreement; None if it was never switched on."""
    account = facts.account
    if account is not None and facts.is_operated:
        agreed = agree_operator(account, set(request.agreed_actions))
        return _rekeyed(work, facts, agreed) if request.enabled else agreed
    if not request.enabled:
        return None
    key = facts.adapter_key
    actions = tuple(set(request.agreed_actions))
    spec = OperatorSpec(entitled.tenant_id, entitled.project_id, entitled.app_slug, actions, key, facts.app_id)
    return make_operator(work.context, spec, facts.names, facts.accounts)


def _rekeyed(work: Work[Any], facts: EntitlementContext, agreed: Decision[ServiceAccount]) -> Decision[ServiceAccount]:
    """Give the account the platform's workload adapter if it has no key, or take that one away from it.

    Any other key is left alone: an app team or an admin added it.
    """
    wanted = facts.adapter_key if facts.adapter_key in facts.workload_keys and not facts.own_keys else None
    former = [each for each in facts.workload_keys if each != wanted]
    keyed = rekey_operator(work.context, OperatorKeys(agreed.result, facts.account_keys), wanted, former)
    return Decision(
        agreed.result, agreed.writes + keyed.writes, agreed.events + keyed.events, agreed.audits + keyed.audits
    )


def _agreed(
    decision: Decision[Entitlement], facts: EntitlementContext, operator: Decision[ServiceAccount] | None
) -> Decision[EntitlementWithNeeds]:
    result = EntitlementWithNeeds(
        decision.result, facts.required, _operated_by(facts, operator, enabled=decision.result.enabled)
    )
    if operator is None:
        return Decision(result, decision.writes, decision.events, decision.audits)
    return Decision(
        result, operator.writes + decision.writes, decision.events + operator.events, decision.audits + operator.audits
    )


def _operated_by(facts: EntitlementContext, operator: Decision[ServiceAccount] | None, *, enabled: bool) -> OperatedBy:
    """Whose key the account has after the decision."""
    if operator is None:
        return OperatedBy.NOBODY
    if facts.own_keys:
        return OperatedBy.APP
    if facts.is_operated and not enabled:  # its keys stay as they are
        held = any(each.revoked_at is None for each in facts.account_keys)
        return OperatedBy.PLATFORM if held else OperatedBy.NOBODY
    if facts.adapter_key in facts.workload_keys:
        return OperatedBy.PLATFORM
    return OperatedBy.NOBODY if facts.adapter_key is None or facts.is_operated else OperatedBy.APP


async def _load_context(work: Work[Any], project_id: str, entitlement_id: str) -> EntitlementContext:
    entitlement = await _load(work, project_id, entitlement_id)
    app = await apps.find_in_sight(work.database, work.acting, entitlement.app_id)
    return await _context(work, project_id, app, entitlement)


async def _context(
    work: Work[Any], project_id: str, app: App | None, entitlement: Entitlement | None
) -> EntitlementContext:
    app_id = entitlement.app_id if entitlement is not None else str(app and app.id)
    workload = await workload_adapters.find(work.database)
    kind = await entitlements.offered_kind(work.database, work.acting, app_id)
    account = None if entitlement is None else await _account(work, entitlement)
    is_live = account is not None and account.status != ServiceAccountState.DELETED
    keys = await accounts.keys(work.database, work.acting, account.id) if account is not None and is_live else []
    return EntitlementContext(
        app,
        (await entitlements.required_actions(work.database, work.acting, [app_id])).get(app_id, []),
        await accounts.operator_names(work.database, work.acting, project_id),
        await accounts.count(work.database, work.acting, project_id),
        app_id,
        operating_key(app, kind, workload),
        keys,
        [] if workload is None else workload.known_keys,
        entitlement,
        account,
    )


async def _account(work: Work[Any], entitlement: Entitlement) -> ServiceAccount | None:
    if entitlement.service_account_id is None:
        return None
    return await accounts.find(work.database, work.acting, entitlement.project_id, entitlement.service_account_id)


async def _load(work: Work[Any], project_id: str, entitlement_id: str) -> Entitlement:
    return require(await entitlements.find(work.database, work.acting, project_id, entitlement_id), "entitlement")
