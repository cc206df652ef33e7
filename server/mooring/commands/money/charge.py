"""Charges closed hours: reads what an hour costs and what is booked, and books the difference.

It may be killed after any statement, and any number of replicas may do it: what is left is found again, and of two that
book the same one wins.
"""

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import system_context
from mooring.commands.services import Services
from mooring.core.money.charge import HOUR, Posting, RatedLine, due_lines, postings_of, target_lines
from mooring.core.money.ledger import BookedHour, Booking, book, close_hour
from mooring.core.pricing.meter import Billing
from mooring.storage.kernel.database import PLATFORM, RowReader
from mooring.storage.money import charge as charges
from mooring.storage.money.charge import HourFacts

GRACE: Final = timedelta(minutes=2)
"""How long after its end an hour is charged first: writes that began in it have committed by then."""
AGAIN_HOURS: Final = 2
"""Hours that are looked at again after they were charged, for what came later still."""
LINES_AT_ONCE: Final = 500


async def settle(services: Services, hour: datetime) -> bool:
    """Book what is due for the hour; False if another worker was faster, and the rest must be looked at again."""

    async def read(reader: RowReader) -> tuple[HourFacts, BookedHour]:
        return await charges.facts(reader, hour), await charges.booked(reader, hour)

    facts, booked = await services.database.in_snapshot(PLATFORM, read)
    target = target_lines(hour, facts.allocations, facts.prices, facts.usage, facts.before)
    for booking in bookings_of(due_lines(target, booked.lines)):
        context = system_context(services)
        decision = book(context, hour, booked, booking)
        if not await apply_once(services, PLATFORM, context, decision):
            return False
        booked = replace(booked, charges={**booked.charges, **decision.result})
    return True


async def charge_next(services: Services) -> bool:
    """Charge the next closed hour; False if there is none yet."""
    now = services.clock.now()
    last = await charges.last_closed(services.database)
    if last is None or last + 2 * HOUR + GRACE > now:
        return False
    hour = last + HOUR
    if await settle(services, hour):
        context = system_context(services)
        await apply_once(services, PLATFORM, context, close_hour(context, hour))
    return True


async def charge_late(services: Services) -> None:
    """Look at the last charged hours again, and correct what came after they were charged."""
    for hour in await charges.last_hours(services.database, AGAIN_HOURS):
        await settle(services, hour)


def bookings_of(lines: list[RatedLine]) -> list[Booking]:
    """The statements that book these lines: each of one tenant, and of a bounded size.

    A posting with more lines than a statement takes is cut: its first part is the charge, the others are corrections.
    """
    postings: defaultdict[str, list[Posting]] = defaultdict(list)
    for posting in postings_of(lines):
        for start in range(0, len(posting.lines), LINES_AT_ONCE):
            part = replace(posting, lines=posting.lines[start : start + LINES_AT_ONCE])
            postings[posting.key.tenant_id].append(part)
    covered: defaultdict[str, list[RatedLine]] = defaultdict(list)
    for line in lines:
        if line.billing != Billing.CHARGED:
            covered[line.tenant_id].append(line)
    found = []
    for tenant_id in sorted(postings.keys() | covered.keys()):
        batch: list[Posting] = []
        for posting in postings[tenant_id]:
            if batch and sum(len(each.lines) for each in (*batch, posting)) > LINES_AT_ONCE:
                found.append(Booking(tenant_id, batch, ()))
                batch = []
            batch.append(posting)
        rest = covered[tenant_id]
        found.append(Booking(tenant_id, batch, rest[:LINES_AT_ONCE]))
        for start in range(LINES_AT_ONCE, len(rest), LINES_AT_ONCE):
            found.append(Booking(tenant_id, (), rest[start : start + LINES_AT_ONCE]))
    return found
