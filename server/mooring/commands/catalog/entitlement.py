"""Commands on entitlements. What the manifest requires is read with the decision, so that the answer shows both.

An entitlement that is on has an operator account: it is made, and its list kept to what was agreed to, in the same
decision as the entitlement.
"""

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
from mooring.core.catalog.operator_account import OPERATING, OperatorSpec, agree_operator, make_operator
from mooring.core.identity.service_account import (
    ServiceAccount,
    ServiceAccountState,
    ServiceAccountTrigger,
    move_service_account,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.ids import Prefix
from mooring.storage.catalog import app as apps
from mooring.storage.catalog import entitlement as entitlements
from mooring.storage.identity import project as projects
from mooring.storage.identity import service_account as accounts
from mooring.storage.kernel.database import PLATFORM

IDLE_BATCH: Final = 100


@dataclass(frozen=True, slots=True)
class EntitlementWithNeeds:
    """An entitlement beside what the newest offered version requires."""

    entitlement: Entitlement
    required_actions: list[str]


@dataclass(frozen=True, slots=True)
class EntitlementContext:
    """What a change of an entitlement is decided on."""

    app: App | None
    required: list[str]
    names: set[str]  # of the project's service accounts that look like an operator's
    accounts: int
    app_id: str
    entitlement: Entitlement | None = None
    account: ServiceAccount | None = None


async def end_idle_operators(services: Services) -> int:
    """Delete the operator accounts that nothing needs any more; returns how many."""
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
    """The first word about an app in a project."""

    async def load() -> EntitlementContext:
        require(await projects.find(work.database, work.acting, project_id), "project")
        app = require(await apps.find_in_sight(work.database, work.acting, app_id), "app")
        return await _seen(work, project_id, app, None)

    def decide(seen: EntitlementContext) -> Decision[EntitlementWithNeeds]:
        app = require(seen.app, "app")
        entitled = EntitlementKey(str(work.acting.tenant_id), project_id, app.id, app.slug)
        made = _operator(work, seen, request, (entitled.tenant_id, project_id, app.slug))
        account_id = None if made is None else made.result.id
        entitlement_id = work.context.mint(Prefix.ENTITLEMENT)
        decided = create_entitlement(work.context, entitlement_id, entitled, request, account_id)
        return _agreed(decided, seen.required, made)

    return await work.execute(load, decide)


async def update(
    work: Work[EntitlementWithNeeds],
    project_id: str,
    entitlement_id: str,
    request: EntitlementRequest,
    revision_seen: int | None,
) -> Answered:
    """All terms anew."""
    return await work.execute(
        lambda: _load_seen(work, project_id, entitlement_id),
        lambda seen: _changed(work, seen, request, revision_seen),
    )


async def switch(
    work: Work[EntitlementWithNeeds], project_id: str, entitlement_id: str, enabled: bool, reason: str
) -> Answered:
    """On or off, and nothing else."""

    def decide(seen: EntitlementContext) -> Decision[EntitlementWithNeeds]:
        return _changed(work, seen, switched(require(seen.entitlement, "entitlement"), enabled, reason), None)

    return await work.execute(lambda: _load_seen(work, project_id, entitlement_id), decide)


async def delete(work: Work[Entitlement], project_id: str, entitlement_id: str) -> Answered:
    """Take the entitlement away; what runs goes on, and its operator account with it while anything does."""

    async def load() -> tuple[Entitlement, ServiceAccount | None, bool]:
        entitlement = await _load(work, project_id, entitlement_id)
        account = await _account(work, entitlement)
        busy = account is not None and await accounts.operates(work.database, work.acting, account.id)
        return entitlement, account, busy

    def decide(seen: tuple[Entitlement, ServiceAccount | None, bool]) -> Decision[Entitlement]:
        entitlement, account, busy = seen
        decided = delete_entitlement(work.context, entitlement)
        if account is None or account.status == ServiceAccountState.DELETED:
            return decided
        left = (
            agree_operator(account, OPERATING & set(account.actions))
            if busy
            else (move_service_account(work.context, account, ServiceAccountTrigger.DELETE))
        )
        return Decision(
            entitlement, decided.writes + left.writes, decided.events + left.events, decided.audits + left.audits
        )

    return await work.execute(load, decide)


def _changed(
    work: Work[EntitlementWithNeeds], seen: EntitlementContext, request: EntitlementRequest, revision_seen: int | None
) -> Decision[EntitlementWithNeeds]:
    entitlement = require(seen.entitlement, "entitlement")
    made = _operator(work, seen, request, (entitlement.tenant_id, entitlement.project_id, entitlement.app_slug))
    fresh = made.result.id if made is not None and made.result.id != entitlement.service_account_id else None
    return _agreed(change_entitlement(work.context, entitlement, request, revision_seen, fresh), seen.required, made)


def _operator(
    work: Work[Any], seen: EntitlementContext, request: EntitlementRequest, where: tuple[str, str, str]
) -> Decision[ServiceAccount] | None:
    """What makes the operator account, or keeps its list to the agreement; none while it was never on."""
    account = seen.account
    if account is not None and account.status != ServiceAccountState.DELETED:
        return agree_operator(account, set(request.agreed_actions))
    if not request.enabled:
        return None
    key = None if seen.app is None else seen.app.adapter_key
    operated = OperatorSpec(*where, tuple(set(request.agreed_actions)), key, seen.app_id)
    return make_operator(work.context, operated, seen.names, seen.accounts)


def _agreed(
    decision: Decision[Entitlement], required: list[str], operator: Decision[ServiceAccount] | None
) -> Decision[EntitlementWithNeeds]:
    result = EntitlementWithNeeds(decision.result, required)
    if operator is None:
        return Decision(result, decision.writes, decision.events, decision.audits)
    return Decision(
        result, operator.writes + decision.writes, decision.events + operator.events, decision.audits + operator.audits
    )


async def _load_seen(work: Work[Any], project_id: str, entitlement_id: str) -> EntitlementContext:
    entitlement = await _load(work, project_id, entitlement_id)
    app = await apps.find_in_sight(work.database, work.acting, entitlement.app_id)
    return await _seen(work, project_id, app, entitlement)


async def _seen(
    work: Work[Any], project_id: str, app: App | None, entitlement: Entitlement | None
) -> EntitlementContext:
    app_id = entitlement.app_id if entitlement is not None else str(app and app.id)
    return EntitlementContext(
        app,
        (await entitlements.required_actions(work.database, work.acting, [app_id])).get(app_id, []),
        await accounts.operator_names(work.database, work.acting, project_id),
        await accounts.count(work.database, work.acting, project_id),
        app_id,
        entitlement,
        None if entitlement is None else await _account(work, entitlement),
    )


async def _account(work: Work[Any], entitlement: Entitlement) -> ServiceAccount | None:
    if entitlement.service_account_id is None:
        return None
    return await accounts.find(work.database, work.acting, entitlement.project_id, entitlement.service_account_id)


async def _load(work: Work[Any], project_id: str, entitlement_id: str) -> Entitlement:
    found_row = await entitlements.find(work.database, work.acting, project_id, entitlement_id)
    return require(found_row, "entitlement")
