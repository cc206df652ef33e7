"""Reports and ends of operations over the API: what becomes true, what is repeated safely, what is stale."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from mooring.core.runtime.adapter_report import AdapterReport, ReportContext, take_report
from mooring.core.runtime.claim import InstanceClaim
from mooring.core.runtime.operation import OperationKind
from mooring.storage.kernel.database import PLATFORM, Acting
from mooring.storage.kernel.unit_of_work import StaleWrite, apply
from mooring.storage.runtime import instance as instances
from server.tests.api.runtime.test_claims import deployed, usage_record
from server.tests.support.adapter_site import AdapterClient, AdapterSite
from server.tests.support.lifecycle_rows import context
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

CONTENTS = """
SELECT json_agg(each ORDER BY each::text)::text FROM (
  SELECT to_jsonb(i) AS each FROM instance i UNION ALL SELECT to_jsonb(m) FROM member m
  UNION ALL SELECT to_jsonb(o) FROM operation o UNION ALL SELECT to_jsonb(t) FROM task t
  UNION ALL SELECT to_jsonb(r) FROM runtime_secret r UNION ALL SELECT to_jsonb(u) FROM usage_record u) all_of_it"""
WRITTEN = "SELECT (SELECT count(*) FROM event) + (SELECT count(*) FROM audit) + (SELECT count(*) FROM transition)"


async def test_a_launch_is_reported_step_by_step_and_ends_in_a_running_instance(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, members, operation = await site.launch(1)
    fence = await adapter.claim(instance.id)
    seen = await adapter.read(instance.id, fence)
    assert [each["id"] for each in seen["operations"]] == [operation.id]
    assert seen["operations"][0]["begun"] is False
    assert [each["component_key"] for each in seen["members"]] == ["head", "worker"]
    assert seen["members"][0]["allocation"]["id"] == site.project_rows.allocation_id
    assert seen["manifest"]["app"] == "hello"
    step = {"name": "pull image", "status": "running", "progress": {"done": 1, "total": 2, "unit": "bytes"}}
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True, steps=[step])
    begun = await adapter.read(instance.id, fence)
    assert (begun["instance"]["status"], begun["operations"][0]["status"]) == ("starting", "running")
    assert begun["operations"][0]["attempts"] == 1
    assert begun["operations"][0]["steps"][0]["attempts"] == 1
    early = await adapter.send(instance.id, f"operations/{operation.id}/finish", fence, outcome="succeeded")
    assert (early.status_code, early.json()["details"]["component_key"]) == (409, "head")
    for status in ("joining", "ready"):
        await adapter.report(
            instance.id,
            fence,
            operation_id=operation.id,
            members=[{"id": each.id, "status": status, "health": "healthy"} for each in members],
        )
    endpoint = {"name": "web", "member_id": members[0].id, "protocol": "http", "port": 8080}
    await adapter.report(instance.id, fence, instance={"health": "healthy", "endpoints": [endpoint]})
    done = await adapter.finish(instance.id, fence, operation.id, evidence={"pages": 1})
    assert (done["status"], done["phase"]) == ("succeeded", "adapter")
    after = await adapter.read(instance.id, fence)
    assert (after["instance"]["status"], after["instance"]["health"]) == ("running", "healthy")
    assert after["instance"]["endpoints"] == [endpoint]
    assert after["operations"] == []
    rows = await site.services.database.fetch(
        PLATFORM, "SELECT type, correlation_id FROM event WHERE app_instance_id = $1 ORDER BY seq", instance.id
    )
    types = [row[0] for row in rows]
    for expected in (
        "apps.instance.starting",
        "apps.instance.running",
        "apps.instance.start_completed",
        "apps.instance.healthy",
        "apps.instance.member_added",
    ):
        assert expected in types
    assert {row[1] for row in rows if row[0] == "apps.instance.running"} == {operation.correlation_id}


async def test_a_change_that_changes_nothing_writes_nothing(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter, 1)
    members = (await adapter.read(instance_id, fence))["members"]
    body: dict[str, Any] = {
        "members": [
            {
                "id": each["id"],
                "status": "ready",
                "health": "healthy",
                "detail": {"a": 1},
                "version": "1.0.0",
                "holds": [{"reason": "busy"}],
            }
            for each in members
        ],
        "instance": {"health": "degraded", "health_detail": "slow", "topology_mode": "flat", "detail": {"x": [1]}},
    }
    first = await adapter.report(instance_id, fence, **body)
    written, stands = await site.fetch(WRITTEN), await site.fetch(CONTENTS)
    assert await adapter.report(instance_id, fence, **body) == first
    assert (await site.fetch(WRITTEN), await site.fetch(CONTENTS)) == (written, stands)


async def test_a_repeated_end_is_accepted_and_another_end_is_not(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, _, operation = await site.launch(0)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    failure = {"code": "image_pull_failed", "detail": "no such image", "last_lines": ["a", "b"]}
    await adapter.finish(instance.id, fence, operation.id, outcome="failed", failure=failure)
    stands = await site.fetch(CONTENTS)
    again = await adapter.finish(instance.id, fence, operation.id, outcome="failed", failure=failure)
    assert again["status"] == "failed"
    other = await adapter.send(instance.id, f"operations/{operation.id}/finish", fence, outcome="succeeded")
    assert (other.status_code, other.json()["code"]) == (409, "illegal_transition")
    assert await site.fetch(CONTENTS) == stands
    row = await site.services.database.fetchrow(
        PLATFORM, "SELECT status, failure_code, last_lines FROM instance WHERE id = $1", instance.id
    )
    assert tuple(row) == ("failed", "image_pull_failed", ["a", "b"])
    assert (
        await site.fetch("SELECT failure_code FROM member WHERE instance_id = $1", instance.id) == "image_pull_failed"
    )


async def test_a_stale_fence_changes_nothing_on_any_route(site: AdapterSite) -> None:
    old, new = site.adapter(), site.adapter()
    instance, members, operation = await site.launch(1)
    fence = await old.claim(instance.id)
    site.clock.by += timedelta(minutes=5)
    await new.claim(instance.id)
    stands, written = await site.fetch(CONTENTS), await site.fetch(WRITTEN)
    sent: dict[str, dict[str, Any]] = {
        "reports": {"operation_id": operation.id, "begin": True},
        f"operations/{operation.id}/finish": {"outcome": "failed", "failure": {"code": "runtime_error"}},
        "tasks": {
            "member_id": members[0].id,
            "type": "process.run",
            "step": "a",
            "operation_id": operation.id,
            "arguments": {"argv": ["true"]},
        },
        "secrets": {"name": "token", "purpose": "app_access", "generate_bytes": 32},
        "usage": {"records": [usage_record()]},
    }
    for path, body in sent.items():
        answer = await old.send(instance.id, path, fence, **body)
        assert (path, answer.status_code, answer.json()["code"]) == (path, 409, "lease_lost")
    for path in ("", "/tasks/tsk_01jq3v8m5h0000000000000000"):
        url = f"/api/v1/runtime/instances/{instance.id}{path}"
        answer = await old.client.get(url, params={"fence": fence})
        assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")
    assert (await site.fetch(CONTENTS), await site.fetch(WRITTEN)) == (stands, written)


async def test_an_old_holders_write_loses_against_a_claim_that_is_just_being_made(site: AdapterSite) -> None:
    """Two connections: the claim is written and not committed while the old holder's report is applied."""
    instance, _, operation = await site.launch(0)
    fence = await site.adapter().claim(instance.id)
    from_before = await seen(site, instance.id, fence, operation.id)
    decision = take_report(context(), from_before, AdapterReport(begin=True))
    database, acting = site.services.database, Acting(site.tenant.id)
    async with database.connection(PLATFORM) as connection:
        claiming = connection.transaction()
        await claiming.start()
        await connection.execute(
            "UPDATE instance_claim SET holder = 'new', fence = fence + 1 WHERE instance_id = $1", instance.id
        )
        writing = asyncio.create_task(apply(database, acting, context(), decision))
        await blocked(site)
        await claiming.commit()
    with pytest.raises(StaleWrite):
        await writing
    assert await site.fetch("SELECT status FROM operation WHERE id = $1", operation.id) == "accepted"


