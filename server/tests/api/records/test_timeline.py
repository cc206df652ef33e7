"""The timeline through the public API: events and audit rows in one order, resumable, for callers who may see them."""

import asyncio
from contextlib import aclosing
from typing import Any

import asyncpg
import httpx
import pytest

from mooring.core.kernel.decision import AuditRecord, Decision, EventRecord
from mooring.core.kernel.event import BEGINNING
from mooring.core.kernel.event_types import EventType
from mooring.storage.kernel.database import Database
from mooring.storage.kernel.migrate import migrate
from mooring.storage.kernel.unit_of_work import apply
from mooring.storage.records import timeline as timelines
from mooring.storage.records.timeline import TimelineSelection
from server.tests.conftest import World
from server.tests.support.http_wire import stream
from server.tests.support.lifecycle_rows import ProjectRows, context, make_project_rows
from server.tests.support.socket_client import PATIENCE_SECONDS, connect
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

CORRELATION = "the-story"


async def rename(client: httpx.AsyncClient, project_id: str, name: str, correlation: str = CORRELATION) -> None:
    path, headers = f"/api/v1/projects/{project_id}", {"X-Correlation-ID": correlation}
    answer = await client.patch(path, json={"display_name": name}, headers=headers)
    assert answer.status_code == 200, answer.text


async def read_all(client: httpx.AsyncClient, path: str, count: int, **query: Any) -> list[dict[str, Any]]:
    """So many entries, by small pages, waiting for what is not settled yet."""
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            answer = await client.get(path, params={"limit": 3, "wait": 10, **query, **cursor})
            assert answer.status_code == 200, answer.text
            found += answer.json()["items"]
            cursor = {"cursor": answer.json()["next_cursor"]}
    return found


async def expected(connection: asyncpg.Connection, correlation: str = CORRELATION) -> list[str]:
    rows = await connection.fetch(
        "SELECT id FROM (SELECT epoch, tx, seq, id FROM event WHERE correlation_id = $1 "
        "UNION ALL SELECT epoch, tx, seq, id FROM audit WHERE correlation_id = $1) x ORDER BY epoch, tx, seq",
        correlation,
    )
    return [row["id"] for row in rows]


async def test_one_correlation_gives_events_and_audit_rows_in_one_order_by_page_stream_and_socket(
    world: World, connection: asyncpg.Connection
) -> None:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    client = world.client(tenant.token)
    for turn in range(5):
        await rename(client, project_id, f"turn-{turn}")
        await rename(client, project_id, f"else-{turn}", f"something-else-{turn}")
    wanted = await expected(connection)
    assert len(wanted) == 10  # an event and an audit row each time
    path = f"/api/v1/projects/{project_id}/timeline"
    paged = await read_all(client, path, len(wanted), correlation_id=CORRELATION)
    assert [each["id"] for each in paged] == wanted
    assert [each["kind"] for each in paged].count("audit") == 5
    assert all(each["text"] for each in paged)

    asked = f"{path}/stream?correlation_id={CORRELATION}"
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with stream(world.running.url, tenant.token, asked, after=paged[2]["cursor"]) as opened:
            streamed = await opened.take(len(wanted) - 3)
        assert [each.data["id"] for each in streamed] == wanted[3:]
        asked = f"{path}/ws?correlation_id={CORRELATION}&cursor={paged[6]['cursor']}"
        async with connect(world.running.url, asked, tenant.token) as line, aclosing(line.items()) as items:
            assert [(await anext(items))["item"]["id"] for _ in wanted[7:]] == wanted[7:]
            await rename(client, project_id, "while-somebody-looks")  # a new entry is sent at once
            fresh = [(await anext(items))["item"] for _ in range(2)]
    assert {each["kind"] for each in fresh} == {"project", "audit"}


async def test_a_denial_is_shown_although_no_event_comes_with_it(world: World) -> None:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    viewer = world.client(await world.member(tenant, project_id, "project_viewer", "viewer"))
    asked = f"/api/v1/projects/{project_id}/timeline/stream?correlation_id={CORRELATION}"
    async with asyncio.timeout(PATIENCE_SECONDS), stream(world.running.url, tenant.token, asked) as opened:
        body, headers = {"display_name": "mine"}, {"X-Correlation-ID": CORRELATION}
        refused = await viewer.patch(f"/api/v1/projects/{project_id}", json=body, headers=headers)
        assert refused.status_code == 403
        entries = await opened.take(1)
    assert (entries[0].data["kind"], entries[0].data["data"]["outcome"]) == ("audit", "denied")


async def test_audit_rows_are_shown_only_to_those_who_may_read_them(world: World) -> None:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    viewer = world.client(await world.member(tenant, project_id, "project_viewer", "viewer"))
    await rename(world.client(tenant.token), project_id, "turn")
    await rename(world.client(tenant.token), project_id, "again")
    path = f"/api/v1/projects/{project_id}/timeline"
    seen = await read_all(viewer, path, 2, correlation_id=CORRELATION)
    assert [each["kind"] for each in seen] == ["project", "project"]
    stranger = world.client((await world.tenant("other")).token)
    assert (await stranger.get(path, params={"correlation_id": CORRELATION})).status_code == 404


