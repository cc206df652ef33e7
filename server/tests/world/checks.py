"""What must be true: after every write that says that something is gone, and when all is over."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from mooring.commands.runtime import instance_reconcile
from mooring.storage.fleet import placement
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.records.replay import replay
from mooring.storage.runtime import instance_reconcile as instances
from server.tests.world.memory import writes_of
from server.tests.world.schedule import SimulatedWorld

WRONG: Final = """
SELECT 'the instance is ' || status FROM instance WHERE id = $1 AND status <> 'stopped'
UNION ALL
SELECT 'the instance is gone' WHERE NOT EXISTS (SELECT FROM instance WHERE id = $1)
UNION ALL
SELECT 'its proof is ' || coalesce(i.teardown_proof, 'missing') FROM instance i
 WHERE i.teardown_proof IS DISTINCT FROM CASE WHEN EXISTS (
   SELECT FROM closing_record c WHERE c.member_id IS NOT NULL AND c.kind = 'write_off')
   THEN 'written_off' ELSE 'receipts' END
UNION ALL
SELECT o.kind || ' ' || o.id || ' is ' || o.status FROM operation o
 WHERE o.status NOT IN ('succeeded', 'failed', 'cancelled') OR o.finished_at IS NULL
UNION ALL
SELECT 'no operation ' || t FROM unnest($2::text[]) t WHERE NOT EXISTS (SELECT FROM operation o WHERE o.id = t)
UNION ALL
SELECT 'no event announces the end of ' || o.kind || ' ' || o.id FROM operation o
 WHERE o.created_at >= $3 AND o.requested_by NOT IN ('system', 'trust') AND o.id <> ALL ($2::text[])
UNION ALL
SELECT o.kind || ' ' || o.id || ' ended ' || w.ends || ' times, and was announced ' || w.announced || ' times'
  FROM operation o CROSS JOIN LATERAL (
    SELECT (SELECT count(*) FROM transition t WHERE t.machine = 'operation' AND t.subject_id = o.id
               AND t.target IN ('succeeded', 'failed', 'cancelled')) AS ends,
           (SELECT count(*) FROM event e WHERE e.subject_id = o.id AND e.type = 'apps.operation.changed'
               AND e.data ->> 'status' IN ('succeeded', 'failed', 'cancelled')) AS announced) w
 WHERE o.finished_at >= $3 AND (w.ends <> 1 OR w.announced <> 1)
UNION ALL
SELECT 'member ' || m.name || ' is ' || m.status || ' with ' || w.records || ' closing records'
  FROM member m CROSS JOIN LATERAL (SELECT count(*) AS records FROM closing_record c WHERE c.member_id = m.id) w
 WHERE m.status <> 'removed' OR w.records <> 1
UNION ALL
SELECT 'member ' || m.name || ' was written off, and its machine is there'
  FROM member m JOIN closing_record c ON c.member_id = m.id AND c.kind = 'write_off'
  JOIN allocation a ON a.id = m.allocation_id JOIN node n ON n.id = a.node_id WHERE n.status <> 'retired'
UNION ALL
SELECT 'task ' || t.step || ' is ' || t.status FROM task t JOIN node n ON n.id = t.node_id
 WHERE t.finished_at IS NULL AND n.status <> 'retired'
UNION ALL
SELECT 'allocation ' || a.id || ' is ' || a.status || ' and was there before' FROM allocation a
  LEFT JOIN node n ON n.id = a.node_id
 WHERE a.id = ANY ($4::text[]) AND a.status <> 'active' AND a.id <> ALL ($5::text[])
   AND n.status IS DISTINCT FROM 'retired'
UNION ALL
SELECT 'allocation ' || a.id || ' is ' || a.status || ' and nobody wants it' FROM allocation a
 WHERE a.id <> ALL ($4::text[]) AND a.status <> 'released'
   AND NOT EXISTS (SELECT FROM member m WHERE m.allocation_id = a.id AND m.keep_allocation AND m.owns_allocation)
UNION ALL
SELECT 'slot ' || s.index || ' is ' || s.status FROM slot s LEFT JOIN allocation a ON a.id = s.allocation_id
 WHERE s.status NOT IN ('free', 'quarantined') AND a.status IS DISTINCT FROM 'active'
UNION ALL
SELECT 'attachment ' || t.id || ' is ' || t.status FROM attachment t WHERE t.status NOT IN ('detached', 'refused')
UNION ALL
SELECT 'the digest ' || h.digest || ' is still held' FROM artifact_hold h WHERE h.holder_noun = 'instance'
UNION ALL
SELECT 'the secret ' || r.name || ' is still there' FROM runtime_secret r WHERE r.destroyed_at IS NULL
UNION ALL
SELECT 'the project heard twice: ' || t.type FROM (
  SELECT e.type, s.said, lag(s.said) OVER (PARTITION BY e.subject_id ORDER BY e.seq) AS before
    FROM event e CROSS JOIN LATERAL (SELECT concat_ws(' ', e.type, e.data ->> 'reaction') AS said) s
   WHERE e.type IN ('apps.instance.trust_lost', 'apps.instance.trust_restored')) t WHERE t.said = t.before
