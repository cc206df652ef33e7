"""Storage of the audit trail's hash chain, and its reads for verification.

Several workers may extend the chains at once: both read the same cursor and the same heads, so both write a link for
the same row, and the database accepts only the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from mooring.core.records.audit import AuditRow
from mooring.core.records.audit_chain import ChainHead, chain_of
from mooring.storage.kernel.database import PLATFORM, Acting, Database, RowReader
from mooring.storage.kernel.event import SETTLED
from mooring.storage.records.audit import COLUMNS

BATCH: Final = 1_000
"""The most rows that one step chains. The last link of each chain in a step is signed, so retention, which ends at
signed links, makes progress when it looks at so many rows."""

_ROW: Final = ", ".join(f"e.{column.strip()}" for column in COLUMNS.split(","))
NEXT: Final = f"""
WITH cursor AS MATERIALIZED (
  SELECT epoch, tx, seq FROM (
    (SELECT epoch, tx, seq FROM audit_link ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
    UNION ALL (SELECT epoch, tx, seq FROM audit_checkpoint ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
    UNION ALL SELECT -1, 0, 0) x
   ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
SELECT e.epoch, e.tx, e.seq, {_ROW} FROM cursor c CROSS JOIN LATERAL (
  SELECT * FROM audit e
   WHERE (e.epoch, e.tx, e.seq) > (c.epoch, c.tx, c.seq) AND {SETTLED}
   ORDER BY e.epoch, e.tx, e.seq LIMIT $1) e
 ORDER BY e.epoch, e.tx, e.seq"""
HEADS: Final = """
SELECT w.chain, h.position, h.link FROM unnest($1::text[]) w (chain) CROSS JOIN LATERAL (
  (SELECT position, link FROM audit_link l WHERE l.chain = w.chain ORDER BY position DESC LIMIT 1)
  UNION ALL
  (SELECT position, link FROM audit_checkpoint c WHERE c.chain = w.chain ORDER BY position DESC LIMIT 1)
  ORDER BY position DESC LIMIT 1) h"""
ADD: Final = """
INSERT INTO audit_link (epoch, tx, seq, tenant_id, position, link, key_id, signature)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::bytea[], $7::text[],
                     $8::bytea[])"""
LINKS: Final = f"""
SELECT l.position, l.link, l.key_id, l.signature, {_ROW}
  FROM audit_link l LEFT JOIN audit e ON (e.epoch, e.tx, e.seq) = (l.epoch, l.tx, l.seq)
 WHERE l.chain = $1 AND l.position > $2 ORDER BY l.position LIMIT $3"""
STATE: Final = """
WITH head AS MATERIALIZED (
  SELECT position, epoch, tx, seq, link, key_id, signature FROM audit_link
   WHERE chain = $1 ORDER BY position DESC LIMIT 1),
checkpoint AS MATERIALIZED (
  SELECT position, link, key_id, signature, made_at FROM audit_checkpoint
   WHERE chain = $1 ORDER BY position DESC LIMIT 1),
cursor AS MATERIALIZED (
  SELECT epoch, tx, seq FROM (
    (SELECT epoch, tx, seq FROM audit_link ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
    UNION ALL (SELECT epoch, tx, seq FROM audit_checkpoint ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
    UNION ALL SELECT -1, 0, 0) x
   ORDER BY epoch DESC, tx DESC, seq DESC LIMIT 1)
SELECT (SELECT count(*) FROM audit WHERE tenant_id IS NOT DISTINCT FROM $2) AS stored,
       (SELECT count(*) FROM audit a, cursor c
         WHERE a.tenant_id IS NOT DISTINCT FROM $2 AND (a.epoch, a.tx, a.seq) > (c.epoch, c.tx, c.seq)) AS waiting,
       h.position, h.link, h.key_id, h.signature,
       p.position AS checkpoint_position, p.link AS checkpoint_link, p.key_id AS checkpoint_key_id,
       p.signature AS checkpoint_signature, p.made_at AS checkpoint_made_at
  FROM (SELECT 1) one LEFT JOIN head h ON true LEFT JOIN checkpoint p ON true"""


@dataclass(frozen=True, slots=True)
class PlacedRow:
    """An audit row that has no link yet, with its place in the stream."""

    epoch: int
    tx: int
    seq: int
    row: AuditRow


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A link, with the platform's signature over it where it has one."""

    head: ChainHead
    key_id: str | None
    signature: bytes | None


@dataclass(frozen=True, slots=True)
class StoredLink:
    """A stored link and its row; None: the row is gone, although no checkpoint vouches for it."""

    signed: SignedHead
    row: AuditRow | None


@dataclass(frozen=True, slots=True)
class ChainState:
    """A chain as of one moment."""

    chain: str
    stored: int  # rows of the chain in the audit trail
    waiting: int  # the newest of them, which the worker has not chained yet
    head: SignedHead | None
    checkpoint: SignedHead | None
    checkpoint_made_at: datetime | None


async def next_rows(reader: RowReader, limit: int) -> tuple[list[PlacedRow], dict[str, ChainHead]]:
    """The next rows without a link, in the order of the stream, and the heads of their chains."""
    rows = [PlacedRow(row[0], row[1], row[2], AuditRow(*row[3:])) for row in await reader.fetch(PLATFORM, NEXT, limit)]
    chains = sorted({chain_of(each.row.tenant_id) for each in rows})
    found = await reader.fetch(PLATFORM, HEADS, chains) if chains else []
    return rows, {row["chain"]: ChainHead(row["position"], row["link"]) for row in found}


async def add(database: Database, rows: Sequence[PlacedRow], links: Sequence[SignedHead]) -> bool:
    """Store the links of these rows; returns False when another worker was faster."""
    columns: list[list[Any]] = [
        [each.epoch for each in rows],
        [each.tx for each in rows],
        [each.seq for each in rows],
        [each.row.tenant_id for each in rows],
        [each.head.position for each in links],
        [each.head.link for each in links],
        [each.key_id for each in links],
        [each.signature for each in links],
    ]
    try:
        async with database.connection(PLATFORM) as connection:
            await connection.execute(ADD, *columns)
    except asyncpg.UniqueViolationError:
        return False
    return True


async def links(database: Database, acting: Acting, after: int, limit: int) -> list[StoredLink]:
    """The next links of the chain of a tenant or of the platform, with their rows."""
    rows = await database.fetch(acting, LINKS, chain_of(acting.tenant_id), after, limit)
    return [
        StoredLink(
            SignedHead(ChainHead(row[0], row[1]), row[2], row[3]), None if row["id"] is None else AuditRow(*row[4:])
        )
        for row in rows
    ]


async def state(database: Database, acting: Acting) -> ChainState:
    """The chain of a tenant or of the platform: its ends, and how many rows there are."""
    chain = chain_of(acting.tenant_id)
    row = await database.fetchrow(acting, STATE, chain, acting.tenant_id)
    if row is None:
        raise AssertionError("the query always returns a row")
    return ChainState(
        chain,
        row["stored"],
        row["waiting"],
        _signed(row["position"], row["link"], row["key_id"], row["signature"]),
        _signed(
            row["checkpoint_position"], row["checkpoint_link"], row["checkpoint_key_id"], row["checkpoint_signature"]
        ),
        row["checkpoint_made_at"],
    )


def _signed(position: int | None, link: bytes | None, key_id: str | None, signature: bytes | None) -> SignedHead | None:
    return None if position is None or link is None else SignedHead(ChainHead(position, link), key_id, signature)
