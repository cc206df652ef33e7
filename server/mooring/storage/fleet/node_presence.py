"""Heartbeats of nodes: collected in memory, and persisted in batches.

Every poll of an agent is a heartbeat. Thousands of agents poll twice a minute, so a poll only updates a dictionary;
every few seconds one statement persists what was collected, and a node with ten heartbeats in between is written once.
The time is the database's own: a process says how many seconds ago a heartbeat came, never when, so that no difference
between clocks makes a node look lost.

A row that another writer has locked is skipped and tried with the next batch.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from mooring.storage.kernel.database import PLATFORM, Database

BATCH: Final = 5_000
RETRY_SECONDS: Final = 60.0
"""How long an unwritten heartbeat is retried: after that its node has polled again, or is gone."""

FLUSH: Final = """
WITH heartbeat AS MATERIALIZED (
  SELECT t.id, t.age, t.health FROM jsonb_to_recordset($1::jsonb) AS t (id text, age float8, health jsonb)),
held AS MATERIALIZED (
  SELECT n.id FROM node n WHERE n.id = ANY (ARRAY(SELECT heartbeat.id FROM heartbeat)) AND n.status <> 'retired'
   ORDER BY n.id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE node n
   SET last_seen_at = greatest(n.last_seen_at, now() - make_interval(secs => t.age)),
       health = coalesce(t.health, n.health)
  FROM heartbeat t JOIN held h ON h.id = t.id WHERE n.id = t.id
RETURNING n.id"""


class _Heartbeat(NamedTuple):
    at: datetime
    health: Mapping[str, Any] | None


class NodePresence:
    """The heartbeats of this process that are not persisted yet; one per process."""

    def __init__(self) -> None:
        self._pending: dict[str, _Heartbeat] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def record(self, node_id: str, now: datetime, health: Mapping[str, Any] | None = None) -> None:
        """Record a heartbeat, with the agent's health if the request had it."""
        if health is None:
            before = self._pending.get(node_id)
            health = None if before is None else before.health
        self._pending[node_id] = _Heartbeat(now, health)

    async def flush(self, database: Database, now: datetime) -> int:
        """Persist the heartbeats since the last flush; returns how many nodes were written."""
        pending, self._pending = self._pending, {}
        written: set[str] = set()
        listed = list(pending.items())
        try:
            for begin in range(0, len(listed), BATCH):
                rows = [
                    {"id": node_id, "age": max(0.0, (now - beat.at).total_seconds()), "health": beat.health}
                    for node_id, beat in listed[begin : begin + BATCH]
                ]
                written |= {row["id"] for row in await database.fetch(PLATFORM, FLUSH, rows)}
        finally:
            self._retry({each: beat for each, beat in pending.items() if each not in written}, now)
        return len(written)

    def _retry(self, unwritten: Mapping[str, _Heartbeat], now: datetime) -> None:
        for node_id, heartbeat in unwritten.items():
            if (now - heartbeat.at).total_seconds() < RETRY_SECONDS:
                self._pending.setdefault(node_id, heartbeat)
