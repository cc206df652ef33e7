"""Receipts: what this node found after it removed something, signed and chained.

The body is canonical JSON (sorted keys, no white space, ASCII, whole numbers), so that anybody can reproduce the same
bytes. Each receipt contains the hash of the previous one, so a node cannot omit one or rewrite history unnoticed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring_agent.control_plane.messages import Task
from mooring_agent.hosts.contract import RESOURCE_KINDS, Resource, TeardownReport

RECEIPT_CONTEXT: Final = b"mooring-receipt-v1\n"
FIRST_PREVIOUS: Final = "0" * 64
RESOURCES_MAX: Final = 500
NAME_MAX: Final = 200
DEVICES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The sequence number of the next receipt and the hash of the previous one."""

    sequence: int
    previous: str


@dataclass(frozen=True, slots=True)
class ChainedReceipt:
    """A signed receipt at its place in the chain."""

    link: ChainLink
    body: bytes
    signature: bytes


def receipt_body(task: Task, teardown: TeardownReport, link: ChainLink, host: str, looked_at: int) -> bytes:
    not_looked = sorted({*teardown.not_looked, *(kind for kind in RESOURCE_KINDS if kind not in teardown.looked)})
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
        "looked": {kind: int(teardown.looked[kind]) for kind in RESOURCE_KINDS if kind in teardown.looked},
        "not_looked": not_looked,
        "found": listed[0],
        "removed": listed[1],
        "remaining": listed[2],
        "truncated": any(
            len(resources) > RESOURCES_MAX for resources in (teardown.found, teardown.removed, teardown.remaining)
        ),
        "clean": not teardown.remaining and not not_looked,
    }
    if teardown.devices:
        body["devices"] = [
            {"name": each.name, "state": each.state} | ({"detail": each.detail[:NAME_MAX]} if each.detail else {})
            for each in teardown.devices[:DEVICES_MAX]
        ]
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def next_link(link: ChainLink, body: bytes) -> ChainLink:
    """The link of the receipt after this one."""
    return ChainLink(link.sequence + 1, hashlib.sha256(body).hexdigest())


def _resource_list(resources: Sequence[Resource]) -> list[dict[str, str]]:
    return [{"kind": resource.kind, "name": resource.name[:NAME_MAX]} for resource in resources[:RESOURCES_MAX]]
