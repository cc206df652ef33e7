"""A row that many want to change at once: everybody gets their turn, and nobody is refused for it."""

import asyncio
from collections.abc import Sequence

import asyncpg
import httpx
import pytest

from mooring.commands.live.row_queues import RowQueues
from mooring.settings import Settings
from server.tests.conftest import World, running_platform
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("shared_platform")]

WRITERS = 16
CHANGES = 12
COUNT_LOST_RACES = """
CREATE SEQUENCE lost_race MINVALUE 0;
GRANT USAGE ON SEQUENCE lost_race TO mooring_tenant;
CREATE OR REPLACE FUNCTION stale_write() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  PERFORM nextval('lost_race');   -- which no rollback takes back
  RAISE EXCEPTION 'a guarded row has changed' USING ERRCODE = 'MR001';
END $$;"""


async def rename(client: httpx.AsyncClient, path: str, times: int) -> list[int]:
    """Change the same row so often, all at once; the statuses of the answers."""
    sent = [client.patch(path, json={"display_name": f"number {number}"}) for number in range(times)]
    return [answer.status_code for answer in await asyncio.gather(*sent)]


async def all_rename(clients: Sequence[httpx.AsyncClient], path: str) -> set[int]:
    """Every client changes the row, at the same time as the others; the statuses that came."""
    answers = await asyncio.gather(*(rename(client, path, CHANGES) for client in clients))
    return {status for each in answers for status in each}


async def a_project(world: World) -> tuple[str, str]:
    acme = await world.tenant("acme")
    return f"/api/v1/projects/{await world.project(acme, 'hot')}", acme.token


@pytest.mark.usefixtures("private_platform")
async def test_sixteen_writers_of_one_row_are_all_served_and_lose_few_races(
    world: World, connection: asyncpg.Connection
) -> None:
    await connection.execute(COUNT_LOST_RACES)
    path, token = await a_project(world)
    clients = [world.client(token) for _ in range(WRITERS)]
    assert await all_rename(clients, path) == {200}
    assert (await clients[0].get(path)).json()["revision"] == WRITERS * CHANGES
    lost = await connection.fetchval("SELECT last_value FROM lost_race")
    # On a busy machine all may have read the row before the first is written: each loses once, and waits for its turn.
    assert lost < WRITERS * CHANGES * 1.5, f"{lost} races were lost for {WRITERS * CHANGES} changes"


@pytest.mark.usefixtures("private_platform")
async def test_writers_at_two_replicas_are_all_served(world: World, settings: Settings) -> None:
    path, token = await a_project(world)
    async with running_platform(settings) as other:
        clients = [(world.running, other)[number % 2].client(token) for number in range(WRITERS)]
        assert await all_rename(clients, path) == {200}
        assert (await clients[0].get(path)).json()["revision"] == WRITERS * CHANGES
        for each in clients:
            await each.aclose()


async def test_only_a_change_that_saw_something_older_is_a_conflict(world: World) -> None:
    path, token = await a_project(world)
    bodies = [{"display_name": f"number {number}", "revision": 0} for number in range(WRITERS)]
    answers = await asyncio.gather(*(world.client(token).patch(path, json=body) for body in bodies))
    assert sorted(each.status_code for each in answers) == [200] + [409] * (WRITERS - 1)
    assert {each.json()["code"] for each in answers if each.status_code == 409} == {"revision_conflict"}


async def test_a_repeated_request_gets_its_first_answer_though_it_waits_for_the_row(world: World) -> None:
    path, token = await a_project(world)
    headers = {"Idempotency-Key": "one change, sent often"}
    sent = [world.client(token).patch(path, json={"display_name": "once"}, headers=headers) for _ in range(WRITERS)]
    answers = await asyncio.gather(*sent)
    assert {each.status_code for each in answers} == {200}
    assert len({each.content for each in answers}) == 1
    assert (await world.client(token).get(path)).json()["revision"] == 1


@pytest.mark.usefixtures("private_platform")
async def test_who_never_gets_a_turn_is_asked_to_try_again_and_changed_nothing(world: World) -> None:
    path, token = await a_project(world)
    services, row = world.running.platform.services, ("project", path.rpartition("/")[2])
    object.__setattr__(services, "rows", RowQueues(patience_seconds=0.05))
    await services.rows.take(row, "", 0.0)  # somebody has the row and never ends
    late = await world.client(token).patch(path, json={"display_name": "late"})
    assert (late.status_code, late.json()["code"], late.json()["retryable"]) == (503, "temporarily_unavailable", True)
    services.rows.give(row)
    assert await rename(world.client(token), path, 1) == [200]
    assert services.rows.are_empty


async def test_a_writer_that_gives_up_leaves_the_row_to_the_next(world: World) -> None:
    queues, row, order = RowQueues(), ("project", "prj_1"), list[str]()
    deadline = asyncio.get_running_loop().time() + 10

    async def write(name: str) -> None:
        await queues.take(row, "", deadline)
        order.append(name)
        queues.give(row)

    await queues.take(row, "", deadline)
    waiting = [asyncio.create_task(write(name)) for name in ("first", "gives up", "second")]
    await until(lambda: queues.length(row) == len(waiting))
    waiting[1].cancel()
    queues.give(row)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["first", "second"]
    assert queues.are_empty
