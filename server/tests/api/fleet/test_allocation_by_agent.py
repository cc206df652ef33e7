"""One allocation over the public API alone, with all workers running: a machine joins, claims, reports and signs.

Nothing here is played: the agent's requests are those of the contract, its receipt is signed by its own key, and what
moves the allocation on is the platform's workers.
"""

import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from mooring.settings import Settings
from server.tests.conftest import PASSWORD, World, running_platform
from server.tests.support.agents import MachineKeys, encoded, joined

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

KINDS: Final = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip
SKU: Final = {
    "slug": "made-up-slice", "display_name": "A slice", "shape": "gpu_slice", "gpu_model": "made-up",
    "regions": ["local"], "allowed_gpu_counts": [1, 2], "price_minor_per_gpu_hour": 100, "currency": "EUR",
}  # fmt: skip


@pytest.fixture
async def world(settings: Settings) -> AsyncIterator[World]:
    async with running_platform(settings, with_workers=True) as running:
        admin = running.client()
        body = {"email": "admin@mooring.local", "one_time_code": running.code, "new_password": PASSWORD}
        admin.headers["Authorization"] = f"Bearer {(await admin.post('/api/v1/sign-in', json=body)).json()['token']}"
        made = World(running, admin)
        yield made
        await made.close()


@dataclass
class AllocationAgent:
    """A machine that does what it is asked for, as far as its reports go."""

    machine: MachineKeys
    client: httpx.AsyncClient
    sequence: int = 0
    previous: str = "0" * 64

    async def claim(self) -> dict[str, Any]:
        """The next task of the node; it is waited for."""
        body = {"free": 1, "wait_seconds": 30}
        answer = await self.client.post("/api/v1/agent/claims", json=body)
        assert answer.status_code == 200, answer.text
        (signed,) = answer.json()["tasks"]
        payload = signed["payload"]
        return dict(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))

    async def report(self, task: dict[str, Any], **fields: Any) -> None:
        """How a task ended."""
        report = {
            "kind": "result",
            "task_id": task["task_id"],
            "fence": task["fence"],
            "outcome": "succeeded",
            **fields,
        }
        answer = await self.client.post("/api/v1/agent/reports", json={"reports": [report]})
        assert answer.json()["results"][0]["accepted"], answer.text

    def receipt(self, task: dict[str, Any], remaining: list[dict[str, str]]) -> dict[str, str]:
        """What it found after a teardown, signed by its key."""
        self.sequence += 1
        named = ("task_id", "tenant_id", "project_id", "allocation_id", "owner", "node_id")
        body = {
            "v": 1,
            "sequence": self.sequence,
            "previous": self.previous,
            "task_type": task["type"],
            "host": "simulated",
            "looked_at": int(time.time()),
            "looked": dict.fromkeys(KINDS, 1),
            "found": remaining,
            "removed": [],
            "remaining": remaining,
            "truncated": False,
            "clean": not remaining,
            **{name: task[name] for name in named},
        }
        plain = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        self.previous = hashlib.sha256(plain).hexdigest()
        signature = self.machine.signing.sign(b"mooring-receipt-v1\n" + plain)
        return {"body": encoded(plain), "signature": encoded(signature)}


async def test_an_allocation_lives_and_ends_by_what_a_real_agent_reports(world: World) -> None:
    tenant = await world.tenant("acme")
    path = f"/api/v1/projects/{await world.project(tenant, 'train')}/allocations"
    tenants = world.client(tenant.token)
    machine = await joined(world.client(), world.admin)
    await machine.report(world.client())
    agent = AllocationAgent(machine, world.client(await machine.token(world.client())))
    assert (await world.admin.post("/api/v1/platform/skus", json=SKU)).status_code == 201

    asked = await tenants.post(path, json={"shape": "gpu_slice", "sku": "made-up-slice", "gpu_count": 2})
    assert asked.status_code == 201, asked.text
    one = f"{path}/{asked.json()['id']}"
    create = await agent.claim()
    assert (create["type"], create["owner"]) == ("sandbox.create", asked.json()["id"])
    assert [each["index"] for each in create["arguments"]["devices"]] == [0, 1]
    facts = {"isolation": "simulated", "address": create["arguments"]["network"]["address"], "limits": {}}
    await agent.report(create, result=facts | {"host": "simulated"})
    stands = (await tenants.get(one, params={"wait": 60, "until": "active"})).json()
    assert (stands["status"], stands["node_id"]) == ("active", machine.node_id)

    assert (await tenants.post(f"{one}/release")).status_code == 200
    destroy = await agent.claim()
    left = [{"kind": "processes", "name": "sleep"}]
    await agent.report(destroy, result={"clean": False}, receipt=agent.receipt(destroy, left))
    failed = (await tenants.get(one, params={"wait": 60, "until": "release_failed"})).json()
    assert failed["status"] == "release_failed"
    seen = (await world.admin.get("/api/v1/platform/allocations", params={"node_id": machine.node_id})).json()
    assert [(each["status"], each["blocker"]) for each in seen["items"]] == [("release_failed", failed["blocker"])]

    assert (await tenants.post(f"{one}/retry")).status_code == 200
    again = await agent.claim()
    assert again["type"] == "sandbox.destroy"
    await agent.report(again, result={"clean": True}, receipt=agent.receipt(again, []))
    over = (await tenants.get(one, params={"wait": 60, "until": "released"})).json()
    assert (over["status"], over["teardown_proof"]) == ("released", "receipts")
    node = (await world.admin.get(f"/api/v1/platform/nodes/{machine.node_id}")).json()
    assert node["status"] == "ready"
