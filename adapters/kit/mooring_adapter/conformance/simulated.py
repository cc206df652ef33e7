"""The simulated platform as a scenario sees it: the book, its contract behind a front, and the adapter's process."""

import base64
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mooring_adapter.conformance.book import Book
from mooring_adapter.conformance.contract import Contract
from mooring_adapter.conformance.front import Exchange, Faults, Front
from mooring_adapter.conformance.process import AdapterProcess
from mooring_adapter.conformance.records import Account, Instance, Member, Operation, Task
from mooring_adapter.conformance.stand_in import Outcome, StandIn
from mooring_adapter.conformance.under_test import (
    Footprint,
    InstanceView,
    MemberView,
    NotReached,
    OperationView,
    Profile,
    TaskView,
)

Value = TypeVar("Value")


class SimulatedPlatform:
    """A platform that is only imagined, with a real adapter at work on it."""

    def __init__(self, command: Sequence[str], profile: Profile) -> None:
        self.profile = profile
        self.quiet_day: Footprint | None = None
        self.book = Book()
        self.stand_in = StandIn(profile.stand_in) if profile.stand_in else None
        self.book.nodes.stand_in = self.stand_in
        self.contract = Contract(self.book)
        self.front = Front(self.contract)
        self.place = Path(tempfile.mkdtemp(prefix="mooring-conformance-key-"))
        self._make_accounts()
        self.contract.address = self.front.start()
        self.adapter = AdapterProcess(command, {
            "MOORING_URL": self.contract.address,
            "MOORING_KEY_FILE": str(self.place / "key.pem"),
            "MOORING_HOLDER": "conformance",
        })  # fmt: skip

    def _make_accounts(self) -> None:
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.place / "key.pem").touch(mode=0o600)
        (self.place / "key.pem").write_bytes(pem)
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        public = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        for number in range(2):
            account = Account(
                f"sva_simulated{number}", f"prj_simulated{number}", f"key{number}", public,
                (self.profile.manifest["app"],),
            )  # fmt: skip
            self.book.accounts[account.id] = account

    @property
    def faults(self) -> Faults:
        """How the way between the two misbehaves."""
        return self.front.faults

    def can(self, fault: str) -> bool:
        return True

    def close(self) -> None:
        """End everything, and leave nothing."""
        self.adapter.close()
        self.front.stop()
        if self.stand_in is not None:
            self.stand_in.close()
        (self.place / "key.pem").unlink(missing_ok=True)
        self.place.rmdir()

    def clear(self) -> None:
        """Between two scenarios: no instance, no fault, nothing noted."""
        self.faults.clear()
        self.hold_tasks(lambda task: False)
        with self.book.changing():
            self.book.instances.clear()
            self.book.observations.clear()
            self.book.nodes.never_quiet = False
            self.book.nodes.behaviour = lambda task, member: None
            self.book.nodes.running.clear()
            self.book.nodes.started_twice.clear()
            self.book.nodes.stopped_together.clear()
            if self.stand_in is not None:
                self.stand_in.restart()
            self.book.offset = timedelta()
        with self.front.lock:
            self.front.exchanges = []  # what is still under way notes itself in the old list

    # What people do --------------------------------------------------------------------------------------------------

    def create_instance(self, name: str, *, topology: dict[str, int] | None = None, project: int = 0) -> str:
        account = list(self.book.accounts.values())[project]
        profile = self.profile
        made = self.book.create(account, profile.manifest, topology or profile.topology, dict(profile.config), name)
        return made.id

    def add(self, instance_id: str, component: str, count: int) -> str:
        return self.book.add(self._instance(instance_id), component, count).id

    def drain(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str:
        return self._change(instance_id, "drain", {"timeout_seconds": timeout_seconds}, member_id)

    def resume(self, instance_id: str, member_id: str) -> None:
        instance = self._instance(instance_id)
        self.book.resume(instance, instance.members[member_id])

    def remove(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str:
        return self._change(instance_id, "remove", {"timeout_seconds": timeout_seconds}, member_id)

    def replace(self, instance_id: str, member_id: str) -> str:
        return self._change(instance_id, "replace", {"surge": True}, member_id)

    def upgrade(self, instance_id: str) -> str:
        return self._towards(instance_id, "upgrade", self.profile.next_manifest)

    def rollback(self, instance_id: str) -> str:
        return self._towards(instance_id, "rollback", self.profile.manifest)

    def restart(self, instance_id: str) -> str:
        return self._change(instance_id, "restart", {}, None)

    def repair(self, instance_id: str) -> str:
        return self._change(instance_id, "repair", {"scope": "whole_runtime"}, None)

    def act(self, instance_id: str, action: str, given: dict[str, Any]) -> str:
        return self._change(instance_id, "action", {"action": action, "input": given}, None)

    def attach(self, instance_id: str, account_name: str) -> str:
        """Another project uses the instance; the attach operation."""
        return self.book.attach(self._instance(instance_id), account_name).id

    def detach(self, instance_id: str, attachment_id: str, *, cancel_work: bool = False, seconds: float = 60.0) -> str:
        """Its use ends; the detach operation."""
        return self.book.detach(
            self._instance(instance_id), attachment_id, cancel_work=cancel_work, seconds=seconds
        ).id  # fmt: skip

    def attachments(self, instance_id: str) -> list[dict[str, Any]]:
        """What other projects have of the instance, also what is over."""
        return [dict(each) for each in self._instance(instance_id).attachments.values()]

    def stop(self, instance_id: str) -> str:
        return self._change(instance_id, "decommission", {}, None)

    def cancel(self, instance_id: str, operation_id: str) -> None:
        instance = self._instance(instance_id)
        self.book.cancel(instance, instance.operations[operation_id])

    def _change(self, instance_id: str, kind: str, request: dict[str, Any], member_id: str | None) -> str:
        return self.book.change(self._instance(instance_id), kind, request, member_id).id

    def _towards(self, instance_id: str, kind: str, manifest: dict[str, Any]) -> str:
        instance = self._instance(instance_id)
        with self.book.turn:  # the adapter must not see the operation before it has its target
            operation = self.book.change(instance, kind, {"version": manifest["version"]}, None)
            self.book.target(operation, instance, manifest)
        return operation.id

    # What people see -------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str) -> InstanceView:
        each = self._instance(instance_id)
        return InstanceView(
            each.id, each.status, each.health, each.pin["version"], tuple(each.endpoints),
            None if each.failure is None else each.failure["code"], tuple(each.usage.values()), each.claim.holder,
        )  # fmt: skip

    def members(self, instance_id: str) -> list[MemberView]:
        found = self._instance(instance_id).members.values()
        return [_member(each) for each in found if each.status != "removed"]

    def operation(self, instance_id: str, operation_id: str) -> OperationView:
        return _operation(self._instance(instance_id).operations[operation_id])

    def ended(self, instance_id: str, operation_id: str) -> OperationView:
        kind = self.operation(instance_id, operation_id).kind
        self.wait_for(f"the end of {kind}", lambda: self.operation(instance_id, operation_id).is_over)
        return self.operation(instance_id, operation_id)

    def open_operation(self, instance_id: str, kind: str) -> OperationView:
        return [_operation(each) for each in self._instance(instance_id).operations.values() if each.kind == kind][-1]

    def tasks(self, instance_id: str) -> list[TaskView]:
        return [_task(each) for each in self._instance(instance_id).tasks.values()]

    def wait_for(self, what: str, condition: Callable[[], Value]) -> Value:
        def found() -> tuple[Value, bool] | None:
            is_gone = self.adapter.ended_by_itself  # asked first: the last that it did counts
            value = condition()
            return (value, is_gone) if value or is_gone else None

        value, is_gone = self.book.wait(found, self.profile.patience_seconds) or (None, False)
        if not value:
            within = "" if is_gone else f" within {self.profile.patience_seconds:g} s"
            raise NotReached(f"{what} did not come about{within}")
        return cast(Value, value)

    def traffic(self) -> list[Exchange]:
        with self.front.lock:
            return list(self.front.exchanges)

    def broken(self) -> list[str]:
        with self.book.turn:
            seen = [*self.book.observations, *self.book.nodes.started_twice]
            self.book.observations.clear()
            self.book.nodes.started_twice.clear()
            trouble = self.stand_in.trouble if self.stand_in is not None else ""
        return [*seen, trouble] if trouble else seen

    # What goes wrong -------------------------------------------------------------------------------------------------

    def start_adapter(self) -> None:
        self.adapter.start()

    def kill_adapter(self) -> None:
        self.adapter.kill()
        with self.book.changing():  # the dead one's leases are over; nobody waits for that in a test
            self.expire_tokens()  # what it sent last may come in later still, and must not act for it
            self.book.generation += 1
            for instance in self.book.instances.values():
                instance.claim.holder = instance.claim.until = None

    def hold_tasks(self, of: Callable[[TaskView], bool]) -> None:
        with self.book.changing():
            self.book.nodes.holding = lambda task: of(_task(task))

    def fail_tasks(self, of: Callable[[TaskView], bool], code: str, last_line: str) -> None:
        def behave(task: Task, member: Member) -> Outcome | None:
            if not of(_task(task)):
                return None
            return Outcome(failure_code=code, failure_detail=f"simulated: {last_line}", last_lines=(last_line,))

        with self.book.changing():
            self.book.nodes.behaviour = behave

    def lose_node(self, instance_id: str, member_id: str) -> None:
        instance = self._instance(instance_id)
        self.book.lose(instance, instance.members[member_id])

    def never_quiet(self, is_so: bool) -> None:
        with self.book.changing():
            self.book.nodes.never_quiet = is_so

    def take_lease(self, instance_id: str, holder: str | None) -> None:
        self.book.take_lease(self._instance(instance_id), holder)

    def expire_tokens(self) -> None:
        self.contract.tokens.clear()

    def skew_clock(self, seconds: float) -> None:
        with self.book.changing():
            self.book.offset = timedelta(seconds=seconds)

    def down_together(self, instance_id: str, component: str) -> int:
        return self.book.nodes.stopped_together.get(f"{instance_id}/{component}", 0)

    def _instance(self, instance_id: str) -> Instance:
        return self.book.instances[instance_id]


def _member(each: Member) -> MemberView:
    code = None if each.failure is None else each.failure["code"]
    return MemberView(each.id, each.name, each.component_key, each.status, each.version, code)


def _operation(each: Operation) -> OperationView:
    return OperationView(
        each.id, each.kind, each.status, each.phase, each.correlation_id, each.outcome.get("failure"),
        each.outcome.get("output"), each.blocker, tuple(each.steps),
    )  # fmt: skip


def _task(each: Task) -> TaskView:
    return TaskView(each.id, each.operation_id, each.step, each.type, each.member_id, each.status, each.correlation_id)
