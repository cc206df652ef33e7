"""The simulated platform's records with their lock: the requests of people, and the work of its nodes and its worker.

Every change happens under one lock, is followed by the work of the worker and the nodes, and wakes all waiters. Time is
that of a clock, moved by an offset that a scenario chooses.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mooring_adapter.conformance import platform_rules
from mooring_adapter.conformance.fake_nodes import FakeNodes
from mooring_adapter.conformance.fake_records import (
    OPENING,
    WHOLE,
    FakeAccount,
    FakeInstance,
    FakeMember,
    FakeOperation,
    FakeTask,
    later,
)

LEASE_SECONDS: Final = 45.0
PERSON: Final = "usr_simulated"
"""Who asks for everything that the scenarios ask for."""
OPERATION_SECONDS: Final = 600.0
REPORT_SECONDS: Final = 15.0
"""After the time of a drain: to report what keeps the member busy."""


class FakeStore:
    """All records of the simulated platform."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.clock = clock
        self.turn = threading.Condition()
        self.accounts: dict[str, FakeAccount] = {}
        self.instances: dict[str, FakeInstance] = {}
        self.nodes = FakeNodes()
        self.offset = timedelta()
        self.sequence = 0
        self.is_still = False  # neither the worker nor the nodes do anything: a test that only compares answers
        self.generation = 0  # of the adapter's process: the polls of a killed one claim nothing
        self.lease_seconds = LEASE_SECONDS
        self.observations: list[str] = []  # violations of promises, as they were observed

    def now(self) -> datetime:
        return self.clock() + self.offset

    @contextmanager
    def changing(self, instance: FakeInstance | None = None) -> Iterator[None]:
        """Make a change; afterwards the worker and the nodes do their work, and all waiters look again."""
        with self.turn:
            yield
            if instance is not None:
                self.touch(instance)
            self.settle()
            self.turn.notify_all()

    def touch(self, instance: FakeInstance) -> None:
        """Record that the instance changed."""
        self.sequence += 1
        instance.changed = self.sequence

    def settle(self) -> None:
        """Let the worker and the nodes work until nothing is due."""
        if self.is_still:
            return
        for instance in self.instances.values():
            busy = True
            while busy:
                busy = platform_rules.tick(instance, self.now())
                for member in instance.members.values():
                    if member.status == "removed":
                        self.nodes.forget(member.id)
                busy = self._do_tasks(instance) or busy
                if busy:
                    self.touch(instance)

    def _do_tasks(self, instance: FakeInstance) -> bool:
        did = False
        for task in instance.tasks.values():
            member = instance.members.get(task.member_id)
            if task.is_over or member is None or not member.reachable or self.nodes.holding(task):
                continue
            self._done(instance, task, member)
            did = True
        return did

    def _done(self, instance: FakeInstance, task: FakeTask, member: FakeMember) -> None:
        outcome = self.nodes.do(task, member, instance.id)
        task.status = "failed" if outcome.failure_code else "succeeded"
        task.result, task.exit_code = outcome.result or None, outcome.exit_code
        task.failure_code, task.failure_detail = outcome.failure_code, outcome.failure_detail
        task.last_lines, task.finished_at = list(outcome.last_lines), self.now()
        self._count_down(instance, member)

    def _count_down(self, instance: FakeInstance, member: FakeMember) -> None:
        """Record how many members of a component are down at the same time after having been up."""
        key = f"{instance.id}/{member.component_key}"
        opened = {
            each.member_id for each in instance.tasks.values() if each.type in OPENING and each.status == "succeeded"
        }
        down = [
            each
            for each in instance.members.values()
            if each.component_key == member.component_key and each.id in opened and not self.nodes.running.get(each.id)
        ]
        self.nodes.stopped_together[key] = max(self.nodes.stopped_together.get(key, 0), len(down))

    def wait(self, condition: Callable[[], Any], seconds: float) -> Any:
        """Wait until the condition holds or the time is over; returns its last value."""
        until = time.monotonic() + seconds
        with self.turn:
            while not (value := condition()):
                left = until - time.monotonic()
                if left <= 0:
                    return value
                self.turn.wait(min(left, 0.5))
                self.settle()
            return value

    # Requests of people ----------------------------------------------------------------------------------------------

    def create(
        self,
        account: FakeAccount,
        manifest: dict[str, Any],
        topology: dict[str, int],
        config: dict[str, Any],
        name: str,
    ) -> FakeInstance:
        """Create an instance with its members and its deploy operation."""
        identity = self.new_id("ins", name)
        correlation, trace = f"conformance-{name}", hashlib.sha256(identity.encode()).hexdigest()[:32]
        pin = pin_of(manifest)
        instance = FakeInstance(
            id=identity,
            name=name,
            account_id=account.id,
            project_id=account.project_id,
            manifest=manifest,
            pin=pin,
            config=config,
            topology=dict(topology),
            correlation_id=correlation,
            trace_id=trace,
            created_at=self.now(),
        )
        with self.changing(instance):
            self.instances[identity] = instance
            members = [self._member(instance, key) for key, count in topology.items() for _ in range(count)]
            self._operation(instance, "deploy", {}, [each.id for each in members])
        return instance

    def add(self, instance: FakeInstance, component: str, count: int) -> FakeOperation:
        """Add members to a component."""
        with self.changing(instance):
            members = [self._member(instance, component) for _ in range(count)]
            request = {"component": component, "count": count}
            return self._operation(instance, "add", request, [each.id for each in members])

    def change(
        self, instance: FakeInstance, kind: str, request: dict[str, Any], member_id: str | None
    ) -> FakeOperation:
        """Start any other operation."""
        with self.changing(instance):
            ids = [] if member_id is None else [member_id]
            if kind in ("drain", "remove", "replace") and member_id is not None:
                member = instance.members[member_id]
                if kind == "replace":
                    new = self._member(instance, member.component_key)
                    new.replaces_id = member.id
                    ids.append(new.id)
                goes_first = kind != "replace" or request.get("surge") is False
                if goes_first and member.status in ("ready", "degraded"):
                    member.status = "draining"
                    member.draining_since = len(instance.tasks)
                if kind == "drain":
                    others = [each for each in member.holds if each["owner"] != PERSON]
                    hold = {"owner": PERSON, "reason": request.get("reason", ""), "since": self.now().isoformat()}
                    member.holds = [*others, hold]
            elif kind in WHOLE and member_id is None:
                ids = [each.id for each in instance.members.values() if each.status not in ("removing", "removed")]
            elif kind == "decommission":
                platform_rules.stop(instance, self.now())
                ids = [each.id for each in instance.members.values() if each.status != "removed"]
            operation = self._operation(instance, kind, request, ids)
            if kind in ("remove", "decommission"):
                working = float(request.get("timeout_seconds", 0))
                operation.phase_deadline_at = later(self.now(), working + platform_rules.graceful_seconds(instance))
            return operation

    def configure(self, instance: FakeInstance, patch: dict[str, Any]) -> FakeOperation:
        """Change the configuration; the instance keeps the old one until the adapter has succeeded."""
        target = platform_rules.merged(instance.config, patch)
        changed = [
            f"/{name}" for name in sorted({*instance.config, *target}) if instance.config.get(name) != target.get(name)
        ]
        request = {"input": target, "changed": changed, "previous": dict(instance.config)}
        return self.change(instance, "configure", request, None)

    def attach(self, instance: FakeInstance, account_name: str) -> FakeOperation:
        """Let another project of the tenant use the instance, which becomes tenant-wide."""
        with self.changing(instance):
            identity = self.new_id("att", instance.id)
            attached = {"id": identity, "project_id": self.new_id("prj", identity), "account_name": account_name}
            instance.control_plane_scope = "tenant"
            instance.attachments[identity] = {**attached, "status": "requested"}
            return self._operation(instance, "attach", {"attachment": attached}, [])

    def detach(self, instance: FakeInstance, attachment_id: str, *, cancel_work: bool, seconds: float) -> FakeOperation:
        """End an attachment: the project starts nothing new."""
        with self.changing(instance):
            there = instance.attachments[attachment_id]
            there["status"] = "detaching"
            attachment = {name: there[name] for name in ("id", "project_id", "account_name")}
            request = {"attachment": attachment, "cancel_work": cancel_work, "timeout_seconds": seconds}
            operation = self._operation(instance, "detach", request, [])
            operation.deadline_at = later(self.now(), seconds + platform_rules.graceful_seconds(instance))
            return operation

    def target(self, operation: FakeOperation, instance: FakeInstance, manifest: dict[str, Any]) -> None:
        """Set the target of an upgrade or a rollback."""
        with self.changing(instance):
            operation.target_pin, instance.target_manifest = pin_of(manifest), manifest

    def cancel(self, instance: FakeInstance, operation: FakeOperation) -> None:
        with self.changing(instance):
            platform_rules.cancel(operation, "", self.now())

    def resume(self, instance: FakeInstance, member: FakeMember) -> None:
        """Take a drain back."""
        with self.changing(instance):
            member.status, member.holds = "ready", []
            for operation in instance.open_operations:
                if operation.kind == "drain" and member.id in operation.member_ids:
                    platform_rules.cancel(operation, "the member was put back to work", self.now())

    def lose(self, instance: FakeInstance, member: FakeMember) -> None:
        """Lose a member's node permanently: its tasks end, and the platform fails the member."""
        with self.changing(instance):
            member.reachable, member.health = False, "unknown"
            for task in instance.tasks.values():
                if task.member_id == member.id and not task.is_over:
                    task.status, task.finished_at = "expired", self.now()
            if member.status not in ("removing", "removed"):
                member.status = "failed"
                member.failure = {"code": "node_lost", "detail": "simulated: the node is gone", "last_lines": []}

    def write_off(self, instance: FakeInstance) -> None:
        """Write off what is left on lost nodes."""
        with self.changing(instance):
            for member in instance.members.values():
                if member.status == "removing":
                    member.status = "removed"

    def take_lease(self, instance: FakeInstance, holder: str | None) -> None:
        """Give the claim to another holder; None offers it again."""
        with self.changing(instance):
            instance.claim.fence += 1 if holder is not None else 0
            instance.claim.holder = holder
            instance.claim.until = None if holder is None else later(self.now(), 3_600)

    # Records ---------------------------------------------------------------------------------------------------------

    def _member(self, instance: FakeInstance, component: str) -> FakeMember:
        taken = {
            each.ordinal
            for each in instance.members.values()
            if each.component_key == component and each.status != "removed"
        }
        ordinal = next(number for number in range(1_001) if number not in taken)
        identity = self.new_id("mem", instance.id)
        member = FakeMember(
            identity,
            f"{instance.name}-{component}-{ordinal}",
            component,
            ordinal,
            instance.pin["version"],
            self.new_id("nod", identity),
        )
        instance.members[identity] = member
        return member

    def _operation(self, instance: FakeInstance, kind: str, request: dict[str, Any], ids: list[str]) -> FakeOperation:
        identity = self.new_id("op", instance.id)
        trace = hashlib.sha256(identity.encode()).hexdigest()[:32]
        operation = FakeOperation(
            id=identity,
            kind=kind,
            request=request,
            member_ids=ids,
            deadline_at=later(self.now(), OPERATION_SECONDS),
            correlation_id=f"conformance-{identity}",
            trace_id=trace,
        )
        if kind == "drain" and "timeout_seconds" in request:
            operation.phase_deadline_at = later(self.now(), float(request["timeout_seconds"]))
            operation.deadline_at = later(operation.phase_deadline_at, REPORT_SECONDS)
        instance.operations[identity] = operation
        return operation

    def new_id(self, prefix: str, of: str) -> str:
        self.sequence += 1
        return f"{prefix}_0{hashlib.sha256(f'{of}/{self.sequence}'.encode()).hexdigest()[:25]}"


def pin_of(manifest: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(repr(sorted(manifest.items())).encode()).hexdigest()
    return {
        "version_id": f"ver_{digest[:20]}",
        "version": manifest["version"],
        "manifest_digest": f"sha256:{digest}",
        "artifacts": dict(manifest["artifacts"]),
    }
