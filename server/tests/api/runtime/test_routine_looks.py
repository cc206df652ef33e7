"""What an adapter does in routine leaves no event and no audit row, unless something changed."""

import asyncio
import base64
import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from mooring.commands.fleet.task_report import TaskReportHandler
from mooring.commands.live.task_dispatcher import TaskPoll
from mooring.core.fleet.task_report import TaskResultReport
from mooring.core.fleet.task_transitions import TaskEnd, TaskOutcome
from mooring.core.kernel.decision import Actor, PrincipalKind
from mooring.storage.fleet import task_report as reports
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin
from mooring.workers.janitor import Janitor
from server.tests.api.runtime.test_claims import deployed, waiting_poll
from server.tests.support.adapter_site import AdapterClient, AdapterSite
from server.tests.support.lifecycle_rows import context
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]
LOOK: dict[str, Any] = {"type": "probe.exec", "arguments": {"argv": ["true"]}}
SECONDS_MAX = 20


@dataclass
class Watched:
    """A running instance, its adapter, and its member's node."""

    site: AdapterSite
    adapter: AdapterClient
    instance_id: str
    fence: int
    member_id: str

    async def look(self, step: str, **more: Any) -> dict[str, Any]:
        body = {"member_id": self.member_id, "step": step, **LOOK, **more}
        answer = await self.adapter.send(self.instance_id, "tasks", self.fence, **body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def node_answers(self) -> None:
        """The node takes what is queued for it, and ends it."""
        platform = self.site.world.running.platform
        given = await platform.tools.dispatcher.poll(TaskPoll(self.site.project_rows.node_id, 8, float(SECONDS_MAX)))
        assert given.tasks
        for each in given.tasks:
            task = json.loads(base64.urlsafe_b64decode(each.payload + "==="))
            known = await reports.of_node(
                self.site.services.database, self.site.project_rows.node_id, [task["task_id"]]
            )
            node = replace(context(), actor=Actor(PrincipalKind.NODE, self.site.project_rows.node_id))
            handler = TaskReportHandler(self.site.services, platform.tools.logs, node, Origin(), known)
            end = TaskEnd(TaskOutcome.SUCCEEDED, result={"latency_milliseconds": 1, "attempts": 1})
            verdict = await handler.take(TaskResultReport(task["task_id"], task["fence"], end))
            assert verdict.accepted, verdict

    async def records(self) -> tuple[int, int]:
        """How many audit rows and events there are."""
        rows = await self.site.services.database.fetchrow(
            PLATFORM, "SELECT (SELECT count(*) FROM audit), (SELECT count(*) FROM event)"
        )
        return rows[0], rows[1]

    async def read(self, path: str, **query: Any) -> Any:
        client = self.site.world.client(self.site.tenant.token)
        answer = await client.get(f"/api/v1/projects/{self.site.project_id}/{path}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture
async def watched(site: AdapterSite) -> Watched:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    (member,) = (await adapter.read(instance_id, fence))["members"]
    return Watched(site, adapter, instance_id, fence, member["id"])


async def test_a_routine_look_leaves_no_record_and_names_the_launch_as_its_cause(watched: Watched) -> None:
    before = await watched.records()
    made = await watched.look("look/1")
    await watched.node_answers()
    await watched.adapter.report(watched.instance_id, watched.fence, instance={"health": None})
    assert await watched.records() == before
    task = await watched.read(f"tasks/{made['id']}")
    launch = (await watched.site.instance(watched.instance_id)).correlation_id
    assert (task["status"], task["routine"], task["cause_id"]) == ("succeeded", True, launch)
    assert task["correlation_id"] != launch


async def test_several_routine_looks_at_once_leave_no_record_either(watched: Watched) -> None:
    before = await watched.records()
    looks = [{"member_id": watched.member_id, "step": f"look/{number}", **LOOK} for number in range(3)]
    answer = await watched.adapter.send(watched.instance_id, "tasks:batch", watched.fence, tasks=looks)
    assert [each["refusal"] for each in answer.json()["tasks"]] == [None] * 3
    assert await watched.records() == before


async def test_a_look_that_changes_something_is_recorded_with_its_cause(watched: Watched) -> None:
    made = await watched.look("wanted/1", audited=True)
    await watched.node_answers()
    rows = [each for each in (await watched.read("audit"))["items"] if each["subject_id"] == made["id"]]
    launch = (await watched.site.instance(watched.instance_id)).correlation_id
    assert [each["action"] for each in rows] == ["agent.report", "task.create"]
    assert rows[1]["after"]["cause_id"] == launch
    assert {each["correlation_id"] for each in rows} != {launch}
    events = [each["type"] for each in (await watched.read("events"))["items"] if each["subject_id"] == made["id"]]
    assert events == ["nodes.task.queued", "nodes.task.finished"]


async def test_new_figures_leave_no_audit_row_and_a_new_health_leaves_one_with_its_cause(watched: Watched) -> None:
    audits, events = await watched.records()
    figures = {"detail": {"jobs": 3}, "health_detail": "3 jobs"}
    await watched.adapter.report(
        watched.instance_id, watched.fence, instance=figures, members=[{"id": watched.member_id, **figures}]
    )
    assert await watched.records() == (audits, events + 2)
    await watched.adapter.report(watched.instance_id, watched.fence, instance={"health": "degraded"})
    launch = (await watched.site.instance(watched.instance_id)).correlation_id
    newest = (await watched.read("audit", limit=1))["items"][0]
    assert (newest["action"], newest["after"]) == ("runtime.report", {"health": "degraded", "cause_id": launch})
    assert newest["correlation_id"] != launch


async def test_the_end_of_a_look_wakes_its_adapter_also_between_two_polls(watched: Watched) -> None:
    held = [{"instance_id": watched.instance_id, "fence": watched.fence}]
    cursor = (await watched.adapter.poll(held=held))["cursor"]
    await watched.look("look/1")
    polling, cursor = await waiting_poll(watched.site, watched.adapter, held, cursor)
    await watched.node_answers()
    async with asyncio.timeout(SECONDS_MAX / 2):
        assert (await polling)["changed"] == [watched.instance_id]
    cursor = (await watched.adapter.poll(held=held, after=cursor))["cursor"]
    await watched.look("look/2")
    await watched.node_answers()  # while nobody polls

    async def is_noticed() -> bool:
        return bool((await watched.adapter.poll(held=held, after=cursor))["changed"])

    await until(is_noticed, SECONDS_MAX / 2)
    assert (await watched.adapter.poll(held=held, after=cursor))["changed"] == []


async def test_a_read_that_waits_for_the_end_of_a_look_is_answered_at_its_end(watched: Watched) -> None:
    made = await watched.look("look/1")
    over: dict[str, str | int] = {"wait": SECONDS_MAX, "until": "succeeded,failed", "fence": watched.fence}
    url = f"/api/v1/runtime/instances/{watched.instance_id}/tasks/{made['id']}"
    waiting = asyncio.create_task(watched.adapter.client.get(url, params=over))
    await watched.node_answers()
    async with asyncio.timeout(SECONDS_MAX / 2):
        assert (await waiting).json()["status"] == "succeeded"


async def test_routine_looks_are_deleted_after_a_day_but_the_newest_of_each_member_stays(watched: Watched) -> None:
    for number in range(3):
        await watched.look(f"look/{number}")
    await watched.look("wanted/1", audited=True)
    await watched.look("look/3")
    await watched.node_answers()
    services = watched.site.services
    count = "SELECT array_agg(step ORDER BY step) FROM task WHERE operation_id IS NULL AND instance_id = $1"
    await Janitor(services).sweep()
    assert len(await watched.site.fetch(count, watched.instance_id)) == 5
    watched.site.clock.by += timedelta(days=1, minutes=1)
    await Janitor(services).sweep()
    assert await watched.site.fetch(count, watched.instance_id) == ["look/3", "wanted/1"]


async def test_the_audit_trail_is_filtered_by_kind_of_actor_subject_and_time(watched: Watched) -> None:
    everything = (await watched.read("audit", limit=200))["items"]
    kinds = {each["actor_kind"] for each in everything}
    assert {"user", "service_account"} <= kinds
    for kind in kinds:
        found = (await watched.read("audit", limit=200, actor_kind=kind))["items"]
        assert [each["id"] for each in found] == [each["id"] for each in everything if each["actor_kind"] == kind]
    people = await watched.read("audit", actor_kind="user", action="project.create", outcome="done")
    assert [each["action"] for each in people["items"]] == ["project.create"]
    subject, at = people["items"][0]["subject_id"], people["items"][0]["occurred_at"]
    about = (await watched.read("audit", subject_id=subject))["items"]
    assert {each["subject_id"] for each in about} == {subject}
    since = (await watched.read("audit", limit=200, since=at))["items"]
    until = (await watched.read("audit", limit=200, until=at))["items"]
    assert people["items"][0] in since
    assert [*since, *until] == everything
