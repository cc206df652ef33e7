"""Instances with members, operations, allocations and machines in memory, and decisions that become true of them.

Here the runtime's pure steps are tried without a database: what a decision writes is done to plain values, guarded as
the database guards it, and the next snapshot is made of them.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import TaskFacts
from mooring.core.fleet.task import Task, TaskState
from mooring.core.kernel.decision import (
    Decision,
    DecisionContext,
    Insert,
    InsertMany,
    Remove,
    RowGuard,
    StateChange,
    Update,
)
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_snapshot import (
    COMING,
    AttachmentSnapshot,
    ClaimWatch,
    ClosedMember,
    InstanceSnapshot,
    MemberSnapshot,
    NodeStanding,
    TimeLimits,
)
from mooring.core.runtime.launch_history import CircuitFacts
from mooring.core.runtime.member import Member
from mooring.core.runtime.operation import TEARDOWN_KINDS, Operation, OperationKind
from server.tests.support.allocation_rows import requested
from server.tests.support.decision_context import NOW, PROJECT, TENANT, context

LIMITS: Final = TimeLimits(
    operation=timedelta(hours=1),
    step=timedelta(minutes=30),
    claim=timedelta(minutes=5),
    cancel=timedelta(minutes=2),
    lease=timedelta(seconds=45),
)
PIN: Final = {
    "version_id": "ver_1",
    "version": "1.0.0",
    "manifest_digest": "sha256:m",
    "artifacts": {"app": "sha256:a"},
}
TARGET: Final = {
    "version_id": "ver_2", "version": "2.0.0", "manifest_digest": "sha256:n", "artifacts": {"app": "sha256:b"},
}  # fmt: skip
HERE: Final = context()
PLACE: Final[dict[str, Any]] = {"tenant_id": TENANT, "project_id": PROJECT}
BORN: Final[dict[str, Any]] = {
    "correlation_id": "cor_1", "trace_id": "a" * 32, "generation": 0, "revision": 0, "created_at": NOW,
}  # fmt: skip


def instance(status: str = "running", **changed: Any) -> Instance:
    """An instance of one member."""
    whole: dict[str, Any] = {
        "id": "ins_1",
        "name": "app-1",
        "app_id": "app_1",
        "app_slug": "app",
        "app_category": "tool",
        "version_id": "ver_1",
        "version": "1.0.0",
        "channel": None,
        "pin": PIN,
        "config": {},
        "topology": {"main": 1},
        "placement": {},
        "operating_mode": "tenant_dedicated",
        "control_plane_scope": "project",
        "runtime_backend": "container",
        "service_account_id": "sa_1",
        "requested_by": "usr_1",
        "status": status,
        **PLACE,
        **BORN,
    }
    return Instance(**{**whole, **changed})


def member(ordinal: int = 0, status: str = "ready", **changed: Any) -> Member:
    """A member in an allocation of its own."""
    whole: dict[str, Any] = {
        "id": f"mem_{ordinal}",
        "instance_id": "ins_1",
        "component_key": "main",
        "ordinal": ordinal,
        "name": f"main-{ordinal}",
        "version_id": "ver_1",
        "version": "1.0.0",
        "status": status,
        "allocation_id": f"alc_{ordinal}",
        "health": "healthy",
        **PLACE,
        **BORN,
    }
    return Member(**{**whole, **changed})


def operation(kind: str, status: str = "running", **changed: Any) -> Operation:
    """An operation of all members, dispatched and begun."""
    graceful = NOW + timedelta(seconds=60) if kind in TEARDOWN_KINDS else None
    whole: dict[str, Any] = {
        "id": f"op_{kind}",
        "instance_id": "ins_1",
        "kind": kind,
        "request": {},
        "deadline_at": NOW + timedelta(hours=1),
        "requested_by": "usr_1",
        "status": status,
        "member_ids": ["mem_0"],
        "dispatched_at": NOW,
        "phase_deadline_at": graceful,
        "started_at": None if status == "accepted" else NOW,
        "target_pin": TARGET if kind in ("upgrade", "rollback") else None,
        **PLACE,
        **BORN,
    }
    return Operation(**{**whole, **changed})


def allocation(ordinal: int = 0, status: str = "active", **changed: Any) -> Allocation:
    """An allocation that stands on the one machine."""
    base = replace(requested(HERE, (TENANT, PROJECT)), id=f"alc_{ordinal}", name=f"alc-{ordinal}", node_id="nod_1")
    return replace(base, status=status, activated_at=NOW, **changed)


def attachment(status: str = "active", **changed: Any) -> Attachment:
    """Another project's use of the instance."""
    whole: dict[str, Any] = {
        "id": "att_1",
        "tenant_id": TENANT,
        "project_id": "prj_other",
        "instance_id": "ins_1",
        "owning_project_id": PROJECT,
        "instance_name": "app-1",
        "app_slug": "app",
        "account_name": "p-other",
        "operation_id": "op_attach",
        "requested_by": "usr_1",
        "status": status,
        **BORN,
    }
    return Attachment(**{**whole, **changed})


