"""Machines for the tests of placing and running allocations: nodes with slots, SKUs, and an agent that is played.

Nodes, slots and SKUs are written down through the one write path; how a machine really joins is another test's
business. The played agent does to tasks what an agent's reports do: it takes them, ends them, and leaves receipts in a
chain.
"""

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from mooring.core.fleet.node import NODE, NodeState, NodeTrigger
from mooring.core.fleet.task import TASK, TaskState, TaskTrigger
from mooring.core.kernel.decision import AuditRecord, Decision, Insert, StateChange, Write
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.sealed_document import TASK_ARGUMENTS
from mooring.storage.kernel.database import PLATFORM, Database
from mooring.storage.kernel.sealed_document import open_document
from mooring.storage.kernel.unit_of_work import apply
from server.tests.support.lifecycle_rows import CLOCK, context, node_columns

GIB: Final = 1 << 30
MODEL: Final = "simulated"
NOTHING: Final = "0" * 64
_NUMBERS: Final = itertools.count(1)


@dataclass
class FleetWithAgents:
    """Some machines and the agents that the test plays."""

    database: Database
    last: dict[str, tuple[int, str]] = field(default_factory=dict)  # sequence and digest of a node's last receipt

    async def write(self, *writes: Write) -> None:
        """Apply these writes as the platform."""
        decision = Decision(result=None, writes=writes, audits=(AuditRecord("test", "test", None, None),))
        await apply(self.database, PLATFORM, context(), decision)

    async def node(
        self, gpus: int = 4, *, numa: int = 2, inventory_facts: dict[str, Any] | None = None, **columns: Any
    ) -> str:
        """A machine that is ready, with so many GPUs in so many NUMA domains."""
        node_id = CLOCK.mint(Prefix.NODE)
        row = {"id": node_id, "created_at": CLOCK.now(), **node_columns(node_id), **columns}
        inventory = {"cpus": 16, "memory_bytes": 64 * GIB, "facts": inventory_facts or {}}
        await self.write(Insert("node", row, (NODE,)))
        edge = NODE.step(NodeState.ENROLLED, NodeTrigger.REPORT_READY)
        slots = [
            Insert(
                "slot",
                {
                    "id": CLOCK.mint(Prefix.SLOT),
                    "node_id": node_id,
                    "index": index,
                    "numa": index * numa // gpus,
                    "gpu_model": MODEL,
                    "memory_bytes": 80 * GIB,
                    "simulated": True,
                    "created_at": CLOCK.now(),
                },
            )
            for index in range(gpus)
        ]
        columns = {"inventory": inventory, "inventory_at": CLOCK.now(), "last_seen_at": CLOCK.now()}
        await self.write(StateChange("node", node_id, NODE, edge, 0, None, columns), *slots)
        return node_id

    async def sku(self, shape: str = "gpu_slice", counts: tuple[int, ...] = (1, 2, 4), **columns: Any) -> str:
        """A SKU that is offered; its slug."""
        sku_id, slug = CLOCK.mint(Prefix.SKU), f"sku-{next(_NUMBERS)}"
        price = {"price_minor_per_gpu_hour": 250, "currency": "EUR", "price_revision": 1}
        row = {
            "id": sku_id,
            "slug": slug,
            "display_name": "A SKU",
            "shape": shape,
            "gpu_model": MODEL,
            "regions": ["local"],
            "allowed_gpu_counts": list(counts),
            "status": "offered",
            "created_at": CLOCK.now(),
            **price,
            **columns,
        }
        first = {
            "id": CLOCK.mint(Prefix.SKU_PRICE),
            "sku_id": sku_id,
            "reason": "the first price",
            "created_by": "test",
            "created_at": CLOCK.now(),
            **price,
        }
        await self.write(Insert("sku", row), Insert("sku_price", first))
        return slug

    async def tasks(self, allocation_id: str) -> list[Any]:
        """All tasks of an allocation, the oldest first."""
        rows = await self.database.fetch(
            PLATFORM, "SELECT * FROM task WHERE allocation_id = $1 ORDER BY id", allocation_id
        )
        return [
            {**row, "arguments": open_document(row["arguments"], TASK_ARGUMENTS, row["tenant_id"], row["id"])}
            for row in rows
        ]

    async def slots(self, node_id: str) -> list[str]:
        """How the slots of a node stand, in the order of their index."""
        rows = await self.database.fetch(PLATFORM, "SELECT status FROM slot WHERE node_id = $1 ORDER BY index", node_id)
        return [row[0] for row in rows]

    async def take(self, allocation_id: str) -> Any:
        """Its node's agent takes the task that waits; the task as it was."""
        (task,) = [each for each in await self.tasks(allocation_id) if each["status"] == "queued"]
        edge = TASK.step(TaskState.QUEUED, TaskTrigger.CLAIM)
        now = CLOCK.now()
        columns = {"first_claimed_at": now, "lease_expires_at": now + timedelta(minutes=1), "fence": task["fence"] + 1}
        await self.write(StateChange("task", task["id"], TASK, edge, task["generation"], task["tenant_id"], columns))
        return task

    async def do(self, allocation_id: str, *, clean: bool = True) -> Any:
        """Its node's agent does the task that waits, and says that it is done."""
        task = await self.take(allocation_id)
        edge = TASK.step(TaskState.CLAIMED, TaskTrigger.SUCCEED)
        result: dict[str, Any] = {"clean": clean}
        writes: list[Write] = []
        if task["type"] == "sandbox.create":
            address = task["arguments"]["network"]["address"]
            result = {
                "isolation": "simulated",
                "address": address,
                "limits": {"memory": "simulated"},
                "host": "simulated",
            }
        else:
            writes.append(Insert("receipt", self._receipt(task, clean=clean)))
        columns = {"finished_at": CLOCK.now(), "result": result}
        move = StateChange("task", task["id"], TASK, edge, task["generation"] + 1, task["tenant_id"], columns)
        await self.write(*writes, move)
        return task

    async def fail(self, allocation_id: str, code: str = "host_error", detail: str = "it did not work") -> Any:
        """Its node's agent takes the task that waits, and says that it failed."""
        task = await self.take(allocation_id)
        edge = TASK.step(TaskState.CLAIMED, TaskTrigger.FAIL)
        columns = {"finished_at": CLOCK.now(), "failure_code": code, "failure_detail": detail}
        await self.write(
            StateChange("task", task["id"], TASK, edge, task["generation"] + 1, task["tenant_id"], columns)
        )
        return task

    def _receipt(self, task: Any, *, clean: bool) -> dict[str, object]:
        sequence, previous = self.last.get(task["node_id"], (0, NOTHING))
        body = json.dumps({"sequence": sequence + 1, "previous": previous, "clean": clean}).encode()
        digest = hashlib.sha256(body).hexdigest()
        self.last[task["node_id"]] = (sequence + 1, digest)
        return {
            "id": CLOCK.mint(Prefix.RECEIPT),
            "tenant_id": task["tenant_id"],
            "project_id": task["project_id"],
            "task_id": task["id"],
            "task_type": task["type"],
            "node_id": task["node_id"],
            "allocation_id": task["allocation_id"],
            "owner": task["owner"],
            "sequence": sequence + 1,
            "previous": previous,
            "digest": digest,
            "clean": clean,
            "body": body,
            "signature": b"s" * 64,
            "looked_at": CLOCK.now(),
            "created_at": CLOCK.now(),
        }
