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
from mooring_agent.hosts.contract import Look, Thing

RECEIPT_CONTEXT: Final = b"mooring-receipt-v1\n"
FIRST_PREVIOUS: Final = "0" * 64
THINGS_MAX: Final = 500
NAME_MAX: Final = 200
KINDS: Final = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Link:
    """The end of this node's chain."""

    sequence: int
    previous: str


def body_of(task: Task, look: Look, link: Link, host: str, looked_at: int) -> bytes:
    """The bytes of a receipt."""
    not_looked = sorted({*look.not_looked, *(kind for kind in KINDS if kind not in look.looked)})
    told = [_listed(things) for things in (look.found, look.removed, look.remaining)]
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
        "looked": {kind: int(look.looked[kind]) for kind in KINDS if kind in look.looked},
        "not_looked": not_looked,
        "found": told[0],
        "removed": told[1],
        "remaining": told[2],
        "truncated": any(len(things) > THINGS_MAX for things in (look.found, look.removed, look.remaining)),
        "clean": not look.remaining and not not_looked,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def next_link(link: Link, body: bytes) -> Link:
    """What the receipt after this one names."""
    return Link(link.sequence + 1, hashlib.sha256(body).hexdigest())


def _listed(things: Sequence[Thing]) -> list[dict[str, str]]:
    return [{"kind": thing.kind, "name": thing.name[:NAME_MAX]} for thing in things[:THINGS_MAX]]
