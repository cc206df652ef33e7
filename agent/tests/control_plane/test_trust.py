"""Which keys of the platform an agent trusts: a retired key stays retired, and the root key has the last word."""

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.tests.support.fake_platform import AUDIENCE, CREATE, NODE, FakePlatform, raw
from mooring_agent.agent import Agent, AgentParts
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import ClaimResponse, PlatformKey, RootKey, encode
from mooring_agent.control_plane.platform_client import EnrolmentRequest, enrol
from mooring_agent.control_plane.trust import OVERLAP_SECONDS, read_identity, store_identity
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.verifier import TaskRefused

pytestmark = pytest.mark.anyio

ROOT = Ed25519PrivateKey.generate()


def public(platform: FakePlatform) -> str:
    return encode(raw(platform.key.public_key()))


def made(name: str) -> FakePlatform:
    """A platform, or a thief, that signs with a key of this id."""
    return FakePlatform(Ed25519PrivateKey.generate(), name)


def announced(following: FakePlatform, by: FakePlatform, epoch: int | None = None, root: Any = ROOT) -> PlatformKey:
    """The next key, signed by the one before; with an epoch also by the root key, or by who pretends to be that."""
    signature = by.key.sign(f"mooring-key-v1\n{following.key_id}\n{public(following)}".encode())
    statement = f"mooring-root-v1\n{AUDIENCE}\n{epoch}\n{following.key_id}\n{public(following)}".encode()
    signed = None if epoch is None else encode(root.sign(statement))
    return PlatformKey(following.key_id, public(following), by.key_id, encode(signature), epoch, signed)


def root_key(by: FakePlatform, root: Ed25519PrivateKey = ROOT) -> RootKey:
    shown = encode(raw(root.public_key()))
    return RootKey(shown, by.key_id, encode(by.key.sign(f"mooring-root-key-v1\n{AUDIENCE}\n{shown}".encode())))


