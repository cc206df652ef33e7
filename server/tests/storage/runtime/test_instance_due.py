"""What is found to be due is what has a next step: a thousand instances in states that chance put together.

The statement that finds them and the functions that decide are written down apart from each other. Here both are asked
about the same rows, which are put into the database as they are, past its triggers: also states that no lifecycle would
lead to, since a step must never be missed.
"""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from mooring.core.fleet.allocation import Allocation
from mooring.core.kernel.decision import DecisionContext
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_snapshot import InstanceSnapshot
from mooring.core.runtime.operation import OperationKind
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.runtime import instance_reconcile
from server.tests.support import instance_rows as rows
from server.tests.support.decision_context import NOW
from server.tests.support.instance_rows import LIMITS
from server.tests.support.lifecycle_rows import ProjectRows, context, make_project_rows

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

COUNT = 1_000
STATES = ["running", "created", "starting", "stopping", "failed"]
MEMBER = ["ready", "requested", "joining", "degraded", "draining", "drained", "failed", "removing"]
ALLOCATION = ["active", "requested", "provisioning", "releasing", "release_failed", "failed"]
NODES = {"ready": "nod_ready", "unreachable": "nod_unreachable", "retired": "nod_retired"}
TASK = [None, "queued", "claimed", "succeeded", "failed", "expired"]


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 4))
    await opened.open()
    yield opened
    await opened.close()