async def test_a_timeline_is_of_something_that_is_there(world: World) -> None:
    tenant = await world.tenant("acme")
    project_id = await world.project(tenant, "train")
    client = world.client(tenant.token)
    path = f"/api/v1/projects/{project_id}"
    nothing = await client.get(f"{path}/timeline")
    assert (nothing.status_code, nothing.json()["code"]) == (422, "validation_failed")
    unknown = "ins_01m7h7vpncxa10jzsx5v7f5pmq"
    for asked in (f"timeline?app_instance_id={unknown}", f"app-instances/{unknown}/timeline"):
        assert (await client.get(f"{path}/{asked}")).status_code == 404


# What stands in it --------------------------------------------------------------------------------------------------


async def tell(
    project_rows: ProjectRows, *events: EventRecord, audits: tuple[AuditRecord, ...] = (), correlation: str = ""
) -> None:
    """Write events and audit rows as a decision of anybody's does."""
    made = context()
    if correlation:
        made = type(made)(made.actor, made.now, correlation, made.trace_id, made.mint)
    await apply(project_rows.database, project_rows.acting, made, Decision(None, (), events, audits))


async def settled(database: Database, project_rows: ProjectRows, story: TimelineSelection, count: int) -> list[str]:
    async def read() -> list[str] | None:  # another transaction of the cluster may be open
        found = await timelines.read(database, project_rows.acting, story, BEGINNING, 100)
        return [each.type for each in found] if len(found) >= count else None

    return await until(read) or []


async def test_the_timeline_of_an_instance_has_its_own_things_and_the_capacity_it_asked_for(
    database: Database,
) -> None:
    project_rows = await make_project_rows(database)
    place = (project_rows.tenant_id, project_rows.project_id)
    operation_id = await project_rows.birth("operation", kind="deploy", correlation_id="launch")
    member_id = await project_rows.birth("member", allocation_id=project_rows.allocation_id, owns_allocation=True)
    instance = project_rows.instance_id
    await tell(
        project_rows,
        EventRecord(EventType.INSTANCE_REQUESTED, "instance", instance, *place, app_instance_id=instance),
        EventRecord(EventType.ALLOCATION_REQUESTED, "allocation", project_rows.allocation_id, *place),
        EventRecord(EventType.ALLOCATION_REQUESTED, "allocation", "alc_of_another_launch", *place),
        audits=(AuditRecord("instance.create", "instance", instance, *place, app_instance_id=instance),),
        correlation="launch",
    )
    await tell(
        project_rows,
        EventRecord(EventType.MEMBER_CHANGED, "member", member_id, *place, app_instance_id=instance),
        EventRecord(
            EventType.TASK_QUEUED,
            "task",
            "tsk_1",
            *place,
            {"owner": project_rows.allocation_id},
            under=("launch", "a" * 32),
        ),
        EventRecord(EventType.OPERATION_CHANGED, "operation", operation_id, *place, app_instance_id=instance),
        EventRecord(EventType.INSTANCE_CHANGED, "instance", "ins_other", *place, app_instance_id="ins_other"),
        correlation="later",
    )
    everything = await settled(database, project_rows, TimelineSelection(project_rows.project_id, instance), 6)
    assert sorted(everything) == sorted(
        [
            "apps.instance.requested",
            "capacity.allocation.requested",
            "instance.create",
            "apps.member.changed",
            "nodes.task.queued",
            "apps.operation.changed",
        ]
    )
    without = await settled(
        database, project_rows, TimelineSelection(project_rows.project_id, instance, audit=False), 5
    )
    assert without == [each for each in everything if each != "instance.create"]
    launched = await settled(database, project_rows, TimelineSelection(project_rows.project_id, instance, "launch"), 2)
    assert sorted(launched) == ["apps.instance.requested", "instance.create"]


async def test_entries_under_another_correlation_are_found_by_that_one(database: Database) -> None:
    project_rows = await make_project_rows(database)
    place = (project_rows.tenant_id, project_rows.project_id)
    of_the_maker = ("launch", "b" * 32)
    await tell(
        project_rows,
        EventRecord(EventType.TASK_FINISHED, "task", "tsk_1", *place, under=of_the_maker),
        audits=(AuditRecord("agent.report", "task", "tsk_1", *place, under=of_the_maker),),
        correlation="the-agents-own",
    )
    found = await settled(database, project_rows, TimelineSelection(project_rows.project_id, None, "launch"), 2)
    assert sorted(found) == ["agent.report", "nodes.task.finished"]


async def test_in_a_restored_cluster_audit_rows_begin_the_same_new_epoch_as_events(
    database_url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE event_epoch SET cluster = 1")  # the database was made in another cluster
    await migrate(database_url)
    defaults = await connection.fetch(
        "SELECT table_name, column_default FROM information_schema.columns "
        "WHERE column_name = 'epoch' AND table_name IN ('event', 'audit')"
    )
    current = await connection.fetchval("SELECT current FROM event_epoch")
    assert {row["table_name"]: row["column_default"] for row in defaults} == {
        "event": str(current),
        "audit": str(current),
    }
    assert current == 2
