"""An adapter that is wrong, late or bought: what it tells has bounds, and it begins nothing that is past its time."""

import asyncio
from typing import Any

import pytest

from mooring.core.catalog.manifest import read_manifest
from mooring.core.kernel.errors import Refusal
from mooring.core.runtime.app_action import check_output
from mooring.core.runtime.operation import OperationKind
from mooring.gateways.signing.signatures import new_key_pair
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.janitor import Janitor
from server.tests.api.catalog.test_apps import AppPublisher
from server.tests.api.catalog.test_apps import publisher as bare_publisher
from server.tests.api.runtime.test_adapter_reports import blocked
from server.tests.api.runtime.test_claims import deployed
from server.tests.api.runtime.test_launched import discovered
from server.tests.api.runtime.test_member_tasks import RUN, begun
from server.tests.api.runtime.test_operator_accounts import OperatedApp, publisher
from server.tests.conftest import World
from server.tests.support import manifests
from server.tests.support.adapter_site import AdapterSite
from server.tests.support.launching import make_launching
from server.tests.support.runtime_rows import operation as an_operation

__all__ = ["bare_publisher", "publisher"]
pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql"), pytest.mark.usefixtures("shared_platform")]
REMOVING = "UPDATE member SET status = 'removing', generation = generation + 1 WHERE id = $1"
STOPPED = "UPDATE instance SET status = 'stopped', stopped_at = now(), teardown_proof = 'receipts' WHERE id = $1"
HANDED_OVER = "UPDATE operation SET phase = 'platform', revision = revision + 1 WHERE id = $1"


def deep(levels: int) -> dict[str, Any]:
    """An object in an object, so many times."""
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize("statement", [REMOVING, HANDED_OVER])
async def test_no_task_is_made_for_what_is_being_torn_down(site: AdapterSite, statement: str) -> None:
    """Two connections: the teardown is written and not committed while the adapter's task is made."""
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "step": "start/head", "operation_id": operation_id, **RUN}
    async with site.services.database.connection(PLATFORM) as connection:
        removing = connection.transaction()
        await removing.start()
        await connection.execute("SET LOCAL session_replication_role = replica")  # the row alone, without its history
        await connection.execute(statement, head if statement == REMOVING else operation_id)
        making = asyncio.create_task(adapter.send(instance_id, "tasks", fence, **body))
        await blocked(site)
        await removing.commit()
    answer = await making
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert await site.fetch("SELECT count(*) FROM task WHERE tenant_id = $1", site.tenant.id) == 0


