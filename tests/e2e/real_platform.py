"""The real platform behind the protocol of the conformance suite: a Mooring process, its database, and real agents.

A lane is a tenant with two projects, a service account of the adapter in each, its own simulated machines, and one
adapter process behind a fault proxy. Several lanes share one Mooring, so scenarios run in parallel. What users do and
see goes through the public API. Three faults that no caller can cause are written into the database: a lease of
another holder, expired leases, and expired tokens.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg
import httpx

from mooring.embedded.cluster import ClusterLayout
from mooring_adapter.conformance.adapter_process import AdapterProcess
from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse
from mooring_adapter.conformance.fault_proxy import FaultProxy, ForwardingBackend, ProxyFaults, RecordedExchange
from mooring_adapter.conformance.platform_protocol import (
    ConditionNotReached,
    Footprint,
    InstanceStatus,
    MemberStatus,
    OperationStatus,
    RefusedByPlatform,
    SuiteProfile,
    TaskStatus,
)
from mooring_adapter.conformance.task_rules import PLATFORM_ONLY
from mooring_agent.hosts.simulated import FaultProfile
from mooring_agent.simulate import Fleet
from mooring_sdk import Client, MooringError, models
from mooring_workload.bundle import key_at, public_half
from tests.e2e.agent_platform import PATIENT
from tests.e2e.conformance_views import operation_view, task_view
from tests.e2e.controlled_nodes import ControlledNodes, NodeControl
from tests.e2e.mooring_process import PASSWORD, MooringProcess

Value = TypeVar("Value")
Stateful = TypeVar("Stateful", models.Instance, models.Operation)
NODES: Final = 4
GPUS: Final = 64
WAIT_SECONDS: Final = 50.0
LOOK_SECONDS: Final = 0.25
"""How often to poll for what only a worker of the platform changes; everything else wakes the test at once."""
APART_SECONDS: Final = 0.05
REASON: Final = "the conformance suite asks for it"
TAKE: Final = """
UPDATE instance_claim SET holder = $2, fence = fence + 1, claimed_at = now(), expires_at = now() + interval '1 hour'
 WHERE instance_id = $1"""
OFFER: Final = """
UPDATE instance_claim SET holder = NULL, claimed_at = NULL, expires_at = NULL, wanted = true,
       wanted_count = wanted_count + 1 WHERE instance_id = $1"""
LEASES_OVER: Final = """
UPDATE instance_claim SET expires_at = now() WHERE service_account_id = ANY ($1::text[]) AND expires_at > now()
RETURNING instance_id"""
TOKENS_OVER: Final = "UPDATE token SET expires_at = now() WHERE service_account_id = ANY ($1::text[])"
HINT: Final = "SELECT pg_notify('mooring_hint', $1)"


@dataclass(frozen=True)
class SharedPlatform:
    """What all lanes share: the Mooring process, its admin, and the app."""

    mooring: MooringProcess
    admin: Client
    admin_token: str
    app_id: str
    place: Path


@dataclass(slots=True)
class CuttableBackend(ForwardingBackend):
    """Forwards to the platform; its connections can be cut, as they are when the adapter's process is killed."""

    def cut(self) -> None:
        """Close all connections."""
        old, self.client = self.client, httpx.Client(timeout=120.0, trust_env=False)
        old.close()

    def answer(self, request: ApiRequest) -> ApiResponse:
        """The response of the platform, or 503 where the connection was cut."""
        try:
            return super(CuttableBackend, self).answer(request)
        except (httpx.HTTPError, RuntimeError) as error:
            body = {"code": "unavailable", "title": "cut off", "status": 503, "detail": type(error).__name__}
            return ApiResponse(503, body)


