"""Instances on a site: launched, driven by a fake adapter and fake agents, and reconciled by the real workers.

Rows are made by the same functions that commands use. The played adapter does to members and operations what an
adapter's reports do; the workers are the real ones, asked for one look at a time.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from mooring.commands.runtime.instance_reconcile import limits_of
from mooring.core.fleet.task_creation import TaskRequest, make_task
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.ids import Prefix
from mooring.core.runtime.instance import Instance, InstanceTrigger
from mooring.core.runtime.instance_change import InstanceContext, stop_instance
from mooring.core.runtime.instance_launch import OperationBounds
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_transitions import (
    change_member,
    change_operation,
    move_instance,
    move_member,
    move_operation,
    new_instance,
    new_member,
    new_operation,
    together,
)
from mooring.core.runtime.member import Member, MemberTrigger
from mooring.core.runtime.operation import Operation, OperationKind, OperationTrigger, Phase
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.runtime import instance_reconcile
from mooring.storage.runtime.instance import (
    INSTANCE_COLUMNS,
    MEMBER_COLUMNS,
    OPERATION_COLUMNS,
    instance_of,
    member_of,
    operation_of,
)
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.conftest import World
from server.tests.support.allocation_site import AllocationSite, make_site
from server.tests.support.lifecycle_rows import MANIFEST_DIGEST, ProjectRows, context

_NUMBERS: Final = itertools.count(1)
GRACEFUL: Final = 60


@dataclass
class InstanceSetup:
    """A site with an app, and instances of it."""

    site: AllocationSite
    project_rows: ProjectRows
    sku: str

    @property
    def services(self) -> Any:
        return self.site.world.running.platform.services

    def context(self) -> DecisionContext:
        """The acting caller, now by the platform's clock."""
        return replace(context(), now=self.services.clock.now())

    async def apply(self, decision: Decision[Any]) -> Any:
        """Make a decision true."""
        await apply(self.services.database, PLATFORM, self.context(), decision)
        return decision.result

    async def look(self, times: int = 1) -> None:
        """So many looks of workers that were never here before: at allocations, then at instances."""
        for _ in range(times):
            await self.site.look()
            await InstanceReconciler(self.services).tick()
            await self.nothing_is_missed()

    async def nothing_is_missed(self) -> None:
        """What is found to be due is all that has a next step: the two are written down apart from each other."""
        rows = await self.services.database.fetch(PLATFORM, "SELECT id FROM instance")
        now = self.services.clock.now()
        for each in await instance_reconcile.snapshot(self.services.database, now, [row[0] for row in rows]):
            step = reconcile(replace(context(), now=now), limits_of(self.services.settings), each)
            assert step is None, f"{each.instance.id} has a next step, and is not due: {step}"

    async def instance(self, instance_id: str) -> Instance:
        row = await self.services.database.fetchrow(
            PLATFORM, f"SELECT {INSTANCE_COLUMNS} FROM instance i WHERE i.id = $1", instance_id
        )
        return instance_of(row)

    async def members(self, instance_id: str) -> list[Member]:
        rows = await self.services.database.fetch(
            PLATFORM,
            f"SELECT {MEMBER_COLUMNS} FROM member m WHERE m.instance_id = $1 ORDER BY m.component_key, m.ordinal",
            instance_id,
        )
        return [member_of(row) for row in rows]

    async def operations(self, instance_id: str) -> list[Operation]:
        rows = await self.services.database.fetch(
            PLATFORM, f"SELECT {OPERATION_COLUMNS} FROM operation o WHERE o.instance_id = $1 ORDER BY o.id", instance_id
        )
        return [operation_of(row) for row in rows]

    async def closings(self, instance_id: str) -> list[str]:
        rows = await self.services.database.fetch(
            PLATFORM,
            "SELECT c.kind FROM closing_record c JOIN member m ON m.id = c.member_id WHERE m.instance_id = $1 "
            "ORDER BY m.ordinal",
            instance_id,
        )
        return [row[0] for row in rows]

    async def launch(
        self, allocation_ids: Sequence[str], *, owned: bool = False, seconds: int = 1800, **columns: Any
    ) -> str:
        """An instance with a member in each of these allocations, and the operation that deploys it."""
        now, number = self.context(), next(_NUMBERS)
        tenant_id, project_id = self.site.tenant.id, self.site.project_id
        pin = {
            "version_id": self.project_rows.version_id,
            "version": "1.0.0",
            "manifest_digest": MANIFEST_DIGEST,
            "artifacts": {},
        }
        traced = {"correlation_id": now.correlation_id, "trace_id": now.trace_id, "created_at": now.now}
        born: dict[str, Any] = {"status": "", "generation": 0, "revision": 0, **traced}
        born |= {"tenant_id": tenant_id, "project_id": project_id}
        instance = Instance(
            id=now.mint(Prefix.INSTANCE),
            name=f"app-{number}",
            app_id=self.project_rows.app_id,
            app_slug="app",
            app_category="tool",
            version_id=self.project_rows.version_id,
            version="1.0.0",
            channel=None,
            pin=pin,
            config={},
            topology={"main": len(allocation_ids)},
            placement={},
            operating_mode="tenant_dedicated",
            control_plane_scope="project",
            runtime_backend="container",
            service_account_id=self.project_rows.account_id,
            requested_by="test",
            **{**born, "status": "created"},
            **columns,
        )
        members = [
            Member(
                id=now.mint(Prefix.MEMBER),
                instance_id=instance.id,
                component_key="main",
                ordinal=ordinal,
                name=f"main-{ordinal}",
                version_id=instance.version_id,
                version="1.0.0",
                allocation_id=allocation_id,
                owns_allocation=owned,
                **{**born, "status": "requested"},
            )
            for ordinal, allocation_id in enumerate(allocation_ids)
        ]
        operation = self._operation(now, instance, OperationKind.DEPLOY, [each.id for each in members], seconds)
        await self.apply(
            together(
                instance,
                new_instance(instance),
                *(new_member(instance, each) for each in members),
                new_operation(instance, operation, "instance.create"),
            )
        )
        return instance.id

    async def ask(
        self, instance_id: str, kind: OperationKind, member_ids: Sequence[str], seconds: int = 3600, **columns: Any
    ) -> Operation:
        """An operation that somebody asks for, dispatched at once."""
        now, instance = self.context(), await self.instance(instance_id)
        made = replace(self._operation(now, instance, kind, member_ids, seconds), dispatched_at=now.now, **columns)
        result: Operation = await self.apply(new_operation(instance, made, "test"))
        return result

    async def add(self, instance_id: str, allocation_id: str) -> str:
        """One more member, in an allocation that was asked for with it."""
        now, instance = self.context(), await self.instance(instance_id)
        first = (await self.members(instance_id))[-1]
        member = Member(
            id=now.mint(Prefix.MEMBER),
            instance_id=instance.id,
            component_key="main",
            ordinal=first.ordinal + 1,
            name=f"main-{first.ordinal + 1}",
            version_id=instance.version_id,
            version="1.0.0",
            created_at=now.now,
            allocation_id=allocation_id,
            owns_allocation=True,
            tenant_id=instance.tenant_id,
            status="requested",
            project_id=instance.project_id,
            generation=0,
            revision=0,
            correlation_id=now.correlation_id,
            trace_id=now.trace_id,
        )
        operation = self._operation(now, instance, OperationKind.ADD, [member.id], 1800)
        made = new_member(instance, member), new_operation(instance, operation, "member.add")
        await self.apply(together(member, *made))
        return member.id

    async def stop(self, instance_id: str) -> Operation:
        """What a caller's stop does."""
        instance = await self.instance(instance_id)
        members = [each for each in await self.members(instance_id) if each.status != "removed"]
        open_ = [each for each in await self.operations(instance_id) if not each.is_over]
        standing = InstanceContext(instance, members, open_, None)
        result: Operation = await self.apply(stop_instance(self.context(), standing, OperationBounds()))
        return result

    async def held(self, instance_id: str, seconds: float = 3600) -> None:
        """An adapter holds the instance under a lease."""
        until: datetime = self.services.clock.now() + timedelta(seconds=seconds)
        await self.services.database.fetch(
            PLATFORM,
            "UPDATE instance_claim SET holder = 'played', claimed_at = now(), expires_at = $2, fence = fence + 1 "
            "WHERE instance_id = $1",
            instance_id,
            until,
        )

    async def begin(self, instance_id: str, operation: Operation) -> Operation:
        """The adapter begins with an operation; a deploy makes its instance start."""
        now, instance = self.context(), await self.instance(instance_id)
        changes: dict[str, Any] = {"started_at": now.now}
        if operation.status == "accepted":
            step = move_operation(now, "app", operation, OperationTrigger.START, "test", **changes)
        else:
            step = change_operation("app", operation, "test", **changes)
        starts = [] if instance.status != "created" else [move_instance(now, instance, InstanceTrigger.START, "test")]
        result: Operation = await self.apply(together(step.result, step, *starts))
        return result

    async def start_task(self, instance_id: str, member: Member, step: str = "start/1") -> None:
        """The adapter has a member's node do something, and the agent takes it and ends it."""
        site = self.site
        allocation = await site.get(str(member.allocation_id))
        made = make_task(
            self.context(),
            TaskRequest(
                tenant_id=member.tenant_id,
                project_id=member.project_id,
                allocation_id=allocation["id"],
                node_id=(await self.node_of(allocation["id"])),
                type="files.write",
                step=f"{member.id}/{step}",
                arguments={"files": [{"path": "/a", "content": "b"}]},
                label=member.id,
                instance_id=instance_id,
                member_id=member.id,
                operation_id=(await self.operations(instance_id))[0].id,
            ),
        )
        await self.apply(Decision(None, made.writes, made.events, made.audits))
        await site.fleet.fail(allocation["id"], "exited", "it only has to have begun")

    async def node_of(self, allocation_id: str) -> str:
        return str(
            await self.services.database.fetchval(
                PLATFORM, "SELECT node_id FROM allocation WHERE id = $1", allocation_id
            )
        )

    async def running(
        self, count: int = 1, *, owned: bool = False, started: bool = True, into: Sequence[str] = ()
    ) -> str:
        """An instance that runs, with so many members that are ready, each in an allocation of its own."""
        allocations = list(into) or [(await self.site.active(self.sku, gpu_count=1))["id"] for _ in range(count)]
        instance_id = await self.launch(allocations, owned=owned)
        await self.look()
        await self.held(instance_id)
        (operation,) = await self.operations(instance_id)
        operation = await self.begin(instance_id, operation)
        for each in await self.members(instance_id):
            if started:
                await self.start_task(instance_id, each)
            joined = await self.apply(move_member(self.context(), "app", each, MemberTrigger.JOIN, "test"))
            ready = move_member(self.context(), "app", joined, MemberTrigger.REPORT_READY, "test")
            member = await self.apply(ready)
            await self.apply(change_member("app", member, "test", health="healthy"))
        instance = await self.instance(instance_id)
        succeeded = move_operation(self.context(), "app", operation, OperationTrigger.SUCCEED, "test")
        runs = move_instance(self.context(), instance, InstanceTrigger.REPORT_READY, "test", health="healthy")
        await self.apply(together(instance, runs, succeeded))
        return instance_id

    def _operation(
        self, now: DecisionContext, instance: Instance, kind: OperationKind, member_ids: Sequence[str], seconds: int
    ) -> Operation:
        request = {"version_id": instance.version_id, "shape": None} if kind == OperationKind.DEPLOY else {}
        graceful = now.now + timedelta(seconds=GRACEFUL) if kind in ("remove", "decommission") else None
        return Operation(
            id=now.mint(Prefix.OPERATION),
            tenant_id=instance.tenant_id,
            project_id=instance.project_id,
            instance_id=instance.id,
            kind=kind.value,
            request=request,
            deadline_at=now.now + timedelta(seconds=seconds),
            requested_by="test",
            correlation_id=now.correlation_id,
            trace_id=now.trace_id,
            status="accepted",
            generation=0,
            revision=0,
            created_at=now.now,
            phase=Phase.ADAPTER.value,
            member_ids=list(member_ids),
            phase_deadline_at=graceful,
        )


async def make_setup(world: World, manifest: dict[str, Any] | None = None) -> InstanceSetup:
    """A site, and an app with one version."""
    site = await make_site(world)
    bare = ProjectRows(site.fleet.database, site.tenant.id, site.project_id)
    known = replace(bare, app_id=await bare.app(), account_id=await bare.birth("service_account"))
    version_id = await known.birth("app_version", manifest=manifest or {})
    return InstanceSetup(site, replace(known, version_id=version_id), await site.fleet.sku())
