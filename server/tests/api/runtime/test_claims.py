"""Claims of instances: what is offered to whom, under which fence, and what ends a claim."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from mooring.core.runtime.operation import OperationKind
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import running_platform
from server.tests.support.adapter_site import RUNTIME, AdapterClient, AdapterSite, make_operator, open_adapter_site
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def deployed(site: AdapterSite, adapter: AdapterClient, workers: int = 0) -> tuple[str, int]:
    """An instance that runs, and the fence under which its adapter holds it."""
    instance, members, operation = await site.launch(workers)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    for status in ("joining", "ready"):
        await adapter.report(instance.id, fence, members=[{"id": each.id, "status": status} for each in members])
    await adapter.finish(instance.id, fence, operation.id)
    return instance.id, fence


async def test_an_instance_is_offered_when_its_operation_is_dispatched_and_not_before(site: AdapterSite) -> None:
    adapter = site.adapter()
    waiting, _, operation = await site.launch(dispatched=False)
    assert (await adapter.poll())["claims"] == []
    await site.services.database.fetch(
        PLATFORM, "UPDATE operation SET dispatched_at = now(), revision = 1 WHERE id = $1", operation.id
    )
    assert (await adapter.poll())["claims"] == [{"instance_id": waiting.id, "fence": 1}]


async def test_two_holders_never_get_one_instance_and_the_room_of_each_counts(site: AdapterSite) -> None:
    made = {(await site.launch(0))[0].id for _ in range(12)}
    answers = [await site.adapter().poll(free=5) for _ in range(3)]
    assert [len(answer["claims"]) for answer in answers] == [5, 5, 2]
    assert {each["instance_id"] for answer in answers for each in answer["claims"]} == made
    assert await site.fetch("SELECT count(DISTINCT holder) FROM instance_claim WHERE holder IS NOT NULL") == 3


async def test_holders_that_ask_at_once_never_get_one_instance_and_none_is_left(site: AdapterSite) -> None:
    made = {(await site.launch(0))[0].id for _ in range(12)}
    one, two, three = (site.adapter() for _ in range(3))
    answers = await asyncio.gather(one.poll(free=5), two.poll(free=5), three.poll(free=5))
    assert all(len(answer["claims"]) <= 5 for answer in answers)
    got = [each["instance_id"] for answer in answers for each in answer["claims"]]
    assert len(got) == len(set(got))
    # What was skipped while it was locked comes now, and what this one already got is repeated.
    got += [each["instance_id"] for each in (await one.poll(free=12))["claims"]]
    assert set(got) == made


async def test_a_lost_answer_is_repeated_under_the_same_fence(site: AdapterSite) -> None:
    instance, *_ = await site.launch()
    adapter, other = site.adapter(), site.adapter()
    first, again = await adapter.poll(), await adapter.poll()
    assert first["claims"] == again["claims"] == [{"instance_id": instance.id, "fence": 1}]
    assert (await other.poll())["claims"] == []
    held = first["claims"]
    assert (await adapter.poll(held=held, after=again["cursor"]))["claims"] == []


async def test_a_lease_that_runs_out_is_taken_over_under_a_higher_fence(site: AdapterSite) -> None:
    instance, _, operation = await site.launch()
    old, new = site.adapter(), site.adapter()
    fence = await old.claim(instance.id)
    site.clock.by += timedelta(seconds=30)
    held = [{"instance_id": instance.id, "fence": fence}]
    assert (await old.poll(held=held))["lost"] == []  # renewed
    site.clock.by += timedelta(seconds=30)
    assert (await new.poll())["claims"] == []
    site.clock.by += timedelta(seconds=46)
    assert await new.claim(instance.id) == fence + 1
    assert (await old.poll(held=held))["lost"] == held
    late = await old.send(instance.id, "reports", fence, operation_id=operation.id, begin=True)
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")


async def test_a_lease_that_ran_out_and_that_nobody_took_still_counts(site: AdapterSite) -> None:
    instance, _, operation = await site.launch()
    adapter = site.adapter()
    fence = await adapter.claim(instance.id)
    site.clock.by += timedelta(hours=1)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    held = [{"instance_id": instance.id, "fence": fence}]
    assert (await adapter.poll(held=held))["lost"] == []
    assert (await site.adapter().poll())["claims"] == []


async def test_what_is_given_back_is_offered_at_once_and_the_old_fence_is_stale(site: AdapterSite) -> None:
    instance, _, operation = await site.launch()
    one, two = site.adapter(), site.adapter()
    fence = await one.claim(instance.id)
    body = {"holder": one.holder, "held": [{"instance_id": instance.id, "fence": fence}]}
    released = await one.client.post(f"{RUNTIME}/releases", json=body)
    assert released.json() == {"released": [instance.id]}
    assert (await one.client.post(f"{RUNTIME}/releases", json=body)).json() == {"released": []}
    late = await one.send(instance.id, "reports", fence, operation_id=operation.id, begin=True)
    assert late.json()["code"] == "lease_lost"
    assert await two.claim(instance.id) > fence


async def test_a_released_claim_is_not_given_back_by_a_poll_that_still_waits(site: AdapterSite) -> None:
    instance, *_ = await site.launch()
    one, two = site.adapter(), site.adapter()
    fence = await one.claim(instance.id)
    held = [{"instance_id": instance.id, "fence": fence}]
    waiting, _ = await waiting_poll(site, one, held, (await one.poll(held=held))["cursor"])
    await one.client.post(f"{RUNTIME}/releases", json={"holder": one.holder, "held": held})
    assert (await waiting)["claims"] == []
    assert await two.claim(instance.id) > fence


async def test_a_running_instance_that_nobody_watches_is_offered_and_one_that_failed_is_not(site: AdapterSite) -> None:
    one, two = site.adapter(), site.adapter()
    running, fence = await deployed(site, one)
    failed, _, operation = await site.launch()
    bad = await one.claim(failed.id)
    await one.report(failed.id, bad, operation_id=operation.id, begin=True)
    await one.finish(failed.id, bad, operation.id, outcome="failed", failure={"code": "runtime_error"})
    site.clock.by += timedelta(seconds=60)
    assert (await two.poll())["claims"] == [{"instance_id": running, "fence": fence + 1}]
    assert await site.fetch("SELECT wanted FROM instance_claim WHERE instance_id = $1", failed.id) is False
    await site.ask(failed, OperationKind.DECOMMISSION)
    held = [{"instance_id": running, "fence": fence + 1}]
    assert [each["instance_id"] for each in (await two.poll(held=held))["claims"]] == [failed.id]


async def test_a_stopped_instance_has_no_claimant(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    await site.stopped(instance_id)
    held = [{"instance_id": instance_id, "fence": fence}]
    assert (await adapter.poll(held=held))["lost"] == held
    late = await adapter.send(instance_id, "reports", fence, instance={"health": "healthy"})
    assert late.json()["code"] == "lease_lost"
    assert (await site.adapter().poll())["claims"] == []


async def test_a_waiting_poll_gets_new_work_at_once(site: AdapterSite) -> None:
    adapter = site.adapter()
    waiting = asyncio.create_task(adapter.poll(wait_seconds=25))
    await waits(site, 1)
    instance, *_ = await site.launch()
    assert [each["instance_id"] for each in (await waiting)["claims"]] == [instance.id]


async def test_a_poll_in_another_process_is_woken_too(site: AdapterSite) -> None:
    async with running_platform(site.world.running.settings) as other:
        client = other.client(site.token)
        adapter = AdapterClient(client, "elsewhere", site.account.id)
        waiting = asyncio.create_task(adapter.poll(wait_seconds=25))
        await until(lambda: other.platform.tools.claims.waiting)
        instance, *_ = await site.launch()
        answer = await waiting
        assert [each["instance_id"] for each in answer["claims"]] == [instance.id]
        news = asyncio.create_task(adapter.poll(wait_seconds=25, held=answer["claims"], after=answer["cursor"]))
        await until(lambda: other.platform.tools.claims.waiting)
        await site.ask(instance, OperationKind.ACTION)
        assert (await news)["changed"] == [instance.id]
        await client.aclose()


async def test_events_of_a_held_instance_end_the_wait_and_are_sent_from_the_cursor_on(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    held = [{"instance_id": instance_id, "fence": fence}]
    known = await adapter.poll(held=held)
    assert known["changed"] == [instance_id]  # without a cursor all counts as changed
    waiting, cursor = await waiting_poll(site, adapter, held, known["cursor"])
    await adapter.report(instance_id, fence, instance={"health": "healthy"})
    assert (await waiting)["changed"] == [instance_id]
    missed = await adapter.poll(held=held, after=cursor)  # a cursor that is older than what happened meanwhile
    assert missed["changed"] == [instance_id]


async def test_a_lease_of_somebody_else_that_ends_wakes_a_waiting_poll(site: AdapterSite) -> None:
    instance, *_ = await site.launch()
    one, two = site.adapter(), site.adapter()
    await one.claim(instance.id)
    site.clock.by += timedelta(seconds=44.5)
    answer = await two.poll(wait_seconds=25)
    assert answer["claims"] == [{"instance_id": instance.id, "fence": 2}]


async def test_only_the_instances_own_account_is_offered_it(site: AdapterSite) -> None:
    instance, *_ = await site.launch()
    _, token = await make_operator(site.world, site.tenant, site.project_id, ["runtime.claim", "runtime.report"])
    other = AdapterClient(site.world.client(token), "another", "")
    assert (await other.poll())["claims"] == []
    fence = await site.adapter().claim(instance.id)
    for answer in (
        await other.client.get(f"{RUNTIME}/instances/{instance.id}", params={"fence": fence}),
        await other.send(instance.id, "reports", fence, instance={"health": "healthy"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_people_and_accounts_without_the_key_are_refused_and_it_is_written_down(site: AdapterSite) -> None:
    person = await site.world.client(site.tenant.token).post(f"{RUNTIME}/claims", json={"holder": "me"})
    assert person.status_code == 403
    assert "operator account" in person.json()["detail"]
    _, token = await make_operator(site.world, site.tenant, site.project_id, ["runtime.report"])
    account = await site.world.client(token).post(f"{RUNTIME}/claims", json={"holder": "me"})
    assert (account.status_code, account.json()["code"]) == (403, "permission_denied")
    denied = await site.fetch("SELECT count(*) FROM audit WHERE action = 'runtime.claim' AND outcome = 'denied'")
    assert denied == 2


async def test_an_account_of_another_project_finds_nothing_of_this_one(site: AdapterSite) -> None:
    instance, members, operation = await site.launch()
    fence = await site.adapter().claim(instance.id)
    async with open_adapter_site(site.world, "globex") as elsewhere:
        stranger = elsewhere.adapter()
        assert (await stranger.poll())["claims"] == []
        lost = (await stranger.poll(held=[{"instance_id": instance.id, "fence": fence}]))["lost"]
        assert lost == [{"instance_id": instance.id, "fence": fence}]
        sent: dict[str, dict[str, Any]] = {
            "reports": {"operation_id": operation.id, "begin": True},
            f"operations/{operation.id}/finish": {"outcome": "failed", "failure": {"code": "runtime_error"}},
            "tasks": {"member_id": members[0].id, "type": "process.run", "step": "a", "arguments": {"argv": ["true"]}},
            "secrets": {"name": "token", "purpose": "app_access", "generate_bytes": 32},
            "usage": {"records": [usage_record()]},
        }
        for path, body in sent.items():
            answer = await stranger.send(instance.id, path, fence, **body)
            assert (path, answer.status_code) == (path, 404), answer.text


async def test_when_an_adapter_last_asked_is_known_to_the_half_minute(site: AdapterSite) -> None:
    adapter = site.adapter()
    seen = []
    for seconds in (0, 10, 25):
        site.clock.by += timedelta(seconds=seconds)
        await adapter.poll()
        seen.append(await site.fetch("SELECT seen_at FROM adapter_presence"))
    assert seen[0] == seen[1] < seen[2]


def usage_record() -> dict[str, object]:
    """A record of use."""
    return {
        "record_id": "r1",
        "unit": "tokens",
        "started_at": "2026-01-01T00:00:00Z",
        "ended_at": "2026-01-01T00:01:00Z",
        "quantity": 1,
    }


async def waits(site: AdapterSite, count: int) -> None:
    """Wait until so many polls wait."""
    await until(lambda: site.world.running.platform.tools.claims.waiting >= count)


def waits_or_is_answered(site: AdapterSite, polling: "asyncio.Task[dict[str, Any]]") -> bool:
    return polling.done() or site.world.running.platform.tools.claims.waiting > 0


async def waiting_poll(
    site: AdapterSite, adapter: AdapterClient, held: list[dict[str, Any]], cursor: str
) -> tuple["asyncio.Task[dict[str, Any]]", str]:
    """A poll that waits, behind all that happened before it, and the cursor that it goes on from.

    An event is sent as soon as it is behind the horizon, which any open transaction holds back.
    """
    async with asyncio.timeout(120):
        while True:
            polling = asyncio.create_task(adapter.poll(held=held, after=cursor, wait_seconds=25))
            await until(partial(waits_or_is_answered, site, polling))
            if not polling.done():
                return polling, cursor
            cursor = (await polling)["cursor"]
