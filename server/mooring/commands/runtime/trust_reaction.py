"""What follows when instances lose or regain their trust: the conclusion is stored, and the policy carried out.

Each step is one decision, guarded by what it was decided on. A worker that dies between two of them, or races others,
leaves nothing behind and does nothing twice: the next pass finds what is left to do.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import system_context
from mooring.commands.runtime.instance import bounds_of
from mooring.commands.runtime.instance_reconcile import RACE_CODES
from mooring.commands.runtime.instance_trust import PAGE, assess_uses
from mooring.commands.runtime.launch import manifest_of
from mooring.commands.services import Services
from mooring.core.fleet.task_transitions import cancel
from mooring.core.kernel.decision import Actor, Decision, DecisionContext, PrincipalKind
from mooring.core.kernel.errors import Refusal
from mooring.core.runtime.instance_change import InstanceContext
from mooring.core.runtime.instance_trust import change_distrust, distrust_of
from mooring.core.runtime.trust_reaction import OWNER, ReactionBudget, choose, lift, react
from mooring.storage.catalog import catalog
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime import attachment as attachments
from mooring.storage.runtime import instance as stored_instances
from mooring.storage.runtime import instance_trust

LIFTED_MAX: Final = 50
"""Instances whose members are put back to work in one pass."""

log = logging.getLogger("mooring.trust")


async def mark_all(services: Services) -> bool:
    """Compare the trust in everything that runs with what is stored; False if a race was lost and another is due."""
    database, after, complete = services.database, "", True
    while uses := await instance_trust.live_uses(database, after, PAGE):
        after = uses[-1].instance_id
        found = await assess_uses(services, PLATFORM, uses)
        changed = [each.instance_id for each in uses if distrust_of(each.distrust) != found.get(each.instance_id)]
        for row in await instance_trust.instances(database, changed) if changed else ():
            context = _context(services)
            attached = await attachments.live_of(database, PLATFORM, row.id) if row.is_shared else ()
            decision = change_distrust(context, row, found.get(row.id), attached)
            if decision is not None and not await apply_once(
                services, PLATFORM, context, decision, lost_codes=RACE_CODES
            ):
                complete = False
    return complete


async def react_all(services: Services) -> int:
    """Take the next steps of the reactions, as far as the budget allows; returns how many were taken."""
    database, budget = services.database, budget_of(services)
    taken = 0
    for task in await instance_trust.queued_before(database):
        context = _context(services)
        taken += await _applied(services, context, cancel(context, task), task.id)
    waiting = await instance_trust.candidates(database, budget.per_tenant)
    if waiting:
        chosen = choose(waiting, await instance_trust.under_way(database), budget)
        for current in await _contexts(services, chosen):
            context = _context(services)
            taken += await _step(services, context, current)
    return taken + await _lift_all(services)


def budget_of(services: Services) -> ReactionBudget:
    settings = services.settings
    return ReactionBudget(settings.untrusted_per_app_max, settings.untrusted_per_tenant_max, settings.untrusted_max)


async def _lift_all(services: Services) -> int:
    """Put members back to work whose instances are trusted again."""
    held = await instance_trust.held_for_nothing(services.database, LIFTED_MAX)
    taken = 0
    for current in await _contexts(services, list(held)) if held else ():
        members = {each.id: each for each in current.members}
        for member_id in held[current.instance.id]:
            context, member = _context(services), members.get(member_id)
            decision = None if member is None else lift(context, current, member)
            taken += await _applied(services, context, decision, member_id)
    return taken


async def _step(services: Services, context: DecisionContext, current: InstanceContext) -> int:
    try:
        decision = react(context, current, bounds_of(services))
    except Refusal as refusal:
        log.warning(
            "could not react to the untrusted instance %s; retrying later: %s", current.instance.id, refusal.detail
        )
        return 0
    return await _applied(services, context, decision, current.instance.id)


async def _applied(
    services: Services, context: DecisionContext, decision: Decision[Any] | None, subject_id: str
) -> int:
    """1 if the decision was written, 0 if there was none, or somebody else was faster."""
    if decision is None:
        return 0
    try:
        return int(await apply_once(services, PLATFORM, context, decision, lost_codes=RACE_CODES))
    except Refusal as refusal:
        log.warning("a step for the untrusted %s was refused; retrying later: %s", subject_id, refusal.detail)
        return 0


async def _contexts(services: Services, instance_ids: Sequence[str]) -> list[InstanceContext]:
    """These instances with their members, open operations and manifests, in the order of their ids."""
    database, ids = services.database, list(instance_ids)
    rows = await instance_trust.instances(database, ids)
    members = await stored_instances.members_of(database, PLATFORM, ids)
    operations = await stored_instances.open_operations(database, PLATFORM, ids)
    versions = await catalog.versions(database, PLATFORM, {each.version_id for each in rows})
    return [
        InstanceContext(row, members[row.id], operations[row.id], manifest_of(versions.get(row.version_id)))
        for row in rows
    ]


def _context(services: Services) -> DecisionContext:
    return replace(system_context(services), actor=Actor(PrincipalKind.SYSTEM, OWNER))
