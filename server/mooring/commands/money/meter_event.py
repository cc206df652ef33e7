"""Stores a batch of meter events, and loads what usage of instances is checked against."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.manifest import PROXY, stored_manifest
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.permissions import Place
from mooring.core.kernel.validation import invalid
from mooring.core.money.meter_event import (
    INSTANCES_MAX,
    BatchContext,
    BatchResult,
    MeteredInstance,
    MeterEvent,
    accept_events,
    event_key,
)
from mooring.core.runtime.instance import Instance
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.money import late_usage as late_usages
from mooring.storage.money import meter_event as meter_events
from mooring.storage.runtime import claim as claims


@dataclass(frozen=True, slots=True)
class NamedParts:
    """The members and attached projects that usage names."""

    members: Collection[str] = ()
    projects: Collection[str] = ()


async def metered_instances(
    reader: RowReader, acting: Acting, found: Sequence[Instance], named: NamedParts
) -> dict[str, MeteredInstance]:
    """What usage of these instances is checked against, with one query for each kind of thing."""
    ids = [each.id for each in found]
    apps = {each.app_slug for each in found}
    manifests = {
        id: stored_manifest(plain)
        for id, plain in (await claims.manifests(reader, acting, sorted({each.version_id for each in found}))).items()
    }
    members = await meter_events.components(reader, acting, ids, named.members)
    projects = await meter_events.attached_projects(reader, acting, ids, named.projects)
    meters = await meter_events.meters_of(reader, acting, apps)
    prices = await meter_events.prices_of(reader, acting, apps)
    metered = {}
    for each in found:
        manifest = manifests[each.version_id]
        if manifest is None:
            raise Refusal(Code.INTERNAL, "the instance's pinned manifest can no longer be read")
        metered[each.id] = MeteredInstance(
            each,
            {unit.unit: unit.covered_by_allocation for unit in manifest.usage_units},
            frozenset(component.key for component in manifest.components),
            members.get(each.id, {}),
            frozenset(projects.get(each.id, ())),
            meters.get(each.app_slug, {}),
            prices.get(each.app_slug, {}),
            frozenset(counter.unit for source in manifest.metering for counter in source.counters),
            frozenset(unit.unit for unit in manifest.usage_units if unit.counted_by == PROXY),
        )
    return metered


async def record(work: Work[BatchResult], place: Place, events: Sequence[MeterEvent]) -> Answered:
    """Store the new events of a batch."""
    tenant_id, project_id = work.acting.tenant_id, place.project_id
    if tenant_id is None or project_id is None:
        raise ValueError("meter events belong to a project")
    ids = {each.instance_id for each in events}
    if len(ids) > INSTANCES_MAX:
        raise invalid("events", f"usage of at most {INSTANCES_MAX} instances")
    named = NamedParts(
        {each.member_id for each in events if each.member_id is not None},
        {each.attached_project_id for each in events if each.attached_project_id is not None},
    )
    keys = sorted({event_key(project_id, each.source, each.id) for each in events})
    window = timedelta(days=work.services.settings.usage_window_days)
    has_late = any(each.ended_at < work.context.now - window for each in events)

    async def load() -> BatchContext:
        found = await meter_events.instances(work.database, work.acting, project_id, ids)
        return BatchContext(
            tenant_id,
            project_id,
            await metered_instances(work.database, work.acting, found, named),
            await meter_events.stored(work.database, work.acting, keys),
            window,
            await late_usages.open_count(work.database, work.acting, tenant_id) if has_late else 0,
        )

    return await work.execute(load, lambda loaded: accept_events(work.context, loaded, events))
