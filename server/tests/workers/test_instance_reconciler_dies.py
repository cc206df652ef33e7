"""A runtime worker that dies between any two steps of a teardown, or races others: the end is the same.

The worker's database fails it for ever at its n-th write, before the statement is sent or after it was done, for every
n until a look comes to its end. What it only reads has no effect, so that a death at a read is the death before the
next write. After each death a healthy worker looks once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from mooring.core.runtime.operation import OperationKind
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM, Acting, Database, PoolSettings
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.conftest import World
from server.tests.support.instance_setup import InstanceSetup, make_setup
from server.tests.workers.test_allocation_reconciler_dies import DyingDatabase, ReconcilerDied

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WRITES_MAX = 12


class DyingAtWrites(DyingDatabase):
    """Serves every read, and so many writes; the next one is the last."""

    reading = 0

    def connection(self, acting: Acting) -> Any:
        return Database.connection(self, acting) if self.reading else super().connection(acting)

    async def _read(
        self, acting: Acting, way: Callable[..., Awaitable[Any]], statement: str, arguments: Sequence[object]
    ) -> Any:
        self.reading += 1
        try:
            return await super()._read(acting, way, statement, arguments)
        finally:
            self.reading -= 1


async def dies(setup: InstanceSetup, settings: Settings, writes: int, *, after: bool) -> bool:
    """One look of a worker that dies at this write; whether it did."""
    database = DyingAtWrites(PoolSettings(settings.database_url, 4), writes, after=after)
    await database.open()
    services = setup.services
    own = type(services)(**{name: getattr(services, name) for name in services.__slots__} | {"database": database})
    try:
        await InstanceReconciler(own).tick()
    except ReconcilerDied:
        return True
    finally:
        await database.close()
    return False


async def story(setup: InstanceSetup, instance_id: str) -> list[str]:
    """What became of the instance and its members, in order."""
    rows = await setup.services.database.fetch(
        PLATFORM,
        "SELECT t.machine || ' ' || t.trigger FROM transition t LEFT JOIN member m ON m.id = t.subject_id "
        "WHERE t.subject_id = $1 OR m.instance_id = $1 ORDER BY t.machine, m.ordinal, t.generation",
        instance_id,
    )
    return [row[0] for row in rows]


@pytest.mark.parametrize("after", [False, True], ids=["before the statement", "after it"])
@pytest.mark.parametrize("kind", [OperationKind.DECOMMISSION, OperationKind.REMOVE])
async def test_whenever_the_worker_dies_another_one_comes_to_the_same_end(
    world: World, settings: Settings, kind: OperationKind, after: bool
) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(4)
    stays = (await setup.site.active(setup.sku, gpu_count=1))["id"]
    deaths, stories = 0, set()
    for writes in range(1, WRITES_MAX):
        goes = (await setup.site.active(setup.sku, gpu_count=1))["id"]
        instance_id = await setup.running(owned=True, into=[goes] if kind == "decommission" else [goes, stays])
        first = (await setup.members(instance_id))[0]
        if kind == OperationKind.DECOMMISSION:
            await setup.stop(instance_id)
            await setup.held(instance_id, seconds=-1)
            setup.site.later(timedelta(seconds=61))
        else:
            await setup.ask(instance_id, kind, [first.id], phase="platform")
        died = [await dies(setup, settings, writes, after=after)]
        await setup.look()
        tasks = [each["step"] for each in await setup.site.fleet.tasks(goes) if each["type"] == "teardown.verify"]
        assert tasks == [f"teardown.verify/{first.id}/1"]
        await setup.site.fleet.do(goes)
        died.append(await dies(setup, settings, writes, after=after))
        await setup.look(2)
        assert (await setup.members(instance_id))[0].status == "removed"
        assert (await setup.operations(instance_id))[-1].status == "succeeded"
        stories.add(tuple(await story(setup, instance_id)))
        setup.site.later(timedelta(0))
        await setup.site.fleet.do(goes)
        await setup.look()
        assert (await setup.site.get(goes))["status"] == "released"
        if kind == OperationKind.REMOVE:
            await close(setup, instance_id, stays)
            stays = (await setup.site.active(setup.sku, gpu_count=1))["id"]
        deaths += sum(died)
        if not any(died):
            break
    else:
        pytest.fail(f"a look writes more than {WRITES_MAX} times")
    assert deaths > 4
    assert len(stories) == 1, stories


async def close(setup: InstanceSetup, instance_id: str, allocation_id: str) -> None:
    """What is left of an instance goes, so that the next one finds the allocation free."""
    await setup.stop(instance_id)
    setup.site.later(timedelta(seconds=61))
    await setup.look()
    await setup.site.fleet.do(allocation_id)
    await setup.look(2)
    assert (await setup.instance(instance_id)).status == "stopped"
    await setup.site.fleet.do(allocation_id)
    await setup.look()
    setup.site.later(timedelta(0))


async def test_workers_side_by_side_do_each_thing_once(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(3)
    instance_id = await setup.running(3, owned=True)
    members = await setup.members(instance_id)
    await setup.stop(instance_id)
    setup.site.later(timedelta(seconds=61))
    workers = [InstanceReconciler(setup.services) for _ in range(4)]
    await asyncio.gather(*(each.tick() for each in workers))
    await setup.look()
    for each in members:
        tasks = [task["step"] for task in await setup.site.fleet.tasks(str(each.allocation_id))]
        assert [step for step in tasks if step.startswith("teardown")] == [f"teardown.verify/{each.id}/1"]
        await setup.site.fleet.do(str(each.allocation_id))
    await asyncio.gather(*(each.tick() for each in workers))
    await setup.look()
    assert (await setup.instance(instance_id)).status == "stopped"
    assert await setup.closings(instance_id) == ["receipt"] * 3


async def test_a_stop_that_races_the_worker_leaves_one_decommission_and_no_member(world: World) -> None:
    setup = await make_setup(world)
    await setup.site.fleet.node(1)
    for _ in range(5):
        allocation_id = (await setup.site.active(setup.sku, gpu_count=1))["id"]
        instance_id = await setup.launch([allocation_id], owned=True)
        setup.site.later(timedelta(seconds=301))  # the worker fails the launch at this moment
        await asyncio.gather(
            InstanceReconciler(setup.services).tick(),
            setup.stop(instance_id),
            InstanceReconciler(setup.services).tick(),
            return_exceptions=True,
        )
        await setup.look()
        if (await setup.instance(instance_id)).status == "failed":
            await setup.stop(instance_id)
        await setup.look(2)
        assert (await setup.instance(instance_id)).status == "stopped"
        assert {each.kind: each.is_over for each in await setup.operations(instance_id)}.items() >= {
            ("deploy", True),
            ("decommission", True),
        }
        assert await setup.closings(instance_id) == ["nothing_started"]
        setup.site.later(timedelta(0))
        await setup.site.fleet.do(allocation_id)
        await setup.look()
        assert (await setup.site.get(allocation_id))["status"] == "released"
