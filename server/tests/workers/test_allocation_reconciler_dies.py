"""A runtime worker that dies at any point: another one goes on, and nothing is begun twice, lost or left behind.

The worker's database fails it for ever at its n-th use, before the statement is sent or after it was done, for every n
until a look comes to its end. After each death a healthy worker looks once, and the end is the same as without it.
"""

from types import TracebackType
from typing import Any

import pytest

from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Acting, BorrowedConnection, Database, PoolSettings
from mooring.storage.kernel.pool import PooledConnection
from mooring.workers.allocation_reconciler import AllocationReconciler
from server.tests.conftest import World
from server.tests.storage.fleet.test_placers import UNTRUE
from server.tests.support.allocation_site import AllocationSite, make_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

USES_MAX = 60


class ReconcilerDied(BaseException):
    """The process is gone: no handler of the worker's sees this."""


class _Last:
    """A connection that is used to its end, and then never again."""

    def __init__(self, lent: BorrowedConnection) -> None:
        self._lent = lent

    async def __aenter__(self) -> PooledConnection:
        return await self._lent.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lent.__aexit__(kind, error, trace)
        raise ReconcilerDied


class DyingDatabase(Database):
    """Serves so many uses; the next one is the last."""

    def __init__(self, settings: PoolSettings, uses: int, *, after: bool) -> None:
        super().__init__(settings)
        self._left = uses
        self._after = after

    def connection(self, acting: Acting) -> Any:
        self._left -= 1
        if self._left < 0 or (self._left == 0 and not self._after):
            raise ReconcilerDied
        lent = super().connection(acting)
        return _Last(lent) if self._left == 0 else lent


async def dies(site: AllocationSite, settings: Settings, uses: int, *, after: bool) -> bool:
    """One look of a worker that dies at this use; whether it did."""
    database = DyingDatabase(PoolSettings(settings.database_url, 4), uses, after=after)
    await database.open()
    services = site.world.running.platform.services
    own = type(services)(**{name: getattr(services, name) for name in services.__slots__} | {"database": database})
    try:
        await AllocationReconciler(own).tick()
    except ReconcilerDied:
        return True
    finally:
        await database.close()
    return False


async def steps(site: AllocationSite, allocation_id: str) -> list[str]:
    return [task["step"] for task in await site.fleet.tasks(allocation_id)]


@pytest.mark.parametrize("after", [False, True], ids=["before the statement", "after it"])
async def test_whenever_the_worker_dies_another_one_comes_to_the_same_end(
    world: World, settings: Settings, after: bool
) -> None:
    site = await make_site(world)
    node_id, sku = await site.fleet.node(1), await site.fleet.sku()
    deaths = 0
    for uses in range(1, USES_MAX):
        asked = await site.ask(sku, gpu_count=1)
        died = [await dies(site, settings, uses, after=after)]
        await site.look()
        assert await steps(site, asked["id"]) == ["sandbox.create/1"]
        await site.fleet.do(asked["id"])
        died.append(await dies(site, settings, uses, after=after))
        await site.look()
        assert (await site.get(asked["id"]))["status"] == "active"
        await site.post(f"/allocations/{asked['id']}/release")
        died.append(await dies(site, settings, uses, after=after))
        await site.look()
        assert await steps(site, asked["id"]) == ["sandbox.create/1", "sandbox.destroy/1"]
        await site.fleet.do(asked["id"])
        died.append(await dies(site, settings, uses, after=after))
        await site.look()
        assert (await site.get(asked["id"]))["status"] == "released"
        assert await site.events(asked["id"]) == ["requested", "placed", "active", "releasing", "released"]
        assert await site.fleet.slots(node_id) == ["free"]
        assert await site.fleet.database.fetch(PLATFORM, UNTRUE) == []
        deaths += sum(died)
        if not any(died):
            break
    else:
        pytest.fail(f"a look uses the database more than {USES_MAX} times")
    assert deaths > 20
