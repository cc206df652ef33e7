"""The platform's keys that sign tasks, and the chain in which one key follows another.

A node pins the key that it receives when it enrols. Each new key is signed by the previous one, so a node that trusts
one key trusts its successors and no other key; a node that missed several rotations walks the chain. Only the newest
key signs tasks.
"""

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.secret import Sealed

TASK_SIGNING: Final = "task_signing"
ALGORITHM: Final = "ed25519"
KEYS_MAX: Final = 1_000
"""Nodes do not walk longer chains; after that the platform needs a new first key, and nodes enrol again."""


@dataclass(frozen=True, slots=True)
class PlatformKey:
    """A key of the platform, without its private half."""

    id: str
    public_key: bytes
    signed_by: str | None
    signature: bytes | None
    revision: int
    created_at: datetime
    retired_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NextKey:
    """A new key: its public half, its sealed private half, and the previous key's signature over it."""

    id: str
    public_key: bytes
    sealed: Sealed
    signature: bytes


def announcement(key_id: str, public_key: bytes) -> bytes:
    """The bytes that a key signs to vouch for the next one."""
    return f"mooring-key-v1\n{key_id}\n{encoded(public_key)}".encode()


def encoded(key: bytes) -> str:
    """A key or a signature in the encoding of the API: base64url without padding."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def audience_of(first_key_id: str) -> str:
    """The audience of tasks: it names this platform by its very first key, which stays the same after rotations."""
    return f"mooring:{first_key_id}"


def rotate_key(
    context: DecisionContext, current: PlatformKey, following: NextKey, key_count: int
) -> Decision[PlatformKey]:
    """Put the next key into use; `key_count` is the length of the chain so far."""
    if key_count >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a chain has at most {KEYS_MAX} keys", {"limit": KEYS_MAX})
    made = PlatformKey(following.id, following.public_key, current.id, following.signature, 0, context.now)
    row = {
        "id": made.id,
        "purpose": TASK_SIGNING,
        "algorithm": ALGORITHM,
        "public_key": made.public_key,
        "secret_id": following.sealed.id,
        "signed_by": current.id,
        "signature": following.signature,
        "created_at": context.now,
    }
    data = {"key_id": made.id, "signed_by": current.id}
    return Decision(
        result=made,
        writes=(
            Update("platform_key", current.id, current.revision, {"retired_at": context.now}),
            Insert("secret", following.sealed.row(context.now)),
            Insert("platform_key", row),
        ),
        events=(EventRecord(EventType.PLATFORM_KEY_ROTATED, "platform_key", made.id, None, data=data),),
        audits=(AuditRecord("platform_key.rotate", "platform_key", made.id, None, after=data),),
    )
