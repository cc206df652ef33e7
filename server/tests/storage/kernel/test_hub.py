"""The hub on a real database: every follower sees every event, once and in order, whatever others are doing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from mooring.core.kernel.decision import AuditRecord, Decision, EventRecord
from mooring.core.kernel.event import BEGINNING, Event, StreamPosition
from mooring.core.kernel.event_types import EventType
from mooring.storage.kernel import event as events
from mooring.storage.kernel import hub as hub_module
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.event import EventSelection
from mooring.storage.kernel.hub import EventHub
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import context
from tests.support.waiting import turns, until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

ALL = EventSelection()
PATIENCE_SECONDS = 120.0
WRITE_BY_HAND = """
INSERT INTO event (id, type, noun, subject_id, tenant_id, actor_kind, actor_id, correlation_id, trace_id, occurred_at)
VALUES ($1, 'identity.tenant.updated', 'tenant', $1, $2, 'system', 'system', 'by-hand', 'by-hand', now())"""
IDS = "SELECT id FROM event ORDER BY epoch, tx, seq"

Connect = Callable[[], Awaitable[asyncpg.Connection]]


@pytest.fixture
async def hub(database: Database) -> AsyncIterator[EventHub]:
    opened = EventHub(database)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def connect(database_url: str) -> AsyncIterator[Connect]:
    """Connections of the test's own."""
    made: list[asyncpg.Connection] = []

    async def new() -> asyncpg.Connection:
        made.append(await asyncpg.connect(database_url))
        return made[-1]

    yield new
    for connection in made:
        connection.terminate()


async def happen(database: Database, subject: str, *, tenant: str | None = None, project: str | None = None) -> None:
    """Write one event, by the one write path."""
    happened = EventRecord(EventType.TENANT_UPDATED, "tenant", subject, tenant, project)
    audited = AuditRecord("tenant.update", "tenant", subject, tenant)
    await apply(database, PLATFORM, context(), Decision(None, events=(happened,), audits=(audited,)))


async def follow(
    hub: EventHub, count: int, selection: EventSelection = ALL, after: StreamPosition = BEGINNING
) -> list[Event]:
    """So many events, as a stream reads them."""
    found: list[Event] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            batch, after = await hub.read(selection, after, 7)
            found += batch
            if not batch:
                await hub.wait(after, PATIENCE_SECONDS)
    return found


async def until_seen(hub: EventHub, subject: str) -> None:
    """Return once the hub has read an event about the subject."""
    place = BEGINNING
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            batch, place = await hub.read(ALL, place, 1000)
            if any(event.subject_id == subject for event in batch):
                return
            if not batch:
                await hub.wait(place, PATIENCE_SECONDS)


async def test_events_of_an_older_transaction_that_is_still_open_are_not_skipped(
    hub: EventHub, database: Database, connect: Connect
) -> None:
    older, reader = await connect(), await connect()
    following = [asyncio.create_task(follow(hub, 21)) for _ in range(3)]
    transaction = older.transaction()
    await transaction.start()
    await older.execute(WRITE_BY_HAND, "older", None)
    for number in range(20):
        await happen(database, f"newer-{number}")
    hub.notify()
    # All twenty are committed and none may be shown: the older one has the lower place and is still to come.
    assert await reader.fetchval("SELECT count(*) FROM event") == 20
    assert await events.unsettled(database)
    assert await events.read(database, PLATFORM, ALL, BEGINNING, 100) == []
    assert (await hub.read(ALL, BEGINNING, 100))[0] == []
    assert await events.head(database) == BEGINNING
    await transaction.commit()
    for follower in following:
        shown = await follower
        assert [event.subject_id for event in shown] == ["older", *(f"newer-{number}" for number in range(20))]
        assert [event.id for event in shown] == [row["id"] for row in await reader.fetch(IDS)]


async def test_an_older_transaction_that_is_rolled_back_holds_nothing_back(
    hub: EventHub, database: Database, connect: Connect
) -> None:
    older = await connect()
    transaction = older.transaction()
    await transaction.start()
    await older.execute(WRITE_BY_HAND, "older", None)
    await happen(database, "newer")
    hub.notify()
    await transaction.rollback()
    assert [event.subject_id for event in await follow(hub, 1)] == ["newer"]


async def test_followers_see_what_concurrent_writers_commit_in_the_order_of_the_table(
    hub: EventHub, database: Database, connect: Connect
) -> None:
    async def write(writer: int) -> None:
        for number in range(50):
            await happen(database, f"{writer}-{number}")
            hub.notify()

    following = [asyncio.create_task(follow(hub, 400)) for _ in range(3)]
    await asyncio.gather(*(write(writer) for writer in range(8)))
    in_table = [row["id"] for row in await (await connect()).fetch(IDS)]
    for follower in following:
        assert [event.id for event in await follower] == in_table


