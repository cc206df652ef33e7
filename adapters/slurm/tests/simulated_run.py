"""A simulated run: the kit's instance controller with this adapter, the simulated platform and a simulated Slurm.

Everything is in one process, without HTTP and without waiting: requests are function calls, and the platform's clock
stands still until a plan waits for a time, when it is moved there. The controller can be killed at any of its requests,
before or after the platform has handled it; the next one starts with nothing but the records.
"""

import asyncio
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from mooring_adapter.conformance.fake_api import ApiRequest, FakeApi
from mooring_adapter.conformance.fake_program import FakeOutcome, FakeProgram, read_answer, task_message
from mooring_adapter.conformance.fake_records import FakeAccount, FakeMember, FakeOperation, FakeTask
from mooring_adapter.conformance.fake_store import FakeStore
from mooring_adapter.conformance.platform_rules import RequestRefused
from mooring_adapter.instance_controller import InstanceController
from mooring_adapter.platform_client import HeldClaim, PlatformClient
from mooring_sdk import AsyncClient, Call, MooringError
from mooring_slurm.adapter import SLURM
from mooring_slurm.catalog import NEXT_VERSION, manifest_of
from mooring_slurm.simulated_slurm import BEGAN_AT, SimulatedCluster, SimulatedSlurm

ROUNDS_MAX: Final = 400
STILL_MAX: Final = 3
LONG: Final = timedelta(seconds=30)
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
STOOD: dict[str, bytes] = {}


class AdapterKilled(BaseException):
    """The adapter was killed at this request."""


class RunStuck(AssertionError):
    """Nothing happens any more although the operation is not over."""


class InProcess(FakeProgram):
    """The simulated Slurm, called without another process."""

    def __init__(self, slurm: SimulatedSlurm) -> None:
        self.slurm = slurm

    def ask(self, task: FakeTask, member: FakeMember, instance_id: str) -> FakeOutcome | None:
        return read_answer(json.dumps(self.slurm.answer(task_message(task, member, instance_id))).encode())


class KillableConnection:
    """The connection to the platform, where the adapter can be killed at a request."""

    def __init__(self, api: FakeApi, token: str, kill_at: int | None = None, *, is_done: bool = False) -> None:
        self.api, self.token = api, token
        self.kill_at, self.is_done = kill_at, is_done
        self.requests = 0  # that change something: a kill at a look is one before the next of these
        self.dead = False

    async def call(self, call: Call, kind: type[Any]) -> Any:
        return await self.execute(call)

    async def execute(self, call: Call) -> Any:
        if self.dead:
            raise AdapterKilled
        counts = call.operation.method != "GET"
        self.requests += counts
        is_now = counts and self.requests == self.kill_at
        if is_now and not self.is_done:
            self.dead = True
            raise AdapterKilled
        path = call.operation.path.format(**call.path)
        body = call.body if isinstance(call.body, dict) else {}
        query = {name: str(value) for name, value in call.query.items()}
        try:
            response = self.api.answer(ApiRequest(call.operation.method, path, query, body, "", self.token))
        except RequestRefused as refused:
            raise MooringError(
                refused.detail, code=refused.code, status=refused.status, retryable=refused.retryable
            ) from refused
        if is_now:
            self.dead = True
            raise AdapterKilled
        return json.loads(json.dumps(response.body))


@dataclass
class StillClock:
    """A clock that a stalled machine does not move: each reading is a microsecond after the previous one."""

    at: datetime = BEGAN

    def __call__(self) -> datetime:
        self.at += timedelta(microseconds=1)
        return self.at


