"""What tenants and malicious nodes try on the node plane, and do not get."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

import pytest

from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from server.tests.conftest import World
from server.tests.support.lifecycle_rows import CLOCK, artifact_columns, machines_of
from server.tests.support.node_site import NodeSite, a_site

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]

DIGEST: Final = "sha256:" + "0" * 64
JSON: Final = {"content-type": "application/json"}
FAILED: Final = '"fence":1,"outcome":"failed","failure":{"code":"exited","detail":"x"}'


@pytest.fixture
async def site(world: World) -> AsyncIterator[NodeSite]:
    """A project with an allocation on a machine whose agent is played."""
    async with a_site(world) as made:
        standing = await made.project_rows.subject("allocation", ALLOCATION, AllocationState.ACTIVE)
        yield replace(made, project_rows=replace(made.project_rows, allocation_id=standing.id))


def launched(registry: str, repository: str = "team/app") -> dict[str, Any]:
    """A task that launches a container from a registry."""
    image = {"registry": registry, "repository": repository, "digest": DIGEST}
    return {"type": "container.launch", "arguments": {"name": "a", "image": image}}


def fetched(source: str, kind: str = "blob") -> dict[str, Any]:
    """A task that fetches an artifact."""
    return {"type": "artifact.fetch", "arguments": {"kind": kind, "digest": DIGEST, "source": source}}


async def registered(site: NodeSite, location: str) -> None:
    """An artifact of the tenant's with the digest, written past the API: its bytes are nowhere."""
    row = site.project_rows.row("artifact") | artifact_columns(DIGEST) | {"location": location}
    looked = {
        "id": CLOCK.mint(Prefix.ARTIFACT_EVIDENCE),
        "tenant_id": site.tenant.id,
        "artifact_id": row["id"],
        "kind": "presence",
        "digest": DIGEST,
        "observed_at": CLOCK.now(),
        "size_bytes": row["size_bytes"],
    }
    await site.project_rows.write(Insert("artifact", row, machines_of("artifact")), Insert("artifact_evidence", looked))


NOWHERE: Final = [
    launched("http://127.0.0.1:5432"),
    launched("http://169.254.169.254"),
    launched("https://10.0.0.1"),
    launched("https://localhost"),
    launched("https://registry.example"),
    fetched("http://169.254.169.254/latest/meta-data/iam"),
    fetched("http://127.0.0.1:7420/api/v1/health"),
    fetched("https://[::1]/x"),
    fetched("https://[::ffff:127.0.0.1]/x"),
    fetched("https://blobs.example/x"),
    fetched("http://127.0.0.1:5000/v2/team/app", "oci"),
]


