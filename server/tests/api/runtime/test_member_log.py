"""A member's log over the API: read on its node without a trace, followed, bounded, and only by those who may."""

import asyncio
import base64
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest

from mooring.commands.fleet.task_report import TaskReportHandler
from mooring.commands.live.task_dispatcher import TaskPoll
from mooring.core.fleet.task_report import TaskResultReport
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.kernel.decision import Actor, PrincipalKind
from mooring.core.runtime.instance import InstanceRef
from mooring.core.runtime.member import MEMBER, MemberState, MemberTrigger
from mooring.core.runtime.member_log import READS_OF_MEMBER
from mooring.storage.fleet import task_report as reports
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin
from mooring.storage.runtime import instance as instances
from mooring.workers.janitor import Janitor
from server.tests.api.runtime.test_claims import deployed
from server.tests.support.adapter_site import AdapterSite
from server.tests.support.lifecycle_rows import LifecycleSubject, context

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
SERVICE: dict[str, Any] = {"type": "service.start", "arguments": {"name": "web", "argv": ["serve"]}}
UNREACHABLE = "UPDATE node SET unreachable_since = now() WHERE id = $1 RETURNING id"
REACHABLE = "UPDATE node SET unreachable_since = NULL WHERE id = $1 RETURNING id"


class Reader:
    """A person who reads the log of a member whose node is played."""

    def __init__(self, site: AdapterSite, instance_id: str, member_id: str) -> None:
        self.site = site
        self.client = site.world.client(site.tenant.token)
        self.instance_id = instance_id
        self.member_id = member_id

    async def read(self, **query: Any) -> httpx.Response:
        """Ask for a part."""
        at = f"/api/v1/projects/{self.site.project_id}/app-instances/{self.instance_id}/members/{self.member_id}/log"
        return await self.client.get(at, params=query)

    async def claimed(self) -> list[dict[str, Any]]:
        """What the node is given, as soon as there is something."""
        dispatcher = self.site.world.running.platform.tools.dispatcher
        given = await dispatcher.poll(TaskPoll(self.site.project_rows.node_id, 8, 30.0))
        return [json.loads(base64.urlsafe_b64decode(each.payload + "===")) for each in given.tasks]

    async def end(self, task: dict[str, Any], ended: TaskEnd) -> bool:
        """The node tells how a task ended; whether that was taken."""
        services, tools = self.site.services, self.site.world.running.platform.tools
        known = await reports.of_node(services.database, self.site.project_rows.node_id, [task["task_id"]])
        node = Actor(PrincipalKind.NODE, self.site.project_rows.node_id)
        handler = TaskReportHandler(services, tools.logs, replace(context(), actor=node), Origin(), known)
        return (await handler.take(TaskResultReport(task["task_id"], task["fence"], ended))).accepted

    async def answer(self, content: bytes, **other: Any) -> dict[str, Any]:
        """The node reads; the task that it was given."""
        (task,) = await self.claimed()
        place = int(task["arguments"].get("offset", 0))
        result = {
            "content_base64": base64.b64encode(content).decode(),
            "offset": place,
            "next_offset": place + len(content),
            "size": place + len(content),
            "truncated_before": False,
            **other,
        }
        assert await self.end(task, TaskEnd(TaskOutcome.SUCCEEDED, result=result))
        return task


@pytest.fixture
async def reader(site: AdapterSite) -> Reader:
    """A member with one service that runs."""
    adapter = site.adapter()
    instance, members, operation = await site.launch(0)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    body = {"member_id": members[0].id, "step": "start", "operation_id": operation.id, **SERVICE}
    assert (await adapter.send(instance.id, "tasks", fence, **body)).status_code == 200
    made = Reader(site, instance.id, members[0].id)
    (start,) = await made.claimed()
    assert await made.end(start, TaskEnd(TaskOutcome.SUCCEEDED, result={"state": "running"}))
    return made


async def count(site: AdapterSite, noun: str) -> int:
    """How many rows there are."""
    return int(await site.fetch(f"SELECT count(*) FROM {noun}"))


async def test_the_node_is_asked_at_once_and_what_it_reads_leaves_no_trace(reader: Reader) -> None:
    site = reader.site
    before = (await count(site, "event"), await count(site, "audit"))
    answer, task = await asyncio.gather(reader.read(tail=5), reader.answer("grüße\n".encode() + b"\xff\n"))
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "member_id": reader.member_id,
        "service": "web",
        "kind": "service",
        "offset": 0,
        "next_offset": 10,
        "size": 10,
        "text": "grüße\n\ufffd\n",
        "truncated_before": False,
        "dropped_bytes": None,
        "log": "",
    }
    assert task["type"] == "log.read"
    assert task["owner"] == f"{site.project_rows.allocation_id}/{reader.member_id}"
    assert task["arguments"] == {"name": "web", "kind": "service", "max_bytes": 65_536, "tail_lines": 5}
    assert (await count(site, "event"), await count(site, "audit")) == before
    listed = (await reader.client.get(f"/api/v1/projects/{site.project_id}/tasks")).json()["items"]
    assert [each["type"] for each in listed] == ["service.start"]


async def test_following_waits_on_the_node_and_goes_on_from_the_last_byte(reader: Reader) -> None:
    asked = {"offset": 4, "wait": 20, "log": "0a", "limit": 262_144}
    answer, task = await asyncio.gather(
        reader.read(**asked), reader.answer(b"two\n", truncated_before=True, dropped_bytes=7, log="0b")
    )
    part = answer.json()
    assert (part["text"], part["next_offset"], part["truncated_before"], part["dropped_bytes"], part["log"]) == (
        "two\n",
        8,
        True,
        7,
        "0b",
    )
    window = {"offset": 4, "wait_seconds": 20, "log": "0a", "max_bytes": 262_144}
    assert task["arguments"] == {"name": "web", "kind": "service", **window}


