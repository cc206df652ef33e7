"""The platform's keys that sign tasks, and the chain in which one key follows another.

A node pins the key that it receives when it enrols. Each new key is signed by the previous one, so a node that trusts
one key trusts its successors and no other key; a node that missed several rotations walks the chain. Only the newest
key signs tasks, and a successor retires the key before it: the platform deletes its private half, and nodes refuse what
it signs.

A thief who has the current key can sign a successor too. Against that stands the operator's root key, of which the
platform and the nodes know only the public half: a new key is prepared, the root key signs it together with an epoch
that only grows, and nodes that see this signature drop every other key at once.
"""

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mooring.core.kernel.decision import (
    AuditRecord,
    Decision,
    DecisionContext,
    EventRecord,
    Insert,
    Remove,
    Update,
    Write,
)
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.secret import Sealed

TASK_SIGNING: Final = "task_signing"
PREPARED: Final = "task_signing_prepared"
"""The purpose of the one key that waits for the signature of the root key."""
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
    epoch: int | None = None
    root_signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyChain:
    """What a decision about the keys needs: the current key, the prepared one, and how many there were."""

    current: PlatformKey
    prepared: PlatformKey | None
    length: int
    epoch: int  # the last one that the root key signed, or 0


@dataclass(frozen=True, slots=True)
class NextKey:
    """A new key: its public half, its sealed private half, and the previous key's signature over it."""

    id: str
    public_key: bytes
    sealed: Sealed
    signature: bytes


@dataclass(frozen=True, slots=True)
class Vouched:
    """The two signatures that put a prepared key into use: of the key before it, and of the root key."""

    signature: bytes
    root_signature: bytes


def announcement(key_id: str, public_key: bytes) -> bytes:
    """The bytes that a key signs to vouch for the next one."""
    return f"mooring-key-v1\n{key_id}\n{encoded(public_key)}".encode()


def root_statement(audience: str, epoch: int, key_id: str, public_key: bytes) -> bytes:
    """The bytes that the root key signs: from now on this platform signs tasks with this key and no other."""
    return f"mooring-root-v1\n{audience}\n{epoch}\n{key_id}\n{encoded(public_key)}".encode()


def root_announcement(audience: str, root_key: bytes) -> bytes:
    """The bytes that the current key signs, so that nodes without a root key pin this one."""
    return f"mooring-root-key-v1\n{audience}\n{encoded(root_key)}".encode()


def encoded(key: bytes) -> str:
    """A key or a signature in the encoding of the API: base64url without padding."""
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def audience_of(first_key_id: str) -> str:
    """The audience of tasks: it names this platform by its very first key, which stays the same after rotations."""
    return f"mooring:{first_key_id}"


def rotate_key(
    context: DecisionContext, current: PlatformKey, following: NextKey, key_count: int
) -> Decision[PlatformKey]:
    """Put the next key into use and retire the current one; `key_count` is the length of the chain so far."""
    _check_length(key_count)
    made = PlatformKey(following.id, following.public_key, current.id, following.signature, 0, context.now)
    row = _row(made, TASK_SIGNING, following.sealed)
    return _in_use(context, made, (_retired(context, current), *_inserted(context, following.sealed, row)))


def prepare_key(context: DecisionContext, chain: KeyChain, following: NextKey) -> Decision[PlatformKey]:
    """Make a key that waits for the root key's signature; it replaces one that already waits.

    The epoch is the time in seconds, so that it also grows when the platform was restored from an old backup.
    """
    _check_length(chain.length)
    epoch = max(chain.epoch + 1, int(context.now.timestamp()))
    made = PlatformKey(following.id, following.public_key, None, None, 0, context.now, epoch=epoch)
    waiting = chain.prepared
    replaced: tuple[Write, ...] = () if waiting is None else (Remove("platform_key", waiting.id, waiting.revision),)
    data = {"key_id": made.id, "epoch": epoch, "replaces": None if waiting is None else waiting.id}
    return Decision(
        result=made,
        writes=(*replaced, *_inserted(context, following.sealed, _row(made, PREPARED, following.sealed))),
        events=(EventRecord(EventType.PLATFORM_KEY_PREPARED, "platform_key", made.id, None, data=data),),
        audits=(AuditRecord("platform_key.rotate", "platform_key", made.id, None, after=data),),
    )


def install_key(context: DecisionContext, chain: KeyChain, key_id: str, vouched: Vouched) -> Decision[PlatformKey]:
    """Put the prepared key into use; the root key's signature over it was verified before."""
    waiting = prepared_key(chain, key_id)
    _check_length(chain.length)
    columns = {
        "purpose": TASK_SIGNING,
        "signed_by": chain.current.id,
        "signature": vouched.signature,
        "root_signature": vouched.root_signature,
    }
    made = PlatformKey(
        waiting.id,
        waiting.public_key,
        chain.current.id,
        vouched.signature,
        waiting.revision + 1,
        waiting.created_at,
        epoch=waiting.epoch,
        root_signature=vouched.root_signature,
    )
    changed = Update("platform_key", waiting.id, waiting.revision, columns)
    return _in_use(context, made, (_retired(context, chain.current), changed))


def prepared_key(chain: KeyChain, key_id: str) -> PlatformKey:
    """The key of this id, if it is the one that waits."""
    if chain.prepared is None or chain.prepared.id != key_id:
        raise Refusal(Code.NOT_FOUND, "this key does not wait for a signature: prepare one, and sign what it shows")
    return chain.prepared


def _check_length(key_count: int) -> None:
    if key_count >= KEYS_MAX:
        raise Refusal(Code.LIMIT_REACHED, f"a chain has at most {KEYS_MAX} keys", {"limit": KEYS_MAX})


def _retired(context: DecisionContext, key: PlatformKey) -> Update:
    """The database deletes the private half together with the reference to it."""
    return Update("platform_key", key.id, key.revision, {"retired_at": context.now, "secret_id": None})


def _row(key: PlatformKey, purpose: str, sealed: Sealed) -> dict[str, object]:
    return {
        "id": key.id,
        "purpose": purpose,
        "algorithm": ALGORITHM,
        "public_key": key.public_key,
        "secret_id": sealed.id,
        "signed_by": key.signed_by,
        "signature": key.signature,
        "epoch": key.epoch,
        "created_at": key.created_at,
    }


def _inserted(context: DecisionContext, sealed: Sealed, row: dict[str, object]) -> tuple[Write, ...]:
    return Insert("secret", sealed.row(context.now)), Insert("platform_key", row)


def _in_use(context: DecisionContext, key: PlatformKey, writes: tuple[Write, ...]) -> Decision[PlatformKey]:
    data = {"key_id": key.id, "signed_by": key.signed_by, "epoch": key.epoch}
    return Decision(
        result=key,
        writes=writes,
        events=(EventRecord(EventType.PLATFORM_KEY_ROTATED, "platform_key", key.id, None, data=data),),
        audits=(AuditRecord("platform_key.rotate", "platform_key", key.id, None, after=data),),
    )
