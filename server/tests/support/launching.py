"""A tenant with an app on offer, a project that may launch it, and machines to launch it on."""

import itertools
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from mooring.core.kernel.decision import Decision
from mooring.core.runtime.instance import InstanceRef, InstanceTrigger
from mooring.core.runtime.instance_transitions import (
    change_instance,
    change_member,
    move_instance,
    move_member,
    move_operation,
)
from mooring.core.runtime.member import MemberTrigger
from mooring.core.runtime.operation import OperationTrigger
from mooring.storage.kernel.database import Acting
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.runtime import instance as instances
from server.tests.api.catalog.test_apps import REASON, AppPublisher
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite
from server.tests.support.fleet import FleetWithAgents
from server.tests.support.lifecycle_rows import context

_NUMBERS: Final = itertools.count(1)
OPERATOR: Final = ["runtime.claim", "runtime.report", "task.create"]
LIFECYCLE: Final = {
    "upgrade": {"strategy": "rolling", "from_versions": [">=1.0.0"]},
    "rollback": {"supported": True, "to_versions": [">=1.0.0"]},
    "delete": {"data": "removed", "graceful_seconds": 30},
    "restart": {"supported": True},
}
COMPONENTS: Final = [{"key": "head", "min_count": 1, "max_count": 1}, {"key": "worker", "min_count": 0, "max_count": 8}]
RUNBOOK: Final = {"summary": "It is looked at.", "entries": [{"symptom": "It is silent", "steps": "Speak to it."}]}
ACTIONS: Final = [
    {
        "name": "queue.submit",
        "permission": "app.web-tool.queue.submit",
        "input_schema": {
            "type": "object",
            "properties": {"line": {"type": "string", "maxLength": 20}},
            "required": ["line"],
        },
        "output_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    },
    {
        "name": "queue.list",
        "permission": "app.web-tool.queue.list",
        "input_schema": {"type": "object", "properties": {}},
        "read_only": True,
    },
]


@dataclass
class Launching:
    """A publisher whose app can be launched, a site beside it, and the SKU that is sold there."""

    publisher: AppPublisher
    site: AllocationSite
    sku: str
    account_id: str = ""
    versions: dict[str, Any] = field(default_factory=dict)

    @property
    def client(self) -> httpx.AsyncClient:
        return self.publisher.client

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.publisher.project_id}/app-instances"

    @property
    def services(self) -> Any:
        return self.publisher.world.running.platform.services

    def body(self, **changes: Any) -> dict[str, Any]:
        """A launch that nothing stands in the way of."""
        body = {
            "app": "web-tool",
            "name": f"tool-{next(_NUMBERS)}",
            "placement": {"sku": self.sku, "gpu_count": 1},
            "service_account_id": self.account_id,
        }
        return body | changes

    async def launch(self, **changes: Any) -> dict[str, Any]:
        """A new instance."""
        answer = await self.client.post(self.path, json=self.body(**changes))
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def post(self, path: str, body: Any = None, status: int = 202) -> dict[str, Any]:
        """Ask something of an instance."""
        answer = await self.client.post(f"{self.path}/{path}", json=body if body is not None else {})
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    async def get(self, path: str) -> dict[str, Any]:
        """Read something of an instance."""
        answer = await self.client.get(f"{self.path}/{path}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def publish(self, number: str, **changes: Any) -> dict[str, Any]:
        """One more version, active."""
        parts: dict[str, Any] = {
            "lifecycle": LIFECYCLE,
            "components": COMPONENTS,
            "actions": ACTIONS,
            "runbook": RUNBOOK,
        }
        version = await self.publisher.publish(
            number, **{**parts, "required_actions": OPERATOR[:2], "artifact_kind": "controller", **changes}
        )
        self.versions[number] = await self.publisher.moved(version, "stage", "canary", "activate")
        return dict(self.versions[number])

    async def write(self, *decisions: Decision[Any]) -> Any:
        """Make decisions true one after another, as a worker or an adapter would; what came of the last."""
        for each in decisions:
            await apply(self.services.database, Acting(self.publisher.tenant.id), context(), each)
        return decisions[-1].result

    async def running(self, **changes: Any) -> dict[str, Any]:
        """An instance in an allocation that stands, which its adapter has brought up."""
        if "placement" not in changes:
            stands = await self.site.active(self.sku, gpu_count=1)
            changes["placement"] = {"allocations": [stands["id"]]}
        made = await self.launch(**changes)
        await self.bring_up(made["id"])
        return await self.get(made["id"])

    async def bring_up(self, instance_id: str) -> None:
        """What an adapter does with a deploy: begin, join every member, finish."""
        database, acting = self.services.database, Acting(self.publisher.tenant.id)
        instance = await instances.find(database, acting, self.publisher.project_id, instance_id)
        assert instance is not None
        (operation,) = (await instances.open_operations(database, acting, [instance_id]))[instance_id]
        began = {"started_at": context().now, "attempts": 1}
        operation = await self.write(
            move_operation(context(), instance.app_slug, operation, OperationTrigger.START, "runtime.report", **began)
        )
        instance = await self.write(move_instance(context(), instance, InstanceTrigger.START, "runtime.report"))
        for member in (await instances.members_of(database, acting, [instance_id]))[instance_id]:
            await self.join(instance.app_slug, member)
        done = {"steps": [{"name": "join", "status": "done"}]}
        await self.write(
            move_operation(context(), instance.app_slug, operation, OperationTrigger.SUCCEED, "runtime.report", **done)
        )
        await self.write(move_instance(context(), instance, InstanceTrigger.REPORT_READY, "runtime.report"))

    async def join(self, app_slug: str, member: Any) -> Any:
        """A member that its adapter starts, and sees to be well."""
        member = await self.write(move_member(context(), app_slug, member, MemberTrigger.JOIN, "runtime.report"))
        well: dict[str, Any] = {"health": "healthy"}
        return await self.write(
            move_member(context(), app_slug, member, MemberTrigger.REPORT_READY, "runtime.report", **well)
        )

    async def finish(self, instance_id: str, operation_id: str, trigger: OperationTrigger, **columns: Any) -> Any:
        """What ends an operation: it is begun where it was not, and ends like this."""
        database, acting = self.services.database, Acting(self.publisher.tenant.id)
        place = InstanceRef(self.publisher.project_id, instance_id)
        operation = await instances.find_operation(database, acting, place, operation_id)
        assert operation is not None
        if operation.status == "accepted":
            began = {"started_at": context().now}
            operation = await self.write(
                move_operation(context(), "web-tool", operation, OperationTrigger.START, "runtime.report", **began)
            )
        return await self.write(move_operation(context(), "web-tool", operation, trigger, "runtime.report", **columns))

    async def pin(self, instance_id: str, member_version: str = "", **columns: Any) -> None:
        """Change what an instance is pinned to, and which version its members say that they run."""
        database, acting = self.services.database, Acting(self.publisher.tenant.id)
        instance = await instances.find(database, acting, self.publisher.project_id, instance_id)
        assert instance is not None
        if columns:
            await self.write(change_instance(instance, "runtime.report", **columns))
        if member_version:
            for each in (await instances.members_of(database, acting, [instance_id]))[instance_id]:
                version = self.versions[member_version]
                fields = {"version_id": version["id"], "version": member_version}
                await self.write(change_member("web-tool", each, "runtime.report", **fields))


async def make_launching(world: World, publisher: AppPublisher) -> Launching:
    """An app on offer, an entitlement, an operator account, a machine with eight GPUs and a SKU."""
    fleet = FleetWithAgents(world.running.platform.services.database)
    await fleet.node(8)
    made = Launching(
        publisher,
        AllocationSite(world, publisher.tenant, publisher.project_id, publisher.client, fleet),
        await fleet.sku(),
    )
    await publisher.artifact("active")
    await made.publish("1.0.0")
    body = {"app_id": publisher.app["id"], "reason": REASON, "agreed_actions": OPERATOR}
    answer = await publisher.client.post(f"/api/v1/projects/{publisher.project_id}/entitlements", json=body)
    assert answer.status_code == 201, answer.text
    account = {"name": "operator", "actions": OPERATOR}
    answer = await publisher.client.post(f"/api/v1/projects/{publisher.project_id}/service-accounts", json=account)
    assert answer.status_code == 201, answer.text
    made.account_id = answer.json()["id"]
    return made
