"""Guessing at credentials: it is slowed down, and locks nobody out whose credential is right."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from mooring.api.guess_limits import site_of
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import PASSWORD, World, running_platform
from server.tests.support.agents import ENROLMENTS, MachineKeys, joined

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

NEW_PASSWORD = "another horse battery staple"
WRONG = "a guess that is wrong"
STRANGE = "mrgs_not-a-token"
SECOND_ADMIN = {"email": "second@mooring.local", "display_name": "Second"}


@pytest.fixture
async def strict(settings: Settings) -> AsyncIterator[World]:
    """A platform with its admin signed in that takes five wrong guesses, and then one in twenty minutes."""
    async with running_platform(replace(settings, sign_in_limit_per_minute=0.05)) as running:
        world = World(running, running.client())
        world.admin.headers["Authorization"] = f"Bearer {await world.sign_in('admin@mooring.local', running.code)}"
        yield world
        await world.close()


async def post_sign_in(
    client: httpx.AsyncClient, headers: dict[str, str] | None = None, **named: str
) -> httpx.Response:
    return await client.post("/api/v1/sign-in", json={"email": "admin@mooring.local"} | named, headers=headers)


async def test_bad_credentials_of_an_address_lock_nobody_out_who_has_a_right_one(strict: World) -> None:
    machine, retired = [await joined(strict.client(), strict.admin) for _ in range(2)]
    await retired.report(strict.client())
    why = {"reason": "it is sold"}
    gone = await strict.admin.post(f"/api/v1/platform/nodes/{retired.node_id}/retire", json=why)
    assert gone.status_code == 200, gone.text
    floods: dict[str, Callable[[], Awaitable[httpx.Response]]] = {
        "token": lambda: strict.client(STRANGE).get("/api/v1/whoami"),
        "enrolment": lambda: strict.client().post(ENROLMENTS, json=MachineKeys().request("mrge_not-a-token")),
        "assertion": lambda: retired.exchange(strict.client()),
        "one-time code": lambda: post_sign_in(strict.client(), one_time_code="mrg1_no", new_password=NEW_PASSWORD),
    }
    for name, flood in floods.items():
        statuses = [(await flood()).status_code for _ in range(7)]
        assert statuses == [401] * 5 + [429] * 2, name
    services = strict.running.platform.services
    await services.denials.flush(services.database, everything=True)
    refused = await services.database.fetchval(PLATFORM, "SELECT sum(count) FROM audit WHERE outcome = 'refused'")
    assert refused == 5 * len(floods)
    assert [(await strict.client().get("/api/v1/whoami")).status_code for _ in range(7)] == [401] * 7, "no guess at all"

    assert (await strict.admin.get("/api/v1/whoami")).status_code == 200
    assert (await machine.exchange(strict.client())).status_code == 200
    await joined(strict.client(), strict.admin)
    code = (await strict.admin.post("/api/v1/platform/users", json=SECOND_ADMIN)).json()["one_time_code"]
    body = {"email": SECOND_ADMIN["email"], "one_time_code": code, "new_password": NEW_PASSWORD}
    assert (await strict.client().post("/api/v1/sign-in", json=body)).status_code == 200
    assert (await post_sign_in(strict.client(address="127.0.0.7"), password=PASSWORD)).status_code == 200


async def test_a_guesser_at_one_account_does_not_slow_down_another_behind_the_same_address(strict: World) -> None:
    acme = await strict.tenant("acme")
    guesses = [(await post_sign_in(strict.client(), password=WRONG)).status_code for _ in range(7)]
    assert guesses == [401] * 5 + [429] * 2
    neighbour = {"tenant": acme.slug, "email": "admin@acme.example", "password": PASSWORD}
    assert (await strict.client().post("/api/v1/sign-in", json=neighbour)).status_code == 200


async def test_one_password_tried_at_many_accounts_is_slowed_down(strict: World) -> None:
    statuses = [
        (await post_sign_in(strict.client(), email=f"user{number}@mooring.local", password=WRONG)).status_code
        for number in range(52)
    ]
    assert statuses == [401] * 50 + [429] * 2


async def test_an_account_guessed_at_from_many_addresses_gets_slow_for_strangers_only(strict: World) -> None:
    assert (await post_sign_in(strict.client(address="127.0.1.1"), password=PASSWORD)).status_code == 200
    session = {"Authorization": str(strict.admin.headers["Authorization"])}
    botnet = [strict.client(address=f"127.0.2.{number}") for number in range(1, 13)]
    statuses = [(await post_sign_in(each, password=WRONG)).status_code for each in botnet]
    assert statuses == [401] * 10 + [429] * 2
    outcomes = {
        "a new address": await post_sign_in(strict.client(address="127.0.3.1"), password=PASSWORD),
        "the address of an earlier sign-in": await post_sign_in(strict.client(address="127.0.1.1"), password=PASSWORD),
        "a new address with a session": await post_sign_in(
            strict.client(address="127.0.3.2"),
            session,
            password=PASSWORD,
        ),
        "a wrong password with a session": await post_sign_in(
            strict.client(address="127.0.3.2"), session, password=WRONG
        ),
        "a new address with somebody else's session": await post_sign_in(
            strict.client(address="127.0.3.3"), {"Authorization": await strangers_session(strict)}, password=PASSWORD
        ),
    }
    assert [each.status_code for each in outcomes.values()] == [429, 200, 200, 401, 429]


async def strangers_session(world: World) -> str:
    return f"Bearer {(await world.tenant('other')).token}"


def test_an_ipv6_site_counts_as_one_address_and_a_disguised_ipv4_as_itself() -> None:
    assert site_of("2001:db8:1:2:3::4") == site_of("2001:db8:1:2:ffff::1") != site_of("2001:db8:1:3::1")
    assert site_of("::ffff:192.0.2.1") == site_of("192.0.2.1") != site_of("192.0.2.2")


async def test_guesses_that_are_sent_at_once_count_one_by_one(settings: Settings) -> None:
    async with (
        running_platform(replace(settings, sign_in_limit_per_minute=0.05)) as running,
        running.client() as client,
    ):
        passwords = running.platform.services.passwords
        verify_for_real, looked_at = passwords.verify, 0
        all_sent = asyncio.Event()

        async def counted(stored: str | None, password: str) -> bool:
            nonlocal looked_at
            looked_at += 1
            await all_sent.wait()
            return await verify_for_real(stored, password)

        object.__setattr__(passwords, "verify", counted)
        body = {"email": "admin@mooring.local", "password": "a guess that is wrong"}
        guesses = [asyncio.create_task(client.post("/api/v1/sign-in", json=body)) for _ in range(25)]
        refused: set[Any] = set()
        async with asyncio.timeout(60):
            while len(refused) + looked_at < len(guesses):
                refused, _ = await asyncio.wait(guesses, timeout=0.05)
        all_sent.set()
        answers = await asyncio.gather(*guesses)
        assert looked_at <= 7
        assert sorted(answer.status_code for answer in answers) == [401] * looked_at + [429] * (25 - looked_at)
        assert len(refused) == 25 - looked_at


async def test_the_current_password_is_not_guessed_without_a_limit_or_a_trace(settings: Settings) -> None:
    async with running_platform(replace(settings, sign_in_limit_per_minute=0.05)) as running:
        world = World(running, running.client())
        token = await world.sign_in("admin@mooring.local", running.code)
        client = world.client(token)
        body = {"current_password": "a guess that is wrong", "new_password": NEW_PASSWORD}
        statuses = [(await client.post("/api/v1/whoami/password", json=body)).status_code for _ in range(10)]
        assert statuses.count(401) <= 7
        assert statuses[-1] == 429
        services = running.platform.services
        await services.denials.flush(services.database, everything=True)
        trail = (await client.get("/api/v1/platform/audit?action=self.update&outcome=denied")).json()["items"]
        assert sum(each["count"] for each in trail) == statuses.count(401)
        await world.close()
