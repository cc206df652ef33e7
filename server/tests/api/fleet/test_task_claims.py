"""Claims: what a poll is given, to whom, under which fence, and what waiting costs."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mooring.commands.live.task_dispatcher import TaskDispatcher, TaskPoll
from mooring.core.fleet.task_creation import make_task
from mooring.core.fleet.task_envelope import TaskEnvelope
from mooring.core.kernel.errors import Code, Refusal
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.pool import PooledConnection
from server.tests.support.agent_double import CLAIMS, held
from server.tests.support.lifecycle_rows import context
from server.tests.support.node_site import RUN, NodeSite
from tests.support.waiting import turns, until

BLOCK = """
INSERT INTO transition
  (machine, subject_id, generation, tenant_id, source, trigger, target, occurred_at, correlation_id)
VALUES ('task', $1, 1, $2, 'queued', 'claim', 'claimed', now(), 'held')"""
WAIT_SECONDS = 120.0
"""How long anything here may take that a busy machine holds up; nothing is shown by how long it took."""

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def test_a_waiting_poll_gets_a_task_as_soon_as_it_is_made(site: NodeSite) -> None:
    waiting = asyncio.create_task(site.agent.claim())
    await wait_for_polls(site, 1)
    made = await site.make()
    (task,) = await waiting
    assert (task["task_id"], task["type"], task["arguments"], task["fence"]) == (made.id, "process.run", RUN, 1)
    assert (task["tenant_id"], task["project_id"]) == (site.tenant.id, site.project_id)
    assert task["owner"] == task["allocation_id"] == site.project_rows.allocation_id
    assert task["correlation_id"] == made.correlation_id
    stands = await site.stands(made)
    assert (stands.status, stands.fence, stands.generation) == ("claimed", 1, 1)
    assert stands.first_claimed_at is not None
    assert await site.count("SELECT count(*) FROM transition WHERE subject_id = $1", made.id) == 2


async def test_a_task_that_waits_is_given_to_the_next_poll_in_order_and_up_to_its_room(site: NodeSite) -> None:
    made = [(await site.make()).id for _ in range(5)]
    first = await site.agent.claim(free=2)
    second = await site.agent.claim(free=8, running=[held(each) for each in first])
    assert [each["task_id"] for each in (*first, *second)] == made


async def test_a_poll_without_room_is_a_heartbeat_and_takes_nothing(site: NodeSite) -> None:
    made = await site.make()
    answer = await site.agent.poll(free=0, wait_seconds=0)
    assert answer["tasks"] == []
    assert (answer["lease_seconds"], answer["heartbeat_seconds"]) == (90.0, 30.0)
    assert (await site.stands(made)).status == "queued"
    heard = "SELECT count(*) FROM node WHERE id = $1 AND last_seen_at IS NOT NULL"
    async with asyncio.timeout(WAIT_SECONDS):
        while not await site.count(heard, site.agent.node_id):
            await site.services.presence.flush(site.services.database, site.clock.now())


async def test_a_node_gets_its_own_tasks_and_nobody_elses(site: NodeSite) -> None:
    other = await site.another_agent()
    mine, theirs = await site.make(), await site.make(node_id=other.node_id)
    claimed = await asyncio.gather(site.agent.claim(), other.claim())
    assert [[each["task_id"] for each in tasks] for tasks in claimed] == [[mine.id], [theirs.id]]


async def test_a_claim_that_is_held_up_holds_up_no_other_node(site: NodeSite) -> None:
    other, dispatcher = await site.another_agent(), site.world.running.platform.tools.dispatcher
    mine = await site.make()
    async with site.services.database.connection(PLATFORM) as connection:
        holding = connection.transaction()
        await holding.start()
        await connection.execute(BLOCK, mine.id, site.tenant.id)  # the claim of this task waits for what becomes of it
        slow, quick = asyncio.create_task(site.agent.claim()), asyncio.create_task(other.claim())
        await wait_for_polls(site, 2)
        await until(lambda: site.agent.node_id in dispatcher._claiming)
        theirs = await site.make(node_id=other.node_id)
        assert [each["task_id"] for each in await quick] == [theirs.id]
        later = await site.make()
        assert not slow.done()
        await holding.rollback()
    got = await slow
    async with asyncio.timeout(WAIT_SECONDS):
        while len(got) < 2:
            got += await site.agent.claim(running=[held(each) for each in got])
    assert [(each["task_id"], each["fence"]) for each in got] == [(mine.id, 1), (later.id, 1)]


async def test_two_polls_of_one_node_never_get_one_task_twice(site: NodeSite) -> None:
    older = asyncio.create_task(site.agent.poll())
    await wait_for_polls(site, 1)
    newer = asyncio.create_task(site.agent.poll())
    assert (await older)["tasks"] == []  # the newest counts, and the older one returns at once
    made = [(await site.make()).id for _ in range(3)]
    got = [site.agent.believe(each)["task_id"] for each in (await newer)["tasks"]]
    async with asyncio.timeout(WAIT_SECONDS):
        while len(got) < 3:
            polls = await asyncio.gather(*(site.agent.poll(wait_seconds=1) for _ in range(3)))
            got += [site.agent.believe(each)["task_id"] for poll in polls for each in poll["tasks"]]
    assert sorted(got) == sorted(made)


async def test_two_dispatchers_of_one_node_never_get_one_task_twice(site: NodeSite) -> None:
    """As two replicas: the same node polls both, and each statement skips what the other is just taking."""
    made = {(await site.make()).id for _ in range(30)}
    async with TaskDispatcher(site.services) as one, TaskDispatcher(site.services) as two:
        given: list[TaskEnvelope] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(given) < 30:
                asks = [each.poll(TaskPoll(site.agent.node_id, 64, 0.5)) for each in (one, two)]
                given += [envelope for each in await asyncio.gather(*asks) for envelope in each.tasks]
    got = [site.agent.believe({"payload": e.payload, "key_id": e.key_id, "signature": e.signature}) for e in given]
    assert sorted(each["task_id"] for each in got) == sorted(made)


async def test_a_lost_lease_is_offered_again_under_a_higher_fence(site: NodeSite) -> None:
    made = await site.make()
    first = await site.agent.claim_one()
    await site.later(timedelta(seconds=80))
    assert (await site.stands(made)).status == "claimed"
    await site.later(timedelta(seconds=11))
    stands = await site.stands(made)
    assert (stands.status, stands.fence, stands.lease_expires_at) == ("queued", 1, None)
    second = await site.agent.claim_one()
    assert (second["task_id"], second["fence"]) == (first["task_id"], 2)
    (stale,) = await site.agent.report(site.agent.result(first))
    assert (stale["accepted"], stale["code"]) == (False, "lease_lost")
    stands = await site.stands(made)
    assert (stands.status, stands.fence, stands.result) == ("claimed", 2, None)
    assert (await site.agent.finish(second))["accepted"]


async def test_a_poll_renews_the_leases_that_it_names_and_learns_which_are_lost(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    await site.later(timedelta(seconds=60))
    before = (await site.stands(made)).lease_expires_at
    async with asyncio.timeout(WAIT_SECONDS):
        while (await site.stands(made)).lease_expires_at == before:
            await site.agent.poll(wait_seconds=0.5, running=[held(task)])
    await site.later(timedelta(seconds=60))
    assert (await site.stands(made)).status == "claimed"
    await site.later(timedelta(seconds=91))
    assert (await site.stands(made)).status == "queued"
    answer = await site.agent.poll(free=0, running=[held(task)])
    assert answer["lost"] == [held(task)]


async def test_a_queued_or_claimed_task_expires_at_its_time(site: NodeSite) -> None:
    claimed = await site.make(lifetime=timedelta(seconds=20))
    await site.agent.claim_one()
    queued = await site.make(lifetime=timedelta(seconds=20))
    await site.later(timedelta(seconds=21))
    assert [(await site.stands(each)).status for each in (claimed, queued)] == ["expired", "expired"]
    assert (await site.agent.poll(wait_seconds=0.2))["tasks"] == []


async def test_a_task_that_is_over_its_time_is_not_handed_out(site: NodeSite) -> None:
    await site.make(lifetime=timedelta(seconds=20))
    site.clock.by += timedelta(seconds=21)
    assert (await site.agent.poll(wait_seconds=0.2))["tasks"] == []


async def test_a_cancelled_task_is_announced_once_to_the_agent_that_holds_it(site: NodeSite) -> None:
    made = await site.make()
    task = await site.agent.claim_one()
    waiting = asyncio.create_task(site.agent.poll(running=[held(task)]))
    await wait_for_polls(site, 1)
    answer = await site.people.post(f"{site.path}/tasks/{made.id}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelling")
    assert (await waiting)["cancel"] == [held(task)]
    assert (await site.agent.poll(wait_seconds=0.5, running=[held(task)]))[
        "cancel"
    ] == []  # it was announced a moment ago
    verdict = await site.agent.finish(task, outcome="cancelled", failure={"code": "cancelled", "detail": "asked"})
    assert verdict["accepted"]
    assert (await site.stands(made)).status == "cancelled"


async def test_a_queued_task_is_cancelled_at_once(site: NodeSite) -> None:
    made = await site.make()
    answer = await site.people.post(f"{site.path}/tasks/{made.id}/cancel")
    assert (answer.json()["status"], answer.json()["allowed_actions"]) == ("cancelled", [])
    again = await site.people.post(f"{site.path}/tasks/{made.id}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "illegal_transition")
    assert (await site.agent.poll(wait_seconds=0.2))["tasks"] == []


async def test_what_the_platform_does_itself_is_not_cancelled_by_people(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy")
    answer = await site.people.post(f"{site.path}/tasks/{made.id}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert (await site.stands(made)).status == "queued"


async def test_a_poll_whose_agent_hangs_up_takes_nothing_with_it(site: NodeSite) -> None:
    hanging = asyncio.create_task(site.agent.poll())
    await wait_for_polls(site, 1)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    await site.agent.client.aclose()
    await wait_for_polls(site, 0)
    made = await site.make()
    assert (await site.stands(made)).status == "queued"


async def test_a_thousand_waiting_polls_cost_no_statement_of_their_own(
    site: NodeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = site.world.running.platform.tools.dispatcher
    asked: list[str] = []
    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        real = getattr(PooledConnection, name)

        async def counted(self: Any, statement: str, *arguments: Any, _real: Any = real, **more: Any) -> Any:
            asked.append(statement)
            return await _real(self, statement, *arguments, **more)

        monkeypatch.setattr(PooledConnection, name, counted)
    polls = [asyncio.create_task(dispatcher.poll(TaskPoll(f"nod_{index}", 8, 60.0))) for index in range(1_000)]
    await turns()
    assert dispatcher.waiting == 1_000
    assert not [each for each in asked if "task" in each.lower()]
    dispatcher.release()
    assert all(given.tasks == () for given in await asyncio.gather(*polls))
    assert len([each for each in asked if "task" in each.lower()]) <= 1  # the look that the process makes for all


async def test_a_poll_that_says_too_much_of_its_health_is_refused(site: NodeSite) -> None:
    for health in ({"text": "x" * 9_000}, {"text": "\x00"}):
        answer = await site.agent.client.post(CLAIMS, json={"free": 1, "wait_seconds": 0, "health": health})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


async def test_making_a_task_again_gives_the_first_one(site: NodeSite) -> None:
    requested = site.requested()
    first, second = await site.make_requested(requested), await site.make_requested(requested)
    assert first.id == second.id
    made = await asyncio.gather(*(site.make_requested(site.requested(step="raced")) for _ in range(8)))
    assert len({each.id for each in made}) == 1
    assert await site.count("SELECT count(*) FROM task WHERE step = 'raced'") == 1


async def test_nothing_is_made_for_an_owner_once_a_task_that_ends_it_was_made(site: NodeSite) -> None:
    before = await site.make(label="one")
    await site.make("teardown.verify", {"close": True}, label="one")
    for label in ("one", "two"):
        requested = site.requested(label=label)
        if label == "one":
            with pytest.raises(Refusal) as refused:
                await site.make_requested(requested)
            assert refused.value.code is Code.ILLEGAL_TRANSITION
        else:
            assert (await site.make_requested(requested)).status == "queued"
    await site.make("sandbox.destroy")
    with pytest.raises(Refusal) as refused:
        await site.make(label="two")
    assert refused.value.code is Code.ILLEGAL_TRANSITION
    assert (await site.make("sandbox.destroy")).status == "queued"  # an end may be asked for again
    assert (await site.stands(before)).status == "queued"


async def test_the_database_itself_refuses_a_task_for_a_closed_owner(site: NodeSite) -> None:
    """Statements that bypass the core meet the same lock."""
    await site.make("sandbox.destroy")
    made = make_task(context(), site.requested(label="late"))
    with pytest.raises(Refusal) as refused:
        await site.project_rows.write(*made.writes)
    assert refused.value.code is Code.ILLEGAL_TRANSITION


async def test_a_task_does_not_slip_in_while_its_owner_is_closed(site: NodeSite) -> None:
    requested_tasks = [site.requested(label="race") for _ in range(6)]
    closing = site.make("teardown.verify", {"close": True}, label="race")
    results = await asyncio.gather(
        closing, *(site.make_requested(each) for each in requested_tasks), return_exceptions=True
    )
    closed = await site.services.database.fetchval(
        PLATFORM, "SELECT task_id FROM closed_owner WHERE owner = $1", f"{site.project_rows.allocation_id}/race"
    )
    assert getattr(results[0], "id", None) == closed
    for each in results[1:]:
        assert isinstance(each, Refusal) or getattr(each, "status", "") == "queued"
    with pytest.raises(Refusal):
        await site.make(label="race")


async def wait_for_polls(site: NodeSite, count: int) -> None:
    """Wait until so many polls wait in the platform's process, which is this one."""
    dispatcher = site.world.running.platform.tools.dispatcher
    await until(lambda: dispatcher.waiting == count)


async def test_a_wait_for_the_claim_is_woken_by_it(site: NodeSite) -> None:
    made = await site.make()
    waiting = asyncio.create_task(site.people.get(f"{site.path}/tasks/{made.id}?wait=60&until=claimed,failed"))
    await site.agent.claim_one()
    assert (await waiting).json()["status"] == "claimed"