async def test_what_was_read_is_forgotten_within_the_hour_and_nothing_else_is(reader: Reader) -> None:
    site = reader.site
    await asyncio.gather(reader.read(), reader.answer(b"secret\n"))
    assert await site.fetch("SELECT count(*) FROM task WHERE type = 'log.read'") == 1
    site.clock.by += timedelta(hours=2)
    await Janitor(site.services).sweep()
    assert await site.fetch("SELECT count(*) FROM task WHERE type = 'log.read'") == 0
    assert await site.fetch("SELECT count(*) FROM task WHERE type = 'service.start'") == 1


async def test_a_node_that_does_not_answer_is_not_waited_for_and_the_last_lines_are_shown(reader: Reader) -> None:
    site, node = reader.site, reader.site.project_rows.node_id
    await site.fetch("UPDATE member SET last_lines = '{bye}' WHERE id = $1 RETURNING id", reader.member_id)
    await site.fetch(UNREACHABLE, node)
    away = await reader.read()
    assert (away.status_code, away.json()["code"]) == (503, "temporarily_unavailable")
    assert away.json()["details"]["last_lines"] == ["bye"]
    await site.fetch(REACHABLE, node)

    async def lost() -> None:
        (task,) = await reader.claimed()
        assert await reader.end(task, TaskEnd(TaskOutcome.FAILED, "not_found", "no such log"))

    gone, _ = await asyncio.gather(reader.read(), lost())
    assert (gone.status_code, gone.json()["code"]) == (404, "not_found")
    assert gone.json()["details"]["last_lines"] == ["bye"]


async def test_the_log_of_a_member_that_is_torn_down_is_reported_as_gone(reader: Reader) -> None:
    place = InstanceRef(reader.site.project_id, reader.instance_id)
    row = await instances.find_member(reader.site.services.database, PLATFORM, place, reader.member_id)
    assert row is not None
    state = MemberState(row.status)
    subject = LifecycleSubject("member", MEMBER, row.id, state, row.generation)
    await reader.site.project_rows.move(subject, MEMBER.step(state, MemberTrigger.REMOVE))
    torn = await reader.read()
    assert (torn.status_code, torn.json()["code"]) == (409, "conflict")
    assert "removing" in torn.json()["detail"]


async def test_few_reads_of_one_member_are_open_at_once(reader: Reader) -> None:
    waiting = [asyncio.create_task(reader.read(offset=0, wait=20)) for _ in range(READS_OF_MEMBER)]
    tasks: list[dict[str, Any]] = []
    while len(tasks) < READS_OF_MEMBER:
        tasks += await reader.claimed()
    refused = await reader.read()
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    for each in tasks:
        assert await reader.end(each, TaskEnd(TaskOutcome.FAILED, "host_error", "enough"))
    assert {(await each).status_code for each in waiting} == {503}


WRONG: list[dict[str, Any]] = [
    {"service": "../../etc/passwd"}, {"service": "a/b"}, {"service": ""}, {"service": "x" * 64}, {"offset": -1},
    {"offset": 2**54}, {"tail": 0}, {"tail": 10_001}, {"limit": 262_145}, {"limit": 1}, {"wait": 21, "offset": 0},
    {"wait": 1}, {"offset": 0, "tail": 1}, {"log": "../x"}, {"log": "0a\n", "offset": 0}, {"path": "/"},
]  # fmt: skip


async def test_names_with_paths_and_unbounded_sizes_are_refused_before_a_node_gets_them(
    reader: Reader,
) -> None:
    for query in WRONG:
        answer = await reader.read(**query)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), query
    assert (await reader.read(service="web\n")).status_code == 404
    assert await reader.site.fetch("SELECT count(*) FROM task WHERE type = 'log.read'") == 0


async def test_a_member_of_another_project_or_instance_is_not_there(reader: Reader) -> None:
    site = reader.site
    stranger = await site.world.tenant("other")
    other = await site.world.project(stranger, "theirs")
    path = f"/app-instances/{reader.instance_id}/members/{reader.member_id}/log"
    for project_id, token in (
        (site.project_id, stranger.token),
        (other, stranger.token),
        (await site.world.project(site.tenant, "second"), site.tenant.token),
    ):
        answer = await site.world.client(token).get(f"/api/v1/projects/{project_id}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    adapter = site.adapter()
    instance_id, _ = await deployed(site, adapter)
    crossed = Reader(site, instance_id, reader.member_id)
    assert (await crossed.read()).status_code == 404
    assert await site.services.database.fetchval(PLATFORM, "SELECT count(*) FROM task WHERE type = 'log.read'") == 0


async def test_an_adapter_looks_at_a_bounded_part_between_operations(reader: Reader) -> None:
    site = reader.site
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    member_id = await site.fetch("SELECT id FROM member WHERE instance_id = $1", instance_id)
    look = {"member_id": member_id, "step": "look/1", "type": "log.read"}
    asked = {"name": "web", "kind": "service", "tail_lines": 50}
    large = await adapter.send(instance_id, "tasks", fence, **look, arguments={**asked, "max_bytes": 65_537})
    assert (large.status_code, large.json()["code"]) == (422, "validation_failed")
    made = await adapter.send(instance_id, "tasks", fence, **look, arguments={**asked, "max_bytes": 65_536})
    assert made.status_code == 200, made.text
    assert [each["type"] for each in (await adapter.read(instance_id, fence))["tasks"]][-1:] == ["log.read"]
