"""Checks of artifacts in processes as an operator starts them: killed in the middle, and with gigabytes to read."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from server.tests.processes.conftest import execute
from server.tests.support.http_wire import WireClient
from server.tests.support.postgres import SOAK
from server.tests.support.registry_adversary import Adversary, Asked, adversary, head
from server.tests.support.server_process import (
    ServerGroup,
    ServerProcess,
    make_project,
    make_tenant,
    sign_in_first_admin,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

PIECE = 1_048_576
PIECES = 64
ENDED = "succeeded,failed,cancelled"
LARGE_BYTES = (10 if SOAK else 1) * 1024**3
MEMORY_GROWTH_BYTES_MAX = 96 * 1024**2
LEASES_RUN_OUT = "UPDATE artifact_check SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'"


@pytest.fixture
async def source() -> AsyncIterator[Adversary]:
    async with adversary() as made:
        yield made


@pytest.fixture
async def fleet(database_url: str, tmp_path: Path, source: Adversary) -> AsyncIterator[ServerGroup]:
    made = ServerGroup(
        tmp_path,
        {
            "MOORING_DATABASE_URL": database_url,
            "MOORING_SOURCE_BUCKET_ENDPOINT": source.url,
            "MOORING_CHECK_LEASE_SECONDS": "3600",  # nobody loses it by being held up
        },
    )
    yield made
    await made.close()


class Gated:
    """Zeros, of which so many pieces go out as are let."""

    def __init__(self, size: int, pieces: int) -> None:
        self.size = size
        self.left = asyncio.Semaphore(pieces)
        self.reads = 0

    def open(self) -> None:
        for _ in range(1_000_000):
            self.left.release()

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=self.size))
        if asked.method == "HEAD":
            return
        self.reads += 1
        piece = memoryview(bytes(PIECE))
        for begin in range(0, self.size, PIECE):
            await self.left.acquire()
            writer.write(piece[: min(PIECE, self.size - begin)])
            await writer.drain()


def digest_of_zeros(size: int) -> str:
    hashed, piece = hashlib.sha256(), bytes(PIECE)
    for begin in range(0, size, PIECE):
        hashed.update(piece[: min(PIECE, size - begin)])
    return f"sha256:{hashed.hexdigest()}"


@asynccontextmanager
async def a_project(served: ServerProcess) -> AsyncIterator[tuple[str, str]]:
    """The artifacts' path of a project on a platform that allows the source, and its admin's token."""
    admin_token = await sign_in_first_admin(served)
    async with WireClient(served.url, admin_token) as admin:
        body = {"name": "models", "pattern": "s3://models/*", "reaches_private": True}
        await admin.post("/api/v1/platform/artifact-sources", body)
    tenant = await make_tenant(served.url, admin_token, "acme")
    project_id = await make_project(served.url, tenant, "train")
    yield f"/api/v1/projects/{project_id}/artifacts", tenant.token


async def ended(caller: WireClient, path: str) -> Any:
    """The check, once it has ended."""
    async with asyncio.timeout(240):
        while True:
            check = await caller.get(f"{path}?wait=10&until={ENDED}")
            if check["status"] in ENDED.split(","):
                return check


async def begun(caller: WireClient, path: str) -> Any:
    """The check, once it reports bytes."""
    async with asyncio.timeout(60):
        check = await caller.get(path)
        while not check["bytes_done"]:
            check = await caller.get(f"{path}?wait=10&changed_from={check['etag']}")
    return check


async def test_a_check_whose_process_is_killed_in_the_middle_is_ended_by_another(
    fleet: ServerGroup, source: Adversary, database_url: str
) -> None:
    gate = source.routes["/models/weights"] = Gated(PIECES * PIECE, PIECES // 2)
    first = await fleet.start("serve")
    body = {"kind": "blob", "location": "s3://models/weights", "digest": digest_of_zeros(PIECES * PIECE)}
    async with a_project(first) as (path, token):
        async with WireClient(first.url, token) as caller:
            made = await caller.post(f"{path}?wait=0", body)
            check_path = f"{path}/{made['id']}/checks/{made['check']['id']}"
            assert (await begun(caller, check_path))["status"] == "running"
        await first.kill()
        await execute(database_url, LEASES_RUN_OUT)
        second = await fleet.start("serve")
        gate.open()
        async with WireClient(second.url, token) as caller:
            check = await ended(caller, check_path)
            artifact = await caller.get(f"{path}/{made['id']}")
            evidence = await caller.get(f"{path}/{made['id']}/evidence")
    assert (check["status"], check["attempts"], check["bytes_done"]) == ("succeeded", 2, PIECES * PIECE)
    assert (artifact["trust"], artifact["size_bytes"]) == ("verified", PIECES * PIECE)
    assert len(evidence["evidence"]) == 1
    assert gate.reads == 2


async def test_a_check_goes_on_in_a_worker_when_the_process_that_accepted_it_stops_in_good_order(
    fleet: ServerGroup, source: Adversary
) -> None:
    gate = source.routes["/models/weights"] = Gated(PIECES * PIECE, PIECES // 2)
    api = await fleet.start("api")
    body = {"kind": "blob", "location": "s3://models/weights", "digest": digest_of_zeros(PIECES * PIECE)}
    async with a_project(api) as (path, token):
        async with WireClient(api.url, token) as caller:
            made = await caller.post(f"{path}?wait=0", body)
            check_path = f"{path}/{made['id']}/checks/{made['check']['id']}"
            await begun(caller, check_path)
        api.process.terminate()
        await api.ended()
        await fleet.begin("worker")
        gate.open()
        other = await fleet.start("api")
        async with WireClient(other.url, token) as caller:
            check = await ended(caller, check_path)
    assert (check["status"], check["attempts"]) == ("succeeded", 1), "handing back costs no attempt"


async def test_memory_does_not_grow_with_what_is_read(fleet: ServerGroup, source: Adversary) -> None:
    gate = source.routes["/models/weights"] = Gated(LARGE_BYTES, 8)
    served = await fleet.start("serve")
    digest = await asyncio.to_thread(digest_of_zeros, LARGE_BYTES)
    body = {"kind": "blob", "location": "s3://models/weights", "digest": digest}
    async with a_project(served) as (path, token), WireClient(served.url, token) as caller:
        made = await caller.post(f"{path}?wait=0", body)
        check_path = f"{path}/{made['id']}/checks/{made['check']['id']}"
        await begun(caller, check_path)
        before = peak_bytes(served)
        gate.open()
        check = await ended(caller, check_path)
    grown = peak_bytes(served) - before
    print(f"read {check['bytes_done']} bytes; peak memory grew by {grown}")
    assert (check["status"], check["bytes_done"]) == ("succeeded", LARGE_BYTES)
    assert grown < MEMORY_GROWTH_BYTES_MAX


def peak_bytes(served: ServerProcess) -> int:
    """The most memory that the process had so far."""
    status = Path(f"/proc/{served.process.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