async def test_a_claim_passes_over_an_instance_whose_holder_is_just_writing(site: AdapterSite) -> None:
    """The other way round: the write came first and keeps the claim's row; the claim takes it afterwards, or not."""
    instance, _, operation = await site.launch(0)
    fence = await site.adapter().claim(instance.id)
    site.clock.by += timedelta(minutes=5)
    new = site.adapter()
    async with site.services.database.connection(Acting(site.tenant.id)) as connection:
        writing = connection.transaction()
        await writing.start()
        await connection.execute(
            "SELECT 1 FROM instance_claim WHERE instance_id = $1 AND fence = $2 FOR SHARE", instance.id, fence
        )
        assert (await new.poll())["claims"] == []
        await writing.commit()
    assert await new.claim(instance.id) == fence + 1
    assert operation.status == "accepted"


async def test_members_take_only_steps_that_the_lifecycle_has(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, (head,), operation = await site.launch(0)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    for status in ("ready", "degraded", "drained"):
        answer = await adapter.send(instance.id, "reports", fence, members=[{"id": head.id, "status": status}])
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    answer = await adapter.send(instance.id, "reports", fence, members=[{"id": head.id, "status": "failed"}])
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    stranger = (await site.launch(0))[1][0]
    answer = await adapter.send(instance.id, "reports", fence, members=[{"id": stranger.id, "status": "joining"}])
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    half = [{"id": head.id, "status": "joining"}, {"id": stranger.id, "status": "joining"}]
    assert (await adapter.send(instance.id, "reports", fence, members=half)).status_code == 404
    assert await site.fetch("SELECT status FROM member WHERE id = $1", head.id) == "requested"


async def test_an_operation_is_blocked_by_name_and_goes_on(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, _, operation = await site.launch(0)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    why = {"code": "licence_missing", "detail": "no licence is free"}
    await adapter.report(instance.id, fence, operation_id=operation.id, blocked=why)
    (blocked_,) = (await adapter.read(instance.id, fence))["operations"]
    assert (blocked_["status"], blocked_["blocker"]) == ("blocked", "no licence is free")
    await adapter.report(instance.id, fence, operation_id=operation.id, blocked=None)
    (free,) = (await adapter.read(instance.id, fence))["operations"]
    assert (free["status"], free["blocker"]) == ("running", None)


async def test_another_holder_goes_on_and_counts_as_an_attempt(site: AdapterSite) -> None:
    old, new = site.adapter(), site.adapter()
    instance, _, operation = await site.launch(0)
    fence = await old.claim(instance.id)
    for _ in range(2):
        await old.report(instance.id, fence, operation_id=operation.id, begin=True)
    site.clock.by += timedelta(minutes=5)
    fence = await new.claim(instance.id)
    for _ in range(2):
        await new.report(instance.id, fence, operation_id=operation.id, begin=True)
    (seen_,) = (await new.read(instance.id, fence))["operations"]
    assert (seen_["status"], seen_["attempts"]) == ("running", 2)


async def test_drained_is_what_was_observed_and_never_what_cannot_be(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, members = await with_a_drain(site, adapter)
    worker = members[1]
    (drain,) = (await adapter.read(instance_id, fence))["operations"]
    await adapter.report(instance_id, fence, operation_id=drain["id"], begin=True)
    early = await adapter.send(instance_id, f"operations/{drain['id']}/finish", fence, outcome="succeeded")
    assert (early.status_code, early.json()["details"]["member_ids"]) == (409, [worker])
    await site.services.database.fetch(
        PLATFORM,
        "UPDATE node SET unreachable_since = now(), revision = revision + 1 WHERE id = $1",
        site.project_rows.node_id,
    )
    report = {"members": [{"id": worker, "status": "drained"}]}
    unseen = await adapter.send(instance_id, "reports", fence, **report)
    assert (unseen.status_code, unseen.json()["code"]) == (409, "conflict")
    await site.services.database.fetch(
        PLATFORM,
        "UPDATE node SET unreachable_since = NULL, revision = revision + 1 WHERE id = $1",
        site.project_rows.node_id,
    )
    await adapter.report(instance_id, fence, **report)
    assert (await adapter.finish(instance_id, fence, drain["id"]))["status"] == "succeeded"


async def test_a_teardown_goes_over_to_the_platform_when_its_adapter_is_done(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    instance = (await site.launch(0))[0]
    stop = await site.ask(await site.instance(instance_id), OperationKind.DECOMMISSION)
    await adapter.report(instance_id, fence, operation_id=stop.id, begin=True)
    for _ in range(2):
        over = await adapter.finish(instance_id, fence, stop.id, evidence={"flushed": True})
        assert (over["status"], over["phase"]) == ("running", "platform")
    assert (await adapter.read(instance_id, fence))["operations"] == []
    late = await adapter.send(
        instance_id, "reports", fence, operation_id=stop.id, steps=[{"name": "late", "status": "done"}]
    )
    assert (late.status_code, late.json()["code"]) == (409, "conflict")
    assert instance.id != instance_id


async def test_the_output_of_an_action_is_held_to_its_schema(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    request = {"action": "queue.submit", "input": {}}
    action = await site.ask(await site.instance(instance_id), OperationKind.ACTION, request=request)
    await adapter.report(instance_id, fence, operation_id=action.id, begin=True)
    finish = f"operations/{action.id}/finish"
    for output in (None, {"id": "seven"}, {"id": 7, "more": 1}):
        wrong = await adapter.send(instance_id, finish, fence, outcome="succeeded", output=output)
        assert (wrong.status_code, wrong.json()["code"]) == (422, "validation_failed"), wrong.text
    await adapter.finish(instance_id, fence, action.id, output={"id": 7})
    assert await site.fetch("SELECT output FROM operation WHERE id = $1", action.id) == {"id": 7}


async def test_two_hundred_members_are_reported_in_one_request(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, members, operation = await site.launch(199)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    for status in ("joining", "ready"):
        reports = [{"id": each.id, "status": status, "health": "healthy"} for each in members]
        await adapter.report(instance.id, fence, operation_id=operation.id, members=reports)
    await adapter.finish(instance.id, fence, operation.id)
    ready = await site.fetch("SELECT count(*) FROM member WHERE instance_id = $1 AND status = 'ready'", instance.id)
    assert ready == 200


async def test_two_hundred_members_that_report_at_once_are_all_recorded(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance, members, operation = await site.launch(199)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    sent: list[Callable[[], Awaitable[httpx.Response]]] = [
        lambda each=each: adapter.send(  # type: ignore[misc]
            instance.id,
            "reports",
            fence,
            operation_id=operation.id,
            steps=[{"name": f"start {each.name}", "status": "done"}],
            members=[{"id": each.id, "status": "joining"}],
        )
        for each in members
    ]
    answers = await asyncio.gather(*(each() for each in sent))
    assert {each.status_code for each in answers} == {200}, [each.text for each in answers if each.is_error][:1]
    (seen_,) = (await adapter.read(instance.id, fence))["operations"]
    assert sorted(each["name"] for each in seen_["steps"]) == sorted(f"start {each.name}" for each in members)


async def test_what_is_committed_while_an_instance_is_read_is_seen_whole_or_not_at_all(
    site: AdapterSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation without what was written with it would be done as if somebody had asked for something else."""
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter, 1)
    worker = (await adapter.read(instance_id, fence))["members"][1]["id"]
    members_of = instances.members_of

    async def drained_meanwhile(*asked: Any) -> Any:
        found = await members_of(*asked)
        monkeypatch.setattr(instances, "members_of", members_of)
        await site.drain(instance_id, worker)
        return found

    monkeypatch.setattr(instances, "members_of", drained_meanwhile)
    shown = [await adapter.read(instance_id, fence) for _ in range(2)]
    assert [(each["members"][1]["status"], len(each["operations"])) for each in shown] == [
        ("ready", 0),
        ("draining", 1),
    ]


async def with_a_drain(site: AdapterSite, adapter: AdapterClient) -> tuple[str, int, list[str]]:
    """A running instance whose worker somebody asked to drain."""
    instance_id, fence = await deployed(site, adapter, 1)
    listed = [each["id"] for each in (await adapter.read(instance_id, fence))["members"]]
    await site.drain(instance_id, listed[1])
    return instance_id, fence, listed


async def seen(site: AdapterSite, instance_id: str, fence: int, operation_id: str) -> ReportContext:
    """What a report is held against, as it is now."""
    instance = await site.instance(instance_id)
    operation = await site.operation(instance, operation_id)
    claim = InstanceClaim(instance_id, site.account.id, "old", fence)
    return ReportContext(claim, instance, {}, operation)


async def blocked(site: AdapterSite) -> None:
    """Wait until somebody waits for a lock of somebody else."""
    statement = """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
    await until(lambda: site.fetch(statement))
