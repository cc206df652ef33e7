"""Checks of artifacts by the public API, against a source on loopback that sends its bytes when the test lets it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from mooring.commands.catalog.artifact_check import hand_back
from mooring.settings import Settings
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.artifact_check import CheckWorker
from server.tests.conftest import Running, TenantWithAdmin, World, running_platform
from server.tests.support.registry_adversary import Adversary, Asked, head, serve, stalls_after, status
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PIECE = 1_048_576
WEIGHTS = b"".join(bytes([number]) * PIECE for number in range(8))
WHY = "because the tests say so"
ENDED = "succeeded,failed,cancelled"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class ContentGate:
    """Content that goes out piece by piece, each when it is let."""

    content: bytes
    pieces: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    reads: int = 0

    def let(self, count: int) -> None:
        for _ in range(count):
            self.pieces.release()

    def open(self) -> None:
        """Everything goes out from now on, to anybody."""
        self.let(100_000)

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=len(self.content)))
        if asked.method == "HEAD":
            return
        self.reads += 1
        for begin in range(0, len(self.content), PIECE):
            await self.pieces.acquire()
            writer.write(self.content[begin : begin + PIECE])
            await writer.drain()


@dataclass(frozen=True)
class Port:
    """A platform, a project in it, and a source that the platform allows."""

    world: World
    tenant: TenantWithAdmin
    project_id: str
    source: Adversary
    stack: AsyncExitStack

    @property
    def path(self) -> str:
        return f"/api/v1/projects/{self.project_id}/artifacts"

    @property
    def running(self) -> Running:
        return self.world.running

    async def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        async with self.running.client(self.tenant.token) as client:
            return await client.request(method, path, json=body)

    async def do(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json()

    async def refused(self, method: str, path: str, body: object = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.status_code >= 400, answer.text
        return answer.json()

    def blob(self, name: str = "weights", digest: str | None = None) -> dict[str, str]:
        return {"kind": "blob", "location": f"s3://models/{name}", "digest": digest or digest_of(WEIGHTS)}

    def gate(self, content: bytes = WEIGHTS, name: str = "weights") -> ContentGate:
        made = ContentGate(content)
        self.source.routes[f"/models/{name}"] = made
        return made

    async def registered(self, wait: int = 0) -> Any:
        return await self.do("POST", f"{self.path}?wait={wait}", self.blob())

    def check_path(self, artifact: Any) -> str:
        return f"{self.path}/{artifact['id']}/checks/{artifact['check']['id']}"

    async def ended(self, artifact: Any) -> Any:
        return await self.until(self.check_path(artifact), ENDED)

    async def until(self, path: str, states: str) -> Any:
        """The check, once it is in one of these states."""
        async with asyncio.timeout(60):
            while True:
                check = await self.do("GET", f"{path}?wait=20&until={states}")
                if check["status"] in states.split(","):
                    return check

    async def read_more(self, artifact: Any, count: int) -> Any:
        """The check, once it reports so many bytes."""
        path, check = self.check_path(artifact), artifact["check"]
        async with asyncio.timeout(60):
            while check["bytes_done"] < count:
                check = await self.do("GET", f"{path}?wait=20&changed_from={check['etag']}")
        return check

    async def steps(self, check_id: str) -> list[str]:
        """Every transition of a check."""
        found = await self.running.platform.services.database.fetch(
            PLATFORM,
            "SELECT trigger FROM transition WHERE machine = 'artifact_check' AND subject_id = $1 ORDER BY generation",
            check_id,
        )
        return [row["trigger"] for row in found]

    async def another(self) -> Running:
        """One more replica on the same database."""
        return await self.stack.enter_async_context(running_platform(self.running.settings))


@pytest.fixture
async def port(settings: Settings, hostile: Adversary) -> AsyncIterator[Port]:
    settings = replace(settings, source_bucket_endpoint=hostile.url, source_timeout_seconds=120.0)
    async with running_platform(settings) as running, AsyncExitStack() as stack:
        admin = World(running, running.client())
        token = await admin.sign_in("admin@mooring.local", running.code)
        world = World(running, running.client(token))
        body = {"name": "models", "pattern": "s3://models/*", "reaches_private": True}
        made = await world.admin.post("/api/v1/platform/artifact-sources", json=body)
        assert made.status_code == 201, made.text
        tenant = await world.tenant("acme")
        yield Port(world, tenant, await world.project(tenant, "train"), hostile, stack)
        await world.close()
        await admin.close()


async def test_a_small_blob_is_registered_and_checked_within_the_request(port: Port) -> None:
    port.source.routes["/models/weights"] = serve(WEIGHTS)
    made = await port.do("POST", port.path, port.blob())
    assert (made["trust"], made["size_bytes"], made["doubts"]) == ("verified", len(WEIGHTS), [])
    check = made["check"]
    assert (check["name"], check["status"], check["bytes_done"]) == ("content", "succeeded", len(WEIGHTS))
    assert (check["bytes_total"], check["attempts"], check["passed"]) == (len(WEIGHTS), 1, True)
    assert (await port.refused("POST", port.path, port.blob()))["code"] == "name_taken"


async def test_a_large_blob_is_accepted_at_once_and_its_progress_is_seen_to_grow(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    assert (made["trust"], made["size_bytes"], made["check"]["bytes_done"]) == ("unverified", 0, 0)
    assert made["check"]["status"] in ("accepted", "running")
    assert made["check"]["bytes_total"] == len(WEIGHTS)
    seen = []
    for more, pieces in ((1, 1), (2, 3), (3, 6)):
        gate.let(more)
        seen.append((await port.read_more(made, pieces * PIECE))["bytes_done"])
    assert seen == [PIECE, 3 * PIECE, 6 * PIECE]
    unready = await port.do("GET", f"{port.path}/{made['id']}")
    assert (unready["trust"], unready["check"]["status"]) == ("unverified", "running")
    gate.open()
    ended = await port.ended(made)
    assert (ended["status"], ended["bytes_done"], ended["failure_code"]) == ("succeeded", len(WEIGHTS), None)
    ready = await port.do("GET", f"{port.path}/{made['id']}")
    assert (ready["trust"], ready["size_bytes"]) == ("verified", len(WEIGHTS))
    assert await port.steps(ended["id"]) == ["birth", "start", "succeed"]


async def test_other_bytes_refuse_the_registration_and_what_failed_is_kept(port: Port) -> None:
    port.source.routes["/models/weights"] = serve(b"something else")
    refusal = await port.refused("POST", port.path, port.blob())
    assert (refusal["code"], refusal["details"]["found"]) == ("digest_mismatch", digest_of(b"something else"))
    artifact = await port.do("GET", f"{port.path}/{refusal['details']['artifact_id']}")
    assert (artifact["promotion"], artifact["trust"]) == ("draft", "rejected")
    (check,) = (await port.do("GET", f"{port.path}/{artifact['id']}/checks"))["items"]
    assert (check["status"], check["failure_code"], check["passed"]) == ("failed", "digest_mismatch", False)
    assert digest_of(b"something else") in check["detail"]
    evidence = await port.do("GET", f"{port.path}/{artifact['id']}/evidence")
    assert [(each["name"], each["passed"]) for each in evidence["checks"]] == [("content", False)]


async def test_registering_again_what_could_not_be_read_tries_again(port: Port) -> None:
    port.source.routes["/models/weights"] = serve(b"something else")
    first = await port.refused("POST", port.path, port.blob())
    port.source.routes["/models/weights"] = serve(WEIGHTS)
    made = await port.do("POST", port.path, port.blob())
    assert (made["id"], made["trust"]) == (first["details"]["artifact_id"], "verified")
    checks = (await port.do("GET", f"{port.path}/{made['id']}/checks"))["items"]
    assert [each["status"] for each in checks] == ["succeeded", "failed"]


async def test_what_the_source_does_not_have_leaves_nothing_behind(port: Port) -> None:
    port.source.routes["/models/weights"] = status(404)
    assert (await port.refused("POST", port.path, port.blob()))["code"] == "artifact_not_found_at_source"
    assert (await port.do("GET", port.path))["items"] == []


async def test_a_source_that_refuses_head_requests_is_still_read(port: Port) -> None:
    served = serve(WEIGHTS)

    async def only_get(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (status(403) if asked.method == "HEAD" else served)(asked, writer)

    port.source.routes["/models/weights"] = only_get
    made = await port.do("POST", port.path, port.blob())
    assert (made["trust"], made["size_bytes"]) == ("verified", len(WEIGHTS))


async def test_verifying_joins_the_check_that_is_under_way(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    joined = await port.do("POST", f"{port.path}/{made['id']}/verify?wait=0")
    assert joined["check"]["id"] == made["check"]["id"]
    gate.open()
    await port.ended(made)
    again = await port.do("POST", f"{port.path}/{made['id']}/verify")
    assert (again["check"]["id"] != made["check"]["id"], again["trust"]) == (True, "verified")


async def test_a_check_is_cancelled_and_reading_stops(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    gate.let(1)
    await port.read_more(made, PIECE)
    cancelled = await port.do("POST", f"{port.check_path(made)}/cancel")
    assert (cancelled["status"], cancelled["allowed_actions"]) == ("cancelled", [])
    await port.running.platform.services.checks.drain()  # the holder finds out by itself
    gate.open()
    assert (await port.refused("POST", f"{port.check_path(made)}/cancel"))["code"] == "illegal_transition"
    assert await port.steps(made["check"]["id"]) == ["birth", "start", "cancel"]
    assert (await port.do("GET", f"{port.path}/{made['id']}"))["trust"] == "unverified"
    assert (await port.do("POST", f"{port.path}/{made['id']}/verify"))["trust"] == "verified"


async def test_an_artifact_that_is_revoked_meanwhile_is_read_no_further_and_stays_revoked(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    gate.let(1)
    await port.read_more(made, PIECE)
    owner = f"/api/v1/projects/{port.project_id}/artifacts/{made['id']}"
    assert (await port.do("POST", f"{owner}/revoke", {"reason": WHY}))["trust"] == "revoked"
    ended = await port.ended(made)
    assert (ended["status"], ended["detail"]) == ("cancelled", "the artifact was revoked")
    gate.open()
    await port.running.platform.services.checks.drain()
    assert (await port.do("GET", owner))["trust"] == "revoked"
    assert (await port.do("GET", f"{owner}/evidence"))["evidence"] == []


async def test_an_artifact_that_is_withdrawn_meanwhile_is_read_no_further(port: Port) -> None:
    port.gate()
    made = await port.registered()
    withdrawn = await port.do("POST", f"{port.path}/{made['id']}/promote", {"move": "withdraw", "reason": WHY})
    assert withdrawn["promotion"] == "retired"
    assert (await port.ended(made))["detail"] == "the artifact is retired"
    await port.running.platform.services.checks.drain()


async def test_a_repetition_under_the_same_key_waits_for_the_same_check(port: Port) -> None:
    gate = port.gate()
    async with port.running.client(port.tenant.token) as client:
        key = {"Idempotency-Key": "the-same"}
        first = await client.post(f"{port.path}?wait=0", json=port.blob(), headers=key)
        gate.open()
        await port.ended(first.json())
        second = await client.post(f"{port.path}?wait=0", json=port.blob(), headers=key)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.headers["idempotency-replayed"] == "true"
    assert first.json()["check"]["id"] == second.json()["check"]["id"]
    assert second.json()["trust"] == "verified"
    assert gate.reads == 1


async def test_staging_says_that_its_check_goes_on_and_is_made_when_that_has_ended(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    gate.let(len(WEIGHTS) // PIECE)
    await port.ended(made)
    path = f"{port.path}/{made['id']}"
    body = {"move": "stage", "reason": WHY}
    # a project's artifact is promoted by the tenant's admin, who acts in the project
    refusal = await port.refused("POST", f"{path}/promote?wait=0", body)
    assert refusal["code"] == "check_running"
    again = await port.refused("POST", f"{path}/promote?wait=0", body)
    assert again["details"]["check_id"] == refusal["details"]["check_id"]
    gate.open()
    check = await port.until(f"{path}/checks/{refusal['details']['check_id']}", ENDED)
    assert (check["name"], check["status"], check["bytes_done"]) == ("smoke", "succeeded", len(WEIGHTS))
    assert (await port.do("POST", f"{path}/promote", body))["promotion"] == "staged"
    assert gate.reads == 2


async def test_a_staging_that_failed_by_the_source_is_kept_too(port: Port) -> None:
    port.source.routes["/models/weights"] = serve(WEIGHTS)
    made = await port.do("POST", port.path, port.blob())
    port.source.routes["/models/weights"] = status(500)
    path = f"{port.path}/{made['id']}"
    refusal = await port.refused("POST", f"{path}/promote", {"move": "stage", "reason": WHY})
    assert refusal["code"] == "source_unreachable"
    newest = (await port.do("GET", f"{path}/checks"))["items"][0]
    assert (newest["name"], newest["status"], newest["failure_code"]) == ("smoke", "failed", "source_unreachable")
    assert port.source.authority in newest["detail"]


async def test_the_end_of_a_check_is_an_event(port: Port) -> None:
    port.source.routes["/models/weights"] = serve(WEIGHTS)
    made = await port.do("POST", port.path, port.blob())
    place, cursor = f"/api/v1/projects/{port.project_id}/events", ""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while not found:
            page = await port.do("GET", f"{place}?wait=10{cursor}")
            found = [each for each in page["items"] if each["type"] == "catalog.artifact_check.ended"]
            cursor = f"&cursor={page['next_cursor']}"
    assert (found[0]["subject_id"], found[0]["data"]["status"]) == (made["check"]["id"], "succeeded")
    assert found[0]["data"]["artifact_id"] == made["id"]


@pytest.fixture
async def impatient(settings: Settings, hostile: Adversary) -> AsyncIterator[Port]:
    """As `port`, with little patience for silence in a check, and for nothing else: that is what is tried."""
    settings = replace(settings, source_bucket_endpoint=hostile.url, source_timeout_seconds=60.0)
    async with running_platform(settings) as running, AsyncExitStack() as stack:
        reader = running.platform.services.artifacts
        reader._patience_of_checks = replace(
            reader._patience_of_checks, answer_seconds=60.0, window_seconds=1.0, silence_seconds=2.0
        )
        admin = World(running, running.client())
        token = await admin.sign_in("admin@mooring.local", running.code)
        world = World(running, running.client(token))
        body = {"name": "models", "pattern": "s3://models/*", "reaches_private": True}
        assert (await world.admin.post("/api/v1/platform/artifact-sources", json=body)).status_code == 201
        tenant = await world.tenant("acme")
        yield Port(world, tenant, await world.project(tenant, "train"), hostile, stack)
        await world.close()
        await admin.close()


async def test_a_source_that_falls_silent_in_the_middle_has_a_code_of_its_own(impatient: Port) -> None:
    silent = stalls_after(WEIGHTS, 3 * PIECE)

    async def falls_silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (serve(WEIGHTS) if asked.method == "HEAD" else silent)(asked, writer)

    impatient.source.routes["/models/weights"] = falls_silent
    made = await impatient.registered()
    ended = await impatient.ended(made)
    assert (ended["status"], ended["failure_code"]) == ("failed", "source_stalled")
    assert ended["bytes_done"] == 3 * PIECE
    assert (await impatient.do("GET", f"{impatient.path}/{made['id']}"))["trust"] == "unverified"


async def test_a_transfer_that_breaks_off_again_and_again_is_taken_up_where_it_stopped(port: Port) -> None:
    parts: list[int] = []

    async def breaks(asked: Asked, writer: asyncio.StreamWriter) -> None:
        begin = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        span = f"bytes {begin}-{len(WEIGHTS) - 1}/{len(WEIGHTS)}"
        code = 206 if begin else 200
        writer.write(head(code, content_length=len(WEIGHTS) - begin, content_range=span))
        if asked.method != "HEAD":
            parts.append(begin)
            writer.write(WEIGHTS[begin : begin + PIECE])

    port.source.routes["/models/weights"] = breaks
    made = await port.registered()
    ended = await port.ended(made)
    assert (ended["status"], ended["attempts"], ended["bytes_done"]) == ("succeeded", 1, len(WEIGHTS))
    assert parts == sorted(set(parts))
    assert len(parts) > 4


async def test_of_two_that_hold_one_check_only_the_later_one_ends_it(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    gate.let(1)
    await port.read_more(made, PIECE)
    check_id = made["check"]["id"]
    other = await port.another()
    database = port.running.platform.services.database
    # The first holder is alive, and yet its lease is over: as if its process had been stopped for a while.
    expire = "UPDATE artifact_check SET lease_expires_at = now() - interval '1 hour' WHERE id = $1 RETURNING true"
    assert await database.fetchval(PLATFORM, expire, check_id)
    worker = CheckWorker(other.platform.services)

    async def is_lost() -> bool:
        await database.fetchval(PLATFORM, expire, check_id)  # the holder may have said a word in between
        await worker.tick()
        return "lose_lease" in await port.steps(check_id)

    async def has_begun_again() -> bool:  # after the pause before another attempt
        await worker.tick()
        return (await port.steps(check_id)).count("start") > 1

    await until(is_lost)
    await until(has_begun_again)
    gate.open()
    ended = await port.ended(made)
    await port.running.platform.services.checks.drain()
    await other.platform.services.checks.drain()
    assert (ended["status"], ended["attempts"]) == ("succeeded", 2)
    assert await port.steps(check_id) == ["birth", "start", "lose_lease", "start", "succeed"]
    evidence = await port.do("GET", f"{port.path}/{made['id']}/evidence")
    assert len(evidence["evidence"]) == 1


async def test_a_platform_that_stops_hands_its_checks_back(port: Port) -> None:
    gate = port.gate()
    made = await port.registered()
    gate.let(1)
    await port.read_more(made, PIECE)
    other = await port.another()
    services = port.running.platform.services
    held = await services.checks.close()
    assert [each.id for each in held] == [made["check"]["id"]]
    assert await hand_back(services, held) == 1
    gate.open()
    await CheckWorker(other.platform.services).tick()
    ended = await port.ended(made)
    assert (ended["status"], ended["attempts"]) == ("succeeded", 1)


async def test_slow_sources_of_one_tenant_hold_up_no_other(port: Port) -> None:
    made = []
    for number in range(3):
        port.gate(name=f"slow-{number}")  # which is never let
        made.append(await port.do("POST", f"{port.path}?wait=0", port.blob(f"slow-{number}")))
    for each in made[:2]:
        await port.until(port.check_path(each), "running")
    worker = CheckWorker(port.running.platform.services)
    await worker.tick()
    assert (await port.do("GET", port.check_path(made[2])))["status"] == "accepted", "half of the room is others'"
    port.source.routes["/models/quick"] = serve(WEIGHTS)
    other = await port.world.tenant("other")
    async with port.running.client(other.token) as client:
        answer = await client.post(f"/api/v1/tenants/{other.id}/artifacts", json=port.blob("quick"))
    assert (answer.status_code, answer.json()["trust"]) == (201, "verified")


async def test_what_finds_no_room_waits_and_is_taken_up_by_a_worker(port: Port) -> None:
    gates = [port.gate(name=f"weights-{number}") for number in range(5)]
    made = [await port.do("POST", f"{port.path}?wait=0", port.blob(f"weights-{number}")) for number in range(5)]
    statuses = [(await port.do("GET", port.check_path(each)))["status"] for each in made]
    assert statuses.count("accepted") >= 1, "the process reads at most four at once, two of one tenant"
    for gate in gates:
        gate.open()
    services = port.running.platform.services
    worker = CheckWorker(services)
    async with asyncio.timeout(60):
        while {(await port.do("GET", port.check_path(each)))["status"] for each in made} != {"succeeded"}:
            await services.checks.drain()
            await worker.tick()
