"""What an attacker tried: each test is an attack that has to come to nothing."""

import asyncio
import base64
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx
import pytest

from mooring.api import connection as http
from mooring.api.request_cycle import ANSWER
from mooring.commands.kernel.master_key import rotate_master_key
from mooring.gateways.secrets import MasterKeyRefused
from mooring.gateways.signing.signatures import new_key_pair
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.api.test_connection import serve
from server.tests.conftest import PASSWORD, TenantWithAdmin, World, running_platform
from server.tests.support.service_accounts import assertion
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

REASON: Final = "ticket 4711: the customer asked for help"
NEW_PASSWORD: Final = "another horse battery staple"


async def entered(world: World, tenant: TenantWithAdmin, role: str = "tenant_admin") -> httpx.AsyncClient:
    body = {"tenant_id": tenant.id, "reason": REASON, "role": role}
    answer = await world.admin.post("/api/v1/platform/break-glass", json=body)
    assert answer.status_code == 201, answer.text
    return world.client(answer.json()["token"])


def public_key() -> str:
    return base64.b64encode(os.urandom(32)).decode()


# Access that is left behind ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["reset", "enable"])
async def test_a_break_glass_entry_takes_over_no_user_of_the_tenant(world: World, change: str) -> None:
    acme = await world.tenant("acme")
    inside = await entered(world, acme)
    answer = await inside.post(f"/api/v1/tenants/{acme.id}/users/{acme.admin_id}/{change}")
    assert answer.status_code == 403, answer.text


async def test_a_token_made_while_the_password_is_being_changed_does_not_outlive_it(world: World) -> None:
    acme = await world.tenant("acme")
    owner, thief = world.client(acme.token), world.client(acme.token)
    hashing, go_on = asyncio.Event(), asyncio.Event()
    passwords = world.running.platform.services.passwords
    hash_for_real = passwords.hash

    async def slow_hash(password: str) -> str:
        hashing.set()
        await go_on.wait()
        return await hash_for_real(password)

    object.__setattr__(passwords, "hash", slow_hash)
    body = {"current_password": PASSWORD, "new_password": NEW_PASSWORD}
    changing = asyncio.create_task(owner.post("/api/v1/whoami/password", json=body))
    await hashing.wait()
    stolen = (await thief.post("/api/v1/tokens", json={"name": "stays"})).json()["token"]
    go_on.set()
    assert (await changing).status_code == 204

    assert (await world.client(stolen).get("/api/v1/whoami")).status_code == 401


async def test_a_sign_in_with_the_old_password_does_not_outlive_a_reset(world: World) -> None:
    acme = await world.tenant("acme")
    other = await world.member(acme, None, "tenant_admin", "other")
    passwords = world.running.platform.services.passwords
    checked, go_on = asyncio.Event(), asyncio.Event()
    verify_for_real = passwords.verify

    async def slow_verify(stored: str | None, password: str) -> bool:
        fits = await verify_for_real(stored, password)
        checked.set()
        await go_on.wait()
        return fits

    object.__setattr__(passwords, "verify", slow_verify)
    body = {"tenant": acme.slug, "email": f"admin@{acme.slug}.example", "password": PASSWORD}
    signing_in = asyncio.create_task(world.client().post("/api/v1/sign-in", json=body))
    await checked.wait()
    reset = await world.client(other).post(f"/api/v1/tenants/{acme.id}/users/{acme.admin_id}/reset")
    assert reset.status_code == 200
    go_on.set()
    answer = await signing_in
    if answer.status_code == 200:
        assert (await world.client(answer.json()["token"]).get("/api/v1/whoami")).status_code == 401


# Escalation ----------------------------------------------------------------------------------------------------------


async def test_a_narrowed_token_enters_a_tenant_with_no_more_than_its_own_list(world: World) -> None:
    acme = await world.tenant("acme")
    body = {"name": "narrow", "actions": ["break_glass.open", "project.read"]}
    narrow = (await world.admin.post("/api/v1/tokens", json=body)).json()["token"]
    entry = {"tenant_id": acme.id, "reason": REASON, "role": "tenant_admin"}
    answer = await world.client(narrow).post("/api/v1/platform/break-glass", json=entry)
    assert answer.status_code == 201
    me = (await world.client(answer.json()["token"]).get("/api/v1/whoami")).json()
    assert me["tenant_actions"] == ["project.read"]


