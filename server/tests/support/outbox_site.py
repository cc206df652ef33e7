"""A webhook with its worker and its receivers, as the tests of deliveries use them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from mooring.commands.services import Services
from mooring.storage.kernel import event as events
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.outbox import OutboxRelay
from server.tests.conftest import TenantWithAdmin, World
from server.tests.support.http_receiver import Receiver, made
from server.tests.support.later_clock import ShiftedClock
from tests.support.waiting import until


class Outbox:
    """A tenant with webhooks, and an outbox relay that runs when the test calls it."""

    def __init__(self, world: World, tenant: TenantWithAdmin) -> None:
        self.world = world
        self.tenant = tenant
        self.client = world.client(tenant.token)
        self.place = f"/api/v1/tenants/{tenant.id}"
        self.clock = ShiftedClock()
        self.services: Services = replace(world.running.platform.services, clock=self.clock)
        self.relay = OutboxRelay(self.services)

    async def webhook(self, receiving: Receiver, *types: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{receiving.port}/"
        return await made(self.client, self.place, url=url, event_types=list(types or ("identity.project.*",)))

    async def happens(self, slug: str) -> str:
        """Something happens: an event, and a delivery for each webhook that wants it."""
        return await self.world.project(self.tenant, slug)

    async def listed(self, **wanted: str) -> list[dict[str, Any]]:
        return list((await self.client.get(f"{self.place}/deliveries", params=wanted)).json()["items"])

    async def event(self, correlation_id: str, type_: str) -> dict[str, Any]:
        """The event of this type, as soon as the stream shows it."""
        wanted = {"correlation_id": correlation_id, "wait": "20"}
        async with asyncio.timeout(60):
            while True:
                page = (await self.client.get(f"{self.place}/events", params=wanted)).json()
                for each in page["items"]:
                    if each["type"] == type_:
                        return dict(each)
                wanted["cursor"] = page["next_cursor"]

    async def settled(self) -> None:
        """Wait until the relay may take all that has happened: others of the cluster may hold the horizon."""

        async def is_settled() -> bool:
            return not await events.unsettled(self.services.database)

        await until(is_settled)

    async def until(self, reached: Callable[[], Awaitable[bool]]) -> None:
        """Let the relay work until something is so; others of the cluster may hold the horizon for a moment."""

        async def works() -> bool:
            if not (is_so := await reached()):
                await self.relay.tick()
                await self.relay.drain()
            return is_so

        await until(works)

    async def until_nothing_is_left(self) -> None:
        async def reached() -> bool:
            left = """
                SELECT count(*) FROM delivery d JOIN webhook w ON w.id = d.webhook_id AND w.enabled
                 WHERE d.finished_at IS NULL"""
            return not await self.services.database.fetchval(PLATFORM, left)

        await self.until(reached)

    async def until_all(self, status: str, count: int = 1) -> list[dict[str, Any]]:
        async def reached() -> bool:
            return len(await self.listed(status=status)) >= count

        await self.until(reached)
        return await self.listed(status=status)