async def test_a_follower_that_is_far_behind_reads_the_same_as_one_at_the_head(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "RING_SIZE", 20)
    hub = EventHub(database)
    await hub.open()
    try:
        at_head = asyncio.create_task(follow(hub, 100))
        for number in range(100):
            await happen(database, str(number))
            hub.notify()
        shown = await at_head
        assert [event.subject_id for event in shown] == [str(number) for number in range(100)]
        assert await follow(hub, 100) == shown, "the ring holds 20: the rest comes from the database"
        for start in (0, 50, 79, 80, 81, 98):
            assert await follow(hub, 99 - start, after=shown[start].position) == shown[start + 1 :]
        assert (await hub.read(ALL, shown[-1].position, 10))[0] == []
    finally:
        await hub.close()


async def test_a_selection_shows_its_own_events_and_moves_past_the_others(hub: EventHub, database: Database) -> None:
    for number in range(30):
        await happen(database, str(number), tenant=f"ten_{number % 3}", project=f"prj_{number % 6}")
    hub.notify()
    await until_seen(hub, "29")
    for selection, step, first in (
        (EventSelection(tenant_id="ten_1"), 3, 1),
        (EventSelection(tenant_id="ten_1", project_id="prj_4"), 6, 4),
    ):
        wanted = [str(number) for number in range(first, 30, step)]
        found, reached = await hub.read(selection, BEGINNING, 1000)
        assert [event.subject_id for event in found] == wanted
        assert reached == hub.head, "what concerns others is not read again"
        from_database = await events.read(database, PLATFORM, selection, BEGINNING, 1000)
        assert from_database == found
        part, reached = await hub.read(selection, BEGINNING, 2)
        assert (part, reached) == (found[:2], found[1].position)


async def test_a_hub_sees_what_another_process_wrote(hub: EventHub, database: Database, database_url: str) -> None:
    elsewhere = Database(PoolSettings(database_url, 2))
    await elsewhere.open()
    other = EventHub(elsewhere)
    await other.open()
    try:
        following = asyncio.create_task(follow(hub, 10))
        for number in range(10):
            await happen(elsewhere, str(number))
            other.notify()
        assert [event.subject_id for event in await following] == [str(number) for number in range(10)]
    finally:
        await other.close()
        await elsewhere.close()


async def test_an_event_whose_hint_was_lost_is_still_seen(hub: EventHub, database: Database) -> None:
    await happen(database, "unannounced")  # nobody pokes
    assert [event.subject_id for event in await follow(hub, 1)] == ["unannounced"]


async def test_a_hub_goes_on_after_its_connections_were_cut(
    hub: EventHub, database: Database, connect: Connect
) -> None:
    administrator = await connect()
    await administrator.execute(
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'mooring%'"""
    )
    following = asyncio.create_task(follow(hub, 3))
    for number in range(3):
        await administrator.execute(WRITE_BY_HAND, str(number), None)
    assert [event.subject_id for event in await following] == ["0", "1", "2"]


async def test_a_hub_goes_on_after_a_read_that_failed_in_an_unforeseen_way(
    hub: EventHub, database: Database, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    administrator = await connect()
    await administrator.execute("ALTER TABLE event RENAME TO event_elsewhere")

    def has_failed() -> bool:
        hub.notify()
        return "failed to read the event stream" in caplog.text

    await until(has_failed)
    await administrator.execute("ALTER TABLE event_elsewhere RENAME TO event")
    await happen(database, "after")
    assert [event.subject_id for event in await follow(hub, 1)] == ["after"]


async def test_a_closed_hub_ends_every_wait_at_once(database: Database) -> None:
    hub = EventHub(database)
    await hub.open()
    waiting = [asyncio.create_task(hub.wait(hub.head, 3600)) for _ in range(5)]
    await turns()
    await hub.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await asyncio.gather(*waiting) == [True] * 5
    assert hub.closed
    assert await hub.wait(hub.head, 3600)


async def test_a_wait_ends_without_news_when_its_time_is_over(hub: EventHub) -> None:
    assert not await hub.wait(hub.head, 0.01)


async def test_hooks_hear_every_event_once_and_in_order_before_followers_are_woken(
    hub: EventHub, database: Database
) -> None:
    heard: list[str] = []
    hub.on_event(lambda event: heard.append(event.subject_id))
    for number in range(20):
        await happen(database, str(number))
    hub.notify()
    await until_seen(hub, "19")
    assert heard == [str(number) for number in range(20)]