UNION ALL
SELECT 'it is held by ' || c.holder FROM instance_claim c WHERE c.holder IS NOT NULL
UNION ALL
SELECT 'without an audit row: ' || o.kind || ' ' || o.id FROM operation o
 WHERE o.created_at >= $3 AND NOT EXISTS (SELECT FROM audit a WHERE a.subject_id = o.id)"""


STATES: Final = """
SELECT id, status FROM instance WHERE id = $1
UNION ALL SELECT id, status FROM member WHERE instance_id = $1
UNION ALL SELECT id, status FROM operation WHERE instance_id = $1 AND NOT read_only"""


class Watch:
    """Looks at every write that says that something is gone."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.looks = 0
        world.checks.append(self.look)

    async def look(self, statement: str, arguments: Sequence[object]) -> None:
        """An instance or allocation that is stopped or released has nothing left on any machine."""
        self._fenced(statement)
        tables = {table for verb, table in writes_of(statement) if verb == "UPDATE"}
        if "instance" in tables and "stopped" in arguments:
            await self._stopped()
        if "allocation" in tables and "released" in arguments:
            for each in arguments:
                if isinstance(each, str) and each.startswith("alc_"):
                    await self._released(each)

    def _fenced(self, statement: str) -> None:
        """No replica has written what it decided under a claim that another one took over."""
        if not self.world.last_stepping.startswith("adapter-") or not any(
            verb == "INSERT INTO" and table == "audit" for verb, table in writes_of(statement)
        ):
            return
        stepping = self.world.actors[self.world.last_stepping]
        for instance_id, controller in stepping.controllers.items():
            others = [
                each.controllers[instance_id].claim.fence
                for each in self.world.replicas
                if instance_id in each.controllers
            ]
            assert controller.claim.fence == max(others), f"{self.world.last_stepping} wrote under a fence of before"

    async def _stopped(self) -> None:
        self.looks += 1
        rows = await self.world.database.fetch(PLATFORM, "SELECT allocation_id || '/' || id FROM member")
        owners = {row[0] for row in rows}
        for number, node in enumerate(self.world.nodes):
            left = {owner: things for owner, things in node.things.items() if owner in owners}
            assert node.gone or not left, f"stopped, and on node {number} there is {left}"

    async def _released(self, allocation_id: str) -> None:
        status = await self.world.database.fetchval(
            PLATFORM, "SELECT status FROM allocation WHERE id = $1", allocation_id
        )
        if status == "released":
            self.looks += 1
            for number, node in enumerate(self.world.nodes):
                left = node.left(allocation_id)
                assert node.gone or not left, f"{allocation_id} is released, and on node {number} there is {left}"


class ReplayWatch:
    """Reads the states after every step that made a transition, and compares them with their replay in the end."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.live: dict[datetime, dict[str, str]] = {}
        world.checks.append(self.read)

    async def read(self, statement: str, _: Sequence[object]) -> None:
        if ("INSERT INTO", "transition") in writes_of(statement) and self.world.person.instance_id is not None:
            rows = await self.world.database.fetch(PLATFORM, STATES, self.world.person.instance_id)
            self.live[self.world.clock.now()] = {row[0]: row[1] for row in rows}

    async def differences(self) -> list[str]:
        """The moments whose replay is not what was read then."""
        found = []
        for at, states in self.live.items():
            then = await replay(self.world.database, PLATFORM, self.world.person.instance_id or "", at)
            assert then is not None, at
            replayed = {each.id: each.status for each in (then.instance, *then.members, *then.operations)}
            if replayed != states:
                found.append(f"{at}: {sorted(replayed.items() ^ states.items())}")
        return found


async def wrong_at_the_end(world: SimulatedWorld) -> list[str]:
    """All that is not as it must be when a schedule is over."""
    person = world.person
    rows = await world.database.fetch(
        PLATFORM, WRONG, person.instance_id, person.promised, world.begin.now, person.kept, person.released
    )
    wrong = [row[0] for row in rows]
    allocations = {
        row[0] for row in await world.database.fetch(PLATFORM, "SELECT id FROM allocation WHERE status = 'active'")
    }
    for number, node in enumerate(world.nodes):
        wrong += [
            f"node {number} did task {task_id} {times} times" for task_id, times in node.done.items() if times > 1
        ]
        if not node.gone:
            wrong += [f"on node {number} there is {owner}" for owner in sorted(set(node.things) - allocations)]
    now = world.clock.now()
    limits = instance_reconcile.limits_of(world.services.settings)
    wrong += [f"{each} is still due" for each in await instances.due(world.database, now, limits, "", 10)]
    wrong += [f"{each} is still due" for each in await placement.due(world.database, now, "", 10)]
    return wrong
