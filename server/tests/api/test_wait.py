"""Reads that wait: they answer on a change, on a state, or when the time is over, and never sleep through a change."""

import asyncio
import random
import time
from dataclasses import dataclass, replace

import httpx
import pytest

from mooring.settings import Settings
from server.tests.api.records.test_events import shown
from server.tests.conftest import TenantWithAdmin, World, running_platform
from tests.support.waiting import turns

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

LONG = 60
"""Seconds to wait for what does happen: an answer that takes so long has slept through it."""
RACES = 150


@dataclass
class AdministeredAccount:
    """A service account and its administrator."""

    admin: httpx.AsyncClient
    watcher: httpx.AsyncClient
    tenant: TenantWithAdmin
    path: str

    async def move(self, verb: str) -> str:
        """Disable or enable it; the new etag."""
        answer = await self.admin.post(f"{self.path}/{verb}")
        assert answer.status_code == 200, answer.text
        return str(answer.json()["etag"])

    async def etag(self) -> str:
        return str((await self.admin.get(self.path)).json()["etag"])


async def account_in(world: World, project_id: str, tenant: TenantWithAdmin) -> AdministeredAccount:
    admin, watcher = world.client(tenant.token), world.client(tenant.token)
    accounts = f"/api/v1/projects/{project_id}/service-accounts"
    made = await admin.post(accounts, json={"name": "watched", "actions": ["project.read"]})
    assert made.status_code == 201, made.text
    return AdministeredAccount(admin, watcher, tenant, f"{accounts}/{made.json()['id']}")


@pytest.fixture
async def account(world: World) -> AdministeredAccount:
    tenant = await world.tenant("acme")
    return await account_in(world, await world.project(tenant, "train"), tenant)


async def test_a_read_waits_until_the_thing_is_another_than_the_one_that_was_seen(account: AdministeredAccount) -> None:
    seen = await account.etag()
    waiting = asyncio.create_task(account.watcher.get(f"{account.path}?wait={LONG}&changed_from={seen}"))
    await account.admin.get(account.path)
    assert not waiting.done()
    changed = await account.move("disable")
    answer = await waiting
    assert (answer.status_code, answer.json()["etag"], answer.json()["status"]) == (200, changed, "disabled")
    assert answer.headers["etag"] == f'"{changed}"'


async def test_a_read_waits_until_one_of_the_states_is_reached(account: AdministeredAccount) -> None:
    waiting = asyncio.create_task(account.watcher.get(f"{account.path}?wait={LONG}&until=disabled,deleted"))
    description = await account.admin.patch(account.path, json={"description": "no state"})
    assert description.status_code == 200
    await account.admin.get(account.path)
    assert not waiting.done(), "a change that is not the state was taken for it"
    await account.move("disable")
    assert (await waiting).json()["status"] == "disabled"


async def test_a_change_that_happened_already_is_returned_at_once(account: AdministeredAccount) -> None:
    before = await account.etag()
    await account.move("disable")
    begun = time.monotonic()
    for query in (f"changed_from={before}", "until=disabled", "until=active,disabled"):
        answer = await account.watcher.get(f"{account.path}?wait={LONG}&{query}")
        assert answer.json()["status"] == "disabled"
    assert time.monotonic() - begun < LONG / 2


async def test_a_read_whose_time_is_over_answers_what_there_is(account: AdministeredAccount) -> None:
    seen = await account.etag()
    begun = time.monotonic()
    answer = await account.watcher.get(f"{account.path}?wait=0.2&changed_from={seen}")
    assert (answer.status_code, answer.json()["etag"]) == (200, seen)
    assert time.monotonic() - begun >= 0.2


async def test_other_peoples_changes_do_not_end_a_wait(world: World, account: AdministeredAccount) -> None:
    other = await world.tenant("other")
    theirs = await account_in(world, await world.project(other, "theirs"), other)
    seen = await account.etag()
    waiting = asyncio.create_task(account.watcher.get(f"{account.path}?wait={LONG}&changed_from={seen}"))
    for verb in ("disable", "enable", "disable"):
        await theirs.move(verb)
    assert not waiting.done()
    changed = await account.move("disable")
    assert (await waiting).json()["etag"] == changed


async def test_no_change_is_slept_through_whenever_it_happens(account: AdministeredAccount) -> None:
    chance = random.Random(7)
    verbs = ("disable", "enable")
    assert account.watcher.timeout.read is not None
    assert account.watcher.timeout.read < LONG, "else the watcher would not notice that a change was slept through"
    for turn in range(RACES):
        seen = await account.etag()
        waiting = asyncio.create_task(account.watcher.get(f"{account.path}?wait={LONG}&changed_from={seen}"))
        await turns(chance.randrange(60))  # from before the read to well into the wait
        changed = await account.move(verbs[turn % 2])
        answer = await waiting
        assert answer.json()["etag"] == changed, f"race {turn} was answered with the old state"


async def test_a_change_made_through_another_replica_ends_a_wait(
    world: World, settings: Settings, account: AdministeredAccount
) -> None:
    async with running_platform(replace(settings)) as other:
        elsewhere = other.client(account.tenant.token)
        for verb in ("disable", "enable") * 10:
            seen = (await elsewhere.get(account.path)).json()["etag"]
            waiting = asyncio.create_task(elsewhere.get(f"{account.path}?wait={LONG}&changed_from={seen}"))
            changed = await account.move(verb)
            assert (await waiting).json()["etag"] == changed
        await elsewhere.aclose()


async def test_a_wait_for_something_that_is_deleted_meanwhile_ends_as_not_found(world: World) -> None:
    tenant = await world.tenant("acme")
    project = f"/api/v1/projects/{await world.project(tenant, 'train')}"
    admin, watcher = world.client(tenant.token), world.client(tenant.token)
    waiting = asyncio.create_task(watcher.get(f"{project}?wait={LONG}&changed_from=0"))
    await admin.get(project)
    assert (await admin.delete(project)).status_code == 204
    answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_list_of_events_waits_for_the_first_one_and_goes_on_from_its_cursor(
    account: AdministeredAccount,
) -> None:
    project, _, account_id = account.path.partition("/service-accounts/")
    cursor, types = await shown(account.watcher, project, subject_id=account_id), []
    events = f"{project}/events"
    for verb in ("disable", "enable", "disable"):
        waiting = asyncio.create_task(account.watcher.get(f"{events}?wait={LONG}&cursor={cursor}"))
        await account.move(verb)
        page = (await waiting).json()
        types += [event["type"].rpartition(".")[2] for event in page["items"]]
        cursor = page["next_cursor"]
    assert types == ["disabled", "enabled", "disabled"]
    empty = (await account.watcher.get(f"{events}?wait=0.1&cursor={cursor}")).json()
    assert empty["items"] == []


async def test_a_wait_is_bounded(account: AdministeredAccount) -> None:
    for query in ("wait=61", "wait=-1", "wait=nan", "wait=soon"):
        answer = await account.watcher.get(f"{account.path}?{query}")
        assert answer.status_code == 422, f"{query}: {answer.text}"
