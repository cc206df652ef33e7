"""Stores the readings that an adapter reports for its instance."""

from collections.abc import Sequence

from mooring.commands.kernel.work import Answered, Work
from mooring.commands.money.meter_event import NamedParts, metered_instances
from mooring.commands.runtime.adapter import ClaimRef, require_claim
from mooring.core.money.meter_reading import Reading, ReadingContext, ReadingResult, take_readings
from mooring.storage.money import meter_reading as meter_readings


async def report_readings(work: Work[ReadingResult], claimed: ClaimRef, readings: Sequence[Reading]) -> Answered:
    named = NamedParts(
        {each.member_id for each in readings if each.member_id is not None},
        {each.attached_project_id for each in readings if each.attached_project_id is not None},
    )

    async def load() -> ReadingContext:
        claim, instance = await require_claim(work.database, work.acting, claimed)
        known = await metered_instances(work.database, work.acting, [instance], named)
        return ReadingContext(
            claim,
            known[instance.id],
            await meter_readings.last(work.database, work.acting, instance.id, readings),
            await meter_readings.same(work.database, work.acting, instance.id, readings),
        )

    return await work.execute(load, lambda loaded: take_readings(work.context, loaded, readings))