@dataclass
class Heap:
    """Rows by table, as chance puts them together."""

    project_rows: ProjectRows
    chance: random.Random
    now: datetime
    tables: dict[str, list[dict[str, Any]]]
    busy: set[str]

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.tables.setdefault(table, []).append(
            row | {"tenant_id": self.project_rows.tenant_id} if table != "node" else row
        )

    def pick(self, options: Sequence[Any]) -> Any:
        """The first, which wants nothing, most of the time: so that few things come together at once."""
        return options[0] if self.chance.random() < 0.75 else self.chance.choice(options)

    def moment(self) -> datetime:
        """Later, long ago, or a moment ago."""
        return self.now + timedelta(seconds=self.pick([3600, 30, -5, -61, -301, -3600, -7200]))

    def instance(self, number: int) -> None:
        """One instance, with whatever it has."""
        pick, project_rows = self.pick, self.project_rows
        place = {"tenant_id": project_rows.tenant_id, "project_id": project_rows.project_id}
        instance_id, status = f"ins_due{number:06}", pick(STATES)
        made = rows.instance(
            status,
            id=instance_id,
            name=f"due-{number}",
            app_id=project_rows.app_id,
            version_id=project_rows.version_id,
            service_account_id=project_rows.account_id,
            health=pick(["healthy", "unknown"]),
            created_at=self.now,
            **place,
        )
        ends: dict[str, Any] = {"failed_at": self.now, "failure_code": "runtime_error"} if status == "failed" else {}
        self.add("instance", asdict(replace(made, **ends)))
        holder = pick(["held", None, "lapsed", "lapsing"])
        until = {"held": 3600, "lapsed": -3600, "lapsing": -5}.get(str(holder))
        self.add(
            "instance_claim",
            {
                "instance_id": instance_id,
                "project_id": project_rows.project_id,
                "service_account_id": project_rows.account_id,
                "holder": holder,
                "claimed_at": None if holder is None else self.now,
                "wanted": holder is None,
                "expires_at": None if until is None else self.now + timedelta(seconds=until),
            },
        )
        members = [self._member(instance_id, number, ordinal) for ordinal in range(pick([1, 2]))]
        kinds = self.chance.sample(list(OperationKind), self.chance.choice([0, 1, 1, 2]))
        whole = [kind for kind in kinds if kind not in ("add", "drain", "remove", "replace", "action", "decommission")]
        for kind in kinds:
            if kind not in whole[1:]:
                self._operation(instance_id, number, kind, members)

    def _member(self, instance_id: str, number: int, ordinal: int) -> str:
        pick, project_rows = self.pick, self.project_rows
        suffix = f"due{number:06}_{ordinal}"
        standing, status = pick(ALLOCATION), pick(MEMBER)
        if status == "removing" and standing == "release_failed":
            standing = "released"  # which waits for its members
        lost = standing in ("releasing", "release_failed", "released")  # the others leave a lost machine at once
        held = replace(
            rows.allocation(0, standing),
            id=f"alc_{suffix}",
            name=f"due-{number}-{ordinal}",
            tenant_id=project_rows.tenant_id,
            project_id=project_rows.project_id,
            sku_id=None,
            node_id=None if standing == "requested" else NODES[pick([*NODES] if lost else ["ready", "unreachable"])],
            blocker=pick([None, None, "no room: all is taken"]),
            releasing_at=self.now,
            failed_at=self.now,
            failure_code="no_capacity",
            released_at=self.now,
            teardown_proof="nothing_started",
        )
        self.add("allocation", asdict(held))
        task, retry = pick(TASK), pick([None, None, self.moment()])
        if held.node_id is None:
            task = None
        task_id = f"tsk_{suffix}" if task is not None else None
        failed: dict[str, Any] = (
            {"failed_at": self.now, "failure_code": pick(["node_lost", "cancelled"])} if status == "failed" else {}
        )
        made = rows.member(
            ordinal,
            status,
            id=f"mem_{suffix}",
            instance_id=instance_id,
            allocation_id=held.id,
            version_id=project_rows.version_id,
            tenant_id=project_rows.tenant_id,
            project_id=project_rows.project_id,
            health=pick(["healthy", "unknown"]),
            owns_allocation=pick([True, False]),
            keep_allocation=pick([True, False]),
            teardown_task_id=task_id if status == "removing" else None,
            retry_at=retry if status == "removing" else None,
            blocker=pick([None, "node nod_x unreachable since then"]) if status == "removing" else None,
            **failed,
        )
        self.add("member", asdict(made))
        if task is not None:
            claimed = task in ("claimed", "succeeded", "failed") or pick([True, False])
            self.add("task", self._task(made.id, str(task_id), held, status=task, claimed=claimed))
        return made.id

    def _task(
        self, member_id: str, task_id: str, allocation: Allocation, *, status: str, claimed: bool
    ) -> dict[str, Any]:
        over = status in ("succeeded", "failed", "expired")
        return {
            "id": task_id,
            "project_id": self.project_rows.project_id,
            "allocation_id": allocation.id,
            "node_id": allocation.node_id,
            "owner": f"{allocation.id}/{member_id}",
            "member_id": member_id,
            "step": f"teardown.verify/{member_id}/1",
            "type": "teardown.verify",
            "arguments": {},
            "maker": "system",
            "correlation_id": "cor_1",
            "trace_id": "a" * 32,
            "status": status,
            "generation": 1,
            "created_at": self.now,
            "expires_at": self.now,
            "fence": 1,
            "first_claimed_at": self.now if claimed else None,
            "finished_at": self.now if over else None,
            "failure_code": self.chance.choice(["interrupted", "host_error"]) if status == "failed" else None,
            "lease_expires_at": self.now if status == "claimed" else None,
        }

    def _operation(self, instance_id: str, number: int, kind: OperationKind, members: list[str]) -> None:
        pick, project_rows = self.pick, self.project_rows
        status, phase = pick(["running", "accepted", "blocked", "cancelling"]), "adapter"
        if kind in ("remove", "replace", "decommission"):
            phase = pick(["adapter", "platform"])
        step = {"name": "pull", "status": "running", "started_at": self.moment().isoformat()}
        made = rows.operation(
            kind,
            status,
            id=f"op_due{number:06}_{kind}",
            instance_id=instance_id,
            phase=phase,
            tenant_id=project_rows.tenant_id,
            project_id=project_rows.project_id,
            member_ids=pick([members, members[:1]]),
            dispatched_at=pick([self.now, None, self.moment()]),
            started_at=pick([self.now, None]),
            created_at=self.moment(),
            deadline_at=self.moment(),
            phase_deadline_at=pick([None, self.moment()]),
            steps=pick([[], [step]]),
            blocker=pick(["no capacity: no room: all is taken", "another"]) if status == "blocked" else None,
            blocker_code="no_capacity" if status == "blocked" else None,
        )
        self.add("operation", asdict(made))
        for each in made.member_ids:
            open_ = kind in ("add", "drain", "remove", "replace")
            if open_ and each in self.busy:
                continue  # one is open at a time
            self.busy |= {each} if open_ else set()
            row = {"operation_id": made.id, "member_id": each, "project_id": project_rows.project_id, "open": open_}
            self.add("operation_member", row)

    async def store(self, database: Database) -> None:
        """Put all of it into the database, past its triggers."""
        async with database.connection(PLATFORM) as connection, connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for table, listed in self.tables.items():
                columns = list(listed[0])
                named, places = (
                    ", ".join(f'"{each}"' for each in columns),
                    ", ".join(f"${i + 1}" for i in range(len(columns))),
                )
                statement = f"INSERT INTO {table} ({named}) VALUES ({places})"
                await connection.executemany(statement, [[row[each] for each in columns] for row in listed])


