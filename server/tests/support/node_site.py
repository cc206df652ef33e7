"""A project with an allocation on a joined machine, and tasks made for it: where the tests of tasks begin."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

import httpx

from mooring.commands.fleet import task as commands
from mooring.commands.kernel.work import Work, system_context
from mooring.commands.services import Services
from mooring.core.fleet.runtime_secret import SecretGrantRequest
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_creation import TaskRequest
from mooring.core.kernel.permissions import Authority
from mooring.storage.fleet import task as tasks
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.tasks import TaskReaper
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.agent_double import AgentDouble, joined_agent
from server.tests.support.later_clock import ShiftedClock
from server.tests.support.lifecycle_rows import ProjectRows

_STEPS: Final = itertools.count(1)
RUN: Final = {"argv": ["true"]}


@dataclass
class NodeSite:
    """A tenant's project, a machine with its agent, and an allocation on it."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    people: httpx.AsyncClient  # the tenant's admin
    agent: AgentDouble
    project_rows: ProjectRows
    clock: ShiftedClock
    more: list[AgentDouble] = field(default_factory=list)

    @property
    def services(self) -> Services:
        """The running platform's parts."""
        return self.world.running.platform.services

    @property
    def path(self) -> str:
        """Where the project's things are."""
        return f"/api/v1/projects/{self.project_id}"

    async def another_agent(self) -> AgentDouble:
        """A further machine that joined."""
        agent = await joined_agent(self.world.client(), self.world.admin)
        agent.now = lambda: self.clock.now().timestamp()
        self.more.append(agent)
        return agent

    def requested(
        self, type_: str = "process.run", arguments: dict[str, Any] | None = None, **other: Any
    ) -> TaskRequest:
        """A task for the agent's node, under a name of its own."""
        said = RUN if type_ == "process.run" and arguments is None else arguments or {}
        requested = TaskRequest(
            tenant_id=self.tenant.id,
            project_id=self.project_id,
            allocation_id=self.project_rows.allocation_id,
            node_id=self.agent.node_id,
            type=type_,
            step=f"step-{next(_STEPS)}",
            arguments=said,
        )
        return replace(requested, **other)

    async def make(self, type_: str = "process.run", arguments: dict[str, Any] | None = None, **other: Any) -> Task:
        """Make a task as the platform does."""
        return await self.make_requested(self.requested(type_, arguments, **other))

    async def make_requested(self, request: TaskRequest) -> Task:
        """Make the task that is wished for, once."""
        context = system_context(self.services)
        work: Work[Task] = Work(self.services, self.project_rows.acting, context, Authority())
        await commands.make(work, request)
        named = (request.operation_id, request.allocation_id, request.step)
        made = await tasks.find_named(self.services.database, PLATFORM, *named)
        assert made is not None
        return made

    async def stands(self, task: Task | str) -> Task:
        """The task as the database has it."""
        task_id = task if isinstance(task, str) else task.id
        found = await tasks.find(self.services.database, PLATFORM, self.project_id, task_id)
        assert found is not None
        return found

    async def later(self, by: timedelta) -> None:
        """Time passes, and the worker looks at the leases."""
        self.clock.by += by
        await TaskReaper(self.services, pace_seconds=0.0).tick()

    async def count(self, statement: str, *arguments: object) -> int:
        """A number from the database."""
        return int(await self.services.database.fetchval(PLATFORM, statement, *arguments))


@asynccontextmanager
async def a_site(world: World, slug: str = "acme") -> AsyncIterator[NodeSite]:
    """A site on a running platform."""
    clock = ShiftedClock()
    object.__setattr__(world.running.platform.services, "clock", clock)
    tenant = await world.tenant(slug)
    project_id = await world.project(tenant, "train")
    agent = await joined_agent(world.client(), world.admin)
    agent.now = lambda: clock.now().timestamp()
    bare = ProjectRows(world.running.platform.services.database, tenant.id, project_id, agent.node_id)
    project_rows = replace(
        bare,
        allocation_id=await bare.birth("allocation"),
        app_id=await bare.app(),
        account_id=await bare.birth("service_account"),
    )
    project_rows = replace(project_rows, version_id=await project_rows.birth("app_version"))
    project_rows = replace(project_rows, instance_id=await project_rows.birth("instance"))
    site = NodeSite(world, tenant, project_id, world.client(tenant.token), agent, project_rows, clock)
    try:
        yield site
    finally:
        for each in (agent, *site.more):
            await each.client.aclose()


def pull_grant(repository: str = "team/app", name: str = "pull") -> SecretGrantRequest:
    """A token for one repository of the platform's own registry."""
    return SecretGrantRequest(name, "artifact_pull", repository=repository)
