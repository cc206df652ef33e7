"""The envelope of a task: the bytes that are signed, and what a sealed secret is bound to.

The signature covers the payload byte by byte. The payload names the node, the audience and the fence of the claim, so
that it is valid for one holder, once: another node refuses a copy, and the same node refuses a replay.
"""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mooring.core.fleet.task import Task

TASK_CONTEXT: Final = b"mooring-task-v1\n"
PAYLOAD_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SealedSecret:
    """A secret that one node can open, for one task and purpose."""

    name: str
    purpose: str
    ephemeral_key: bytes
    nonce: bytes
    ciphertext: bytes

    def document(self) -> dict[str, str]:
        return {
            "name": self.name,
            "purpose": self.purpose,
            "ephemeral_key": encode(self.ephemeral_key),
            "nonce": encode(self.nonce),
            "ciphertext": encode(self.ciphertext),
        }


@dataclass(frozen=True, slots=True)
class TaskEnvelope:
    """A signed payload for an agent."""

    payload: str
    key_id: str
    signature: str


def encode(data: bytes) -> str:
    """URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode(text: str) -> bytes:
    """The inverse of `encode`; raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def sealing_info(node_id: str, task_id: str, purpose: str, name: str) -> bytes:
    """What a sealed secret is bound to: it opens for this node, task, purpose and name, and for nothing else."""
    return f"mooring-seal-v1\n{node_id}\n{task_id}\n{purpose}\n{name}".encode()


def payload_of(task: Task, audience: str, now: datetime, secrets: Iterable[SealedSecret] = ()) -> bytes:
    document: dict[str, Any] = {
        "v": PAYLOAD_VERSION,
        "task_id": task.id,
        "type": task.type,
        "node_id": task.node_id,
        "audience": audience,
        "fence": task.fence,
        "tenant_id": task.tenant_id,
        "project_id": task.project_id,
        "allocation_id": task.allocation_id,
        "owner": task.owner,
        "issued_at": int(now.timestamp()),
        "expires_at": int(task.expires_at.timestamp()),
        "correlation_id": task.correlation_id,
        "trace_id": task.trace_id,
        "arguments": task.arguments,
        "secrets": [each.document() for each in secrets],
    }
    if task.instance_id is not None:
        document["instance_id"] = task.instance_id
    if task.member_id is not None:
        document["member_id"] = task.member_id
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
