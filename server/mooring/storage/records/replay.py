"""Reads back what an instance was at a moment, from the log of transitions.

The newest transition of each subject up to the moment is found by the log's own key, so the cost depends on how many
members and operations there are, and not on how much has happened to them.
"""

from datetime import datetime
from typing import Final

from mooring.core.records.replay import MEMBERS_MAX, OPERATIONS_MAX, InstanceReplay, StateAt, Transition
from mooring.storage.kernel.database import Acting, Database, RowReader
from mooring.storage.kernel.page_window import PageWindow

_MEMBERS: Final = "SELECT id, name, component_key FROM member WHERE instance_id = $1"
_OPERATIONS: Final = "SELECT id, kind FROM operation WHERE instance_id = $1 AND NOT read_only"


def _subjects(members: str, operations: str) -> str:
    return f"""subject AS (
  SELECT 'instance' AS noun, i.id, i.name, NULL AS component_key, 0 AS rank FROM instance i WHERE i.id = $1
  UNION ALL SELECT 'member', m.id, m.name, m.component_key, 1 FROM ({members}) m
  UNION ALL SELECT 'operation', o.id, o.kind, NULL, 2 FROM ({operations}) o)"""


_ALL: Final = _subjects(_MEMBERS, _OPERATIONS)
_NEWEST: Final = _subjects(
    f"{_MEMBERS} AND created_at <= $2 ORDER BY id DESC LIMIT {MEMBERS_MAX}",
    f"{_OPERATIONS} AND created_at <= $2 ORDER BY id DESC LIMIT {OPERATIONS_MAX}",
)
STATES: Final = f"""
WITH {_NEWEST}
SELECT s.noun, s.id, s.name, s.component_key, t.target, t.occurred_at, t.trigger, t.generation, t.correlation_id
  FROM subject s CROSS JOIN LATERAL (
    SELECT target, occurred_at, trigger, generation, correlation_id FROM transition
     WHERE machine = s.noun AND subject_id = s.id AND occurred_at <= $2
     ORDER BY generation DESC LIMIT 1) t
 ORDER BY s.rank, s.id"""
NEIGHBOURS: Final = f"""
WITH {_ALL}
SELECT max(t.occurred_at) FILTER (WHERE t.occurred_at < $2), min(t.occurred_at) FILTER (WHERE t.occurred_at > $3)
  FROM subject s JOIN transition t ON t.machine = s.noun AND t.subject_id = s.id"""
TRANSITIONS: Final = f"""
WITH {_ALL}, listed AS (
  SELECT to_char(t.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US') || '/' || s.rank || '/' || s.id
           || '/' || lpad(t.generation::text, 9, '0') COLLATE "C" AS position,
         s.noun, s.id, s.name, t.generation, nullif(t.source, ''), t.trigger, t.target, t.occurred_at, t.correlation_id
    FROM subject s JOIN transition t ON t.machine = s.noun AND t.subject_id = s.id)
SELECT l.* FROM listed l WHERE l.position > $2 ORDER BY l.position LIMIT $3"""


async def replay(database: Database, acting: Acting, instance_id: str, at: datetime) -> InstanceReplay | None:
    """The state of everything at a moment; None if the instance did not exist yet."""

    async def read(reader: RowReader) -> InstanceReplay | None:
        states = [StateAt(*row) for row in await reader.fetch(acting, STATES, instance_id, at)]
        if not states or states[0].noun != "instance":
            return None
        (moments,) = await reader.fetch(acting, NEIGHBOURS, instance_id, max(each.since for each in states), at)
        return InstanceReplay(
            at=at,
            instance=states[0],
            members=[each for each in states if each.noun == "member"],
            operations=[each for each in states if each.noun == "operation"],
            previous_at=moments[0],
            next_at=moments[1],
        )

    return await database.in_snapshot(acting, read)


async def transitions(database: Database, acting: Acting, instance_id: str, window: PageWindow) -> list[Transition]:
    """The transitions of an instance, its members and operations, oldest first."""
    rows = await database.fetch(acting, TRANSITIONS, instance_id, window.after, window.limit)
    return [Transition(*row) for row in rows]
