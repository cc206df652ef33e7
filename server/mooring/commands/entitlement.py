"""Commands on entitlements. What the manifest requires is read with the decision, so that the answer shows both."""

from dataclasses import dataclass
from typing import Any

from mooring.commands.found import found
from mooring.commands.work import Answered, Work
from mooring.core.app import App
from mooring.core.decision import Decision
from mooring.core.entitlement import (
    Entitled,
    Entitlement,
    EntitlementWish,
    change_entitlement,
    create_entitlement,
    delete_entitlement,
    switch_entitlement,
)
from mooring.core.ids import Prefix
from mooring.storage import app as apps
from mooring.storage import entitlement as entitlements
from mooring.storage import project as projects


@dataclass(frozen=True, slots=True)
class Agreed:
    """An entitlement beside what the newest offered version requires."""

    entitlement: Entitlement
    required_actions: list[str]


async def create(work: Work[Agreed], project_id: str, app_id: str, wish: EntitlementWish) -> Answered:
    """The first word about an app in a project."""

    async def load() -> tuple[App, list[str]]:
        found(await projects.find(work.database, work.acting, project_id), "project")
        app = found(await apps.find_in_sight(work.database, work.acting, app_id), "app")
        return app, await _required(work, app.id)

    def decide(seen: tuple[App, list[str]]) -> Decision[Agreed]:
        app, required = seen
        entitled = Entitled(str(work.acting.tenant_id), project_id, app.id, app.slug)
        entitlement_id = work.context.mint(Prefix.ENTITLEMENT)
        return _agreed(create_entitlement(work.context, entitlement_id, entitled, wish), required)

    return await work.execute(load, decide)


async def update(
    work: Work[Agreed], project_id: str, entitlement_id: str, wish: EntitlementWish, revision_seen: int | None
) -> Answered:
    """All terms anew."""

    async def load() -> tuple[Entitlement, list[str]]:
        entitlement = await _load(work, project_id, entitlement_id)
        return entitlement, await _required(work, entitlement.app_id)

    return await work.execute(
        load, lambda seen: _agreed(change_entitlement(work.context, seen[0], wish, revision_seen), seen[1])
    )


async def switch(work: Work[Agreed], project_id: str, entitlement_id: str, enabled: bool, reason: str) -> Answered:
    """On or off, and nothing else."""

    async def load() -> tuple[Entitlement, list[str]]:
        entitlement = await _load(work, project_id, entitlement_id)
        return entitlement, await _required(work, entitlement.app_id)

    return await work.execute(
        load, lambda seen: _agreed(switch_entitlement(work.context, seen[0], enabled, reason), seen[1])
    )


async def delete(work: Work[Entitlement], project_id: str, entitlement_id: str) -> Answered:
    """Take the entitlement away; what runs goes on."""
    return await work.execute(
        lambda: _load(work, project_id, entitlement_id),
        lambda entitlement: delete_entitlement(work.context, entitlement),
    )


def _agreed(decision: Decision[Entitlement], required: list[str]) -> Decision[Agreed]:
    return Decision(Agreed(decision.result, required), decision.writes, decision.events, decision.audits)


async def _load(work: Work[Any], project_id: str, entitlement_id: str) -> Entitlement:
    found_row = await entitlements.find(work.database, work.acting, project_id, entitlement_id)
    return found(found_row, "entitlement")


async def _required(work: Work[Any], app_id: str) -> list[str]:
    return (await entitlements.required_actions(work.database, work.acting, [app_id])).get(app_id, [])
