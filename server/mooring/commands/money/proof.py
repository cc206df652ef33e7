"""Proves the ledger, one step at a time: a law of the tables, or some hours that are rated again.

Each step reads one snapshot and ends within the time that a statement may take, so that no request is open for long.
The caller follows the steps by cursor and adds up what they say. Booked rows are never changed and charged hours stay
charged, so steps of different moments fit together.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.money.charge import hour_of, month_of
from mooring.core.money.proof import SENTENCES, Proven, prove_hours
from mooring.storage.kernel.database import Acting, Database, RowReader
from mooring.storage.money import proof as proofs


@dataclass(frozen=True, slots=True)
class Period:
    """What is proven hour by hour; None: from the beginning of the month before the last charged hour, up to it."""

    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True)
class ProvenLaw:
    """What a step says about one law."""

    key: str
    sentence: str
    proven: Proven
    until: datetime | None = None  # for a law that is checked hour by hour: up to when


@dataclass(frozen=True, slots=True)
class ProofStep:
    laws: list[ProvenLaw]
    following: str | None  # the cursor of the next step


async def prove(database: Database, acting: Acting, period: Period, cursor: str) -> ProofStep:
    """One step. A cursor is empty, the key of the last law that was checked, or the hour at which to go on."""
    laws = proofs.LAWS if acting.is_platform else proofs.TENANT_LAWS
    keys = [law.key for law in laws]

    async def read(reader: RowReader) -> ProofStep:
        if cursor not in keys and cursor != "":
            return await _some_hours(reader, acting, period, _hour(cursor))
        number = keys.index(cursor) + 1 if cursor else 0
        if number == len(laws):
            return await _some_hours(reader, acting, period, None)
        law = laws[number]
        return ProofStep([ProvenLaw(law.key, law.sentence, await proofs.check(reader, acting, law))], law.key)

    return await database.in_snapshot(acting, read)


async def _some_hours(reader: RowReader, acting: Acting, period: Period, start: datetime | None) -> ProofStep:
    charged = await proofs.charged_period(reader, acting)
    if charged is None:
        return _nothing(None)
    first, last = charged
    until = last if period.until is None else min(last, hour_of(period.until))
    default = month_of(month_of(last - timedelta(microseconds=1)) - timedelta(days=1))
    since = max(first, start or hour_of(period.since or default))
    if since >= until:
        return _nothing(until)
    end = await proofs.end_of_part(reader, acting, since, until)
    found = prove_hours(await proofs.hours(reader, acting, since, end))
    laws = [ProvenLaw(key, SENTENCES[key], found[key], end) for key in SENTENCES]
    return ProofStep(laws, None if end >= until else end.isoformat())


def _hour(cursor: str) -> datetime:
    try:
        found = datetime.fromisoformat(cursor)
    except ValueError as error:
        raise Refusal(Code.CURSOR_INVALID, "this is not a cursor of a proof") from error
    if found.tzinfo is None or hour_of(found) != found:
        raise Refusal(Code.CURSOR_INVALID, "this is not a cursor of a proof")
    return found


def _nothing(until: datetime | None) -> ProofStep:
    """No charged hour is in the period: each law holds of nothing."""
    return ProofStep([ProvenLaw(key, SENTENCES[key], Proven(0), until) for key in SENTENCES], None)