@dataclass
class AdapterObserver:
    """Records what an adapter must not do, and wakes the waiting tests."""

    proxy: FaultProxy
    observations: list[str] = field(default_factory=list)
    looked_at: set[tuple[str, str]] = field(default_factory=set)  # (operation, member) of created tasks
    never_quiet: bool = False
    turn: threading.Condition = field(default_factory=threading.Condition)
    changes: int = 0

    def changed(self) -> None:
        with self.turn:
            self.changes += 1
            self.turn.notify_all()

    def news(self, seen: int, seconds: float) -> None:
        """Wait for a change after `seen`, at most so long; the caller holds the condition."""
        self.turn.wait_for(lambda: self.changes > seen, seconds)

    def saw(self, request: ApiRequest, answer: ApiResponse) -> None:
        status, body = answer.status, answer.body
        if (
            request.path.endswith("/finish")
            and request.body.get("outcome") == "succeeded"
            and body.get("code") == "conflict"
        ):
            self.observations.append(f"a false success was reported: {body.get('detail')}")
        if request.path.endswith("/tasks") and status == 200:
            self.looked_at.add((str(request.body.get("operation_id")), str(request.body.get("member_id"))))
        if request.path.endswith("/reports"):
            for member in request.body.get("members", ()):
                if status == 404:
                    self.observations.append("a member of another instance was reported")
                if member.get("status") == "drained" and status == 200:
                    self._drained(str(request.body.get("operation_id")), str(member.get("id")))
        self.changed()

    def _drained(self, operation_id: str, member_id: str) -> None:
        if (operation_id, member_id) not in self.looked_at:
            self.observations.append(f"{member_id} was reported as drained without any observation on its node")
        if self.never_quiet:
            self.observations.append(f"{member_id} was reported as drained while it had work")


class ObservedBackend(CuttableBackend):
    """A backend that shows every exchange to an observer."""

    observer: AdapterObserver

    def answer(self, request: ApiRequest) -> ApiResponse:
        answer = CuttableBackend.answer(self, request)
        self.observer.saw(request, answer)
        return answer


