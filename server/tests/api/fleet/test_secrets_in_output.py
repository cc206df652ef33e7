"""A real agent and the public API: what a program prints of its secrets is hidden from everybody who reads it there."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mooring.commands.fleet.runtime_secret import SecretOwner, store
from mooring.commands.kernel.work import Work, system_context
from mooring.core.fleet.runtime_secret import RuntimeSecret, SecretGrantRequest
from mooring.core.fleet.task import Task
from mooring.core.kernel.permissions import Authority
from mooring.storage.fleet import runtime_secret as runtime_secrets
from mooring.storage.kernel.database import PLATFORM
from mooring_agent.agent import Agent, AgentParts
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.platform_client import EnrolmentRequest, enrol
from mooring_agent.hosts.contract import LogPart, LogRequest, Owner, ProcessSpec, RestartPolicy, ServiceState
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.simulate import simulated_inventory
from mooring_agent.tasks.journal import Journal
from server.tests.support.agents import TOKENS
from server.tests.support.lifecycle_rows import ProjectRows
from server.tests.support.node_site import NodeSite
from tests.support.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

VALUE = b"c1uster-key-4711-battery-staple"


class LeakyHost(SimulatedHost):
    """Simulated: a service prints the variable KEY that it was given, and so does everything after it."""

    text = b""

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        self.text = f"ready\nkey={process.environment['KEY']}\n".encode()
        return await super().start_service(owner, name, process, restart)

    async def inspect_service(self, owner: Owner, name: str) -> ServiceState:
        return replace(await super().inspect_service(owner, name), last_lines=tuple(self.text.decode().splitlines()))

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        yield self.text[offset:]

    async def read_log_part(self, owner: Owner, key: str, request: LogRequest) -> LogPart | None:
        begin = min(request.offset or 0, len(self.text))
        content = self.text[begin : begin + request.max_bytes]
        return LogPart(content, begin, begin + len(content), len(self.text))


@asynccontextmanager
async def a_machine(site: NodeSite, directory: Path) -> AsyncIterator[str]:
    """A real agent on a simulated host; its node."""
    token = (await site.world.admin.post(TOKENS, json={"region": "local"})).json()["token"]
    url, keys = str(site.people.base_url), make_keys()
    identity = await enrol(url, token, keys, EnrolmentRequest("leaky", "simulated", {}))
    journal = Journal(directory / "journal.sqlite")
    parts = AgentParts(identity, keys, LeakyHost(), journal, lambda: simulated_inventory(0), time.time)
    running = asyncio.create_task(Agent(parts).run())
    try:
        yield identity.node_id
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        journal.close()


async def test_a_services_secret_is_in_no_answer_of_the_api(site: NodeSite, tmp_path: Path) -> None:
    work: Work[RuntimeSecret] = Work(
        site.services, site.project_rows.acting, system_context(site.services), Authority()
    )
    belongs = SecretOwner(site.tenant.id, site.project_id, instance_id=site.project_rows.instance_id)
    await store(work, belongs, VALUE, name="key", purpose="cluster_key")
    (secret,) = await runtime_secrets.of_owner(site.services.database, PLATFORM, site.project_id, belongs.id)
    async with a_machine(site, tmp_path) as node_id:
        rows = ProjectRows(site.services.database, site.tenant.id, site.project_id, node_id)
        place: dict[str, Any] = {"node_id": node_id, "allocation_id": await rows.birth("allocation")}

        async def done(type_: str, arguments: dict[str, Any], **other: Any) -> Task:
            made = await site.make(type_, arguments, **place, **other)
            return await until(lambda: ended(site, made.id))

        network = {"name": "prj-1", "address": "10.77.0.2", "subnet": "10.77.0.0/24"}
        await done("sandbox.create", {"hostname": "box", "network": network})
        start = {"name": "web", "argv": ["web"], "environment_secrets": {"KEY": "key"}}
        grant = SecretGrantRequest("key", "cluster_key", stored=secret)
        started = await done("service.start", start, grants=(grant,), instance_id=site.project_rows.instance_id)
        assert started.status == "succeeded", started.failure_detail
        inspected = await done("service.inspect", {"name": "web"})
        ran = await done("process.run", {"argv": ["true"]})
        part = {"name": "web", "kind": "service", "offset": 12, "max_bytes": 1024}  # begins within the secret
        read = await done("log.read", part, maker=site.project_rows.account_id)
        answers = [(await site.people.get(f"{site.path}/tasks/{each.id}")).json() for each in (inspected, ran, read)]
        log = (await site.people.get(f"{site.path}/tasks/{ran.id}/log")).text
    content = base64.b64decode(answers[2]["result"]["content_base64"])
    assert answers[0]["result"]["last_lines"] == ["ready", "key=" + "[secret]".ljust(len(VALUE), "*")]
    assert answers[1]["last_lines"] == answers[0]["result"]["last_lines"]
    for text in (json.dumps(answers).encode(), content, log.encode()):
        assert VALUE not in text
        assert VALUE[4:] not in text


async def ended(site: NodeSite, task_id: str) -> Task | None:
    task = await site.stands(task_id)
    return task if task.is_over else None