async def test_what_is_the_platforms_alone_is_denied_and_written_down(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    body = {"member_id": head, "step": "a", "operation_id": operation_id, "type": "sandbox.destroy", "arguments": {}}
    answer = await adapter.send(instance_id, "tasks", fence, **body)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    denied = "SELECT count(*) FROM audit WHERE outcome = 'denied' AND action = 'task.create' AND actor_id = $1"
    assert await site.fetch(denied, site.account.id) == 1


async def test_members_of_an_allocation_that_is_given_back_can_still_be_worked_on(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence, (head, _), operation_id = await begun(site, adapter)
    async with site.services.database.connection(PLATFORM) as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            "UPDATE allocation SET status = 'releasing', releasing_at = now() WHERE id = $1",
            site.project_rows.allocation_id,
        )
    body = {"member_id": head, "step": "quiet", "operation_id": operation_id, **RUN}
    answer = await adapter.send(instance_id, "tasks", fence, **body)
    assert answer.status_code == 200, answer.text


async def test_reports_of_an_adapter_have_a_bounded_depth_and_no_nul(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    instance = await site.instance(instance_id)
    action = await site.ask(instance, OperationKind.RECONCILE)
    head = (await adapter.read(instance_id, fence))["members"][0]["id"]
    for detail in (deep(900), deep(30), {"a": "\0"}, {"\0": 1}, {"a": "x" * 20_000}):
        reports: list[tuple[str, dict[str, Any]]] = [
            ("reports", {"members": [{"id": head, "detail": detail}]}),
            ("reports", {"instance": {"detail": detail}}),
            (f"operations/{action.id}/finish", {"outcome": "succeeded", "evidence": detail}),
        ]
        await adapter.report(instance_id, fence, operation_id=action.id, begin=True)
        for path, body in reports:
            answer = await adapter.send(instance_id, path, fence, **body)
            assert (path, answer.status_code, answer.json()["code"]) == (path, 422, "validation_failed"), answer.text
    kept = {"a": [1, {"b": "\\u0000 in words"}]}
    await adapter.report(instance_id, fence, members=[{"id": head, "detail": kept}])
    assert (await adapter.read(instance_id, fence))["members"][0]["adapter_detail"] == kept


def test_what_an_action_gives_back_has_bounds_without_a_schema_too() -> None:
    listing = {"name": "list", "permission": "app.hello.list", "input_schema": {"type": "object", "properties": {}}}
    manifest = read_manifest(manifests.oci(actions=[listing])).manifest
    operation = an_operation(OperationKind.ACTION, request={"action": "list", "input": {}})
    for output in (deep(900), {"a": "\0"}, {"a": "x" * 300_000}):
        with pytest.raises(Refusal, match="output"):
            check_output(manifest, operation, output)
    check_output(manifest, operation, {"listed": []})


async def test_an_instance_of_one_project_charges_no_other(site: AdapterSite) -> None:
    adapter = site.adapter()
    instance_id, fence = await deployed(site, adapter)
    other = await site.world.project(site.tenant, "other")
    now = site.clock.now().isoformat()
    record = {"record_id": "a", "unit": "tokens", "quantity": 1, "started_at": now, "ended_at": now}
    for project_id, status in ((other, 422), (site.project_id, 200)):
        records = [record | {"attached_project_id": project_id}]
        answer = await adapter.send(instance_id, "usage", fence, records=records)
        assert answer.status_code == status, answer.text
    for quantity in ("NaN", "Infinity", "-1", "1e400", "1e16", '"1"', "null"):
        raw = (
            f'{{"fence": {fence}, "records": [{{"record_id": "b", "unit": "tokens", "quantity": {quantity}, '
            f'"started_at": "{now}", "ended_at": "{now}"}}]}}'
        )
        url = f"/api/v1/runtime/instances/{instance_id}/usage"
        sent = await adapter.client.post(url, content=raw, headers={"content-type": "application/json"})
        assert sent.status_code in (400, 422), (quantity, sent.text)
    for number in (5e-324, 0.1, 1e15, 123456.789012345):
        records = [record | {"record_id": f"q{number}", "quantity": number}]
        for stored in (1, 0):
            answer = await adapter.send(instance_id, "usage", fence, records=records)
            assert answer.json()["stored"] == stored, answer.text


async def test_a_key_that_was_kept_at_the_last_change_ends_at_the_next(publisher: OperatedApp) -> None:
    pairs = [new_key_pair() for _ in range(4)]
    await publisher.set_key(pairs[0][1])
    await publisher.entitle()
    for number in (1, 2):
        await publisher.set_key(pairs[number][1], keep_previous=True)
    counts = [len((await publisher.discovered(*pair)).json()["accounts"]) for pair in pairs]
    assert counts == [0, 1, 1, 0]
    await publisher.set_key(pairs[3][1])
    counts = [len((await publisher.discovered(*pair)).json()["accounts"]) for pair in pairs]
    assert counts == [0, 0, 0, 1]


async def test_an_account_whose_entitlement_is_gone_keeps_what_operating_needs_and_goes_with_the_last_instance(
    world: World, bare_publisher: AppPublisher
) -> None:
    launching = await make_launching(world, bare_publisher)
    adapter = await discovered(launching)
    stands = await launching.site.active(launching.sku, gpu_count=1)
    made = await launching.launch(placement={"allocations": [stands["id"]]}, service_account_id=None)
    place = f"/api/v1/projects/{bare_publisher.project_id}"
    (entitled,) = (await launching.client.get(f"{place}/entitlements")).json()["items"]
    body = {
        "enabled": True,
        "reason": "it launches more of them",
        "agreed_actions": ["instance.create", *entitled["agreed_actions"]],
    }
    assert (await launching.client.put(f"{place}/entitlements/{entitled['id']}", json=body)).status_code == 200
    assert (await launching.client.delete(f"{place}/entitlements/{entitled['id']}")).status_code == 204
    one = f"{place}/service-accounts/{adapter.account_id}"
    left = (await launching.client.get(one)).json()
    assert (left["status"], left["actions"]) == ("active", ["runtime.claim", "runtime.report", "task.create"])
    janitor = Janitor(launching.services)
    await janitor.tick()
    assert (await launching.client.get(one)).json()["status"] == "active", "it operates something"
    assert await adapter.claim(made["id"]) == 1
    key = f"{bare_publisher.place}/apps/{bare_publisher.app['id']}/adapter-key"
    assert (await launching.client.put(key, json={"public_key": None})).status_code == 200
    keys = (await launching.client.get(f"{one}/keys")).json()["items"]
    assert [each["revoked_at"] is None for each in keys] == [False], "the adapter's key is taken from it as well"
    async with launching.services.database.connection(PLATFORM) as connection, connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(STOPPED, made["id"])
    await Janitor(launching.services).tick()
    assert (await launching.client.get(one)).json()["status"] == "deleted"