@pytest.mark.parametrize("asked", NOWHERE)
async def test_a_task_fetches_from_nowhere_that_no_source_names(site: NodeSite, asked: dict[str, Any]) -> None:
    answer = await site.people.post(f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (403, "source_denied"), answer.text


@pytest.mark.parametrize(
    "asked", [fetched("file:///etc/passwd"), fetched("https://a@b.example/x"), fetched("x", "oci")]
)
async def test_a_malformed_source_address_is_refused(site: NodeSite, asked: dict[str, Any]) -> None:
    answer = await site.people.post(f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), answer.text


async def test_a_tenants_source_reaches_no_private_address_and_no_plain_http(site: NodeSite) -> None:
    sources = f"/api/v1/tenants/{site.tenant.id}/artifact-sources"
    for pattern in ("oci://10.0.0.1/*", "oci://registry.example/*", "oci://registry.example:5000/*"):
        made = await site.people.post(sources, json={"name": pattern, "pattern": pattern})
        assert made.status_code == 201, made.text
    path = f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks"
    for registry in ("https://10.0.0.1", "http://registry.example:5000"):
        answer = await site.people.post(path, json=launched(registry))
        assert (answer.status_code, answer.json()["code"]) == (403, "source_denied"), answer.text
    asked = launched("https://registry.example")
    asked["arguments"]["image"]["private"] = True  # that is the platform's to say
    answer = await site.people.post(path, json=asked)
    assert (answer.status_code, answer.json()["code"]) == (409, "artifact_not_registered"), answer.text
    await registered(site, "oci://registry.example/team/app")
    answer = await site.people.post(path, json=asked)
    assert answer.status_code == 201, answer.text
    assert (await site.agent.claim_one())["arguments"]["image"]["private"] is False


@pytest.mark.usefixtures("private_platform")
async def test_a_source_of_the_platform_that_reaches_private_networks_does(site: NodeSite) -> None:
    listed = {"name": "Inside", "pattern": "oci://127.0.0.1:5000/*", "reaches_private": True}
    assert (await site.world.admin.post("/api/v1/platform/artifact-sources", json=listed)).status_code == 201
    path = f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks"
    await registered(site, "oci://127.0.0.1:5000/team/app")
    assert (await site.people.post(path, json=launched("http://127.0.0.1:5000"))).status_code == 201
    assert (await site.agent.claim_one())["arguments"]["image"]["private"] is True


@pytest.mark.parametrize("step", ["sandbox.destroy/1", "sandbox.create/2", "teardown.verify/1", "tunnel/x", "tunnel"])
async def test_nobody_takes_the_names_of_the_platforms_own_steps(site: NodeSite, step: str) -> None:
    asked = {"type": "process.run", "arguments": {"argv": ["true"]}, "step": step}
    answer = await site.people.post(f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed"), answer.text


@pytest.mark.parametrize(
    "rest",
    [
        FAILED + ',"result":{"a":"x\\u0000y"}',
        FAILED + ',"result":{"a\\u0000":1}',
        FAILED + ',"result":{"a":"\\ud800"}',
        FAILED + ',"result":{"a":1e400}',
        FAILED + ',"result":' + '{"a":' * 400 + "1" + "}" * 401,
        '"fence":1,"outcome":"failed","failure":{"code":"exited","detail":"\\ud800"}',
        '"fence":4611686018427387904,"outcome":"succeeded"',
    ],
)
async def test_a_result_with_odd_values_breaks_nothing(site: NodeSite, rest: str) -> None:
    made = await site.make()
    await site.agent.claim_one()
    body = f'{{"reports":[{{"kind":"result","task_id":"{made.id}",{rest}}}]}}'
    answer = await site.agent.client.post("/api/v1/agent/reports", content=body.encode(), headers=JSON)
    assert answer.status_code < 500, answer.text


async def test_a_node_cannot_report_on_the_tasks_of_another(site: NodeSite) -> None:
    made = await site.make("sandbox.destroy", {})
    task = await site.agent.claim_one()
    evil = await site.another_agent()
    held = {"task_id": made.id, "fence": task["fence"]}
    reports = [
        site.agent.result(task),
        site.agent.result(task) | {"receipt": evil.receipt(task, node_id=site.agent.node_id)},
        {"kind": "log", **held, "offset": 0, "text": "AAAA"},
        {"kind": "progress", **held, "progress": {"stage": "a", "done": 1}},
    ]
    verdicts = await evil.report(*reports)
    assert [each["code"] for each in verdicts] == ["not_found"] * 4
    await evil.report({"kind": "refused", "task_id": made.id, "reason": "bad_arguments", "detail": "x"})
    await evil.poll(wait_seconds=0, running=[held])
    assert (await site.stands(made)).status == "claimed"
    assert await site.count("SELECT count(*) FROM receipt WHERE task_id = $1", made.id) == 0


@pytest.mark.parametrize("path", ["allocations/%00", "allocation-groups/%00", "endpoints/%00", "tasks/%00"])
async def test_an_id_with_a_zero_byte_is_nothings(site: NodeSite, path: str) -> None:
    assert (await site.people.get(f"{site.path}/{path}")).status_code == 404


async def test_tasks_that_people_make_by_hand_count_among_the_open_ones_of_their_project(site: NodeSite) -> None:
    services = site.world.running.platform.services
    object.__setattr__(services, "settings", replace(services.settings, open_tasks_per_project_max=3))
    path = f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks"
    body = {"type": "process.run", "arguments": {"argv": ["sleep", "1000"]}}
    answers = [await site.people.post(path, json=body | {"step": f"flood/{number}"}) for number in range(5)]
    assert [each.status_code for each in answers] == [201, 201, 201, 409, 409]
    assert {each.json()["code"] for each in answers[3:]} == {"too_many_open_tasks"}
    assert (await site.people.post(path, json=body | {"step": "flood/0"})).status_code == 201, "it exists already"


async def test_tasks_that_are_asked_for_at_the_same_moment_do_not_pass_the_bound_together(site: NodeSite) -> None:
    services = site.world.running.platform.services
    object.__setattr__(services, "settings", replace(services.settings, open_tasks_per_project_max=5))
    path = f"{site.path}/allocations/{site.project_rows.allocation_id}/tasks"
    body = {"type": "process.run", "arguments": {"argv": ["sleep", "1000"]}}
    flood = [site.people.post(path, json=body | {"step": f"flood/{number}"}) for number in range(60)]
    answers = await asyncio.gather(*flood)
    assert 1 <= sum(each.status_code == 201 for each in answers) <= 5
    assert {each.status_code for each in answers} == {201, 409}
    again = [await site.people.post(path, json=body | {"step": f"again/{number}"}) for number in range(6)]
    opened = (await site.people.get(f"{site.path}/tasks", params={"status": "queued"})).json()["items"]
    assert (len(opened), again[-1].status_code) == (5, 409), "what is refused by chance fits later"
