"""Resolves late usage: a person accepts it as usage, or rejects it."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money.meter_event import NamedParts, metered_instances
from mooring.core.money.late_usage import LateUsage, Resolution, resolve_late_usage
from mooring.core.money.meter_event import MeteredInstance
from mooring.storage.money import late_usage as late_usages
from mooring.storage.money import meter_event as meter_events


async def resolve(work: Work[LateUsage], project_id: str, id: str, resolution: Resolution) -> Answered:
    async def load() -> tuple[LateUsage, MeteredInstance]:
        late = require(await late_usages.find(work.database, work.acting, project_id, id), "late usage")
        found = await meter_events.instances(work.database, work.acting, project_id, [late.instance_id])
        known = await metered_instances(work.database, work.acting, found, NamedParts())
        return late, known[late.instance_id]

    return await work.execute(load, lambda loaded: resolve_late_usage(work.context, *loaded, resolution))