class SimulatedRun:
    """One instance and its controller."""

    def __init__(self, workers: int = 2, **config: Any) -> None:
        self.store = FakeStore(StillClock())
        self.slurm = SimulatedSlurm()
        self.store.nodes.fake_program = InProcess(self.slurm)
        self.api = FakeApi(self.store)
        account = FakeAccount("sva_one", "prj_one", "key", "", ("slurm",))
        self.store.accounts[account.id] = account
        self.api.tokens["token"] = (account.id, 1e12)
        topology = {"controller": 1, "worker": workers}
        self.made_of = f"{topology} {config}"
        self.instance = self.store.create(account, manifest_of(), topology, config, "c")
        self.instance.created_at = datetime.fromtimestamp(BEGAN_AT, UTC)  # before the first simulated job
        self.on_round: Callable[[int], None] = lambda number: None

    @property
    def cluster(self) -> SimulatedCluster:
        """Its cluster in the simulated Slurm."""
        return self.slurm.clusters.setdefault(self.instance.id, SimulatedCluster())

    def member(self, name: str) -> FakeMember:
        """A member that is not removed, by the end of its name."""
        alive = [each for each in self.instance.members.values() if each.status != "removed"]
        return next(each for each in alive if each.name == f"c-{name}")

    def operation(self, kind: str) -> FakeOperation:
        """The newest operation of a kind."""
        return [each for each in self.instance.operations.values() if each.kind == kind][-1]

    def deployed(self) -> "SimulatedRun":
        """Deploy it; a state that was reached once is restored instead of deployed again."""
        return self.once("deployed", lambda: self.operation("deploy"))

    def once(self, what: str, change: Callable[[], FakeOperation]) -> "SimulatedRun":
        """Make a change that must succeed; a state that was reached once is restored instead."""
        self.made_of += f" {what}"
        if self.made_of not in STOOD:
            operation = change()
            self.until_over(operation)
            assert operation.status == "succeeded", operation.outcome
            STOOD[self.made_of] = self._kept()
        self._put_back(STOOD[self.made_of])
        return self

    def _kept(self) -> bytes:
        store = self.store
        kept = (store.instances, store.sequence, store.clock, store.offset, store.nodes.running, self.slurm.clusters)
        return pickle.dumps(kept)

    def _put_back(self, kept: bytes) -> None:
        store = self.store
        store.instances, store.sequence, store.clock, store.offset, *others = pickle.loads(kept)
        store.nodes.running, self.slurm.clusters = others
        (self.instance,) = store.instances.values()

    def upgrade(self, version: str = NEXT_VERSION, kind: str = "upgrade") -> FakeOperation:
        """Upgrade or roll back to another version."""
        operation = self.store.change(self.instance, kind, {"version": version}, None)
        self.store.target(operation, self.instance, manifest_of(version))
        return operation

    def replace(self, member: FakeMember, *, surge: bool) -> FakeOperation:
        """Replace a member; a surge must be one that the platform would accept."""
        component = next(each for each in self.instance.manifest["components"] if each["key"] == member.component_key)
        alike = [each for each in self.instance.members.values() if each.component_key == member.component_key]
        standing = [each for each in alike if each.status not in ("removing", "removed")]
        assert not surge or len(standing) < component["max_count"], "the platform refuses it"
        return self.store.change(self.instance, "replace", {"surge": surge}, member.id)

    def watch(self, until: Callable[[], bool]) -> None:
        """Run the controller without an operation until a condition holds."""
        platform = PlatformClient(cast(AsyncClient, self._line(None)), "controller")
        controller = InstanceController(
            SLURM, platform, HeldClaim(self.instance.id, self.instance.claim.fence), lambda: BEGAN
        )
        for _ in range(ROUNDS_MAX):
            if until():
                return
            rest = asyncio.run(controller._round())
            self.store.offset += min(timedelta(seconds=max(rest, 0.1)), LONG)
            self.store.settle()
        raise RunStuck("what was watched for did not come")

    def until_over(self, operation: FakeOperation, kill_at: int | None = None, *, is_done: bool = False) -> int:
        """Run until the operation is over, killed once on the way; returns the first process's requests."""
        line = self._line(kill_at, is_done=is_done)
        try:
            self._keep(line, operation)
        except AdapterKilled:
            self._keep(self._line(None), operation)
        return line.requests

    def _line(self, kill_at: int | None, *, is_done: bool = False) -> KillableConnection:
        """A new holder with a new fence and no state."""
        with self.store.changing():
            self.instance.claim.fence += 1
            self.instance.claim.holder = f"controller-{self.instance.claim.fence}"
        return KillableConnection(self.api, "token", kill_at, is_done=is_done)

    def _keep(self, line: KillableConnection, operation: FakeOperation) -> None:
        platform = PlatformClient(cast(AsyncClient, line), "controller")
        controller = InstanceController(
            SLURM, platform, HeldClaim(self.instance.id, self.instance.claim.fence), lambda: BEGAN
        )
        asyncio.run(self._rounds(controller, operation))

    async def _rounds(self, controller: InstanceController, operation: FakeOperation) -> None:
        still = 0
        for number in range(ROUNDS_MAX):
            if operation.is_over or operation.phase == "platform":
                self.store.settle()
                return
            self.on_round(number)
            before = self.instance.changed
            rest = await controller._round()
            still = still + 1 if self.instance.changed == before else 0
            if still > STILL_MAX:
                raise RunStuck(f"{operation.kind} is {operation.status}: {list(operation.steps.values())}")
            if rest > 0:
                self.store.offset += min(timedelta(seconds=rest), LONG)
                self.store.settle()
        raise RunStuck(f"{operation.kind} has no end after {ROUNDS_MAX} rounds")

    def end_state(self, operation: FakeOperation) -> dict[str, Any]:
        """What must be the same however often the adapter was killed: the records, Slurm's state, and the tasks."""
        self.store.settle()
        tasks = [each for each in self.instance.tasks.values() if each.operation_id == operation.id]
        return {
            "instance": self.instance.status,
            "operation": operation.status,
            "members": sorted((each.name, each.status, each.version) for each in self.instance.members.values()),
            "nodes": sorted((each.name, each.drained) for each in self.cluster.nodes.values()),
            "services": sorted(self.cluster.services),
            "accounts": dict(self.cluster.accounts),
            "effects": sorted((each.step, each.type, each.status) for each in tasks if each.type != "service.inspect"),
            "evidence": sorted(operation.outcome.get("evidence", {})),
        }
