"""Receipts: what this node saw after it took something away, signed and chained.

The body is canonical JSON (sorted keys, no white space, ASCII, whole numbers), so that anybody can make the same bytes
again. Each receipt names the hash of the one before it: a node cannot leave one out, or tell two stories, unseen.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring_agent.control_plane.messages import Task
from mooring_agent.hosts.contract import Resource, TeardownReport

RECEIPT_CONTEXT: Final = b"mooring-receipt-v1\n"
FIRST_PREVIOUS: Final = "0" * 64
RESOURCES_MAX: Final = 500
NAME_MAX: Final = 200
KINDS: Final = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The end of this node's chain."""

    sequence: int
    previous: str


def receipt_body(task: Task, teardown: TeardownReport, link: ChainLink, host: str, looked_at: int) -> bytes:
    """The bytes of a receipt."""
    not_looked = sorted({*teardown.not_looked, *(kind for kind in KINDS if kind not in teardown.looked)})
    listed = [_resource_list(resources) for resources in (teardown.found, teardown.removed, teardown.remaining)]
    body: dict[str, Any] = {
        "v": 1,
        "node_id": task.node_id,
        "sequence": link.sequence,
        "previous": link.previous,
        "task_id": task.task_id,
        "task_type": task.type,
        "tenant_id": task.tenant_id,
        "project_id": task.project_id,
        "allocation_id": task.allocation_id,
        "owner": task.owner,
        "host": host,
        "looked_at": looked_at,
        "looked": {kind: int(teardown.looked[kind]) for kind in KINDS if kind in teardown.looked},
        "not_looked": not_looked,
        "found": listed[0],
        "removed": listed[1],
        "remaining": listed[2],
        "truncated": any(
            len(resources) > RESOURCES_MAX for resources in (teardown.found, teardown.removed, teardown.remaining)
        ),
        "clean": not teardown.remaining and not not_looked,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def next_link(link: ChainLink, body: bytes) -> ChainLink:
    """What the receipt after this one names."""
    return ChainLink(link.sequence + 1, hashlib.sha256(body).hexdigest())


def _resource_list(resources: Sequence[Resource]) -> list[dict[str, str]]:
    return [{"kind": resource.kind, "name": resource.name[:NAME_MAX]} for resource in resources[:RESOURCES_MAX]]
