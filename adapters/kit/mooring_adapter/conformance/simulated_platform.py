"""The simulated platform as scenarios use it: the fake store, its API behind a proxy, and the adapter's process."""

import base64
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mooring_adapter.conformance.adapter_process import AdapterProcess
from mooring_adapter.conformance.fake_api import FakeApi
from mooring_adapter.conformance.fake_program import FakeOutcome, FakeProgram
from mooring_adapter.conformance.fake_records import FakeAccount, FakeInstance, FakeMember, FakeOperation, FakeTask
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.fault_proxy import FaultProxy, ProxyFaults, RecordedExchange
from mooring_adapter.conformance.platform_protocol import (
    ConditionNotReached,
    Footprint,
    InstanceStatus,
    MemberStatus,
    OperationStatus,
    SuiteProfile,
    TaskStatus,
)

Value = TypeVar("Value")


class SimulatedPlatform:
    """A simulated platform with a real adapter process."""

    def __init__(self, command: Sequence[str], profile: SuiteProfile) -> None:
        self.profile = profile
        self.baseline: Footprint | None = None
        self.store = FakeStore()
        self.fake_program = FakeProgram(profile.fake_program) if profile.fake_program else None
        self.store.nodes.fake_program = self.fake_program
        self.api = FakeApi(self.store)
        self.proxy = FaultProxy(self.api)
        self.place = Path(tempfile.mkdtemp(prefix="mooring-conformance-key-"))
        self._make_accounts()
        self.api.address = self.proxy.start()
        self.adapter = AdapterProcess(
            command,
            {
                "MOORING_URL": self.api.address,
                "MOORING_KEY_FILE": str(self.place / "key.pem"),
                "MOORING_HOLDER": "conformance",
            },
        )

    def _make_accounts(self) -> None:
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.place / "key.pem").touch(mode=0o600)
        (self.place / "key.pem").write_bytes(pem)
        raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        public = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        for number in range(2):
            account = FakeAccount(
                f"sva_simulated{number}",
                f"prj_simulated{number}",
                f"key{number}",
                public,
                (self.profile.manifest["app"],),
                frozenset(self.profile.manifest.get("required_actions", ())),
            )
            self.store.accounts[account.id] = account

    @property
    def faults(self) -> ProxyFaults:
        """How the connection between the two misbehaves."""
        return self.proxy.faults

    def can(self, fault: str) -> bool:
        return True

    def close(self) -> None:
        """Stop everything, and leave no files."""
        self.adapter.close()
        self.proxy.stop()
        if self.fake_program is not None:
            self.fake_program.close()
        (self.place / "key.pem").unlink(missing_ok=True)
        self.place.rmdir()

    def clear(self) -> None:
        """Between two scenarios: remove all instances, faults and records."""
        self.faults.clear()
        self.hold_tasks(lambda task: False)
        with self.store.changing():
            self.store.instances.clear()
            self.store.observations.clear()
            self.store.nodes.never_quiet = False
            self.store.nodes.behaviour = lambda task, member: None
            self.store.nodes.running.clear()
            self.store.nodes.started_twice.clear()
            self.store.nodes.stopped_together.clear()
            if self.fake_program is not None:
                self.fake_program.restart()
            self.store.offset = timedelta()
            self.api.forbidden = frozenset()
        with self.proxy.lock:
            self.proxy.exchanges = []  # requests that are still open record themselves in the old list

    # Requests of people ----------------------------------------------------------------------------------------------

    def create_instance(self, name: str, *, topology: dict[str, int] | None = None, project: int = 0) -> str:
        account = list(self.store.accounts.values())[project]
        profile = self.profile
        made = self.store.create(account, profile.manifest, topology or profile.topology, dict(profile.config), name)
        return made.id

    def add(self, instance_id: str, component: str, count: int) -> str:
        return self.store.add(self._instance(instance_id), component, count).id

    def drain(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str:
        return self._change(instance_id, "drain", {"timeout_seconds": timeout_seconds}, member_id)

    def resume(self, instance_id: str, member_id: str) -> None:
        instance = self._instance(instance_id)
        self.store.resume(instance, instance.members[member_id])

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

    def configure(self, instance_id: str, patch: dict[str, Any]) -> str:
        return self.store.configure(self._instance(instance_id), patch).id

    def repair(self, instance_id: str) -> str:
        return self._change(instance_id, "repair", {"scope": "whole_runtime"}, None)

    def act(self, instance_id: str, action: str, given: dict[str, Any]) -> str:
        return self._change(instance_id, "action", {"action": action, "input": given}, None)

    def attach(self, instance_id: str, account_name: str) -> str:
        """Let another project use the instance; returns the attach operation."""
        return self.store.attach(self._instance(instance_id), account_name).id

    def detach(self, instance_id: str, attachment_id: str, *, cancel_work: bool = False, seconds: float = 60.0) -> str:
        """End its use; returns the detach operation."""
        return self.store.detach(
            self._instance(instance_id), attachment_id, cancel_work=cancel_work, seconds=seconds
        ).id

    def attachments(self, instance_id: str) -> list[dict[str, Any]]:
        """All attachments of the instance, including past ones."""
        return [dict(each) for each in self._instance(instance_id).attachments.values()]

    def stop(self, instance_id: str) -> str:
        return self._change(instance_id, "decommission", {}, None)

    def cancel(self, instance_id: str, operation_id: str) -> None:
        instance = self._instance(instance_id)
        self.store.cancel(instance, instance.operations[operation_id])

    def _change(self, instance_id: str, kind: str, request: dict[str, Any], member_id: str | None) -> str:
        return self.store.change(self._instance(instance_id), kind, request, member_id).id

    def _towards(self, instance_id: str, kind: str, manifest: dict[str, Any]) -> str:
        instance = self._instance(instance_id)
        with self.store.turn:  # the adapter must not see the operation without its target
            operation = self.store.change(instance, kind, {"version": manifest["version"]}, None)
            self.store.target(operation, instance, manifest)
        return operation.id

    # Reads of people -------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str) -> InstanceStatus:
        each = self._instance(instance_id)
        return InstanceStatus(
            each.id,
            each.status,
            each.health,
            each.pin["version"],
            tuple(each.endpoints),
            None if each.failure is None else each.failure["code"],
            tuple(each.usage.values()),
            each.claim.holder,
            dict(each.config),
        )

    def members(self, instance_id: str) -> list[MemberStatus]:
        found = self._instance(instance_id).members.values()
        return [_member(each) for each in found if each.status != "removed"]

    def operation(self, instance_id: str, operation_id: str) -> OperationStatus:
        return _operation(self._instance(instance_id).operations[operation_id])

    def ended(self, instance_id: str, operation_id: str) -> OperationStatus:
        kind = self.operation(instance_id, operation_id).kind
        self.wait_for(f"the end of {kind}", lambda: self.operation(instance_id, operation_id).is_over)
        return self.operation(instance_id, operation_id)

    def open_operation(self, instance_id: str, kind: str) -> OperationStatus:
        return [_operation(each) for each in self._instance(instance_id).operations.values() if each.kind == kind][-1]

    def tasks(self, instance_id: str) -> list[TaskStatus]:
        return [_task(each) for each in self._instance(instance_id).tasks.values()]

    def wait_for(self, what: str, condition: Callable[[], Value]) -> Value:
        def found() -> tuple[Value, bool] | None:
            is_gone = self.adapter.ended_by_itself  # read first: the last thing that it did counts
            value = condition()
            return (value, is_gone) if value or is_gone else None

        value, is_gone = self.store.wait(found, self.profile.patience_seconds) or (None, False)
        if not value:
            within = "" if is_gone else f" within {self.profile.patience_seconds:g} s"
            raise ConditionNotReached(f"{what} did not happen{within}")
        return cast(Value, value)

    def traffic(self) -> list[RecordedExchange]:
        with self.proxy.lock:
            return list(self.proxy.exchanges)

    def broken(self) -> list[str]:
        with self.store.turn:
            seen = [*self.store.observations, *self.store.nodes.started_twice]
            self.store.observations.clear()
            self.store.nodes.started_twice.clear()
            failure = self.fake_program.failure if self.fake_program is not None else ""
        return [*seen, failure] if failure else seen

    # Faults ----------------------------------------------------------------------------------------------------------

    def start_adapter(self) -> None:
        self.adapter.start()

    def kill_adapter(self) -> None:
        self.adapter.kill()
        with self.store.changing():  # expire the dead process's leases now, so that no test has to wait
            self.expire_tokens()  # its last requests may still arrive, and must have no effect
            self.store.generation += 1
            for instance in self.store.instances.values():
                instance.claim.holder = instance.claim.until = None

    def hold_tasks(self, of: Callable[[TaskStatus], bool]) -> None:
        with self.store.changing():
            self.store.nodes.holding = lambda task: of(_task(task))

    def fail_tasks(self, of: Callable[[TaskStatus], bool], code: str, last_line: str) -> None:
        def behave(task: FakeTask, member: FakeMember) -> FakeOutcome | None:
            if not of(_task(task)):
                return None
            return FakeOutcome(failure_code=code, failure_detail=f"simulated: {last_line}", last_lines=(last_line,))

        with self.store.changing():
            self.store.nodes.behaviour = behave

    def lose_node(self, instance_id: str, member_id: str) -> None:
        instance = self._instance(instance_id)
        self.store.lose(instance, instance.members[member_id])

    def never_quiet(self, is_so: bool) -> None:
        with self.store.changing():
            self.store.nodes.never_quiet = is_so

    def take_lease(self, instance_id: str, holder: str | None) -> None:
        self.store.take_lease(self._instance(instance_id), holder)

    def expire_tokens(self) -> None:
        self.api.tokens.clear()

    def forbid(self, *actions: str) -> None:
        self.api.forbidden = frozenset(actions)

    def skew_clock(self, seconds: float) -> None:
        with self.store.changing():
            self.store.offset = timedelta(seconds=seconds)

    def down_together(self, instance_id: str, component: str) -> int:
        return self.store.nodes.stopped_together.get(f"{instance_id}/{component}", 0)

    def _instance(self, instance_id: str) -> FakeInstance:
        return self.store.instances[instance_id]


def _member(each: FakeMember) -> MemberStatus:
    code = None if each.failure is None else each.failure["code"]
    return MemberStatus(each.id, each.name, each.component_key, each.status, each.version, code)


def _operation(each: FakeOperation) -> OperationStatus:
    return OperationStatus(
        each.id,
        each.kind,
        each.status,
        each.phase,
        each.correlation_id,
        each.outcome.get("failure"),
        each.outcome.get("output"),
        each.blocker,
        tuple(each.steps),
        (each.outcome.get("evidence") or {}).get("graceful") is not False,
    )


def _task(each: FakeTask) -> TaskStatus:
    return TaskStatus(
        each.id, each.operation_id, each.step, each.type, each.member_id, each.status, each.correlation_id
    )
