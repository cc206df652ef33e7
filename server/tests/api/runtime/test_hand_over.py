"""Adapter and worker take turns: what the worker offers the adapter begins, and what it lets go of the worker ends."""

from dataclasses import replace
from typing import Any

import pytest

from mooring.core.runtime.instance_change import InstanceContext, stop_instance
from mooring.core.runtime.instance_launch import OperationBounds
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.runtime.instance import members_of, open_operations
from mooring.workers.instance_reconciler import InstanceReconciler
from server.tests.support.adapter_site import AdapterSite
from server.tests.support.lifecycle_rows import context

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]


async def status(site: AdapterSite, table: str, row_id: str) -> Any:
    return await site.fetch(f"SELECT status FROM {table} WHERE id = $1", row_id)


async def test_a_launch_is_offered_by_the_worker_and_a_stop_is_ended_by_it(site: AdapterSite) -> None:
    instance, members, deploy = await site.launch(1, dispatched=False)
    adapter = site.adapter()
    assert (await adapter.poll())["claims"] == []  # its turn has not come
    worker = InstanceReconciler(site.services)
    await worker.tick()
    fence = await adapter.claim(instance.id)
    await adapter.report(instance.id, fence, operation_id=deploy.id, begin=True)
    for member_status in ("joining", "ready"):
        reports = [{"id": each.id, "status": member_status} for each in members]
        await adapter.report(instance.id, fence, operation_id=deploy.id, members=reports)
    await adapter.finish(instance.id, fence, deploy.id)
    assert await status(site, "instance", instance.id) == "running"

    found = await members_of(site.services.database, PLATFORM, [instance.id])
    seen = InstanceContext(await site.instance(instance.id), found[instance.id], [], None)
    stop = await site.apply(stop_instance(replace(context(), now=site.clock.now()), seen, OperationBounds()))
    await worker.tick()
    assert await status(site, "operation", stop.id) == "accepted"  # the adapter holds it, and has its time
    await adapter.report(instance.id, fence, operation_id=stop.id, begin=True)
    await adapter.finish(instance.id, fence, stop.id, evidence={"left": "in good order"})
    await worker.tick()
    assert await status(site, "instance", instance.id) == "stopped"
    assert await status(site, "operation", stop.id) == "succeeded"
    evidence = await site.fetch("SELECT evidence FROM operation WHERE id = $1", stop.id)
    assert evidence["adapter"] == {"outcome": "succeeded", "evidence": {"left": "in good order"}}
    assert evidence["closing"] == {"nothing_started": 2}
    assert (await open_operations(site.services.database, PLATFORM, [instance.id]))[instance.id] == []
    late = await adapter.send(instance.id, "reports", fence, instance={"health": "healthy"})
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")
