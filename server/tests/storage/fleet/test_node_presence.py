"""Node heartbeats: kept in memory, written in batches, timed by the database's clock; silent nodes are marked."""

import asyncio
from datetime import timedelta

import pytest

from mooring.commands.fleet.node import BATCH
from mooring.storage.fleet.node_presence import NodePresence
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.nodes import NodeWatch
from server.tests.conftest import World
from server.tests.support.agents import MachineKeys, joined
from server.tests.support.lifecycle_rows import ProjectRows

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NODES = "/api/v1/platform/nodes"


async def ready(world: World) -> MachineKeys:
    machine = await joined(world.client(), world.admin)
    await machine.report(world.client())
    return machine


async def hear(world: World, *machines: MachineKeys, ago_seconds: float = 0.0) -> None:
    """Persist that the last heartbeat of these machines was so long ago."""
    services = world.running.platform.services
    now = services.clock.now()
    for each in machines:
        services.presence.record(each.node_id, now - timedelta(seconds=ago_seconds), {"load": 0.5})
    assert await services.presence.flush(services.database, now) == len(machines)


async def look(world: World) -> None:
    """One look of a worker that has listened for long."""
    watch = NodeWatch(world.running.platform.services, listen_seconds=0.0, pace_seconds=0.0)
    await watch.tick()


async def count(world: World, statement: str, *arguments: object) -> int:
    return int(await world.running.platform.services.database.fetchval(PLATFORM, statement, *arguments))


async def test_a_silent_node_is_unreachable_until_its_next_heartbeat(world: World) -> None:
    machine = await ready(world)
    await hear(world, machine, ago_seconds=30)
    await look(world)
    seen = (await world.admin.get(f"{NODES}/{machine.node_id}")).json()
    assert (seen["reachable"], seen["takes_work"], seen["health"]) == (True, True, {"load": 0.5})
    await hear(world, machine, ago_seconds=0)
    database = world.running.platform.services.database
    await database.fetchval(PLATFORM, "UPDATE node SET last_seen_at = last_seen_at - interval '91 seconds'")
    await look(world)
    seen = (await world.admin.get(f"{NODES}/{machine.node_id}")).json()
    assert (seen["reachable"], seen["takes_work"], seen["status"]) == (False, False, "ready")
    assert seen["unreachable_since"] == seen["last_seen_at"]
    assert [each["code"] for each in seen["why"]] == ["unreachable"]
    await hear(world, machine)
    await look(world)
    seen = (await world.admin.get(f"{NODES}/{machine.node_id}")).json()
    assert (seen["reachable"], seen["unreachable_since"], seen["why"]) == (True, None, [])
    for event in ("nodes.node.unreachable", "nodes.node.reachable"):
        assert await count(world, "SELECT count(*) FROM event WHERE type = $1", event) == 1


async def test_of_many_workers_that_look_at_once_one_marks_each_node(world: World) -> None:
    machines = [await ready(world) for _ in range(6)]
    await hear(world, *machines, ago_seconds=500)
    await asyncio.gather(*(look(world) for _ in range(5)))
    await look(world)
    marked = "SELECT count(*) FROM event WHERE type = 'nodes.node.unreachable'"
    assert await count(world, marked) == 6
    assert await count(world, "SELECT count(DISTINCT subject_id) FROM event WHERE type = 'nodes.node.unreachable'") == 6


async def test_a_worker_that_just_began_to_listen_calls_nobody_unreachable(world: World) -> None:
    machine = await ready(world)
    await hear(world, machine, ago_seconds=500)
    await NodeWatch(world.running.platform.services).tick()
    assert await count(world, "SELECT count(*) FROM node WHERE unreachable_since IS NOT NULL") == 0


async def test_a_node_without_any_heartbeat_yet_is_not_lost(world: World) -> None:
    await ready(world)
    await look(world)
    assert await count(world, "SELECT count(*) FROM node WHERE unreachable_since IS NOT NULL") == 0


async def test_many_signs_of_life_are_one_write(world: World) -> None:
    machine, services = await ready(world), world.running.platform.services
    before = await count(world, "SELECT revision FROM node WHERE id = $1", machine.node_id)
    for _ in range(100):
        services.presence.record(machine.node_id, services.clock.now(), None)
    assert len(services.presence) == 1
    assert await services.presence.flush(services.database, services.clock.now()) == 1
    assert await services.presence.flush(services.database, services.clock.now()) == 0
    assert await count(world, "SELECT revision FROM node WHERE id = $1", machine.node_id) == before


async def test_an_older_sign_of_life_from_another_replica_takes_nothing_back(world: World) -> None:
    machine, services = await ready(world), world.running.platform.services
    await hear(world, machine)
    newest = await services.database.fetchval(PLATFORM, "SELECT last_seen_at FROM node")
    await hear(world, machine, ago_seconds=60)
    assert await services.database.fetchval(PLATFORM, "SELECT last_seen_at FROM node") == newest


async def test_what_another_writer_holds_is_written_the_next_time(world: World) -> None:
    machine, services, presence = await ready(world), world.running.platform.services, NodePresence()
    now = services.clock.now()
    async with services.database.connection(PLATFORM) as connection, connection.transaction():
        await connection.execute("SELECT FROM node FOR UPDATE")
        presence.record(machine.node_id, now)
        assert await presence.flush(services.database, now) == 0
        assert len(presence) == 1
    assert await presence.flush(services.database, now) == 1


async def test_the_heartbeat_of_a_retired_node_changes_nothing(world: World) -> None:
    machine, services, presence = await ready(world), world.running.platform.services, NodePresence()
    body = {"reason": "the machine goes back to its vendor"}
    await world.admin.post(f"{NODES}/{machine.node_id}/retire", json=body)
    presence.record(machine.node_id, services.clock.now())
    assert await presence.flush(services.database, services.clock.now()) == 0
    assert await presence.flush(services.database, services.clock.now() + timedelta(minutes=2)) == 0
    assert len(presence) == 0


async def test_more_lost_nodes_than_one_look_marks_are_marked_by_the_next(world: World) -> None:
    services = world.running.platform.services
    project_rows = ProjectRows(services.database, "", "")
    ids = [await project_rows.birth("node") for _ in range(BATCH + 5)]
    for each in ids:
        services.presence.record(each, services.clock.now() - timedelta(seconds=500))
    assert await services.presence.flush(services.database, services.clock.now()) == len(ids)
    watch = NodeWatch(services, listen_seconds=0.0, pace_seconds=0.0)
    assert await watch.tick() is not None
    await watch.tick()
    assert await count(world, "SELECT count(*) FROM node WHERE unreachable_since IS NOT NULL") == len(ids)
