"""Two API processes and two workers on one PostgreSQL: what is written through one is seen through the other.

All events are written through the API, by concurrent clients of both processes. A client of the stream is cut off
again and again, wherever it stands, and goes on at the other process with `Last-Event-ID`. What it received is
compared with the table's own order and with what the answers to the writers say is done.
"""

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from server.tests.support.http_wire import StreamEvent, WireClient, stream
from server.tests.support.server_process import (
    ProcessTenant,
    ServerGroup,
    ServerProcess,
    listening,
    make_account,
    make_project,
    make_tenant,
    sign_in_first_admin,
)

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

EVENTS = 10_000
RECONNECTS = 20
WRITERS = 8
TRANSITIONS = 400
ORDER = "SELECT id FROM event WHERE tenant_id = $1 ORDER BY epoch, tx, seq"


@dataclass(frozen=True)
class Replicas:
    """Two API processes, two workers, and a tenant."""

    apis: tuple[ServerProcess, ServerProcess]
    workers: tuple[ServerProcess, ServerProcess]
    tenant: ProcessTenant
    admin_token: str
    connection: asyncpg.Connection

    def url(self, number: int) -> str:
        return self.apis[number % 2].url


@pytest.fixture(scope="module")
async def replicas(module_database_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    directory: Path = tmp_path_factory.mktemp("replicas")
    fleet = ServerGroup(directory, {"MOORING_DATABASE_URL": module_database_url, "MOORING_LOG_LEVEL": "warning"})
    connection = await asyncpg.connect(module_database_url)
    try:
        first = await fleet.start("api")
        begun = [await fleet.begin(command) for command in ("api", "worker", "worker")]
        second = await listening(begun[0])
        admin_token = await sign_in_first_admin(first)
        tenant = await make_tenant(second.url, admin_token, "acme")
        yield Replicas((first, second), (begun[1], begun[2]), tenant, admin_token, connection)
        for worker in begun[1:]:
            assert worker.process.returncode is None, worker.log
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0, worker.log
    finally:
        await connection.close()
        await fleet.close()


def first_difference(shown: list[str], expected: list[str]) -> str | None:
    """Where two long lists part; a difference of thousands of lines would take minutes to print."""
    for index, (one, other) in enumerate(itertools.zip_longest(shown, expected)):
        if one != other:
            return f"{one} instead of {other} at {index}; {len(shown)} shown, {len(expected)} expected"
    return None


async def write(replicas: Replicas, number: int, project_id: str, count: int) -> list[str]:
    """One client of one process; returns the correlation ids of what was acknowledged."""
    acknowledged = []
    async with WireClient(replicas.url(number), replicas.tenant.token) as caller:
        for turn in range(count):
            correlation_id = f"writer-{number}-{turn}"
            headers = {"X-Correlation-ID": correlation_id}
            body = {"display_name": f"renamed {turn} times"}
            (await caller.call("PATCH", f"/api/v1/projects/{project_id}", body, headers)).expect(200)
            acknowledged.append(correlation_id)
    return acknowledged


async def follow_with_interruptions(replicas: Replicas, total: int) -> list[StreamEvent]:
    """Everything from the beginning, over connections that are broken after each part of it."""
    received: list[StreamEvent] = []
    path = f"{replicas.tenant.path}/events/stream"
    for leg in range(RECONNECTS + 1):
        wanted = total * (leg + 1) // (RECONNECTS + 1)
        after = received[-1].cursor if received else "beginning"
        async with stream(replicas.url(leg), replicas.tenant.token, path, after=after) as opened:
            if wanted > len(received):  # a part comes in pieces that may be longer than it
                received += await opened.take(wanted - len(received))
    return received


async def test_a_stream_that_is_cut_off_twenty_times_shows_ten_thousand_events_once_and_in_order(
    replicas: Replicas,
) -> None:
    projects = [await make_project(replicas.url(each), replicas.tenant, f"writer-{each}") for each in range(WRITERS)]
    there_already = len(await replicas.connection.fetch(ORDER, replicas.tenant.id))
    begun = time.monotonic()
    async with asyncio.timeout(600):
        following = asyncio.create_task(follow_with_interruptions(replicas, there_already + EVENTS))
        share = EVENTS // WRITERS
        writers = [write(replicas, number, project, share) for number, project in enumerate(projects)]
        acknowledged = [each for written in await asyncio.gather(*writers) for each in written]
        written_seconds = time.monotonic() - begun
        received = await following
    print(f"{EVENTS / written_seconds:.0f} events/s written, followed in {time.monotonic() - begun:.1f} s")
    in_table = [row["id"] for row in await replicas.connection.fetch(ORDER, replicas.tenant.id)]
    assert first_difference([event.data["id"] for event in received], in_table) is None
    seen = [event.data["correlation_id"] for event in received if event.data["correlation_id"].startswith("writer-")]
    assert first_difference(sorted(seen), sorted(acknowledged)) is None
    assert len(acknowledged) == EVENTS


async def toggle(replicas: Replicas, number: int, path: str, stop_at: int) -> int:
    """Disable and enable one account in a race with others; returns how often this one was faster."""
    won = 0
    async with WireClient(replicas.url(number), replicas.tenant.token) as caller:
        while True:
            for verb in ("disable", "enable"):
                answer = await caller.call("POST", f"{path}/{verb}")
                if answer.status == 200:
                    won += 1
                    if answer.json["generation"] >= stop_at:
                        return won
                else:
                    assert answer.code in ("illegal_transition", "conflict"), answer.body
                    if (await caller.get(path))["generation"] >= stop_at:
                        return won


async def test_writers_that_race_on_one_row_never_show_a_generation_before_the_one_it_follows(
    replicas: Replicas,
) -> None:
    project_id = await make_project(replicas.url(0), replicas.tenant, "raced")
    account_id = await make_account(replicas.url(0), replicas.tenant, project_id, "raced")
    place = f"/api/v1/projects/{project_id}"

    async def follow(number: int) -> list[int]:
        generations: list[int] = []
        url = replicas.url(number)
        async with stream(url, replicas.tenant.token, f"{place}/events/stream", after="beginning") as opened:
            async for event in opened.events():
                if event.data["subject_id"] == account_id:
                    generations.append(event.data["generation"])
                if generations and generations[-1] >= TRANSITIONS:
                    break
        return generations

    async with asyncio.timeout(600):
        following = [asyncio.create_task(follow(number)) for number in range(2)]
        path = f"{place}/service-accounts/{account_id}"
        won = await asyncio.gather(*(toggle(replicas, number, path, TRANSITIONS) for number in range(WRITERS)))
        shown = [await each for each in following]
    assert sum(each > 0 for each in won) > 1, "nobody raced"
    for generations in shown:
        assert generations[: TRANSITIONS + 1] == list(range(TRANSITIONS + 1))
