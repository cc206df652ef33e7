"""How machines join: one token, one node, keys that are proven, and a caller that reaches its own routes alone."""

import asyncio
import base64
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mooring.core.kernel.ids import Prefix, is_id
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import World
from server.tests.support.agents import ENROLMENTS, TOKENS, MachineKeys, encoded, joined, new_token
from server.tests.support.route_requests import fresh_name

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

KEYS = "/api/v1/agent/platform-keys"


async def count(world: World, statement: str, *arguments: object) -> int:
    """One number, as the platform sees it."""
    return int(await world.running.platform.services.database.fetchval(PLATFORM, statement, *arguments))


async def test_a_machine_joins_and_learns_which_keys_to_trust(world: World) -> None:
    client, machine = world.client(), MachineKeys()
    enrolled = await machine.enrol(client, world.admin, labels={"rack": "a7"})
    assert is_id(enrolled["node_id"], Prefix.NODE)
    assert enrolled["audience"].startswith("mooring:key_")
    (key,) = enrolled["platform_keys"]
    assert key["signed_by"] is None
    assert len(key["public_key"]) == 43
    client.headers["Authorization"] = f"Bearer {await machine.token(client)}"
    again = await client.get(KEYS)
    assert again.json() == {"audience": enrolled["audience"], "platform_keys": enrolled["platform_keys"]}


async def test_a_token_is_good_for_one_node(world: World) -> None:
    client, token = world.client(), await new_token(world.admin)
    assert (await client.post(ENROLMENTS, json=MachineKeys().request(token))).status_code == 201
    second = await client.post(ENROLMENTS, json=MachineKeys().request(token))
    assert (second.status_code, second.json()["code"]) == (401, "enrolment_refused")
    assert await count(world, "SELECT count(*) FROM node") == 1


async def test_of_many_machines_that_show_one_token_one_joins(world: World) -> None:
    client, token = world.client(), await new_token(world.admin)
    answers = await asyncio.gather(*(client.post(ENROLMENTS, json=MachineKeys().request(token)) for _ in range(16)))
    assert sorted(answer.status_code for answer in answers) == [201] + [401] * 15
    assert await count(world, "SELECT count(*) FROM node") == 1
    services = world.running.platform.services
    await services.denials.flush(services.database, everything=True)
    assert await count(world, "SELECT sum(count) FROM audit WHERE action = 'node.enrol' AND outcome = 'refused'") == 15


async def test_an_agent_that_missed_the_answer_gets_it_again(world: World) -> None:
    client, machine, token = world.client(), MachineKeys(), await new_token(world.admin)
    answers = await asyncio.gather(*(client.post(ENROLMENTS, json=machine.request(token)) for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["node_id"] for answer in answers}) == 1
    assert await count(world, "SELECT count(*) FROM node") == 1


@pytest.mark.parametrize("wrong", ["proof", "sealing_key", "token", "low_order"])
async def test_what_is_not_proven_is_refused_and_audited(world: World, wrong: str) -> None:
    client, machine, token = world.client(), MachineKeys(), await new_token(world.admin)
    body = machine.request(token)
    if wrong == "proof":
        body["proof"] = encoded(Ed25519PrivateKey.generate().sign(b"something"))
    elif wrong == "sealing_key":
        body["sealing_key"] = MachineKeys().sealing_key
    elif wrong == "token":
        body = machine.request("mrge_" + "x" * 43)
    else:
        body["sealing_key"] = encoded(bytes(32))
    answer = await client.post(ENROLMENTS, json=body, headers={"X-Correlation-ID": f"wrong-{wrong}"})
    assert (answer.status_code, answer.json()["code"]) == (401, "enrolment_refused")
    assert token not in answer.text
    where = "correlation_id = $1 AND action = 'node.enrol' AND outcome = 'refused'"
    assert await count(world, f"SELECT count(*) FROM audit WHERE {where}", f"wrong-{wrong}") == 1
    assert await count(world, "SELECT count(*) FROM node") == 0
    assert (await client.post(ENROLMENTS, json=machine.request(token))).status_code == 201


async def test_a_token_ends_with_its_time_and_when_it_is_revoked(world: World) -> None:
    client, old = world.client(), await new_token(world.admin)
    database = world.running.platform.services.database
    await database.fetchval(PLATFORM, "UPDATE enrolment_token SET expires_at = now() - $1::interval", timedelta(1))
    late = await client.post(ENROLMENTS, json=MachineKeys().request(old))
    assert (late.status_code, late.json()["detail"]) == (401, "the token has expired")
    made = (await world.admin.post(TOKENS, json={"region": "north", "labels": {"rack": "b"}})).json()
    revoked = await world.admin.delete(f"{TOKENS}/{made['id']}")
    assert revoked.status_code == 200, revoked.text
    assert revoked.json()["revoked_at"] is not None
    gone = await client.post(ENROLMENTS, json=MachineKeys().request(made["token"]))
    assert (gone.status_code, gone.json()["detail"]) == (401, "the token was revoked")