class RealPlatform:
    """One lane: everything that a scenario needs, on the platform that all lanes share."""

    CANNOT: Final = {
        "clock": "the clock of a machine is not a test's to turn",
        "permissions": "an account keeps what was agreed while its instances run",
    }

    def __init__(self, shared: SharedPlatform, profile: SuiteProfile, command: Sequence[str], name: str) -> None:
        self.shared, self.profile, self.name = shared, profile, name
        self.baseline: Footprint | None = None
        self._numbers = count(1)
        self._instances: dict[str, str] = {}  # id -> project
        self._stopped: set[str] = set()  # instances with a stop request
        self.bereft: set[str] = set()  # instances that had a member on a lost machine
        self._parts: dict[str, str] = {}  # member -> instance/component
        self._kills = 0
        self.people = self._settle()
        key_file = shared.place / f"{name}.key"
        key = public_half(key_at(key_file))
        self.accounts = [self._account(project, key) for project in self.projects]
        backend = ObservedBackend(shared.mooring.url)
        self.proxy = FaultProxy(backend)
        self._backend, self._observer = backend, AdapterObserver(self.proxy)
        backend.observer = self._observer
        self.control = NodeControl(self._task_view, self._is_draining, self._parts.get, done=self._observer.changed)
        fleet = Fleet(shared.mooring.url, shared.admin_token, NODES, name, name, GPUS, FaultProfile())
        self.nodes = ControlledNodes(fleet, self.control)
        self.adapter = AdapterProcess(
            command,
            {
                "MOORING_URL": self.proxy.start(),
                "MOORING_AUDIENCE": f"{shared.mooring.url}/api/v1/oauth/token",
                "MOORING_KEY_FILE": str(key_file),
                "MOORING_HOLDER": name,
            },
        )

    def _settle(self) -> Client:
        """Create the lane's own tenant, so that failures of one lane open no circuit breaker of another."""
        shared, name = self.shared, self.name
        first = models.FirstAdminBody(email=f"ada@{name}.test", display_name="Ada")
        tenant = shared.admin.create_tenant(slug=name, display_name=name, first_admin=first)
        with Client(shared.mooring.url, settings=PATIENT) as door:
            entered = door.sign_in(
                email=first.email, tenant=name, one_time_code=tenant.one_time_code, new_password=PASSWORD
            )
        people = Client(shared.mooring.url, token=entered.token, settings=PATIENT)
        slugs = ("ours", "theirs")
        self.projects = [people.create_project(tenant.id, slug=slug, display_name=slug).id for slug in slugs]
        agreed = self.profile.manifest["required_actions"]
        for project in self.projects:
            people.create_entitlement(project, app_id=shared.app_id, reason=REASON, agreed_actions=agreed)
        shared.admin.create_sku(
            slug=name,
            display_name="Simulated",
            shape="gpu_slice",
            gpu_model="simulated",
            regions=[name],
            allowed_gpu_counts=[1],
            price_minor_per_gpu_hour=0,
            currency="EUR",
        )
        return people

    def _account(self, project: str, key: str) -> str:
        actions = self.profile.manifest["required_actions"]
        return self.people.create_service_account(project, name="adapter", actions=actions, public_key=key).id

    @property
    def faults(self) -> ProxyFaults:
        return self.proxy.faults

    def can(self, fault: str) -> bool:
        return fault not in self.CANNOT

    def clear(self) -> None:
        """Between two scenarios: stop all instances and clear all faults."""
        self.faults.clear()
        self.control.clear()
        self.nodes.notify()
        self._observer.never_quiet = False
        self._observer.observations.clear()
        self._kills = 0
        for instance_id in self._instances.keys() - self._stopped:
            if self.instance(instance_id).status not in ("stopping", "stopped"):
                self.stop(instance_id)
            self._stopped.add(instance_id)
        with self.proxy.lock:
            self.proxy.exchanges = []

    def all_stopped(self) -> list[models.Instance]:
        """Wait until every instance of the lane has stopped; each with its teardown proof."""
        return [
            self._awaited("the end of every instance", "stopped", partial(self.people.get_instance, project, each))
            for each, project in self._instances.items()
        ]

    def close(self) -> None:
        """Stop everything of the lane except its tenant."""
        self.adapter.close()
        self.proxy.stop()
        self.nodes.close()
        self.people.close()

    # What people do --------------------------------------------------------------------------------------------------

    def create_instance(self, name: str, *, topology: dict[str, int] | None = None, project: int = 0) -> str:
        profile, place = self.profile, self.projects[project]
        made = self.people.create_instance(
            place,
            app=profile.manifest["app"],
            version=profile.manifest["version"],
            name=f"{name}-{next(self._numbers)}",
            config=dict(profile.config),
            topology=topology or profile.topology,
            placement=self._placement,
            service_account_id=self.accounts[project],
        )
        self._instances[made.id] = place
        self._learn(made.id)
        return made.id

    @property
    def _placement(self) -> models.Placement:
        return models.Placement(sku=self.name, gpu_count=1)

    def _learn(self, instance_id: str) -> None:
        for each in self.people.iter_members(self._instances[instance_id], instance_id):
            self._parts[each.id] = f"{instance_id}/{each.component_key}"

    def add(self, instance_id: str, component: str, count: int) -> str:
        made = self.people.add_members(
            self._instances[instance_id], instance_id, component=component, count=count, placement=self._placement
        )
        self._learn(instance_id)
        return made.id

    def drain(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str:
        place = self._instances[instance_id]
        return self.people.drain_member(place, instance_id, member_id, timeout_seconds=int(timeout_seconds)).id

    def resume(self, instance_id: str, member_id: str) -> None:
        self.people.resume_member(self._instances[instance_id], instance_id, member_id)

    def remove(self, instance_id: str, member_id: str, timeout_seconds: float = 60.0) -> str:
        place = self._instances[instance_id]
        return self.people.remove_member(place, instance_id, member_id, timeout_seconds=int(timeout_seconds)).id

    def replace(self, instance_id: str, member_id: str) -> str:
        place = self._instances[instance_id]
        made = self.people.replace_member(place, instance_id, member_id, surge=True, placement=self._placement)
        self._learn(instance_id)
        return made.id

    def upgrade(self, instance_id: str) -> str:
        wanted = self.profile.next_manifest["version"]
        return self.people.upgrade_instance(self._instances[instance_id], instance_id, version=wanted).id

    def rollback(self, instance_id: str) -> str:
        return self.people.rollback_instance(self._instances[instance_id], instance_id).id

    def restart(self, instance_id: str) -> str:
        return self.people.restart_instance(self._instances[instance_id], instance_id).id

    def configure(self, instance_id: str, patch: dict[str, Any]) -> str:
        return self.people.update_instance(self._instances[instance_id], instance_id, config=patch).id

    def repair(self, instance_id: str) -> str:
        return self.people.repair_instance(self._instances[instance_id], instance_id, scope="whole_runtime").id

    def act(self, instance_id: str, action: str, given: dict[str, Any]) -> str:
        try:
            return self.people.start_instance_action(self._instances[instance_id], instance_id, action, input=given).id
        except MooringError as error:
            raise RefusedByPlatform(f"{error.code}: {error}") from error

    def stop(self, instance_id: str) -> str:
        return self.people.stop_instance(self._instances[instance_id], instance_id).id

    def cancel(self, instance_id: str, operation_id: str) -> None:
        self.people.cancel_operation(self._instances[instance_id], instance_id, operation_id)

    # What users see --------------------------------------------------------------------------------------------------

    def instance(self, instance_id: str) -> InstanceStatus:
        each = self.people.get_instance(self._instances[instance_id], instance_id)
        endpoints = tuple({"name": at.name, "member_id": at.member_id} for at in each.endpoints)
        return InstanceStatus(
            each.id,
            each.status,
            each.health,
            each.pin.version,
            endpoints,
            each.failure_code,
            held_by=each.claim.holder if each.claim.held else None,
            config=each.config,
        )

    def members(self, instance_id: str) -> list[MemberStatus]:
        found = self.people.iter_members(self._instances[instance_id], instance_id, limit=500)
        return [
            MemberStatus(each.id, each.name, each.component_key, each.status, each.version, each.failure_code)
            for each in sorted(found, key=lambda each: each.created_at)
            if each.status != "removed"
        ]

    def operation(self, instance_id: str, operation_id: str) -> OperationStatus:
        return operation_view(self.people.get_operation(self._instances[instance_id], instance_id, operation_id))

    def ended(self, instance_id: str, operation_id: str) -> OperationStatus:
        place = self._instances[instance_id]
        kind = self.people.get_operation(place, instance_id, operation_id).kind
        read = partial(self.people.get_operation, place, instance_id, operation_id)
        return operation_view(self._awaited(f"the end of {kind}", "succeeded,failed,cancelled", read))

    def open_operation(self, instance_id: str, kind: str) -> OperationStatus:
        found = self.people.list_operations(self._instances[instance_id], instance_id, kind=kind).items
        return operation_view(max(found, key=lambda each: each.created_at))

    def tasks(self, instance_id: str) -> list[TaskStatus]:
        found = self.people.iter_tasks(self._instances[instance_id], instance_id=instance_id, limit=500)
        return [task_view(each) for each in found if each.type not in PLATFORM_ONLY]

    def wait_for(self, what: str, condition: Callable[[], Value]) -> Value:
        until = time.monotonic() + self.profile.patience_seconds
        observer = self._observer
        while True:
            seen = observer.changes
            if value := condition():
                return value
            if time.monotonic() > until:
                raise ConditionNotReached(f"{what} did not happen within {self.profile.patience_seconds:g} s")
            with observer.turn:
                observer.news(seen + 1, APART_SECONDS)
                observer.news(seen, LOOK_SECONDS)

    def _awaited(self, what: str, states: str, read: Callable[..., Stateful]) -> Stateful:
        """Read with a long poll until one of these states is reached."""
        until = time.monotonic() + self.profile.patience_seconds
        while (left := until - time.monotonic()) > 0:
            if (seen := read(wait=min(left, WAIT_SECONDS), until=states)).status in states.split(","):
                return seen
        raise ConditionNotReached(f"{what} did not happen within {self.profile.patience_seconds:g} s")

    def traffic(self) -> list[RecordedExchange]:
        with self.proxy.lock:
            return list(self.proxy.exchanges)

    def broken(self) -> list[str]:
        seen = [*self._observer.observations, *self.control.started_twice]
        self._observer.observations.clear()
        self.control.started_twice.clear()
        return seen

    # What goes wrong -------------------------------------------------------------------------------------------------

    def start_adapter(self) -> None:
        self.adapter.start()

    def kill_adapter(self) -> None:
        """Kill the adapter. The first lease of a scenario expires by itself; later ones are ended at once."""
        self.adapter.kill()
        self._backend.cut()
        self._kills += 1
        if self._kills > 1:
            self._in_database(self._end_leases)

    def hold_tasks(self, of: Callable[[TaskStatus], bool]) -> None:
        self.control.holding = of
        self.nodes.notify()

    def fail_tasks(self, of: Callable[[TaskStatus], bool], code: str, last_line: str) -> None:
        self.control.failing, self.control.failure = of, (code, last_line)

    def lose_node(self, instance_id: str, member_id: str) -> None:
        node_id = self.people.get_member(self._instances[instance_id], instance_id, member_id).node_id
        assert node_id is not None
        self.bereft |= {each for each in self._instances if node_id in self._nodes_of(each)}
        self.nodes.lose(node_id)
        self.shared.admin.write_off_node(node_id, reason=REASON, may_be_left="nothing: the machine was simulated")

    def _nodes_of(self, instance_id: str) -> set[str | None]:
        found = self.people.iter_members(self._instances[instance_id], instance_id, limit=500)
        return {each.node_id for each in found}

    def never_quiet(self, is_so: bool) -> None:
        self.control.never_quiet = self._observer.never_quiet = is_so

    def take_lease(self, instance_id: str, holder: str | None) -> None:
        async def take(connection: "asyncpg.Connection[Any]") -> None:
            if holder is None:
                await connection.execute(OFFER, instance_id)
            else:
                await connection.execute(TAKE, instance_id, holder)
            await connection.execute(HINT, instance_id)

        self._in_database(take)

    def expire_tokens(self) -> None:
        async def expire(connection: "asyncpg.Connection[Any]") -> None:
            await connection.execute(TOKENS_OVER, self.accounts)

        self._in_database(expire)

    def forbid(self, *actions: str) -> None:
        raise NotImplementedError(self.CANNOT["permissions"])

    def skew_clock(self, seconds: float) -> None:
        raise NotImplementedError(self.CANNOT["clock"])

    def down_together(self, instance_id: str, component: str) -> int:
        return self.control.down.get(f"{instance_id}/{component}", 0)

    async def _end_leases(self, connection: "asyncpg.Connection[Any]") -> None:
        for row in await connection.fetch(LEASES_OVER, self.accounts):
            await connection.execute(HINT, row["instance_id"])

    def _in_database(self, work: Callable[["asyncpg.Connection[Any]"], Awaitable[None]]) -> None:
        async def connected() -> None:
            connection = await asyncpg.connect(ClusterLayout(self.shared.mooring.directory / "data").dsn)
            try:
                await work(connection)
            finally:
                await connection.close()

        asyncio.run(connected())

    # What the nodes ask ----------------------------------------------------------------------------------------------

    def _task_view(self, task_id: str) -> TaskStatus:
        for project in self.projects:
            try:
                return task_view(self.people.get_task(project, task_id))
            except MooringError as error:
                if error.code != "not_found":
                    raise
        raise LookupError(task_id)

    def _is_draining(self, member_id: str) -> bool:
        instance_id = self._parts[member_id].partition("/")[0]
        return self.people.get_member(self._instances[instance_id], instance_id, member_id).status == "draining"