async def test_a_narrowed_token_does_not_get_the_secret_of_a_wider_one_by_a_repeat(world: World) -> None:
    acme = await world.tenant("acme")
    owner = world.client(acme.token)
    wide = await owner.post("/api/v1/tokens", json={"name": "wide"}, headers={"Idempotency-Key": "k"})
    body = {"name": "narrow", "actions": ["token.create"]}
    narrow = world.client((await owner.post("/api/v1/tokens", json=body)).json()["token"])
    repeated = await narrow.post("/api/v1/tokens", json={"name": "wide"}, headers={"Idempotency-Key": "k"})
    assert wide.json()["token"] not in repeated.text


async def test_a_role_beyond_the_ceiling_is_refused_and_leaves_an_audit_row(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    await world.member(acme, project, "project_viewer", "vera")
    owner = world.client(acme.token)
    body = {"name": "narrow", "actions": ["membership.create"]}
    narrow = world.client((await owner.post("/api/v1/tokens", json=body)).json()["token"])
    given = {"user_id": acme.admin_id, "role": "project_admin"}
    answer = await narrow.post(f"/api/v1/projects/{project}/memberships", json=given)
    assert (answer.status_code, answer.json()["code"]) == (403, "grant_exceeds_ceiling")
    trail = (await owner.get(f"/api/v1/tenants/{acme.id}/audit?outcome=denied")).json()["items"]
    assert [(row["action"], row["correlation_id"]) for row in trail] == [
        ("membership.create", answer.headers["x-correlation-id"])
    ]


async def test_no_key_of_a_service_account_can_be_hidden_behind_revoked_ones(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    owner = world.client(acme.token)
    path = f"/api/v1/projects/{project}/service-accounts"
    account = (await owner.post(path, json={"name": "robot", "actions": ["project.read"]})).json()["id"]
    await world.running.platform.services.database.fetch(
        PLATFORM,
        """INSERT INTO service_account_key
             (id, tenant_id, service_account_id, algorithm, public_key, created_at, revoked_at)
           SELECT 'key_' || lpad(n::text, 26, '0'), $1, $2, 'ed25519', decode(lpad(to_hex(n), 64, '0'), 'hex'),
                  now(), now()
             FROM generate_series(1, 1000) n""",
        acme.id,
        account,
    )
    made = [await owner.post(f"{path}/{account}/keys", json={"public_key": public_key()}) for _ in range(11)]
    assert [each.status_code for each in made] == [201] * 10 + [409]
    listed = (await owner.get(f"{path}/{account}/keys")).json()["items"]
    assert {each.json()["id"] for each in made[:10]} <= {key["id"] for key in listed}


# Across tenants ------------------------------------------------------------------------------------------------------


async def test_nothing_of_another_tenant_is_named_by_a_body_a_query_or_a_correlation(world: World) -> None:
    acme, other = await world.tenant("acme"), await world.tenant("other")
    project, foreign = await world.project(acme, "train"), await world.project(other, "secret")
    thief, owner = world.client(acme.token), world.client(other.token)
    headers = {"X-Correlation-ID": "shared-label"}
    renamed = await owner.patch(f"/api/v1/projects/{foreign}", json={"display_name": "hidden"}, headers=headers)
    assert renamed.status_code == 200
    given = {"user_id": other.admin_id, "role": "project_viewer"}
    assert (await thief.post(f"/api/v1/projects/{project}/memberships", json=given)).status_code == 404
    assert (await thief.post(f"/api/v1/projects/{foreign}/memberships", json=given)).status_code == 404
    for query in (
        "events?correlation_id=shared-label",
        f"audit?actor_id={other.admin_id}",
        "audit?correlation_id=shared-label",
        "deliveries?webhook_id=whk_" + "0" * 26,
    ):
        for place in (f"tenants/{acme.id}", f"projects/{project}"):
            assert (await thief.get(f"/api/v1/{place}/{query}")).json()["items"] == [], query
    cursor = base64.urlsafe_b64encode(b"p1|project|").decode().rstrip("=")
    listed = (await thief.get(f"/api/v1/projects?cursor={cursor}")).json()["items"]
    assert [each["id"] for each in listed] == [project]


# Races ---------------------------------------------------------------------------------------------------------------


async def test_a_one_time_code_that_is_used_twice_at_once_signs_in_once(world: World) -> None:
    acme = await world.tenant("acme")
    body = {"email": "vera@acme.example", "display_name": "Vera"}
    code = (await world.client(acme.token).post(f"/api/v1/tenants/{acme.id}/users", json=body)).json()["one_time_code"]
    offered = {"tenant": "acme", "email": "vera@acme.example", "one_time_code": code, "new_password": NEW_PASSWORD}
    answers = await asyncio.gather(*(world.client().post("/api/v1/sign-in", json=offered) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7


async def test_an_assertion_that_is_exchanged_twice_at_once_is_exchanged_once(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    owner = world.client(acme.token)
    private, public = new_key_pair()
    path = f"/api/v1/projects/{project}/service-accounts"
    body = {"name": "robot", "actions": ["project.read"], "public_key": base64.b64encode(public).decode()}
    account = (await owner.post(path, json=body)).json()["id"]
    key = (await owner.get(f"{path}/{account}/keys")).json()["items"][0]["id"]
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
        "assertion": assertion(account, key, private, f"{world.running.url}/api/v1/oauth/token"),
    }
    answers = await asyncio.gather(*(world.client().post("/api/v1/oauth/token", data=form) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7


async def test_two_admins_who_disable_each_other_at_once_leave_one(world: World) -> None:
    acme = await world.tenant("acme")
    other = world.client(await world.member(acme, None, "tenant_admin", "other"))
    other_id = (await other.get("/api/v1/whoami")).json()["id"]
    users = f"/api/v1/tenants/{acme.id}/users"
    answers = await asyncio.gather(
        world.client(acme.token).post(f"{users}/{other_id}/disable"), other.post(f"{users}/{acme.admin_id}/disable")
    )
    assert sorted(answer.status_code for answer in answers) in ([200, 409], [200, 401])


async def test_two_rotations_of_the_master_key_at_once_lose_no_secret(world: World) -> None:
    acme = await world.tenant("acme")
    body = {"name": "kept"}
    headers = {"Idempotency-Key": "kept"}
    first = await world.client(acme.token).post("/api/v1/tokens", json=body, headers=headers)
    settings = world.running.settings
    rotations = [rotate_master_key(settings.database_url, settings.master_key_path) for _ in range(3)]
    done = await asyncio.gather(*rotations, return_exceptions=True)
    assert [type(each) for each in done].count(MasterKeyRefused) == 2
    repeated = await world.client(acme.token).post("/api/v1/tokens", json=body, headers=headers)
    assert (repeated.status_code, repeated.json()) == (201, first.json())


async def test_streams_that_are_opened_at_once_are_counted_one_by_one(settings: Settings) -> None:
    async with running_platform(replace(settings, streams_per_principal=3)) as running:
        world = World(running, running.client())
        world.admin.headers["Authorization"] = f"Bearer {await world.sign_in('admin@mooring.local', running.code)}"
        opened = 0

        async def follow() -> str:
            nonlocal opened
            async with world.admin.stream("GET", "/api/v1/platform/events/stream?cursor=beginning") as answer:
                text = ""
                async for piece in answer.aiter_text():
                    text += piece
                    if answer.status_code == 200 and "identity." in text:
                        opened += 1
                        await asyncio.Event().wait()
                return text

        tasks = [asyncio.create_task(follow()) for _ in range(12)]
        done: set[Any] = set()
        async with asyncio.timeout(60):
            while len(done) < 9:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=0.2)
        assert opened <= 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await world.close()


# Odd input -----------------------------------------------------------------------------------------------------------


async def test_a_nul_in_an_id_is_an_id_that_nothing_has(world: World) -> None:
    acme = await world.tenant("acme")
    owner = world.client(acme.token)
    for path in ("/api/v1/projects/%00", "/api/v1/projects/prj%00/memberships", f"/api/v1/tenants/{acme.id}/users/%00"):
        assert (await owner.get(path)).status_code == 404, path


async def test_a_time_that_no_clock_shows_is_refused(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    owner = world.client(acme.token)
    path = f"/api/v1/projects/{project}/service-accounts"
    account = (await owner.post(path, json={"name": "robot", "actions": ["project.read"]})).json()["id"]
    body = {"public_key": public_key(), "expires_at": "9999-12-31T23:59:59-23:59"}
    assert (await owner.post(f"{path}/{account}/keys", json=body)).status_code == 422


async def test_an_error_does_not_repeat_all_that_was_sent(world: World) -> None:
    acme = await world.tenant("acme")
    project = await world.project(acme, "train")
    path = f"/api/v1/projects/{project}/memberships"
    for body in ({"user_id": acme.admin_id, "role": "x" * 500_000}, {"y" * 500_000: 1}):
        answer = await world.client(acme.token).post(path, json=body)
        assert answer.status_code == 422
        assert len(answer.content) < 3_000


async def test_a_form_of_many_fields_is_refused_before_it_is_taken_apart(world: World) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for count, status in ((20, 422), (21, 400), (100_000, 400)):
        body = b"&".join(b"f%d=" % number for number in range(count))
        answer = await world.client().post("/api/v1/oauth/token", content=body, headers=headers)
        assert answer.status_code == status, count


async def test_a_caller_who_reads_nothing_of_its_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "UNREAD_SECONDS_MAX", 0.2)

    async def large(scope: dict[str, Any], receive: Any, send: Any) -> None:
        body = b"x" * 8_000_000
        headers = {"content-length": str(len(body))}
        await send({"type": ANSWER, "status": 200, "headers": headers, "body": body})

    async with serve(large, timeout_keep_alive=0.1) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served._port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4)
        connections = served.server.server_state.connections
        await until(lambda: connections)
        await until(lambda: not connections)
        writer.close()


@dataclass
class SlowCaller:
    """A caller whom more is owed than is on its way, and its connection, which is looked at when the test says so."""

    reader: asyncio.StreamReader
    connection: http.HttpConnection
    transport: asyncio.Transport

    def look_later(self, *, held_up: bool = False) -> None:
        """More than the time that is granted has passed since the caller last took something, and the look is due."""
        now = asyncio.get_running_loop().time()
        self.connection._unread_since = now - http.UNREAD_SECONDS_MAX - 1
        # Either this process was held up all the time, or the look is not late, whatever holds it up.
        self.connection._next_check_at = now + http.UNREAD_SECONDS_MAX * (-1 if held_up else 1)
        self.connection._check_timeouts()

    async def is_cut_off(self) -> None:
        """It is, once the kernel takes nothing more for it."""

        def is_closing() -> bool:
            if not self.transport.is_closing():
                self.look_later()
            return self.transport.is_closing()

        await until(is_closing)


@asynccontextmanager
async def slow_caller(size: int) -> AsyncIterator[SlowCaller]:
    """A caller that has read the head of an answer, and nothing of its body."""

    async def large(scope: dict[str, Any], receive: Any, send: Any) -> None:
        headers = {"content-length": str(size)}
        await send({"type": ANSWER, "status": 200, "headers": headers, "body": b"x" * size})

    async with serve(large, timeout_keep_alive=600) as served:
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        small.connect(("127.0.0.1", served._port))
        reader, writer = await asyncio.open_connection(sock=small)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = served.server.server_state.connections
        assert isinstance(connection, http.HttpConnection)
        assert connection._transport is not None
        connection._check_timeouts()  # from here on it knows how much is owed
        assert connection._unread > 0
        yield SlowCaller(reader, connection, connection._transport)
        writer.close()


async def test_a_caller_who_reads_slowly_gets_all_of_its_answer() -> None:
    """The whole time that is granted passes while each piece is taken: nobody waits for it here."""
    size, read, looks = 24_000_000, 0, 0
    async with slow_caller(size) as slow:
        while read < size:
            while read < size and slow.connection.unread_bytes >= slow.connection._unread:
                piece = await slow.reader.read(1_000_000)
                assert piece, "cut off"
                read += len(piece)
            slow.look_later()
            looks += 1
            assert not slow.transport.is_closing(), "cut off"
    assert read == size
    assert looks > 2, "all of it was on its way before the caller had read anything"


async def test_a_caller_who_could_take_nothing_because_the_server_was_held_up_is_not_cut_off() -> None:
    async with slow_caller(24_000_000) as slow:
        slow.look_later(held_up=True)
        assert not slow.transport.is_closing()
        await slow.is_cut_off()


async def test_a_caller_who_stops_reading_in_the_middle_is_cut_off() -> None:
    async with slow_caller(24_000_000) as slow:
        while slow.connection.unread_bytes >= slow.connection._unread:
            assert await slow.reader.read(1_000_000)
        slow.look_later()
        assert not slow.transport.is_closing()
        await slow.is_cut_off()


async def test_nothing_is_made_in_a_project_while_it_is_deleted(world: World) -> None:
    acme = await world.tenant("acme")
    admin = world.client(acme.token)
    for number in range(12):
        project = f"/api/v1/projects/{await world.project(acme, f'p{number:02}x')}"
        body = {"name": "robot", "actions": ["project.read"]}
        made, deleted = await asyncio.gather(
            admin.post(f"{project}/service-accounts", json=body), admin.delete(project)
        )
        assert (made.status_code, deleted.status_code) in {(201, 409), (404, 204)}
