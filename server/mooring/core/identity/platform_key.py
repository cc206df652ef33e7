"""The platform's keys that sign tasks, and how one follows another.

A node pins the key that it was told when it enrolled. The next key is announced with the signature of the one before,
so that whoever believes one key believes its successors, and nobody else's: a node that was away for several rotations
walks the chain. Tasks are signed by the newest key alone.
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
"""Longer chains are not walked: begin anew, with nodes that enrol anew."""


@dataclass(frozen=True, slots=True)
class PlatformKey:
    """A key of the platform's without its private half."""

    id: str
    public_key: bytes
    signed_by: str | None
    signature: bytes | None
    revision: int
    created_at: datetime
    retired_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NextKey:
    """A key that was just made: its public half, the private one sealed, and what the key before it says of it."""

    id: str
    public_key: bytes
    sealed: Sealed
    signature: bytes


def announcement(key_id: str, public_key: bytes) -> bytes:
    """The bytes by which a key vouches for the next one."""
    return f"mooring-key-v1\n{key_id}\n{encoded(public_key)}".encode()


def encoded(key: bytes) -> str:
    """A key or a signature as it is written in the contract: base64url, without padding."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def audience_of(first_key_id: str) -> str:
    """How tasks name this platform: by the first key that it ever had, which no rotation and no move changes."""
    return f"mooring:{first_key_id}"


def rotate_key(
    context: DecisionContext, current: PlatformKey, following: NextKey, keys_there: int
) -> Decision[PlatformKey]:
    """Tasks are signed by the next key from now on."""
    if keys_there >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"there are at most {KEYS_MAX} keys in a chain", {"limit": KEYS_MAX})
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
    told = {"key_id": made.id, "signed_by": current.id}
    return Decision(
        result=made,
        writes=(
            Update("platform_key", current.id, current.revision, {"retired_at": context.now}),
            Insert("secret", following.sealed.row(context.now)),
            Insert("platform_key", row),
        ),
        events=(EventRecord(EventType.PLATFORM_KEY_ROTATED, "platform_key", made.id, None, data=told),),
        audits=(AuditRecord("platform_key.rotate", "platform_key", made.id, None, after=told),),
    )
