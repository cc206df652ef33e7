"""A project, a fleet and the runtime worker, as the tests of allocations use them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from mooring.storage.kernel.database import PLATFORM
from mooring.workers.allocation_reconciler import AllocationReconciler
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.fleet import FleetWithAgents
from server.tests.support.later_clock import ShiftedClock


@dataclass
class AllocationSite:
    """A project, a fleet, and the worker that brings them together."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    client: httpx.AsyncClient
    fleet: FleetWithAgents

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.project_id}"

    async def look(self) -> None:
        """One look of a worker that was never here before."""
        await AllocationReconciler(self.world.running.platform.services).tick()

    async def ask(self, sku: str, status: int = 201, **body: Any) -> Any:
        answer = await self.client.post(f"{self.path}/allocations", json={"shape": "gpu_slice", "sku": sku, **body})
        assert answer.status_code == status, answer.text
        return answer.json()

    async def get(self, allocation_id: str) -> Any:
        answer = await self.client.get(f"{self.path}/allocations/{allocation_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def post(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.client.post(f"{self.path}{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def active(self, sku: str, **body: Any) -> Any:
        """An allocation whose sandbox stands."""
        asked = await self.ask(sku, **body)
        await self.look()
        await self.fleet.do(asked["id"])
        await self.look()
        stands = await self.get(asked["id"])
        assert stands["status"] == "active", stands
        return stands

    def later(self, by: timedelta) -> None:
        """From now on it is so much later."""
        object.__setattr__(self.world.running.platform.services, "clock", ShiftedClock(by))

    async def events(self, subject_id: str) -> list[str]:
        rows = await self.fleet.database.fetch(
            PLATFORM, "SELECT type FROM event WHERE subject_id = $1 ORDER BY epoch, tx, seq", subject_id
        )
        return [row[0].removeprefix("capacity.allocation.") for row in rows]

    async def beside(self, slug: str) -> "AllocationSite":
        """Another project of the same tenant, on the same fleet."""
        project_id = await self.world.project(self.tenant, slug)
        return AllocationSite(self.world, self.tenant, project_id, self.client, self.fleet)


async def make_site(world: World) -> AllocationSite:
    """A tenant with a project, and machines for it."""
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    fleet = FleetWithAgents(world.running.platform.services.database)
    return AllocationSite(world, tenant, project_id, world.client(tenant.token), fleet)
