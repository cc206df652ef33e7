"""Watches budgets and balances: records what was crossed, and ends what is not paid for.

Each step is one decision, guarded by a primary key or by the generation of what it ends. A worker that dies between two
of them, or races others, does nothing twice: the next pass finds what is left.
"""

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import system_context
from mooring.commands.runtime.instance import bounds_of
from mooring.commands.runtime.instance_reconcile import RACE_CODES
from mooring.commands.runtime.launch import manifest_of
from mooring.commands.services import Services
from mooring.core.fleet.allocation import LostBy
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Refusal
from mooring.core.money.forced_release import MoneyEnd, release_unpaid, stop_unpaid
from mooring.core.pricing.budget import Budget, cross, due_crossings, is_stopped
from mooring.core.pricing.prepaid import PrepaidAccount, cross_level, due_levels
from mooring.core.pricing.spending import Figures
from mooring.core.runtime.instance_change import InstanceContext
from mooring.storage.catalog import catalog
from mooring.storage.kernel.database import PLATFORM, RowReader
from mooring.storage.money import forced_release
from mooring.storage.pricing import spending
from mooring.storage.runtime import instance as stored_instances
from mooring.storage.runtime import instance_trust

OWNER: Final = "billing"
"""The name under which the platform acts here."""
BUDGETS_MAX: Final = 10_000
ENDED_AT_ONCE: Final = 20

log = logging.getLogger("mooring.spending")


@dataclass(frozen=True, slots=True)
class _Watched:
    figures: Figures
    budgets: list[Budget]
    fired: dict[str, set[int]]
    account: PrepaidAccount | None
    levels: frozenset[str]


async def watch_all(services: Services) -> int:
    """One pass over all tenants with budgets or a balance; returns how many steps were taken."""
    taken = 0
    for tenant_id in await spending.watched(services.database, PLATFORM):
        try:
            taken += await watch(services, tenant_id)
        except Exception:  # one tenant's figures must not keep the others from being watched
            log.exception("could not watch the spending of tenant %s; going on with the others", tenant_id)
    return taken


async def watch(services: Services, tenant_id: str) -> int:
    """Record what the tenant crossed, then end what is not paid for, a few at a time."""
    found = await _read(services, tenant_id)
    taken, ends = 0, []
    for budget in found.budgets:
        spent = found.figures.spent(budget.project_id, budget.currency)
        for threshold in due_crossings(budget, spent, found.fired.get(budget.id, ())):
            context = _context(services)
            taken += await _applied(services, context, cross(context, budget, threshold, spent))
        if is_stopped(budget, spent):
            ends.append(MoneyEnd(tenant_id, budget.project_id, LostBy.BUDGET))
    if found.account is not None:
        balance = found.figures.balance(found.account.currency)
        for level in due_levels(found.account, balance, found.levels):
            context = _context(services)
            taken += await _applied(services, context, cross_level(context, found.account, level, balance))
        if balance.left_micro <= 0:
            ends.append(MoneyEnd(tenant_id, None, LostBy.BALANCE))
    for end in ends:
        taken += await _end(services, end)
    return taken


async def _read(services: Services, tenant_id: str) -> _Watched:
    now = services.clock.now()

    async def read(reader: RowReader) -> _Watched:
        account = await spending.account(reader, PLATFORM, tenant_id)
        figures = await spending.figures(reader, PLATFORM, tenant_id, now, ever=account is not None)
        levels: frozenset[str] = frozenset()
        if account is not None:
            levels = await spending.levels(reader, PLATFORM, account.id, figures.last_payment_id)
        return _Watched(
            figures,
            await spending.budgets_of(reader, PLATFORM, tenant_id, None, after="", limit=BUDGETS_MAX),
            await spending.fired(reader, PLATFORM, tenant_id, figures.month),
            account,
            levels,
        )

    return await services.database.in_snapshot(PLATFORM, read)


async def _end(services: Services, end: MoneyEnd) -> int:
    """Stop instances and release what they do not use; a teardown ends the rest, with receipts."""
    database, place = services.database, (end.tenant_id, end.project_id)
    taken = 0
    for current in await _contexts(services, await forced_release.running(database, *place, ENDED_AT_ONCE)):
        context = _context(services)
        try:
            decision = stop_unpaid(context, current, bounds_of(services), end.cause)
        except Refusal as refusal:
            log.warning(
                "could not stop instance %s, whose budget or balance is used up; retrying: %s",
                current.instance.id,
                refusal.detail,
            )
            continue
        taken += await _applied(services, context, decision)
    for allocation in await forced_release.idle(database, *place, ENDED_AT_ONCE):
        context = _context(services)
        taken += await _applied(services, context, release_unpaid(context, allocation, end.cause))
    return taken


async def _contexts(services: Services, instance_ids: list[str]) -> list[InstanceContext]:
    if not instance_ids:
        return []
    database = services.database
    rows = await instance_trust.instances(database, instance_ids)
    members = await stored_instances.members_of(database, PLATFORM, instance_ids)
    operations = await stored_instances.open_operations(database, PLATFORM, instance_ids)
    versions = await catalog.versions(database, PLATFORM, {each.version_id for each in rows})
    return [
        InstanceContext(row, members[row.id], operations[row.id], manifest_of(versions.get(row.version_id)))
        for row in rows
    ]


async def _applied(services: Services, context: DecisionContext, decision: Decision[Any] | None) -> int:
    """1 if the decision was written, 0 if there was none, or somebody else was faster."""
    if decision is None:
        return 0
    return int(await apply_once(services, PLATFORM, context, decision, lost_codes=RACE_CODES))


def _context(services: Services) -> DecisionContext:
    return replace(system_context(services), actor=Actor(PrincipalKind.SYSTEM, OWNER))
