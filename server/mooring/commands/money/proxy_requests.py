"""Stores the requests that the platform's proxy counted, as readings of a counter of its own.

Apps ask for it with `counted_by: proxy` in a unit of their manifest. The proxy is the only source of such a unit.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from mooring.commands.kernel.apply import apply_and_notify
from mooring.commands.kernel.work import system_context
from mooring.commands.money.meter_event import NamedParts, metered_instances
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.money.meter_reading import Reading, ReadingContext, take_readings
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.money import meter_reading as meter_readings
from mooring.storage.money import proxy_requests
from mooring.storage.money.proxy_requests import MeteredEndpoint

log = logging.getLogger("mooring.metering")
AGAIN: Final = frozenset({Code.TEMPORARILY_UNAVAILABLE, Code.INTERNAL})


@dataclass(frozen=True, slots=True)
class RequestCount:
    """What one process of the proxy counted at one endpoint since `began_at`."""

    endpoint_id: str
    process_id: str
    began_at: datetime
    seq: int
    requests: int


async def report_requests(services: Services, counts: Mapping[str, RequestCount]) -> frozenset[str]:
    """Store what was counted at these endpoints; returns those whose requests are metered.

    Raises if nothing could be stored; what was counted is then reported again with the next requests, and counted once.
    """
    found = await proxy_requests.metered_endpoints(services.database, PLATFORM, counts)
    metered = set()
    for each in found:
        try:
            await _store(services, each, counts[each.endpoint_id])
        except Refusal as refusal:
            if refusal.code in AGAIN:
                raise
            # The meter is disabled, for example: such requests are no usage, and asking again would not change that.
            log.warning("dropped the requests of %s that the proxy counted: %s", each.instance.id, refusal.detail)
            continue
        metered.add(each.endpoint_id)
    return frozenset(metered)


async def _store(services: Services, endpoint: MeteredEndpoint, count: RequestCount) -> None:
    instance, context = endpoint.instance, system_context(services)
    members = () if endpoint.member_id is None else (endpoint.member_id,)
    known = (await metered_instances(services.database, PLATFORM, [instance], NamedParts(members)))[instance.id]
    member = endpoint.member_id if endpoint.member_id in known.members else None
    readings: Sequence[Reading] = [
        Reading(
            series=f"proxy/{count.process_id}/{count.endpoint_id}/{unit}",
            epoch=round(count.began_at.timestamp() * 1_000),
            seq=seq,
            value=Decimal(value),
            at=at,
            unit=unit,
            member_id=member,
        )
        for unit in sorted(known.proxied)
        for seq, value, at in ((0, 0, count.began_at), (count.seq, count.requests, max(context.now, count.began_at)))
    ]
    loaded = ReadingContext(
        None,
        known,
        await meter_readings.last(services.database, PLATFORM, instance.id, readings),
        await meter_readings.same(services.database, PLATFORM, instance.id, readings),
    )
    await apply_and_notify(services, PLATFORM, context, take_readings(context, loaded, readings))
