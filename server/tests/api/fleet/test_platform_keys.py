"""A key that signs tasks and is retired: its private half is gone, and idle nodes learn of it; the root key vouches."""

import asyncio

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from server.tests.conftest import World
from server.tests.support.agent_double import decoded, joined_agent
from server.tests.support.root_key import ROOT, ROOT_KEY, signed
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

KEYS = "/api/v1/platform/task-signing-keys"
PRIVATE_HALVES = "SELECT count(*) FROM secret WHERE purpose = 'task_signing'"


async def private_halves(world: World) -> int:
    return int(await world.running.platform.services.database.fetchval(PLATFORM, PRIVATE_HALVES))


async def test_the_private_half_of_a_retired_key_is_deleted(world: World) -> None:
    for _ in range(3):
        assert (await world.admin.post(f"{KEYS}/rotate")).status_code == 201
    assert await private_halves(world) == 1
    for _ in range(2):
        prepared = (await world.admin.post(f"{KEYS}/prepare")).json()
    assert await private_halves(world) == 2, "a key that was prepared and replaced leaves nothing"
    assert (await world.admin.post(f"{KEYS}/install", json=signed(prepared))).status_code == 201
    assert await private_halves(world) == 1


async def test_an_idle_node_hears_of_a_rotation_and_of_the_root_key(world: World) -> None:
    agent = await joined_agent(world.client(), world.admin)
    await agent.poll(wait_seconds=0.1)
    waits = asyncio.create_task(agent.poll(wait_seconds=60))
    await until(lambda: world.running.platform.tools.dispatcher.waiting == 1)
    made = (await world.admin.post(f"{KEYS}/rotate")).json()
    async with asyncio.timeout(30):
        heard = await waits
    assert [key["key_id"] for key in heard["keys"]] == [made["key_id"]]
    root = heard["root_key"]
    statement = f"mooring-root-key-v1\n{agent.audience}\n{ROOT_KEY}".encode()
    signer = Ed25519PublicKey.from_public_bytes(decoded(made["public_key"]))
    signer.verify(decoded(root["signature"]), statement)
    assert (root["public_key"], root["signed_by"]) == (ROOT_KEY, made["key_id"])
    assert heard["tasks"] == []


async def test_a_prepared_key_is_put_into_use_with_the_root_keys_signature_alone(world: World) -> None:
    agent = await joined_agent(world.client(), world.admin)
    prepared = (await world.admin.post(f"{KEYS}/prepare")).json()
    forged = await world.admin.post(f"{KEYS}/install", json=signed(prepared, Ed25519PrivateKey.generate()))
    assert (forged.status_code, forged.json()["code"]) == (422, "signature_key_unknown")
    listed = (await world.admin.get(KEYS)).json()["items"]
    assert len(listed) == 1, "what is only prepared is announced to nobody"
    installed = await world.admin.post(f"{KEYS}/install", json=signed(prepared))
    assert installed.status_code == 201, installed.text
    again = await world.admin.post(f"{KEYS}/install", json=signed(prepared))
    assert (again.status_code, again.json()["code"]) == (404, "not_found")
    for _ in range(9):
        await world.admin.post(f"{KEYS}/rotate")
    await agent.poll(wait_seconds=2.5)
    heard = (await agent.poll(wait_seconds=0.1))["keys"]
    assert heard[0]["epoch"] == prepared["epoch"], "nodes that were away for many rotations hear of it too"
    ROOT.public_key().verify(decoded(heard[0]["root_signature"]), prepared["document"].encode())
    assert [key["epoch"] for key in heard[1:]] == [None] * 8


async def test_without_a_root_key_nothing_is_prepared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "root_key_bytes", None)
    answer = await world.admin.post(f"{KEYS}/prepare")
    assert (answer.status_code, answer.json()["code"]) == (409, "root_key_missing")