async def test_the_secret_of_a_token_is_shown_once_and_kept_nowhere(world: World) -> None:
    key = {"Idempotency-Key": fresh_name("key")}
    made = await world.admin.post(TOKENS, json={}, headers=key)
    again = await world.admin.post(TOKENS, json={}, headers=key)
    assert again.json() == made.json()
    listed = await world.admin.get(TOKENS)
    assert made.json()["token"] not in listed.text
    assert [each["id"] for each in listed.json()["items"]] == [made.json()["id"]]
    database = world.running.platform.services.database
    rows = await database.fetch(PLATFORM, "SELECT data::text FROM event UNION ALL SELECT after::text FROM audit")
    assert made.json()["token"] not in "".join(str(row[0]) for row in rows)


async def test_names_and_keys_are_those_of_one_node(world: World) -> None:
    client, machine = world.client(), await joined(world.client(), world.admin)
    same_name = MachineKeys(name=machine.name).request(await new_token(world.admin))
    answer = await client.post(ENROLMENTS, json=same_name)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    same_key = MachineKeys(signing=machine.signing).request(await new_token(world.admin))
    answer = await client.post(ENROLMENTS, json=same_key)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")


async def test_an_assertion_is_exchanged_once_and_only_for_its_own_node(world: World) -> None:
    client, machine = world.client(), await joined(world.client(), world.admin)
    audience = f"{client.base_url}".rstrip("/") + "/api/v1/oauth/token"
    assertion = machine.assertion(audience)
    first = await machine.exchange(client, assertion)
    assert first.status_code == 200, first.text
    assert first.json()["expires_in"] == 1800
    refused = [assertion, machine.assertion("https://elsewhere.example/api/v1/oauth/token")]
    other = await joined(world.client(), world.admin)
    refused.append(MachineKeys(signing=machine.signing, node_id=other.node_id).assertion(audience))
    refused.append(machine.assertion(audience, exp=1))
    for each in refused:
        answer = await machine.exchange(client, each)
        assert (answer.status_code, answer.json()["code"]) == (401, "assertion_refused")


async def test_a_node_reaches_nothing_but_its_own_routes(world: World) -> None:
    machine = await joined(world.client(), world.admin)
    client = world.client(await machine.token(world.client()))
    tenant = await world.tenant("acme")
    for path, status in (
        ("/api/v1/whoami", 403),
        ("/api/v1/tokens", 403),
        ("/api/v1/projects", 403),
        ("/api/v1/platform/nodes/enrolment-tokens", 403),
        ("/api/v1/tenants", 403),
        (f"/api/v1/tenants/{tenant.id}", 404),
        (KEYS, 200),
    ):
        assert (path, (await client.get(path)).status_code) == (path, status)


async def test_nobody_but_a_node_reaches_the_routes_of_agents(world: World) -> None:
    tenant = await world.tenant("acme")
    assert (await world.admin.get(KEYS)).status_code == 403
    assert (await world.client(tenant.token).get(KEYS)).status_code == 403
    assert (await world.client().get(KEYS)).status_code == 401


async def test_a_next_key_is_signed_by_the_one_before_and_announced(world: World) -> None:
    client, machine = world.client(), MachineKeys()
    enrolled = await machine.enrol(client, world.admin)
    for _ in range(2):
        made = await world.admin.post("/api/v1/platform/task-signing-keys/rotate")
        assert made.status_code == 201, made.text
    client.headers["Authorization"] = f"Bearer {await machine.token(client)}"
    keys = (await client.get(KEYS)).json()
    assert keys["audience"] == enrolled["audience"]
    believed = {enrolled["platform_keys"][0]["key_id"]: enrolled["platform_keys"][0]["public_key"]}
    for key in keys["platform_keys"][1:]:
        signer = Ed25519PublicKey.from_public_bytes(_decoded(believed[key["signed_by"]]))
        signer.verify(_decoded(key["signature"]), f"mooring-key-v1\n{key['key_id']}\n{key['public_key']}".encode())
        believed[key["key_id"]] = key["public_key"]
    assert len(believed) == 3
    assert [key["retired_at"] is None for key in keys["platform_keys"]] == [False, False, True]


async def test_of_many_rotations_at_once_each_follows_another(world: World) -> None:
    answers = await asyncio.gather(*(world.admin.post("/api/v1/platform/task-signing-keys/rotate") for _ in range(6)))
    assert {answer.status_code for answer in answers} == {201}
    keys = (await world.admin.get("/api/v1/platform/task-signing-keys")).json()["items"]
    assert len(keys) == 7
    assert len({key["signed_by"] for key in keys}) == 7
    assert sum(key["retired_at"] is None for key in keys) == 1


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