@dataclass
class Machine:
    """A machine whose agent can be started again on the state that it left."""

    directory: Path
    now: float = 1_000_000.0
    chain: Sequence[PlatformKey] = ()  # what the platform shows as its whole chain
    agent: Agent = field(init=False)

    async def start(self) -> None:
        identity = read_identity(self.directory)
        assert identity is not None
        parts = AgentParts(
            identity,
            make_keys(),
            SimulatedHost(),
            Journal(":memory:"),
            dict,
            lambda: self.now,
            self.directory,
            transport=httpx.MockTransport(self.respond),
        )
        self.agent = Agent(parts)

    def respond(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/oauth/token"):
            return httpx.Response(200, json={"access_token": "token", "expires_in": 600})
        keys = [{name: getattr(key, name) for name in key.__struct_fields__} for key in self.chain]
        if request.url.path.endswith("/agent/enrolments"):
            root = None if not keys or keys[-1]["epoch"] is None else encode(raw(ROOT.public_key()))
            answer = {"node_id": NODE, "audience": AUDIENCE, "platform_keys": keys, "root_key": root}
            return httpx.Response(201, json=answer)
        return httpx.Response(200, json={"platform_keys": keys})

    async def hears(self, *keys: PlatformKey, root: RootKey | None = None) -> None:
        await self.agent.take(ClaimResponse(keys=keys, root_key=root))

    def believes(self, platform: FakePlatform) -> bool:
        """Whether the agent accepts a task that is signed now."""
        payload = platform.payload("sandbox.create", CREATE, issued_at=self.now, expires_at=self.now + 600)
        try:
            self.agent.verifier.verify(platform.sign(payload), self.now)
        except TaskRefused:
            return False
        return True


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    """A machine; each test enrols it with the key that it trusts at first."""
    machine = Machine(tmp_path)
    yield machine
    await machine.agent.client.close()
    machine.agent.parts.journal.close()


async def enrolled(machine: Machine, *chain: PlatformKey) -> None:
    machine.chain = chain
    request, transport = EnrolmentRequest("machine", "simulated", {}), httpx.MockTransport(machine.respond)
    store_identity(machine.directory, await enrol("http://platform.example", "t", make_keys(), request, transport))
    await machine.start()


async def test_a_stolen_key_is_refused_soon_after_its_successor_and_stays_refused(machine: Machine) -> None:
    first, second, thief = made("key-1"), made("key-2"), made("key-thief")
    await enrolled(machine, PlatformKey(first.key_id, public(first)))
    await machine.hears(announced(second, first))
    machine.now += OVERLAP_SECONDS - 1
    assert (machine.believes(first), machine.believes(second)) == (True, True), "a task may be on its way"
    machine.now += 2
    assert (machine.believes(first), machine.believes(second)) == (False, True)
    await machine.hears(announced(thief, first))
    assert not machine.believes(thief), "a retired key announces nothing"
    await machine.start()
    await machine.hears(PlatformKey(first.key_id, public(first)))
    assert (machine.believes(first), machine.believes(thief)) == (False, False), "an old platform brings nothing back"
    machine.now -= 100_000
    assert not machine.believes(first), "nor does a clock that was set back"


async def test_a_retired_key_announces_nothing_while_its_own_tasks_are_still_accepted(machine: Machine) -> None:
    first, second, thief = made("key-1"), made("key-2"), made("key-thief")
    await enrolled(machine, PlatformKey(first.key_id, public(first)))
    await machine.hears(announced(second, first), announced(thief, first))
    await machine.hears(announced(thief, first))
    assert (machine.believes(first), machine.believes(second), machine.believes(thief)) == (True, True, False)


async def test_the_root_key_takes_the_nodes_back_from_a_thief(machine: Machine) -> None:
    first, thief, second, third = made("key-1"), made("key-thief"), made("key-2"), made("key-3")
    await enrolled(machine, PlatformKey(first.key_id, public(first)))
    await machine.hears(root=root_key(first))
    await machine.hears(announced(thief, first))
    assert machine.believes(thief), "without the root key nothing is left to do"
    await machine.hears(announced(second, first, epoch=20))
    assert [machine.believes(each) for each in (first, thief, second)] == [False, False, True]
    forged = announced(thief, first, epoch=30, root=thief.key)
    await machine.hears(forged, announced(thief, thief), announced(third, first, epoch=20))
    assert not machine.believes(thief)
    assert not machine.believes(third), "an epoch is used once"
    await machine.start()
    await machine.hears(announced(thief, first, epoch=19))
    assert [machine.believes(each) for each in (first, thief, second)] == [False, False, True]
    await machine.hears(announced(third, second))
    assert machine.believes(third), "after that keys follow each other as before"


async def test_the_first_root_key_that_the_current_key_signed_stays(machine: Machine) -> None:
    first, thief, other = made("key-1"), made("key-thief"), Ed25519PrivateKey.generate()
    await enrolled(machine, PlatformKey(first.key_id, public(first)))
    await machine.hears(root=root_key(thief, other))
    assert machine.agent.identity.root_key is None
    await machine.hears(root=root_key(first))
    await machine.hears(root=root_key(first, other))
    await machine.start()
    assert machine.agent.identity.root_key == encode(raw(ROOT.public_key()))


async def test_a_new_node_trusts_the_newest_key_alone_and_knows_the_epoch(machine: Machine) -> None:
    first, second = made("key-1"), made("key-2")
    await enrolled(machine, PlatformKey(first.key_id, public(first)), announced(second, first, epoch=7))
    assert (machine.believes(first), machine.believes(second)) == (False, True)
    await machine.hears(announced(first, second, epoch=7))
    assert (machine.agent.identity.epoch, machine.agent.identity.platform_keys[0].key_id) == (7, "key-2")


async def test_an_identity_that_an_older_agent_wrote_is_read_and_its_old_keys_are_not_trusted(machine: Machine) -> None:
    first, second = made("key-1"), made("key-2")
    keys = [{"key_id": each.key_id, "public_key": public(each)} for each in (first, second)]
    known = {"url": "http://platform.example", "node_id": NODE, "audience": AUDIENCE, "platform_keys": keys}
    (machine.directory / "identity.json").write_text(json.dumps(known))
    await machine.start()
    assert (machine.believes(first), machine.believes(second)) == (False, True)


async def test_an_agent_that_missed_many_rotations_reads_the_whole_chain(machine: Machine) -> None:
    keys = [made(f"key-{number}") for number in range(30)]
    whole = [announced(after, before) for before, after in itertools.pairwise(keys)]
    await enrolled(machine, PlatformKey(keys[0].key_id, public(keys[0])))
    machine.chain = whole
    await machine.hears(*whole[-8:])
    assert [each.key_id for each in keys if machine.believes(each)] == ["key-28", "key-29"]
