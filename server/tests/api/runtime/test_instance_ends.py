"""The end of instances as their owners see it: launched, failed, stopped and proven through the public API."""

from datetime import timedelta

import pytest

from mooring.core.fleet.task import TASK
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.launching import Launching, make_launching
from server.tests.support.lifecycle_rows import CLOCK

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


@pytest.fixture
async def launching(world: World, publisher: AppPublisher) -> Launching:  # noqa: F811
    return await make_launching(world, publisher)


async def look(launching: Launching, times: int = 1) -> None:
    """The real workers, one look at a time."""
    for _ in range(times):
        await launching.site.look()
        await InstanceReconciler(launching.services).tick()


async def held_digests(launching: Launching, instance_id: str) -> int:
    statement = "SELECT count(*)::int FROM artifact_hold WHERE holder_id = $1"
    return int(await launching.services.database.fetchval(PLATFORM, statement, instance_id))


async def test_a_launch_without_an_adapter_fails_by_name_is_torn_down_and_can_be_stopped(launching: Launching) -> None:
    made = await launching.launch()
    await look(launching)
    (member,) = (await launching.get(f"{made['id']}/members"))["items"]
    await launching.site.fleet.do(member["allocation_id"])
    await look(launching)
    assert await held_digests(launching, made["id"]) > 0
    launching.site.later(timedelta(seconds=301))
    await look(launching, 2)
    failed = await launching.get(made["id"])
    assert (failed["status"], failed["failure_code"]) == ("failed", "adapter_unavailable")
    assert failed["failure_detail"].endswith("one was last seen: never")
    assert await held_digests(launching, made["id"]) == 0
    stop = await launching.post(f"{made['id']}/stop")
    await look(launching)
    stopped = await launching.get(made["id"])
    assert (stopped["status"], stopped["teardown_proof"]) == ("stopped", "receipts")
    assert stopped["failure_code"] == "adapter_unavailable"  # it stays readable
    ended = await launching.get(f"{made['id']}/operations/{stop['id']}")
    assert (ended["status"], ended["evidence"]["closing"]) == ("succeeded", {"nothing_started": 1})
    launching.site.later(timedelta(0))
    await launching.site.fleet.do(member["allocation_id"])
    await look(launching)
    assert (await launching.site.get(member["allocation_id"]))["status"] == "released"


async def test_when_the_adapter_is_gone_a_stop_ends_with_clean_receipts_and_no_secret_is_left(
    launching: Launching,
) -> None:
    made = await launching.running()
    (member,) = (await launching.get(f"{made['id']}/members"))["items"]
    await secret_of(launching, made["id"])
    await work_on_node(launching, made["id"], member)
    await launching.post(f"{made['id']}/stop")
    await look(launching)
    assert (await launching.get(made["id"]))["status"] == "stopping"
    launching.site.later(timedelta(seconds=31))  # what the manifest gives to an adapter that is not there
    await look(launching)
    task = await launching.site.fleet.do(member["allocation_id"])
    assert task["type"] == "teardown.verify"
    await look(launching)
    stopped = await launching.get(made["id"])
    assert (stopped["status"], stopped["teardown_proof"], stopped["endpoints"]) == ("stopped", "receipts", [])
    (record,) = (await launching.get(f"{made['id']}/closing-records"))["items"]
    assert (record["kind"], record["member_id"]) == ("receipt", member["id"])
    assert await held_digests(launching, made["id"]) == 0
    left = "SELECT count(*)::int FROM runtime_secret WHERE instance_id = $1 AND secret_id IS NOT NULL"
    assert await launching.services.database.fetchval(PLATFORM, left, made["id"]) == 0
    assert (await launching.site.get(member["allocation_id"]))["status"] == "active"  # it was there before


async def secret_of(launching: Launching, instance_id: str) -> None:
    """A secret that the instance's members know."""
    place = {"tenant_id": launching.publisher.tenant.id, "created_at": CLOCK.now()}
    sealed = launching.services.secrets.seal(
        b"known to members", id=CLOCK.mint(Prefix.SECRET), tenant_id=launching.publisher.tenant.id, purpose="runtime"
    )
    row = {
        "id": CLOCK.mint(Prefix.RUNTIME_SECRET),
        "project_id": launching.publisher.project_id,
        "instance_id": instance_id,
        "name": "shared-key",
        "purpose": "member_secret",
        "secret_id": sealed.id,
        **place,
    }
    await launching.site.fleet.write(Insert("secret", sealed.row(CLOCK.now())), Insert("runtime_secret", row))


async def work_on_node(launching: Launching, instance_id: str, member: dict[str, str]) -> None:
    """Something of the member was begun on its node."""
    node = "SELECT node_id FROM allocation WHERE id = $1"
    task_id = CLOCK.mint(Prefix.TASK)
    row = {
        "id": task_id,
        "tenant_id": launching.publisher.tenant.id,
        "project_id": launching.publisher.project_id,
        "allocation_id": member["allocation_id"],
        "owner": f"{member['allocation_id']}/{member['id']}",
        "node_id": await launching.services.database.fetchval(PLATFORM, node, member["allocation_id"]),
        "instance_id": instance_id,
        "member_id": member["id"],
        "step": f"start/{member['id']}",
        "type": "process.run",
        "arguments": {},
        "maker": launching.account_id,
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
        "created_at": CLOCK.now(),
        "expires_at": CLOCK.now() + timedelta(hours=1),
    }
    await launching.site.fleet.write(Insert("task", row, (TASK,)))
    await launching.site.fleet.fail(member["allocation_id"], "exited", "it only has to have begun")
