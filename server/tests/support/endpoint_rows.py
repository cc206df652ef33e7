"""Rows of what can be visited, written down: an active allocation, an endpoint that was declared in it, a visit."""

import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from mooring.core.fleet.allocation import ALLOCATION, AllocationState
from mooring.core.fleet.task import TASK, TaskState
from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from server.tests.support.lifecycle_rows import CLOCK, LifecycleSubject, ProjectRows, path

PORT = 8_080


@dataclass(frozen=True)
class Reachable:
    """An endpoint that can be visited, and where it is."""

    endpoint_id: str
    allocation_id: str
    node_id: str


async def an_endpoint(rows: ProjectRows, protocol: str = "http", label: str = "web") -> Reachable:
    """An endpoint of an active allocation; on the node of `rows`, or on a new one."""
    node_id = rows.node_id or await rows.birth("node")
    standing = replace(rows, node_id=node_id)
    allocation = await standing.subject("allocation", ALLOCATION, AllocationState.ACTIVE)
    own = replace(standing, allocation_id=allocation.id)
    return Reachable(await declared(own, protocol, label), allocation.id, node_id)


async def declared(rows: ProjectRows, protocol: str = "http", label: str = "web") -> str:
    """The task that declared an endpoint in the allocation of `rows`, when its service was started."""
    arguments: dict[str, Any] = {
        "name": label,
        "argv": ["serve"],
        "endpoint": {"name": label, "port": PORT, "protocol": protocol},
    }
    task_id = await rows.birth("task", type="service.start", arguments=arguments, owner=f"{rows.allocation_id}/{label}")
    subject = LifecycleSubject("task", TASK, task_id, TASK.initial)
    for edge in path(TASK, TaskState.SUCCEEDED):
        subject = await rows.move(subject, edge)
    return task_id


async def a_visit(rows: ProjectRows, endpoint: Reachable, token_id: str, principal_id: str) -> str:
    """A visit to the endpoint that nobody used yet."""
    visit_id, now = CLOCK.mint(Prefix.VISIT), CLOCK.now()
    row = {
        "id": visit_id,
        "tenant_id": rows.tenant_id,
        "project_id": rows.project_id,
        "allocation_id": endpoint.allocation_id,
        "node_id": endpoint.node_id,
        "owner": f"{endpoint.allocation_id}/web",
        "kind": "connect",
        "endpoint_id": endpoint.endpoint_id,
        "port": PORT,
        "principal_id": principal_id,
        "token_id": token_id,
        "ticket_hash": hashlib.sha256(visit_id.encode()).digest(),
        "correlation_id": "cor_test",
        "trace_id": "a" * 32,
        "created_at": now,
        "expires_at": now + timedelta(hours=1),
    }
    await rows.write(Insert("visit", row))
    return visit_id
