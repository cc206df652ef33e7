"""Who was heard of: kept in memory, written down now and then for all at once.

Every poll of an agent is a sign of life. Thousands of agents poll twice a minute, so a poll costs a line in a
dictionary and no write; every few seconds one statement writes what came together, and a node that was heard of ten
times in between is written once. The time is the database's own: a process says how long ago it heard of a node, never
when, so that no difference between clocks makes a node look lost.

What another writer holds at that moment is left for the next time.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from mooring.storage.kernel.database import PLATFORM, Database

BATCH: Final = 5_000
KEPT_SECONDS: Final = 60.0
"""How long something that could not be written is tried again: by then its node has polled anew, or is gone."""

FLUSH: Final = """
WITH told AS MATERIALIZED (
  SELECT t.id, t.age, t.health FROM jsonb_to_recordset($1::jsonb) AS t (id text, age float8, health jsonb)),
held AS MATERIALIZED (
  SELECT n.id FROM node n WHERE n.id = ANY (ARRAY(SELECT told.id FROM told)) AND n.status <> 'retired'
   ORDER BY n.id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE node n
   SET last_seen_at = greatest(n.last_seen_at, now() - make_interval(secs => t.age)),
       health = coalesce(t.health, n.health)
  FROM told t JOIN held h ON h.id = t.id WHERE n.id = t.id
RETURNING n.id"""


class NodePresence:
    """One per process."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[datetime, Mapping[str, Any] | None]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, node_id: str, now: datetime, health: Mapping[str, Any] | None = None) -> None:
        """A node was heard of, and may have said how it is."""
        if health is None:
            before = self._seen.get(node_id)
            health = None if before is None else before[1]
        self._seen[node_id] = (now, health)

    async def flush(self, database: Database, now: datetime) -> int:
        """Write down who was heard of since the last time; returns how many."""
        pending, self._seen = self._seen, {}
        written: set[str] = set()
        listed = list(pending.items())
        try:
            for place in range(0, len(listed), BATCH):
                rows = [
                    {"id": node_id, "age": max(0.0, (now - at).total_seconds()), "health": health}
                    for node_id, (at, health) in listed[place : place + BATCH]
                ]
                written |= {row["id"] for row in await database.fetch(PLATFORM, FLUSH, rows)}
        finally:
            self._keep({each: told for each, told in pending.items() if each not in written}, now)
        return len(written)

    def _keep(self, left: Mapping[str, tuple[datetime, Mapping[str, Any] | None]], now: datetime) -> None:
        for node_id, told in left.items():
            if (now - told[0]).total_seconds() < KEPT_SECONDS:
                self._seen.setdefault(node_id, told)
