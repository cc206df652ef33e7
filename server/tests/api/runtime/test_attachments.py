"""Attachments over the API: a project uses an instance of another project of its tenant, and nothing else of it."""

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest

from mooring.commands.runtime.instance_reconcile import limits_of
from mooring.commands.runtime.trust_reaction import mark_all
from mooring.core.runtime.instance_reconcile import reconcile
from mooring.core.runtime.instance_transitions import new_instance, new_member, new_operation, together
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime import instance_reconcile
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.support.adapter_site import MANIFEST, AdapterClient, AdapterSite, make_operator
from server.tests.support.lifecycle_rows import context
from server.tests.support.manifests import LIFECYCLE, digest

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

SUBMIT: Final = "app.hello.submit"
SHARED: Final = MANIFEST | {
    "lifecycle": LIFECYCLE | {"attach": {"supported": True}},
    "usage_units": [{"unit": "gpu_hours", "title": "GPU-hours", "covered_by_allocation": True}],
    "actions": [
        *MANIFEST["actions"],
        {"name": "restart", "permission": SUBMIT, "input_schema": {"type": "object"}, "target": "member"},
        {"name": "list", "permission": SUBMIT, "input_schema": {"type": "object"}, "read_only": True},
    ],
}


@dataclass
class Shared:
    """An instance that is the tenant's, its adapter, and a project beside its own."""

    site: AdapterSite
    adapter: AdapterClient
    instance_id: str
    fence: int
    project_id: str
    people: httpx.AsyncClient  # an admin of the tenant
    artifact_id: str

    @property
    def path(self) -> str:
        """Where the other project's attachments are."""
        return f"/api/v1/projects/{self.project_id}/attachments"

    async def attach(self, *, outcome: str | None = "succeeded") -> str:
        """An attachment, and what its adapter says of it."""
        answer = await self.people.post(self.path, json={"instance_id": self.instance_id})
        assert answer.status_code == 201, answer.text
        if outcome is not None:
            await self.end(answer.json()["operation_id"], outcome)
        return str(answer.json()["id"])

    async def end(self, operation_id: str, outcome: str, detail: str = "there is no room") -> None:
        """The adapter ends an operation."""
        failure = {"failure": {"code": "config_refused", "detail": detail}} if outcome == "failed" else {}
        await self.adapter.report(self.instance_id, self.fence, operation_id=operation_id, begin=True)
        await self.adapter.finish(self.instance_id, self.fence, operation_id, outcome=outcome, **failure)

    async def read(self, attachment_id: str) -> dict[str, Any]:
        """The attachment as its project sees it."""
        answer = await self.people.get(f"{self.path}/{attachment_id}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def account(self, project_id: str, actions: list[str]) -> httpx.AsyncClient:
        """A service account of a project."""
        _, token = await make_operator(self.site.world, self.site.tenant, project_id, actions)
        return self.site.world.client(token)

    async def look(self) -> None:
        """One look of the worker, who misses nothing: what is due is found apart from what its next step is."""
        services = self.site.services
        await InstanceReconciler(services).advance()
        now = services.clock.now()
        for each in await instance_reconcile.snapshot(services.database, now, [self.instance_id]):
            step = reconcile(replace(context(), now=now), limits_of(services.settings), each)
            assert step is None, f"{each.instance.id} has a next step, and is not due: {step}"


async def a_shared(site: AdapterSite, manifest: dict[str, Any] | None = None, scope: str = "tenant") -> Shared:
    """An instance with one member that runs and is shared."""
    site.project_rows = replace(
        site.project_rows,
        version_id=await site.project_rows.birth("app_version", app_slug="hello", manifest=manifest or SHARED),
    )
    artifact_id = await site.artifact(digest("a"))
    instance, members, operation = site.made(0)
    instance = replace(instance, control_plane_scope=scope)
    await site.apply(
        together(
            instance,
            new_instance(instance),
            *(new_member(instance, each) for each in members),
            new_operation(instance, operation, "instance.create"),
        )
    )
    adapter = site.adapter()
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    for status in ("joining", "ready"):
        await adapter.report(instance.id, fence, members=[{"id": each.id, "status": status} for each in members])
    await adapter.finish(instance.id, fence, operation.id)
    project_id = await site.world.project(site.tenant, "research")
    people = site.world.client(site.tenant.token)
    return Shared(site, adapter, instance.id, fence, project_id, people, artifact_id)


def said(answer: httpx.Response) -> tuple[int, str]:
    """How a request was refused."""
    return answer.status_code, answer.json().get("code", "")


async def test_a_project_is_attached_acts_under_its_own_keys_and_is_detached(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach(outcome=None)
    asked = await shared.read(attachment_id)
    assert (asked["status"], asked["account_name"]) == ("requested", "p-research")
    attachment = {"id": attachment_id, "project_id": shared.project_id, "account_name": "p-research"}
    seen = await shared.adapter.read(shared.instance_id, shared.fence)
    assert [(each["kind"], each["request"]) for each in seen["operations"]] == [("attach", {"attachment": attachment})]
    assert seen["attachments"] == [attachment | {"status": "requested"}]
    await shared.end(asked["operation_id"], "succeeded")
    active = await shared.people.get(f"{shared.path}/{attachment_id}", params={"wait": 5, "until": "active"})
    assert (active.json()["status"], active.json()["allowed_verbs"]) == ("active", ["act", "detach"])
    owner = f"/api/v1/projects/{site.project_id}/app-instances/{shared.instance_id}"
    listed = (await shared.people.get(f"{owner}/attachments")).json()["items"]
    assert listed == [attachment | {"status": "active"}]

    robot = await shared.account(shared.project_id, ["attachment.read", SUBMIT])
    started = await robot.post(f"{shared.path}/{attachment_id}/actions/queue.submit", json={"input": {}})
    assert started.status_code == 202, started.text
    operation_id = started.json()["id"]
    (action,) = (await shared.adapter.read(shared.instance_id, shared.fence))["operations"]
    assert (action["kind"], action["request"]["attachment"]) == ("action", attachment)
    await shared.adapter.report(shared.instance_id, shared.fence, operation_id=operation_id, begin=True)
    await shared.adapter.finish(shared.instance_id, shared.fence, operation_id, output={"id": 7})
    over = await robot.get(f"{shared.path}/{attachment_id}/operations/{operation_id}")
    assert (over.json()["status"], over.json()["output"]) == ("succeeded", {"id": 7})
    of_owner = (await shared.people.get(f"{owner}/operations/{operation_id}")).json()
    assert (of_owner["output"], of_owner["request"].get("input")) == (None, None)
    assert of_owner["request"]["attachment"] == attachment

    gone = await shared.people.post(f"{shared.path}/{attachment_id}/detach", json={"timeout_seconds": 60})
    assert (gone.status_code, gone.json()["status"]) == (202, "detaching")
    late = await robot.post(f"{shared.path}/{attachment_id}/actions/queue.submit", json={"input": {}})
    assert said(late) == (409, "illegal_transition")
    (detach,) = (await shared.adapter.read(shared.instance_id, shared.fence))["operations"]
    assert detach["request"] == {"attachment": attachment, "cancel_work": False, "timeout_seconds": 60}
    await shared.end(detach["id"], "succeeded")
    assert (await shared.read(attachment_id))["status"] == "detached"
    done = (await robot.get(f"{shared.path}/{attachment_id}/operations")).json()["items"]
    assert [each["id"] for each in done] == [detach["id"], operation_id, asked["operation_id"]]
    assert (await shared.adapter.read(shared.instance_id, shared.fence))["attachments"] == []
    await _both_projects_see_its_events(shared, attachment_id)


async def _both_projects_see_its_events(shared: Shared, attachment_id: str) -> None:
    """Audit rows and events of both projects name both."""
    database, both = shared.site.services.database, {shared.project_id, shared.site.project_id}
    audited = "SELECT project_id, action, after FROM audit WHERE action = $1 AND tenant_id = $2"
    acting = await database.fetch(PLATFORM, audited, SUBMIT, shared.site.tenant.id)
    assert {row["project_id"] for row in acting} == both
    named = [set(row["after"].values()) | {row["project_id"]} for row in acting]
    assert all(both <= each for each in named)
    moved = await database.fetch(
        PLATFORM, "SELECT project_id, data ->> 'status' AS s FROM event WHERE subject_id = $1", attachment_id
    )
    for project_id in both:
        statuses = [row["s"] for row in moved if row["project_id"] == project_id]
        assert {"requested", "active", "detaching", "detached"} <= set(statuses)


async def test_what_is_not_shared_or_not_the_tenants_is_not_attached(site: AdapterSite) -> None:
    alone = await a_shared(site, scope="project")
    refused = await alone.people.post(alone.path, json={"instance_id": alone.instance_id})
    assert said(refused) == (409, "not_supported")
    assert "control_plane_scope is project" in refused.json()["detail"]
    site.project_rows = replace(
        site.project_rows, version_id=await site.project_rows.birth("app_version", manifest=MANIFEST)
    )
    other = await site.world.tenant("other")
    strangers = site.world.client(other.token)
    theirs = f"/api/v1/projects/{await site.world.project(other, 'theirs')}/attachments"
    assert said(await strangers.post(theirs, json={"instance_id": alone.instance_id})) == (404, "not_found")
    assert said(await strangers.post(alone.path, json={"instance_id": alone.instance_id})) == (404, "not_found")
    robot = await alone.account(alone.project_id, ["attachment.read"])
    assert (await robot.post(alone.path, json={"instance_id": alone.instance_id})).status_code == 403
    own = f"/api/v1/projects/{site.project_id}/attachments"
    assert said(await alone.people.post(own, json={"instance_id": alone.instance_id})) == (409, "conflict")
    member = site.world.client(await site.world.member(site.tenant, alone.project_id, "project_admin", "pat"))
    assert (await member.post(alone.path, json={"instance_id": alone.instance_id})).status_code == 403


async def test_an_attached_project_cannot_use_what_was_revoked_and_no_other_is_attached(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach()
    revoked = await shared.people.post(
        f"/api/v1/tenants/{site.tenant.id}/artifacts/{shared.artifact_id}/revoke",
        json={"reason": "it holds a backdoor"},
    )
    assert revoked.status_code == 200, revoked.text
    acted = await shared.people.post(f"{shared.path}/{attachment_id}/actions/list", json={})
    assert said(acted) == (409, "artifact_revoked")
    other = await site.world.project(site.tenant, "finance")
    asked = await shared.people.post(f"/api/v1/projects/{other}/attachments", json={"instance_id": shared.instance_id})
    assert said(asked) == (409, "artifact_revoked")


@pytest.mark.usefixtures("private_platform")
async def test_an_attached_project_hears_that_the_instance_lost_its_trust(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach()
    ended = await site.world.project(site.tenant, "finance")  # not attached: it hears nothing
    revoked = await shared.people.post(
        f"/api/v1/tenants/{site.tenant.id}/artifacts/{shared.artifact_id}/revoke", json={"reason": "a backdoor"}
    )
    assert revoked.status_code == 200, revoked.text
    for _ in range(2):  # the second pass has nothing to say
        await mark_all(site.services)
    heard = {}
    for project_id in (shared.project_id, ended):
        page = (await shared.people.get(f"/api/v1/projects/{project_id}/events?limit=500")).json()
        heard[project_id] = [each for each in page["items"] if "trust_lost" in each["type"]]
    assert heard[ended] == []
    (event,) = heard[shared.project_id]
    assert (event["type"], event["subject_id"]) == ("apps.attachment.trust_lost", attachment_id)
    assert (event["data"]["codes"], event["data"]["reaction"]) == (["artifact_revoked"], "refuse")
    assert digest("a") not in str(event)  # of the owning project


async def test_an_app_that_lets_nobody_attach_says_so_and_a_second_attachment_is_refused(site: AdapterSite) -> None:
    shared = await a_shared(site)
    first = await shared.attach()
    again = await shared.people.post(shared.path, json={"instance_id": shared.instance_id})
    assert (said(again), again.json()["details"]["attachment_id"]) == ((409, "conflict"), first)
    full = await shared.people.delete(f"/api/v1/projects/{shared.project_id}")
    assert said(full) == (409, "not_empty")
    plain = MANIFEST | {"lifecycle": LIFECYCLE}
    site.project_rows = replace(
        site.project_rows, version_id=await site.project_rows.birth("app_version", manifest=plain)
    )
    await site.services.database.fetch(
        PLATFORM, "UPDATE instance SET version_id = $2 WHERE id = $1", shared.instance_id, site.project_rows.version_id
    )
    third = f"/api/v1/projects/{await site.world.project(site.tenant, 'third')}/attachments"
    refused = await shared.people.post(third, json={"instance_id": shared.instance_id})
    assert said(refused) == (409, "not_supported")


async def test_what_the_adapter_cannot_do_is_refused_with_its_reason_and_may_be_asked_again(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach(outcome="failed")
    refused = await shared.read(attachment_id)
    assert (refused["status"], refused["refusal_reason"]) == ("refused", "there is no room")
    late = await shared.attach(outcome=None)
    taken_back = await shared.people.delete(f"{shared.path}/{late}")
    assert (taken_back.status_code, taken_back.json()["status"]) == (202, "requested")
    site.clock.by += timedelta(minutes=10)
    await shared.look()
    given_up = await shared.read(late)
    assert (given_up["status"], given_up["refusal_reason"]) == ("refused", "the attachment request was withdrawn")


async def test_a_detach_that_fails_names_its_blocker_and_is_repeated(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach()
    path = f"{shared.path}/{attachment_id}"
    operation_id = (await shared.people.post(f"{path}/detach", json={})).json()["operation_id"]
    cancel = f"/api/v1/projects/{site.project_id}/app-instances/{shared.instance_id}/operations/{operation_id}/cancel"
    assert said(await shared.people.post(cancel, json={})) == (409, "not_supported")
    await shared.end(operation_id, "failed", "job 12 still runs")
    blocked = await shared.read(attachment_id)
    assert (blocked["status"], blocked["blocker"], blocked["attempts"]) == ("detaching", "job 12 still runs", 1)
    await shared.look()
    assert (await shared.read(attachment_id))["operation_id"] == operation_id, "not before its pause is over"
    site.clock.by += timedelta(minutes=1)
    shared.fence = await shared.adapter.claim(shared.instance_id)
    await shared.look()
    second = (await shared.read(attachment_id))["operation_id"]
    assert second != operation_id
    hurried = await shared.people.post(f"{path}/detach", json={"cancel_work": True, "timeout_seconds": 0})
    assert hurried.json()["cancel_work"] is True
    (waiting,) = (await shared.adapter.read(shared.instance_id, shared.fence))["operations"]
    assert (waiting["id"], waiting["status"]) == (second, "cancelling")
    await shared.adapter.finish(shared.instance_id, shared.fence, second, outcome="cancelled")
    await shared.look()
    (third,) = (await shared.adapter.read(shared.instance_id, shared.fence))["operations"]
    assert (third["kind"], third["request"]["cancel_work"]) == ("detach", True)
    await shared.end(third["id"], "succeeded")
    assert (await shared.read(attachment_id))["status"] == "detached"


async def test_with_its_instance_every_attachment_ends(site: AdapterSite) -> None:
    shared = await a_shared(site)
    active = await shared.attach()
    third = f"/api/v1/projects/{await site.world.project(site.tenant, 'third')}/attachments"
    asked = (await shared.people.post(third, json={"instance_id": shared.instance_id})).json()
    stop = f"/api/v1/projects/{site.project_id}/app-instances/{shared.instance_id}/stop"
    assert (await shared.people.post(stop)).status_code == 202
    await shared.look()
    assert (await shared.read(active))["status"] in ("detaching", "detached")
    site.clock.by += timedelta(minutes=10)
    await shared.look()
    stopped = await shared.people.get(stop.removesuffix("/stop"))
    assert stopped.json()["status"] == "stopped"
    assert (await shared.read(active))["status"] == "detached"
    assert (await shared.people.get(f"{third}/{asked['id']}")).json()["status"] == "refused"


async def test_neither_side_sees_more_of_the_other_than_the_attachment(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach()
    path, owner = f"{shared.path}/{attachment_id}", f"/api/v1/projects/{site.project_id}"
    robot = await shared.account(shared.project_id, ["attachment.read", "instance.read", "usage.read", SUBMIT])
    for foreign in ("", "/app-instances", f"/app-instances/{shared.instance_id}", "/events", "/attachments"):
        assert (await robot.get(owner + foreign)).status_code == 404, foreign
    for hidden in ("", "/attachments", f"/attachments/{attachment_id}", f"/attachments/{attachment_id}/usage"):
        answer = await shared.adapter.client.get(f"/api/v1/projects/{shared.project_id}{hidden}")
        assert answer.status_code == 404, hidden
    third = await site.world.project(site.tenant, "third")
    beside = await shared.account(third, ["attachment.read", SUBMIT])
    wrong = f"/api/v1/projects/{third}/attachments/{attachment_id}"
    for route in ("", "/usage", "/operations/op_00000000000000000000000000"):
        assert said(await shared.people.get(wrong + route)) == (404, "not_found")
    assert said(await beside.post(f"{wrong}/actions/queue.submit", json={})) == (404, "not_found")
    deploy = await site.fetch("SELECT id FROM operation WHERE kind = 'deploy' AND instance_id = $1", shared.instance_id)
    assert said(await robot.get(f"{path}/operations/{deploy}")) == (404, "not_found")

    keyless = await shared.account(shared.project_id, ["attachment.read"])
    assert said(await keyless.post(f"{path}/actions/queue.submit", json={})) == (403, "permission_denied")
    of_owner = await shared.account(site.project_id, ["attachment.read", SUBMIT])
    assert (await of_owner.post(f"{path}/actions/queue.submit", json={})).status_code == 404
    assert said(await robot.post(f"{path}/actions/restart", json={})) == (409, "not_supported")
    assert said(await robot.post(f"{path}/actions/nothing", json={})) == (404, "not_found")


async def test_usage_is_of_attached_projects_alone_and_each_reads_its_own(site: AdapterSite) -> None:
    shared = await a_shared(site)
    attachment_id = await shared.attach()
    now = site.clock.now().isoformat()
    record = {"unit": "gpu_hours", "started_at": now, "ended_at": now, "quantity": 2}
    third = await site.world.project(site.tenant, "third")
    site.clock.by += timedelta(seconds=1)

    async def tell(record_id: str, project_id: str | None) -> httpx.Response:
        sent = record | {"record_id": record_id, "attached_project_id": project_id}
        return await shared.adapter.send(shared.instance_id, "usage", shared.fence, records=[sent])

    assert said(await tell("job/1", third)) == (404, "not_found")
    assert (await tell("job/2", shared.project_id)).json() == {"stored": 1, "repeated": 0}
    assert (await tell("job/3", None)).json()["stored"] == 1
    own = (await shared.people.get(f"{shared.path}/{attachment_id}/usage")).json()["items"]
    assert [(each["record_id"], each["covered_by_allocation"]) for each in own] == [("job/2", True)]
    await shared.end((await shared.people.delete(f"{shared.path}/{attachment_id}")).json()["operation_id"], "succeeded")
    assert (await tell("job/4", shared.project_id)).json()["stored"] == 1, (
        "usage from before the end is accepted after it"
    )
