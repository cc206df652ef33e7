"""A death at every step: of the worker, the adapter and the agent, for every kind of operation, one at a time.

The case is run once without a death, which says how many steps there are and what the end is like; then once for each
step at which somebody dies. The process that takes over knows nothing but what is recorded.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from mooring.core.fleet.task import Task
from mooring.storage.kernel.database import PLATFORM
from server.tests.world.faults import WorldProcess
from server.tests.world.prepared_database import PreparedDatabase
from server.tests.world.schedule import SimulatedWorld

CASES: Final[dict[str, tuple[str, list[Any]]]] = {
    "deploy": ("bare", [("create", {"seed": 1}, "own")]),
    "add": ("single", [("add", "worker", 1)]),
    "drain": ("room", ["drain"]),
    "remove": ("housed", [("remove", "worker")]),
    "remove by force": ("housed", [("force", "worker")]),
    "replace": ("room", ["replace"]),
    "replace with a surge": ("single", ["surge"]),
    "upgrade": ("room", ["upgrade"]),
    "rollback": ("upgraded", ["rollback"]),
    "reconcile": ("room", ["reconcile"]),
    "repair": ("room", [("repair", None)]),
    "restart": ("room", ["restart"]),
    "action": ("room", ["action"]),
    "attach": ("room", ["attach"]),
    "detach": ("attached", ["detach"]),
    "action of an attached project": ("attached", ["attached"]),
    "decommission with an attached project": ("attached", ["stop"]),
    "decommission": ("single", ["stop"]),
}
"""Every kind of operation: the world that it begins in, and what is asked for."""
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "the worker": ("instances", "allocations", "tasks"),
    "the adapter": ("adapter-a", "adapter-b"),
    "the agent": ("node-0", "node-1", "node-2"),
}
SETTLED: Final = """
SELECT NOT EXISTS (SELECT FROM operation WHERE finished_at IS NULL)
   AND NOT EXISTS (SELECT FROM allocation WHERE status NOT IN ('active', 'released'))
   AND NOT EXISTS (SELECT FROM task WHERE finished_at IS NULL)"""
END: Final = """
SELECT 'instance', i.status, i.version, i.teardown_proof, i.topology::text, i.failure_code FROM instance i
UNION ALL
SELECT 'operation', o.kind, o.status, o.failure_code, o.requested_by, NULL FROM operation o
UNION ALL
SELECT 'member', m.component_key, m.status, m.version, (SELECT c.kind FROM closing_record c WHERE c.member_id = m.id),
       m.failure_code
  FROM member m
UNION ALL
SELECT 'allocation', a.status, a.teardown_proof, a.gpu_count::text, NULL, NULL FROM allocation a
UNION ALL
SELECT 'attachment', t.account_name, t.status, t.attempts::text, t.refusal_reason, NULL FROM attachment t
UNION ALL
SELECT 'slot', s.status, NULL, NULL, NULL, NULL FROM slot s
UNION ALL
SELECT 'secret', r.name, (r.destroyed_at IS NULL)::text, NULL, NULL, NULL FROM runtime_secret r
UNION ALL
SELECT 'hold', h.digest, NULL, NULL, NULL, NULL FROM artifact_hold h WHERE h.holder_noun = 'instance'"""
"""The end, without ids and times: the same rows, whichever process died on the way."""


@dataclass
class Death:
    """Somebody of a group dies after his n-th write, or an agent in the middle of its n-th task."""

    group: str
    number: int
    kind: str = "after"  # after, before, middle
    writes: int = 0
    tasks: int = 0
    happened: bool = False
    last: WorldProcess | None = field(default=None)

    def plan(self, process: WorldProcess) -> None:
        """Say what happens to a process in its step."""
        if self.last is not None:
            self.writes += self.last.writes
        self.last = process if process.name in GROUPS[self.group] else None
        left = self.number - self.writes
        if self.kind != "middle" and self.last is not None and left >= 1 and not self.happened:
            process.last_write, process.fate = left, self.kind

    def task(self, task: Task) -> bool:
        """Whether the agent dies in the middle of this task."""
        self.tasks += 1
        return self.kind == "middle" and self.tasks == self.number


async def end_of(prepared: PreparedDatabase, name: str, death: Death) -> tuple[list[tuple[Any, ...]], SimulatedWorld]:
    """How a case ends when this death is on its way."""
    begin, intents = CASES[name]
    world = await prepared.world(begin, 1)
    world.planned = death.plan
    for node in world.nodes:
        node.dies_in = death.task
    world.person.attachment_id = await world.database.fetchval(PLATFORM, "SELECT id FROM attachment")
    world.person.intents = [await _with_member_id(world, each) for each in intents]
    world.wake_all()
    await world.settle(lambda: world.database.fetchval(PLATFORM, SETTLED))
    rows = [tuple(row) for row in await world.database.fetch(PLATFORM, END)]
    left = [("left", str(len(things))) for node in world.nodes for _, things in sorted(node.things.items())]
    doubled = [("twice", task_id) for node in world.nodes for task_id, times in node.done.items() if times > 1]
    return sorted([*rows, *left, *doubled], key=repr), world


async def _with_member_id(world: SimulatedWorld, intent: Any) -> Any:
    """The intent, with the id of the component's member in place of the component's key."""
    if not isinstance(intent, tuple) or intent[0] not in ("remove", "force"):
        return intent
    found = await world.database.fetchval(PLATFORM, "SELECT id FROM member WHERE component_key = $1", intent[1])
    return intent[0], found
