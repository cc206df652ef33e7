"""A project with an app's operator account, instances of the app, and adapters that speak the contract over HTTP.

Instances are written by the functions that commands use, so that these tests need no catalogue walk; everything that
an adapter does goes over the public API.
"""

import base64
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import httpx

from mooring.core.catalog.artifact_hold import take_holds
from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.kernel.decision import Decision, Insert
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.instance import INSTANCE, Instance, InstanceRef, InstanceState, InstanceTrigger
from mooring.core.runtime.instance_transitions import move_member, new_instance, new_member, new_operation, together
from mooring.core.runtime.member import MEMBER, Member, MemberState, MemberTrigger
from mooring.core.runtime.operation import Operation, OperationKind
from mooring.gateways.signing.signatures import new_key_pair
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.runtime import instance as instances
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support import manifests
from server.tests.support.later_clock import ShiftedClock
from server.tests.support.lifecycle_rows import (
    CLOCK,
    MANIFEST_DIGEST,
    LifecycleSubject,
    ProjectRows,
    artifact_columns,
    context,
    machines_of,
)
from server.tests.support.service_accounts import AccountWithKey

_NUMBERS: Final = itertools.count(1)
OPERATOR: Final = [
    "runtime.claim", "runtime.report", "task.create", "task.read", "secret.create", "secret.grant", "usage.report",
]  # fmt: skip
MANIFEST: Final = manifests.oci(
    components=[{"key": "head", "min_count": 1, "max_count": 1}, {"key": "worker", "min_count": 0, "max_count": 500}],
    usage_units=[{"unit": "tokens", "title": "Tokens"}],
    actions=[
        {
            "name": "queue.submit",
            "permission": "app.hello.submit",
            "input_schema": {"type": "object", "properties": {}},
            "output_schema": {
                "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"],
                "additionalProperties": False,
            },
        }
    ],
)  # fmt: skip
RUNTIME: Final = "/api/v1/runtime"