@dataclass
class Theatre:
    """Everything of one instance, in memory."""

    instance: Instance
    members: dict[str, Member]
    operations: dict[str, Operation]
    allocations: dict[str, Allocation]
    nodes: dict[str, NodeStanding] = field(default_factory=lambda: {"nod_1": NodeStanding("nod_1", "ready")})
    watch: ClaimWatch = field(default_factory=ClaimWatch)
    minimum: dict[str, int] = field(default_factory=lambda: {"main": 1})
    started: set[str] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)
    clean: dict[str, str] = field(default_factory=dict)  # member → its clean receipt
    dirty: dict[str, str] = field(default_factory=dict)  # task → a receipt that names what is left
    closings: dict[str, dict[str, Any]] = field(default_factory=dict)
    circuit: CircuitFacts | None = None
    attachments: dict[str, Attachment] = field(default_factory=dict)
    now: datetime = NOW
    steps: int = 0

    def context(self) -> DecisionContext:
        """The platform acts, now; ids count up from one step to the next."""
        return replace(HERE, now=self.now)

    def seen(self) -> InstanceSnapshot:
        """The snapshot of this moment."""
        there = [self._seen(each) for each in self.members.values() if each.status != "removed"]
        closed = [
            ClosedMember(key, row["kind"], (row.get("receipt") or {}).get("receipt_id"))
            for key, row in self.closings.items()
        ]
        open_ = [each for each in self.operations.values() if not each.is_over]
        deploys = [each for each in self.operations.values() if each.kind == OperationKind.DEPLOY and each.is_over]
        return InstanceSnapshot(
            self.instance,
            tuple(there),
            tuple(open_),
            deploys[-1] if deploys else None,
            tuple(closed),
            self.watch,
            self.minimum,
            circuit=self.circuit,
            attachments=tuple(
                AttachmentSnapshot(each, self.operations.get(each.operation_id))
                for each in self.attachments.values()
                if not each.is_over
            ),
        )

    def _seen(self, each: Member) -> MemberSnapshot:
        held = self.allocations.get(str(each.allocation_id))
        node = None if held is None or held.node_id is None else self.nodes.get(held.node_id)
        own = [task for task in self.tasks.values() if task.member_id == each.id]
        task = self.tasks.get(str(each.teardown_task_id))
        facts = None
        if task is not None:
            facts = TaskFacts(
                task.id, task.type, task.status, task.first_claimed_at is not None, failure_code=task.failure_code
            )
        return MemberSnapshot(
            each,
            held,
            node,
            started=each.id in self.started,
            task=facts,
            teardowns=len(own),
            receipt_id=None if task is None else self.dirty.get(task.id),
            clean_receipt_id=self.clean.get(each.id),
            queued=tuple(task for task in own if task.status == "queued"),
            ended=self._ended(each),
        )

    def _ended(self, each: Member) -> tuple[str, str] | None:
        over = [one for one in self.operations.values() if one.is_over and each.id in one.member_ids]
        if each.status not in COMING or not over:
            return None
        return over[-1].failure_code or "cancelled", over[-1].failure_detail or "it was cancelled"

    def step(self) -> Decision[Any] | None:
        """Take the next step, if there is one."""
        decision = reconcile(self.context(), LIMITS, self.seen())
        if decision is not None:
            assert decision.writes, "a step changes something"
            assert decision.audits, "a step leaves an audit row"
            self.apply(decision)
            self.steps += 1
            assert self.steps < 200, "it goes round in circles"
        return decision

    def settle(self) -> None:
        """Take every step there is now."""
        while self.step() is not None:
            pass

    def apply(self, decision: Decision[Any]) -> None:
        """Do what a decision writes, as the database would: each row once, guarded by what was seen."""
        touched: set[tuple[str, str]] = set()
        for write in decision.writes:
            if isinstance(write, Insert):
                self._insert(write)
                continue
            assert not isinstance(write, RowGuard | InsertMany), "the worker holds no claim, and writes row by row"
            assert (write.noun, write.id) not in touched, "one statement changes a row once"
            touched.add((write.noun, write.id))
            if not isinstance(write, Remove):
                self._change(write)

    def _insert(self, write: Insert) -> None:
        row = dict(write.row)
        if write.noun == "operation":
            made = Operation(**row, status="accepted", generation=0)  # type: ignore[arg-type]
            self.operations[made.id] = made
        elif write.noun == "task":
            self.tasks[str(row["id"])] = Task(**row, status="queued", generation=0)  # type: ignore[arg-type]
        elif write.noun == "closing_record":
            assert row["member_id"] not in self.closings
            self.closings[str(row["member_id"])] = row
        else:
            raise AssertionError(f"the runtime makes no {write.noun}")

    def _change(self, write: Update | StateChange) -> None:
        homes: dict[str, dict[str, Any]] = {
            "member": self.members,
            "operation": self.operations,
            "allocation": self.allocations,
            "task": self.tasks,
            "instance": {self.instance.id: self.instance},
            "attachment": self.attachments,
        }
        home = homes[write.noun]
        before = home[write.id]
        changed = dict(write.set)
        if isinstance(write, StateChange):
            assert before.generation == write.generation_expected
            assert before.status == write.edge.source
            changed |= {"status": write.edge.target.value, "generation": before.generation + 1}
            if write.noun == "member" and write.edge.target == "removed":
                assert write.id in self.closings, "a member is not removed without its closing record"
            if write.noun == "instance" and write.edge.target == "stopped":
                assert set(self.members) == set(self.closings), "an instance is not stopped without its closing records"
        else:
            assert before.revision == write.revision_expected
            changed |= {"revision": before.revision + 1}
        after = replace(before, **changed)
        home[write.id] = after
        if write.noun == "instance":
            self.instance = after

    def nodes_work(self, *, clean: bool = True) -> bool:
        """Every machine that answers does what is queued for it; whether one did something."""
        done = False
        for key, task in list(self.tasks.items()):
            node = self.nodes[task.node_id]
            if task.status != "queued" or node.unreachable_since is not None or node.is_gone:
                continue
            done = True
            ended = {"status": TaskState.SUCCEEDED.value, "first_claimed_at": self.now, "finished_at": self.now}
            self.tasks[key] = replace(task, **ended)  # type: ignore[arg-type]
            if clean:
                self.clean[str(task.member_id)] = f"rcp_{key}"
            else:
                self.dirty[key] = f"rcp_{key}"
        return done

    def next_moment(self) -> datetime | None:
        """When a bound of something open is reached."""
        open_ = [each for each in self.operations.values() if not each.is_over]
        moments = [each.deadline_at for each in open_ if each.phase == "adapter"]
        moments += [each.phase_deadline_at for each in open_ if each.phase_deadline_at is not None]
        moments += [each.dispatched_at + LIMITS.claim for each in open_ if each.dispatched_at and not each.started_at]
        moments += [each.retry_at for each in self.members.values() if each.retry_at is not None]
        return min((each for each in moments if each > self.now), default=None)


def theatre(*operations: Operation, status: str = "running", members: int = 1, **changed: Any) -> Theatre:
    """An instance in some state with these operations, on one machine."""
    made = {each.id: each for each in (member(ordinal) for ordinal in range(members))}
    held = {each.id: each for each in (allocation(ordinal) for ordinal in range(members))}
    return Theatre(
        instance(status, topology={"main": members}), made, {each.id: each for each in operations}, held, **changed
    )
