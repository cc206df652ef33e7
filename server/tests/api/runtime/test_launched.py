"""From the launch to the stop over the two public APIs: people on one side, the adapter on the other."""

import base64

import pytest

from mooring.core.runtime.operation import OperationKind
from mooring.gateways.signing.signatures import new_key_pair
from server.tests.api.catalog.test_apps import AppPublisher, publisher  # noqa: F401
from server.tests.conftest import World
from server.tests.support.adapter_site import RUNTIME, AdapterClient
from server.tests.support.launching import Launching, make_launching
from server.tests.support.service_accounts import AccountWithKey, assertion

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def discovered(launching: Launching) -> AdapterClient:
    """An adapter that finds the operator account of the project by its key."""
    place, world = launching.publisher, launching.publisher.world
    private, public = new_key_pair()
    key = base64.urlsafe_b64encode(public).decode().rstrip("=")
    put = await place.client.put(f"{place.place}/apps/{place.app['id']}/adapter-key", json={"public_key": key})
    assert put.status_code == 200, put.text
    signed = assertion(f"key:{key}", "any", private, f"{world.running.url}{RUNTIME}/accounts")
    (found,) = (await world.client().post(f"{RUNTIME}/accounts", json={"assertion": signed})).json()["accounts"]
    assert found["apps"] == [place.app["slug"]]
    account = AccountWithKey(found["service_account_id"], found["key_id"], private)
    return AdapterClient(world.client(await account.token(world.client())), "one", account.id)


async def test_the_operator_account_of_the_entitlement_brings_a_launch_up_and_ends_it(
    world: World,
    publisher: AppPublisher,  # noqa: F811
) -> None:
    launching = await make_launching(world, publisher)
    adapter = await discovered(launching)
    stands = await launching.site.active(launching.sku, gpu_count=1)
    made = await launching.launch(placement={"allocations": [stands["id"]]}, service_account_id=None)
    instance_id = made["id"]
    fence = await adapter.claim(instance_id)
    seen = await adapter.read(instance_id, fence)
    (deploy,) = seen["operations"]
    assert deploy["kind"] == OperationKind.DEPLOY
    await adapter.report(instance_id, fence, operation_id=deploy["id"], begin=True)
    for status in ("joining", "ready"):
        members = [{"id": each["id"], "status": status, "health": "healthy"} for each in seen["members"]]
        await adapter.report(instance_id, fence, operation_id=deploy["id"], members=members)
    await adapter.finish(instance_id, fence, deploy["id"])
    running = await launching.get(instance_id)
    assert running["status"] == "running"
    assert running["claim"]["held"] is True
    stop = await launching.post(f"{instance_id}/stop")
    (decommission,) = (await adapter.read(instance_id, fence))["operations"]
    assert (decommission["id"], decommission["kind"]) == (stop["id"], "decommission")
    await adapter.report(instance_id, fence, operation_id=stop["id"], begin=True)
    over = await adapter.finish(instance_id, fence, stop["id"])
    assert (over["status"], over["phase"]) == ("running", "platform")