@dataclass
class AdapterClient:
    """One process of an adapter: an account's client, and the name of the holder."""

    client: httpx.AsyncClient
    holder: str
    account_id: str

    async def poll(self, **asked: Any) -> dict[str, Any]:
        """Ask for work."""
        body = {"holder": self.holder, "free": 10, "wait_seconds": 0} | asked
        answer = await self.client.post(f"{RUNTIME}/claims", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def claim(self, instance_id: str) -> int:
        """The fence of this one instance, which must be offered."""
        (claim,) = [each for each in (await self.poll())["claims"] if each["instance_id"] == instance_id]
        return int(claim["fence"])

    async def read(self, instance_id: str, fence: int) -> dict[str, Any]:
        """The instance and all around it."""
        answer = await self.client.get(f"{RUNTIME}/instances/{instance_id}", params={"fence": fence})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def send(self, instance_id: str, path: str, fence: int, **body: Any) -> httpx.Response:
        """Send something under a fence."""
        url = f"{RUNTIME}/instances/{instance_id}/{path}"
        return await self.client.post(url, json={"fence": fence} | body)

    async def report(self, instance_id: str, fence: int, **body: Any) -> dict[str, Any]:
        """Report, which must be taken."""
        answer = await self.send(instance_id, "reports", fence, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def finish(self, instance_id: str, fence: int, operation_id: str, **body: Any) -> dict[str, Any]:
        """End an operation, which must be taken."""
        said = {"outcome": "succeeded"} | body
        answer = await self.send(instance_id, f"operations/{operation_id}/finish", fence, **said)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@dataclass
class AdapterSite:
    """A project, its operator account, and what is launched there."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    project_rows: ProjectRows
    account: AccountWithKey
    token: str
    clock: ShiftedClock

    @property
    def services(self) -> Any:
        """The running platform's parts."""
        return self.world.running.platform.services

    def adapter(self, holder: str | None = None) -> AdapterClient:
        """One more process of the adapter."""
        return AdapterClient(self.world.client(self.token), holder or f"holder-{next(_NUMBERS)}", self.account.id)

    async def fetch(self, statement: str, *arguments: object) -> Any:
        """A value from the database."""
        return await self.services.database.fetchval(PLATFORM, statement, *arguments)

    async def apply(self, decision: Decision[Any]) -> Any:
        """Make a decision true, and let everybody hear of it."""
        await apply(self.services.database, PLATFORM, replace(context(), now=self.clock.now()), decision)
        self.services.hub.notify(event.type for event in decision.events)
        return decision.result

    async def launch(
        self, workers: int = 1, *, dispatched: bool = True, **columns: Any
    ) -> tuple[Instance, list[Member], Operation]:
        """An instance with a head and workers in one active allocation, and the operation that deploys it."""
        instance, members, operation = self.made(workers, dispatched=dispatched)
        instance = replace(instance, **columns)
        await self.apply(
            together(
                instance,
                new_instance(instance),
                *(new_member(instance, each) for each in members),
                new_operation(instance, operation, "instance.create"),
            )
        )
        return instance, members, operation

    def made(self, workers: int, *, dispatched: bool = True) -> tuple[Instance, list[Member], Operation]:
        """The rows of a launch."""
        now = replace(context(), now=self.clock.now())
        pin = {
            "version_id": self.project_rows.version_id,
            "version": "1.0.0",
            "manifest_digest": MANIFEST_DIGEST,
            "artifacts": {"main": manifests.digest("a")},
        }
        place = {"tenant_id": self.tenant.id, "project_id": self.project_id}
        traced = {"correlation_id": now.correlation_id, "trace_id": now.trace_id, "created_at": now.now}
        born: dict[str, Any] = {"generation": 0, "revision": 0, **traced, **place}
        instance = Instance(
            id=now.mint(Prefix.INSTANCE),
            name=f"app-{next(_NUMBERS)}",
            app_id=self.project_rows.app_id,
            app_slug="hello",
            app_category="tool",
            version_id=self.project_rows.version_id,
            version="1.0.0",
            channel=None,
            pin=pin,
            config={},
            topology={"head": 1, "worker": workers},
            placement={},
            operating_mode="tenant_dedicated",
            control_plane_scope="project",
            runtime_backend="container",
            service_account_id=self.account.id,
            requested_by="test",
            status="created",
            **born,
        )
        parts = [("head", 0), *(("worker", each) for each in range(workers))]
        members = [
            Member(
                id=now.mint(Prefix.MEMBER),
                instance_id=instance.id,
                component_key=key,
                ordinal=ordinal,
                name=f"{key}-{ordinal}",
                version_id=instance.version_id,
                version="1.0.0",
                status="requested",
                allocation_id=self.project_rows.allocation_id,
                shares=True,
                **born,
            )
            for key, ordinal in parts
        ]
        return instance, members, self._operation(instance, OperationKind.DEPLOY, members, dispatched=dispatched)

    async def ask(
        self, instance: Instance, kind: OperationKind, members: Sequence[Member] = (), **columns: Any
    ) -> Operation:
        """An operation that somebody asks for, dispatched at once."""
        made = replace(self._operation(instance, kind, members, dispatched=True), **columns)
        result: Operation = await self.apply(new_operation(instance, made, "test"))
        return result

    async def instance(self, instance_id: str) -> Instance:
        """An instance as the database has it."""
        found = await instances.find(self.services.database, PLATFORM, self.project_id, instance_id)
        assert found is not None
        return found

    async def operation(self, instance: Instance, operation_id: str) -> Operation:
        """An operation as the database has it."""
        place = InstanceRef(self.project_id, instance.id)
        found = await instances.find_operation(self.services.database, PLATFORM, place, operation_id)
        assert found is not None
        return found

    async def drain(self, instance_id: str, member_id: str) -> Operation:
        """Somebody asks a member to drain."""
        instance = await self.instance(instance_id)
        place = InstanceRef(self.project_id, instance_id)
        member = await instances.find_member(self.services.database, PLATFORM, place, member_id)
        assert member is not None
        now = replace(context(), now=self.clock.now())
        moved = move_member(now, instance.app_slug, member, MemberTrigger.DRAIN, "member.drain")
        made = self._operation(instance, OperationKind.DRAIN, [member], dispatched=True)
        result: Operation = await self.apply(together(made, moved, new_operation(instance, made, "member.drain")))
        return result

    async def artifact(self, digest: str, *, present: bool = True, **columns: Any) -> str:
        """An artifact of the tenant's on an allowed source, written past the API: its bytes are nowhere."""
        source = {"name": "Registry", "pattern": "oci://registry.example/*"}
        people = self.world.client(self.tenant.token)
        await people.post(f"/api/v1/tenants/{self.tenant.id}/artifact-sources", json=source)
        row = self.project_rows.row("artifact") | artifact_columns(digest) | columns
        await self.project_rows.write(Insert("artifact", row, machines_of("artifact")))
        looked = {
            "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
            "tenant_id": self.tenant.id,
            "artifact_id": row["id"],
            "kind": "presence",
            "digest": digest,
            "observed_at": CLOCK.now(),
            "size_bytes": row["size_bytes"],
        }
        if present:
            await self.project_rows.write(Insert("artifact_evidence", looked))
        return str(row["id"])

    async def hold(self, instance: Instance, *digests: str) -> None:
        """The instance uses these digests."""
        holds = [Hold(each, "instance", instance.id) for each in digests]
        now = replace(context(), now=self.clock.now())
        await self.apply(take_holds(now, holds, tenant_id=instance.tenant_id, project_id=instance.project_id))

    async def stopped(self, instance_id: str) -> None:
        """The instance is stopped and its members have their closing records, as the platform ends them."""
        database = self.services.database
        for member_id, status, generation in await database.fetch(
            PLATFORM, "SELECT id, status, generation FROM member WHERE instance_id = $1", instance_id
        ):
            subject = LifecycleSubject("member", MEMBER, member_id, MemberState(status), generation)
            for trigger in (MemberTrigger.REMOVE, MemberTrigger.FINISH_TEARDOWN):
                subject = await self.project_rows.move(subject, MEMBER.step(MemberState(subject.state), trigger))
        row = await database.fetchrow(PLATFORM, "SELECT status, generation FROM instance WHERE id = $1", instance_id)
        whole = LifecycleSubject("instance", INSTANCE, instance_id, InstanceState(row["status"]), row["generation"])
        for step in (InstanceTrigger.STOP, InstanceTrigger.FINISH_TEARDOWN):
            whole = await self.project_rows.move(whole, INSTANCE.step(InstanceState(whole.state), step))

    def _operation(
        self, instance: Instance, kind: OperationKind, members: Sequence[Member], *, dispatched: bool
    ) -> Operation:
        now = replace(context(), now=self.clock.now())
        return Operation(
            id=now.mint(Prefix.OPERATION),
            tenant_id=instance.tenant_id,
            project_id=instance.project_id,
            instance_id=instance.id,
            kind=kind.value,
            request={},
            deadline_at=now.now + timedelta(hours=1),
            requested_by="test",
            correlation_id=instance.correlation_id,
            trace_id=instance.trace_id,
            status="accepted",
            generation=0,
            revision=0,
            created_at=now.now,
            member_ids=[each.id for each in members],
            dispatched_at=now.now if dispatched else None,
        )


@asynccontextmanager
async def open_adapter_site(
    world: World, slug: str = "acme", actions: Sequence[str] = tuple(OPERATOR)
) -> AsyncIterator[AdapterSite]:
    """A project with an operator account, on a running platform."""
    services = world.running.platform.services
    clock = services.clock if isinstance(services.clock, ShiftedClock) else ShiftedClock()
    object.__setattr__(services, "clock", clock)
    tenant = await world.tenant(slug)
    project_id = await world.project(tenant, "train")
    account, token = await make_operator(world, tenant, project_id, list(actions))
    bare = ProjectRows(services.database, tenant.id, project_id)
    project_rows = replace(
        bare, node_id=await bare.birth("node"), app_id=await bare.app("hello"), account_id=account.id
    )
    allocation_id = (await project_rows.subject("allocation", ALLOCATION, AllocationState.ACTIVE)).id
    version_id = await project_rows.birth("app_version", app_slug="hello", manifest=MANIFEST)
    yield AdapterSite(
        world,
        tenant,
        project_id,
        replace(project_rows, allocation_id=allocation_id, version_id=version_id),
        account,
        token,
        clock,
    )


async def make_operator(
    world: World, tenant: TenantWithAdmin, project_id: str, actions: list[str]
) -> tuple[AccountWithKey, str]:
    """A service account with a key, and a token of it."""
    private, public = new_key_pair()
    path = f"/api/v1/projects/{project_id}/service-accounts"
    body = {"name": f"operator-{next(_NUMBERS)}", "actions": actions, "public_key": base64.b64encode(public).decode()}
    client = world.client(tenant.token)
    made = (await client.post(path, json=body)).json()
    key = (await client.get(f"{path}/{made['id']}/keys")).json()["items"][0]
    account = AccountWithKey(made["id"], key["id"], private)
    return account, await account.token(world.client())