def machines(now: datetime) -> list[dict[str, Any]]:
    """One that answers, one that does not, and one that is gone for ever."""
    made = []
    gone = {
        "retired_at": now,
        "may_be_left": "its disks",
        "retirement_reason": "the machine burnt down",
        "written_off_at": now,
    }
    for name, node_id in NODES.items():
        key = node_id.encode().ljust(32, b"x")
        made.append(
            {
                "id": node_id,
                "name": name,
                "host": "simulated",
                "region": "local",
                "labels": {},
                "signing_key": key,
                "sealing_key": key,
                "status": "retired" if name == "retired" else "ready",
                "generation": 1,
                "created_at": now,
                "inventory": {},
                "unreachable_since": now if name == "unreachable" else None,
                **(gone if name == "retired" else dict.fromkeys(gone)),
            }
        )
    return made


async def test_whatever_has_a_next_step_is_due_and_nothing_else(database: Database) -> None:
    now = NOW
    heap = Heap(await make_project_rows(database), random.Random(5), now, {}, set())
    for node in machines(now):
        heap.add("node", node)
    for number in range(COUNT):
        heap.instance(number)
    await heap.store(database)
    due = set(await instance_reconcile.due(database, now, LIMITS, "ins_due", COUNT))
    ids = [row["id"] for row in heap.tables["instance"]]
    missed, idle, steps = [], [], 0
    acting: DecisionContext = replace(context(), now=now)
    for seen in await instance_reconcile.snapshot(database, now, ids):
        step = reconcile(acting, LIMITS, seen)
        steps += step is not None
        if step is not None and seen.instance.id not in due:
            missed.append(describe(seen))
        if step is None and seen.instance.id in due and not seen.open_of(OperationKind.ADD):  # its end is waited for
            idle.append(describe(seen))
    assert COUNT // 4 < steps < COUNT
    assert missed == []
    assert idle == []


def describe(snapshot: InstanceSnapshot) -> str:
    """What decides about an instance, in a line."""
    members = [
        (
            each.member.status,
            each.allocation and each.allocation.status,
            each.node and each.node.id,
            each.started,
            each.task and each.task.status,
            each.member.retry_at,
            each.member.blocker,
            each.member.health,
        )
        for each in snapshot.members
    ]
    operations = [
        (
            each.kind,
            each.status,
            each.phase,
            len(each.member_ids),
            each.dispatched_at,
            each.started_at,
            each.deadline_at,
            each.phase_deadline_at,
            each.created_at,
            each.blocker,
            each.steps,
        )
        for each in snapshot.operations
    ]
    instance = snapshot.instance
    return f"{instance.id} {instance.status} {instance.health} {snapshot.watch} {members} {operations}"
