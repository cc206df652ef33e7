"""`kill -9` of the embedded PostgreSQL, and of the server above it, under load.

Several clients write through the API, each repeating a write under one Idempotency-Key until it is acknowledged; a
follower reads the event stream and reconnects when it breaks. Whatever was acknowledged must be there afterwards, once,
with one event and one audit row, and the follower must have seen every event once and in order.
"""

import asyncio
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mooring.embedded.cluster import ClusterLayout
from server.tests.support.http_wire import BROKEN, StreamEvent, WireClient, stream
from server.tests.support.server_process import (
    ProcessTenant,
    ServerGroup,
    ServerProcess,
    make_tenant,
    persist,
    sign_in_first_admin,
)
from tests.support.waiting import linger
from tools.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

WRITERS = 6
KILLS = 3
WRITES_BETWEEN_KILLS = 60


@dataclass
class Load:
    """Writers and a follower that run until they are stopped."""

    tenant: ProcessTenant
    url: Callable[[], str]
    acknowledged: dict[str, str] = field(default_factory=dict)  # the slug of a project, and its id
    interruptions: list[int] = field(default_factory=list)  # the statuses of what had to be repeated
    received: list[StreamEvent] = field(default_factory=list)
    _stopping: bool = False
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def write(self, number: int) -> None:
        """One client: a project after the other."""
        for turn in itertools.count():
            if self._stopping:
                return
            slug = f"p-{number}-{turn}"
            async with WireClient(self.url(), self.tenant.token) as caller:
                body = {"slug": slug, "display_name": slug}
                made, before = await persist(caller, "POST", f"{self.tenant.path}/projects", body, key=slug)
            self.acknowledged[slug] = made["id"]
            self.interruptions += before
            self._progress.set()

    async def follow(self) -> None:
        """One client of the stream, which goes on from where it was cut off."""
        path = f"{self.tenant.path}/events/stream"
        while True:
            after = self.received[-1].cursor if self.received else "beginning"
            try:
                async with stream(self.url(), self.tenant.token, path, after=after) as opened:
                    async for batch in opened.batches():
                        self.received += batch
                        self._progress.set()
            except (*BROKEN, AssertionError):  # refused while the database is away
                await linger(0.02)

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for progress."""
        async with asyncio.timeout(180):
            while not reached():
                self._progress.clear()
                await self._progress.wait()

    async def until_acknowledged(self, more: int) -> None:
        """Wait until so many further writes were acknowledged."""
        wanted = len(self.acknowledged) + more
        await self.until(lambda: len(self.acknowledged) >= wanted)

    def stop(self) -> None:
        """Every writer finishes what it is at."""
        self._stopping = True


async def check(load: Load, url: str) -> None:
    """Everything that was acknowledged is there, once, and so are its event and its audit row."""
    async with WireClient(url, load.tenant.token) as caller:
        projects: dict[str, str] = {}
        cursor = ""
        while True:
            page = await caller.get(f"/api/v1/projects?limit=500{cursor}")
            projects |= {each["slug"]: each["id"] for each in page["items"]}
            if not page.get("next_cursor"):
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert projects == load.acknowledged
        audited: list[str] = []
        cursor = ""
        while True:
            page = await caller.get(f"{load.tenant.path}/audit?action=project.create&limit=500{cursor}")
            audited += [each["subject_id"] for each in page["items"]]
            if not page.get("next_cursor"):
                break
            cursor = f"&cursor={page['next_cursor']}"
        assert sorted(audited) == sorted(load.acknowledged.values())
        events: list[str] = []
        cursor = "beginning"
        while True:
            page = await caller.get(f"{load.tenant.path}/events?limit=500&cursor={cursor}")
            events += [each["id"] for each in page["items"]]
            if not page["items"]:
                break
            cursor = page["next_cursor"]
    await load.until(lambda: len(load.received) >= len(events))
    assert [event.data["id"] for event in load.received] == events
    created = [event.data["subject_id"] for event in load.received if event.type == "identity.project.created"]
    assert sorted(created) == sorted(load.acknowledged.values())


def postmaster(directory: Path) -> int:
    """The process id of the server that runs there."""
    return int((ClusterLayout(directory).cluster / "postmaster.pid").read_text().split()[0])


async def test_a_killed_postgresql_comes_back_under_the_server_and_no_acknowledged_write_is_lost_or_doubled(
    open_directory: Path,
) -> None:
    data = open_directory / "data"
    fleet = ServerGroup(open_directory, {"MOORING_DATA_DIR": str(data), "MOORING_LOG_LEVEL": "error"})
    try:
        served = await fleet.start("up")
        tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
        load = Load(tenant, lambda: served.url)
        following = asyncio.create_task(load.follow())
        writing = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
        killed = set()
        for _ in range(KILLS):
            await load.until_acknowledged(WRITES_BETWEEN_KILLS)
            killed.add(postmaster(data))
            os.kill(postmaster(data), signal.SIGKILL)
        await load.until_acknowledged(WRITES_BETWEEN_KILLS)
        load.stop()
        await asyncio.gather(*writing)
        await check(load, served.url)
        following.cancel()
        print(f"{len(load.acknowledged)} writes, of which {len(load.interruptions)} attempts were interrupted")
        assert len(killed) == KILLS, "one was killed twice"
        assert 503 in load.interruptions
        assert 0 not in load.interruptions, "the server itself never went away"
        served.send(signal.SIGTERM)
        assert await served.ended() == 0, served.log
    finally:
        await fleet.close()


async def test_a_killed_server_starts_again_on_its_data_and_no_acknowledged_write_is_lost_or_doubled(
    open_directory: Path,
) -> None:
    data = open_directory / "data"
    ports = {"MOORING_LISTEN_PORT": str(free_port()), "MOORING_RELAY_LISTEN_PORT": str(free_port())}
    fleet = ServerGroup(open_directory, {"MOORING_DATA_DIR": str(data), "MOORING_LOG_LEVEL": "error"} | ports)
    try:
        served: ServerProcess = await fleet.start("up")
        tenant = await make_tenant(served.url, await sign_in_first_admin(served), "acme")
        load = Load(tenant, lambda: served.url)
        following = asyncio.create_task(load.follow())
        writing = [asyncio.create_task(load.write(number)) for number in range(WRITERS)]
        for _ in range(2):
            await load.until_acknowledged(WRITES_BETWEEN_KILLS)
            await served.kill()
            served = await fleet.start("up")
        await load.until_acknowledged(WRITES_BETWEEN_KILLS)
        load.stop()
        await asyncio.gather(*writing)
        await check(load, served.url)
        following.cancel()
        assert 0 in load.interruptions, "the kill hit nobody"
        served.send(signal.SIGTERM)
        assert await served.ended() == 0, served.log
    finally:
        await fleet.close()
