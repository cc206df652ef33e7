"""Tasks, secrets and usage under a claim: for one's own members, each named once, each digest judged again."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from mooring.core.runtime.operation import OperationKind
from mooring.storage.fleet import task as stored_tasks
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.instance_trust import TrustWorker
from server.tests.api.runtime.test_claims import deployed
from server.tests.conftest import World
from server.tests.support.adapter_site import MANIFEST, AdapterClient, AdapterSite, open_adapter_site
from server.tests.support.manifests import digest

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
RUN: dict[str, Any] = {"type": "process.run", "arguments": {"argv": ["true"]}}
LAUNCH: dict[str, Any] = {"type": "container.launch", "arguments": {"name": "web", "image": {"artifact": "main"}}}
DIGEST = digest("a")


async def begun(site: AdapterSite, adapter: AdapterClient) -> tuple[str, int, list[str], str]:
    """An instance whose deploy has begun."""
    instance, members, operation = await site.launch(1)
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=operation.id, begin=True)
    return instance.id, fence, [each.id for each in members], operation.id


async def test_a_task_is_made_once_under_its_name_for_the_member_and_its_node(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "step": "start/head", "operation_id": operation_id, **RUN}
    answers = await asyncio.gather(*(adapter.send(instance_id, "tasks", fence, **body) for _ in range(5)))
    assert {each.status_code for each in answers} == {200}
    (made,) = {each.json()["id"] for each in answers}
    row = await site.services.database.fetchrow(
        PLATFORM,
        "SELECT owner, node_id, allocation_id, member_id, instance_id, maker, correlation_id FROM task WHERE id = $1",
        made,
    )
    allocation_id, account_id = site.project_rows.allocation_id, site.account.id
    correlation = await site.fetch("SELECT correlation_id FROM operation WHERE id = $1", operation_id)
    assert tuple(row) == (
        f"{allocation_id}/{head}",
        site.project_rows.node_id,
        allocation_id,
        head,
        instance_id,
        account_id,
        correlation,
    )
    assert [each["id"] for each in (await adapter.read(instance_id, fence))["tasks"]] == [made]
    url = f"/api/v1/runtime/instances/{instance_id}/tasks/{made}"
    assert (await adapter.client.get(url, params={"fence": fence})).json()["step"] == "start/head"


async def test_several_tasks_are_made_at_once_and_each_has_its_own_outcome(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, worker), operation_id = await begun(site, adapter)
    first = {"member_id": head, "step": "start/head", **RUN}
    made = (await adapter.send(instance_id, "tasks", fence, operation_id=operation_id, **first)).json()
    requested_tasks = [
        {"member_id": worker, "step": "start/worker", **RUN},
        first,
        {"member_id": "mem_" + "0" * 26, "step": "start/nobody", **RUN},
        {"member_id": head, "step": "bad", "type": "process.run", "arguments": {"argv": []}},
        {"member_id": head, "step": "image", **LAUNCH, "arguments": {"name": "web", "image": {"artifact": "other"}}},
        {"member_id": worker, "step": "second/worker", **RUN},
    ]
    asked = [
        adapter.send(instance_id, "tasks:batch", fence, operation_id=operation_id, tasks=requested_tasks)
        for _ in range(3)
    ]
    answers = await asyncio.gather(*asked)
    assert {each.status_code for each in answers} == {200}
    (outcomes, *others) = [each.json()["tasks"] for each in answers]
    assert [each["step"] for each in outcomes] == [each["step"] for each in requested_tasks]
    codes = [each["refusal"] and each["refusal"]["code"] for each in outcomes]
    assert codes == [None, None, "not_found", "validation_failed", "artifact_not_pinned", None]
    assert outcomes[1]["task"]["id"] == made["id"]
    ids = [each["task"] and each["task"]["id"] for each in outcomes]
    assert [[each["task"] and each["task"]["id"] for each in other] for other in others] == [ids, ids]
    seen = (await adapter.read(instance_id, fence))["tasks"]
    assert {each["id"] for each in seen} == {each for each in ids if each is not None}


async def test_a_project_has_a_bounded_number_of_open_tasks(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    limited = replace(site.services.settings, open_tasks_per_project_max=3)
    object.__setattr__(site.services, "settings", limited)
    requested_tasks = [{"member_id": head, "step": f"{number}", **RUN} for number in range(5)]
    answer = await adapter.send(instance_id, "tasks:batch", fence, operation_id=operation_id, tasks=requested_tasks)
    refusals = [each["refusal"] and each["refusal"]["code"] for each in answer.json()["tasks"]]
    assert refusals == [None] * 3 + ["too_many_open_tasks"] * 2
    one = {"operation_id": operation_id, **requested_tasks[4]}
    refused = await adapter.send(instance_id, "tasks", fence, **one)
    assert (refused.status_code, refused.json()["code"]) == (409, "too_many_open_tasks")
    assert (refused.json()["retryable"], refused.json()["details"]["limit"]) == (True, 3)
    again = await adapter.send(instance_id, "tasks", fence, **one | {"step": "0"})
    assert again.status_code == 200, "a task that exists is not made again"
    made = [each["task"]["id"] for each in answer.json()["tasks"][:1]]
    cancelled = await site.world.client(site.tenant.token).post(
        f"/api/v1/projects/{site.project_id}/tasks/{made[0]}/cancel"
    )
    assert cancelled.json()["status"] == "cancelled"
    assert (await adapter.send(instance_id, "tasks", fence, **one)).status_code == 200


async def test_tasks_of_one_request_sort_in_its_order_and_so_nodes_are_handed_them(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, members, operation_id = await begun(site, adapter)
    requested_tasks = [{"member_id": member, "step": f"{n}/{member}", **RUN} for member in members for n in range(20)]
    answer = await adapter.send(instance_id, "tasks:batch", fence, operation_id=operation_id, tasks=requested_tasks)
    assert [each["step"] for each in answer.json()["tasks"]] == [each["step"] for each in requested_tasks]
    taken = await site.services.database.fetch(
        PLATFORM, "SELECT step FROM task WHERE member_id = ANY ($1) ORDER BY id", members
    )
    assert [each["step"] for each in taken] == [each["step"] for each in requested_tasks]


async def test_a_batch_of_tasks_is_refused_as_a_whole(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, worker), operation_id = await begun(site, adapter)
    good = {"member_id": head, "step": "start/head", **RUN}
    platforms_own = {"member_id": worker, "step": "end", "type": "teardown.verify", "arguments": {}}
    for tasks, shown, code in (
        ([good, platforms_own], fence, "permission_denied"),
        ([good, good], fence, "validation_failed"),
        ([good], fence - 1, "lease_lost"),
        ([], fence, "validation_failed"),
        ([good] * 51, fence, "validation_failed"),
    ):
        answer = await adapter.send(instance_id, "tasks:batch", shown, operation_id=operation_id, tasks=tasks)
        assert answer.json()["code"] == code
    assert (await adapter.read(instance_id, fence))["tasks"] == []


async def test_another_members_task_is_not_handed_out_under_its_name(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, worker), operation_id = await begun(site, adapter)
    body = {"step": "start", "operation_id": operation_id, **RUN}
    assert (await adapter.send(instance_id, "tasks", fence, member_id=head, **body)).status_code == 200
    other = await adapter.send(instance_id, "tasks", fence, member_id=worker, **body)
    assert (other.status_code, other.json()["code"]) == (409, "name_taken")


async def test_a_task_is_for_ones_own_members_alone(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    other_id, other_fence, (stranger, _), other_operation = await begun(site, adapter)
    for member, operation in ((stranger, operation_id), (head, other_operation)):
        body = {"member_id": member, "step": "a", "operation_id": operation, **RUN}
        answer = await adapter.send(instance_id, "tasks", fence, **body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    body = {"member_id": stranger, "step": "a", "operation_id": other_operation, **RUN}
    made = (await adapter.send(other_id, "tasks", other_fence, **body)).json()["id"]
    url = f"/api/v1/runtime/instances/{instance_id}/tasks/{made}"
    assert (await adapter.client.get(url, params={"fence": fence})).status_code == 404


@pytest.mark.parametrize("type_", ["sandbox.create", "sandbox.destroy", "teardown.verify", "tunnel.open"])
async def test_what_the_platform_alone_asks_for_is_refused(site: AdapterSite, type_: str) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "step": "a", "operation_id": operation_id, "type": type_, "arguments": {}}
    answer = await adapter.send(instance_id, "tasks", fence, **body)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")


async def test_between_operations_a_member_is_only_observed(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    head = (await adapter.read(instance_id, fence))["members"][0]["id"]
    doing = await adapter.send(instance_id, "tasks", fence, member_id=head, step="watch/1", **RUN)
    assert (doing.status_code, doing.json()["code"]) == (422, "validation_failed")
    look = {"type": "probe.tcp", "arguments": {"port": 80}}
    looking = await adapter.send(instance_id, "tasks", fence, member_id=head, step="watch/1", **look)
    assert (looking.status_code, looking.json()["operation_id"]) == (200, None)
    assert [each["step"] for each in (await adapter.read(instance_id, fence))["tasks"]] == ["watch/1"]


async def test_an_image_is_named_by_its_role_and_the_platform_says_where_it_lies(site: AdapterSite) -> None:
    adapter = site.adapter()
    await site.artifact(DIGEST)
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    for index, image in enumerate(({"artifact": "main"}, {"digest": DIGEST})):
        arguments = {"name": "web", "image": image}
        body = {"member_id": head, "step": f"launch/{index}", "operation_id": operation_id}
        made = await adapter.send(instance_id, "tasks", fence, type="container.launch", arguments=arguments, **body)
        assert made.status_code == 200, made.text
        stored = await stored_tasks.find(
            site.services.database, PLATFORM, site.project_rows.project_id, made.json()["id"]
        )
        assert stored is not None
        assert stored.arguments["image"] == {
            "registry": "https://registry.example",
            "repository": "team/app",
            "digest": DIGEST,
            "private": False,
        }


async def test_each_reason_not_to_fetch_a_digest_has_its_own_code(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)

    async def refused(step: str, image: dict[str, Any]) -> str:
        arguments = {"name": "web", "image": image}
        body = {"member_id": head, "step": step, "operation_id": operation_id, "type": "container.launch"}
        answer = await adapter.send(instance_id, "tasks", fence, arguments=arguments, **body)
        assert answer.status_code in (403, 409), answer.text
        return str(answer.json()["code"])

    assert await refused("a", {"artifact": "weights"}) == "artifact_not_pinned"
    assert await refused("b", {"digest": digest("f")}) == "artifact_not_pinned"
    assert await refused("c", {"artifact": "main"}) == "artifact_not_registered"
    unseen = await site.artifact(DIGEST, present=False)
    assert await refused("d", {"artifact": "main"}) == "artifact_unverified"
    await site.artifact(DIGEST, location="oci://elsewhere.example/team/app")
    assert await refused("e", {"artifact": "main"}) in ("artifact_unverified", "source_denied")
    people = site.world.client(site.tenant.token)
    path = f"/api/v1/tenants/{site.tenant.id}/artifacts/{unseen}/revoke"
    assert (await people.post(path, json={"reason": "it was found to be bad"})).status_code == 200
    assert await refused("f", {"artifact": "main"}) in ("artifact_revoked", "source_denied")


async def test_a_policy_that_was_narrowed_counts_at_the_next_task(site: AdapterSite) -> None:
    adapter = site.adapter()
    await site.artifact(DIGEST)
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "operation_id": operation_id, **LAUNCH}
    assert (await adapter.send(instance_id, "tasks", fence, step="a", **body)).status_code == 200
    people, path = site.world.client(site.tenant.token), f"/api/v1/projects/{site.project_id}/policy"
    rules = {"rules": {"sources": {"deny": ["oci://registry.example/*"]}}, "reason": "nothing comes from there"}
    assert (await people.put(path, json=rules)).status_code == 200
    denied = await adapter.send(instance_id, "tasks", fence, step="b", **body)
    assert (denied.status_code, denied.json()["code"]) == (403, "source_denied")


async def test_a_task_that_was_made_is_answered_again_whatever_became_of_its_artifact(site: AdapterSite) -> None:
    adapter = site.adapter()
    artifact_id = await site.artifact(DIGEST)
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "step": "launch", "operation_id": operation_id, **LAUNCH}
    first = await adapter.send(instance_id, "tasks", fence, **body)
    people = site.world.client(site.tenant.token)
    path = f"/api/v1/tenants/{site.tenant.id}/artifacts/{artifact_id}/revoke"
    assert (await people.post(path, json={"reason": "it was found to be bad"})).status_code == 200
    again = await adapter.send(instance_id, "tasks", fence, **body)
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
    repeated = await adapter.send(instance_id, "tasks", fence, **{**body, "step": "launch/2"})
    assert (repeated.status_code, repeated.json()["code"]) == (409, "artifact_revoked")


async def test_a_task_that_no_node_began_is_cancelled_when_its_artifact_is_revoked(site: AdapterSite) -> None:
    adapter = site.adapter()
    artifact_id = await site.artifact(DIGEST)
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "operation_id": operation_id}
    launch = await adapter.send(instance_id, "tasks", fence, step="launch", **body, **LAUNCH)
    look = {"type": "probe.tcp", "arguments": {"port": 80}}
    probe = await adapter.send(instance_id, "tasks", fence, step="probe", **body, **look)
    people = site.world.client(site.tenant.token)
    path = f"/api/v1/tenants/{site.tenant.id}/artifacts/{artifact_id}/revoke"
    assert (await people.post(path, json={"reason": "it was found to be bad"})).status_code == 200
    await TrustWorker(site.services).tick()
    tasks = f"/api/v1/projects/{site.project_id}/tasks"
    ended = [(await people.get(f"{tasks}/{each.json()['id']}")).json()["status"] for each in (launch, probe)]
    assert ended == ["cancelled", "queued"], "only what would start the bytes"
    seen = (await adapter.read(instance_id, fence))["instance"]["distrust"]
    assert [each["digest"] for each in seen["artifacts"]] == [DIGEST], "the adapter knows why"


async def test_people_launch_no_digest_that_nobody_registered(site: AdapterSite) -> None:
    people, path = site.world.client(site.tenant.token), f"/api/v1/projects/{site.project_id}"
    await site.artifact(DIGEST)

    async def asked(known: str) -> tuple[int, str]:
        image = {"registry": "https://registry.example", "repository": "team/app", "digest": known}
        body = {"type": "container.launch", "arguments": {"name": "web", "image": image}}
        answer = await people.post(f"{path}/allocations/{site.project_rows.allocation_id}/tasks", json=body)
        return answer.status_code, answer.json().get("code", "")

    assert await asked(digest("9")) == (409, "artifact_not_registered")
    assert (await asked(DIGEST))[0] == 201


async def test_a_secret_is_made_once_by_the_platform_and_never_shown(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    wanted = {"name": "token", "purpose": "app_access", "generate_bytes": 32}
    answers = [await adapter.send(instance_id, "secrets", fence, **wanted) for _ in range(2)]
    assert [each.json() for each in answers] == [
        {"name": "token", "purpose": "app_access", "created": created} for created in (True, False)
    ]
    given = {"name": "peer", "purpose": "member_secret", "value": "s3cret-of-the-members"}
    assert "s3cret" not in (await adapter.send(instance_id, "secrets", fence, **given)).text
    key = {"name": "key-of-all", "purpose": "cluster_key", "generate_bytes": 64}
    kept = await adapter.send(instance_id, "secrets", fence, **key)
    assert kept.json() == {"name": "key-of-all", "purpose": "cluster_key", "created": True}
    shown = f"/api/v1/projects/{site.project_id}/app-instances/{instance_id}/secrets/key-of-all/reveal"
    assert (await site.world.client(site.tenant.token).post(shown)).status_code == 403
    for wrong in ({"purpose": "artifact_pull"}, {"purpose": "another"}, {"value": "both"}, {"generate_bytes": None}):
        answer = await adapter.send(instance_id, "secrets", fence, **{**wanted, "name": "other", **wrong})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    taken = await adapter.send(instance_id, "secrets", fence, **{**wanted, "purpose": "member_secret"})
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    arguments = {"argv": ["serve"], "environment_secrets": {"TOKEN": "token"}}
    body = {"member_id": head, "operation_id": operation_id, "type": "process.run", "arguments": arguments}
    granted = [{"name": "token", "secret": "token"}]
    made = await adapter.send(instance_id, "tasks", fence, step="a", grants=granted, **body)
    assert made.status_code == 200, made.text
    assert await site.fetch("SELECT count(*) FROM secret_grant WHERE task_id = $1", made.json()["id"]) == 1
    missing = await adapter.send(
        instance_id, "tasks", fence, step="b", grants=[{"name": "token", "secret": "nobodys"}], **body
    )
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    ungranted = await adapter.send(instance_id, "tasks", fence, step="c", **body)
    assert (ungranted.status_code, ungranted.json()["code"]) == (422, "validation_failed")


async def test_an_account_hands_out_no_secret_without_the_key_for_it(world: World) -> None:
    async with open_adapter_site(
        world, actions=["runtime.claim", "runtime.report", "task.create", "secret.create"]
    ) as site:
        adapter = site.adapter()
        instance_id, fence, (head, _), operation_id = await begun(site, adapter)
        wanted = {"name": "token", "purpose": "app_access", "generate_bytes": 32}
        assert (await adapter.send(instance_id, "secrets", fence, **wanted)).status_code == 200
        body = {"member_id": head, "operation_id": operation_id, "step": "a", "type": "process.run"}
        arguments = {"argv": ["serve"], "environment_secrets": {"TOKEN": "token"}}
        granted = [{"name": "token", "secret": "token"}]
        answer = await adapter.send(instance_id, "tasks", fence, arguments=arguments, grants=granted, **body)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
        denied = "SELECT count(*) FROM audit WHERE action = 'secret.grant' AND outcome = 'denied' AND actor_id = $1"
        assert await site.fetch(denied, site.account.id) == 1


async def test_usage_is_stored_once_and_another_content_under_one_id_is_refused(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    now = site.clock.now().isoformat()

    def record(record_id: str, quantity: float = 12.5, **changes: Any) -> dict[str, Any]:
        times = {"started_at": now, "ended_at": now}
        return {"record_id": record_id, "unit": "tokens", "quantity": quantity, **times, **changes}

    first = await adapter.send(instance_id, "usage", fence, records=[record("a"), record("b")])
    assert (first.status_code, first.json()) == (200, {"stored": 2, "repeated": 0}), first.text
    again = await adapter.send(instance_id, "usage", fence, records=[record("b"), record("c")])
    assert again.json() == {"stored": 1, "repeated": 1}
    other = await adapter.send(instance_id, "usage", fence, records=[record("d"), record("a", 13)])
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    long_ago = "2020-01-01T00:00:00Z"
    wrongs: list[dict[str, Any]] = [{"unit": "hours"}, {"ended_at": long_ago}, {"started_at": long_ago}]
    for wrong in wrongs:
        answer = await adapter.send(instance_id, "usage", fence, records=[record("e", **wrong)])
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    foreign = record("f", attached_project_id="prj_01jq3v8m5h0000000000000000")
    assert (await adapter.send(instance_id, "usage", fence, records=[foreign])).status_code == 422
    stored = "SELECT array_agg(record_id ORDER BY record_id) FROM usage_record WHERE tenant_id = $1"
    assert await site.fetch(stored, site.tenant.id) == ["a", "b", "c"]


async def test_an_upgrade_moves_the_pin_once_every_member_runs_it_and_lets_go_of_what_nobody_needs(
    site: AdapterSite,
) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    (head,) = (await adapter.read(instance_id, fence))["members"]
    await site.artifact(digest("b"))
    await site.artifact(DIGEST)
    version_id = await site.project_rows.birth("app_version", app_slug="hello", manifest=MANIFEST)
    number = await site.fetch("SELECT version FROM app_version WHERE id = $1", version_id)
    instance = await site.instance(instance_id)
    target = {**instance.pin, "version_id": version_id, "version": number, "artifacts": {"main": digest("b")}}
    await site.hold(instance, DIGEST, digest("b"))
    upgrade = await site.ask(instance, OperationKind.UPGRADE, target_pin=target)
    await adapter.report(instance_id, fence, operation_id=upgrade.id, begin=True)
    early = await adapter.send(instance_id, f"operations/{upgrade.id}/finish", fence, outcome="succeeded")
    assert (early.status_code, early.json()["details"]["member_ids"]) == (409, [head["id"]])
    on_it = [{"id": head["id"], "version": number}]
    await adapter.report(instance_id, fence, operation_id=upgrade.id, members=on_it)
    await adapter.finish(instance_id, fence, upgrade.id)
    after = await site.instance(instance_id)
    assert (after.version, after.pin, after.previous_pin) == (number, target, instance.pin)
    back = await site.ask(after, OperationKind.ROLLBACK, target_pin=instance.pin)
    await adapter.report(instance_id, fence, operation_id=back.id, begin=True, members=[])
    members = [{"id": head["id"], "version": "1.0.0"}]
    await adapter.report(instance_id, fence, operation_id=back.id, members=members)
    await adapter.finish(instance_id, fence, back.id)
    again = await site.instance(instance_id)
    assert (again.version, again.pin, again.previous_pin) == ("1.0.0", instance.pin, None)
    held = await site.fetch("SELECT array_agg(digest) FROM artifact_hold WHERE holder_id = $1", instance_id)
    assert held == [DIGEST]


async def test_an_action_that_only_reads_leaves_no_trace_but_its_output(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    request = {"action": "queue.submit", "input": {}}
    instance = await site.instance(instance_id)
    action = await site.ask(instance, OperationKind.ACTION, request=request, read_only=True)
    statement = "SELECT (SELECT count(*) FROM event) + (SELECT count(*) FROM audit)"
    before = await site.fetch(statement)
    await adapter.report(instance_id, fence, operation_id=action.id, begin=True)
    await adapter.finish(instance_id, fence, action.id, output={"id": 1})
    assert await site.fetch(statement) == before
    assert await site.fetch("SELECT output FROM operation WHERE id = $1", action.id) == {"id": 1}
