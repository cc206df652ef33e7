"""Which keys of the platform this agent trusts, and how that changes.

The newest key is pinned at enrolment, with the operator's root key if there is one. Only the current key can announce
its successor. The successor retires it: what the retired key signed is still accepted for `OVERLAP_SECONDS`, because
it may be on its way, and then refused for good. A key that the root key signed, with a higher epoch than the last,
replaces every other key at once. All of it is stored in `identity.json`, so neither a restart of the agent nor an old
backup of the platform brings a retired key back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mooring_agent.atomic_files import write_private
from mooring_agent.control_plane.keys import is_valid_signature
from mooring_agent.control_plane.messages import PlatformKey, RootKey, decode

OVERLAP_SECONDS: Final = 300.0
"""How long a retired key is still accepted."""
CLOCK_STEP_SECONDS: Final = 60.0
"""If the clock is further back than this before the retirement, the key is refused: the time proves nothing."""


class Identity(msgspec.Struct, frozen=True):
    """What enrolment established about this agent; stored in `identity.json`."""

    url: str
    node_id: str
    audience: str
    platform_keys: tuple[PlatformKey, ...]  # the current one is last
    retired: dict[str, float] = {}  # by key id: when this agent learned of the successor
    root_key: str | None = None
    epoch: int = 0  # of the last key that the root key signed
    ca_file: str | None = None  # trusted instead of the system's CA certificates
    allow_insecure: bool = False  # the operator allowed plain http to another machine

    def trusted(self, now: float) -> Mapping[str, bytes]:
        """The keys whose signatures are accepted now."""
        return {
            key.key_id: decode(key.public_key)
            for key in self.platform_keys
            if key is self.platform_keys[-1] or _overlaps(self.retired.get(key.key_id), now)
        }


def pin(url: str, node_id: str, audience: str, keys: Sequence[PlatformKey], root_key: str | None) -> Identity:
    """The identity of a node that has just enrolled: it trusts the newest key alone."""
    newest = keys[-1:]
    epoch = max((key.epoch for key in keys if key.epoch is not None), default=0)
    pinned = tuple(PlatformKey(key.key_id, key.public_key) for key in newest)
    return Identity(url, node_id, audience, pinned, {}, root_key, epoch)


def with_announced_keys(identity: Identity, announced: Sequence[PlatformKey], now: float) -> Identity:
    """The identity after these announcements; what is not signed as it must be is ignored."""
    return _with_successors(_with_vouched_key(identity, announced), announced, now)


def with_root_key(identity: Identity, root: RootKey | None) -> Identity:
    """The identity with a root key, if it had none and the current key signed this one. A pinned one stays."""
    if root is None or identity.root_key is not None or not identity.platform_keys:
        return identity
    current = identity.platform_keys[-1]
    signed = f"mooring-root-key-v1\n{identity.audience}\n{root.public_key}"
    if root.signed_by != current.key_id or not _is_signed(current.public_key, root.signature, signed):
        return identity
    return msgspec.structs.replace(identity, root_key=root.public_key)


def lacks_link(identity: Identity, announced: Sequence[PlatformKey]) -> bool:
    """Whether the newest announced key is unknown: this agent missed more rotations than an announcement holds."""
    return bool(announced) and announced[-1].key_id not in {key.key_id for key in identity.platform_keys}


def _with_vouched_key(identity: Identity, announced: Sequence[PlatformKey]) -> Identity:
    """Trust the key with the highest epoch that the root key signed, and no other."""
    if identity.root_key is None:
        return identity
    for key in sorted(announced, key=lambda each: each.epoch or 0, reverse=True):
        if key.epoch is None or key.epoch <= identity.epoch:
            break
        signed = f"mooring-root-v1\n{identity.audience}\n{key.epoch}\n{key.key_id}\n{key.public_key}"
        if _is_signed(identity.root_key, key.root_signature, signed) and _is_key(key.public_key):
            pinned = (PlatformKey(key.key_id, key.public_key),)
            return msgspec.structs.replace(identity, platform_keys=pinned, retired={}, epoch=key.epoch)
    return identity


def _with_successors(identity: Identity, announced: Sequence[PlatformKey], now: float) -> Identity:
    """Follow the chain from the current key; a key that is retired can announce nothing."""
    if not identity.platform_keys:
        return identity
    keys = list(identity.platform_keys)
    while (following := _successor(keys, announced)) is not None:
        keys.append(PlatformKey(following.key_id, following.public_key))
    if len(keys) == len(identity.platform_keys):
        return identity
    # Keys between that were retired while this agent was away signed nothing that is on its way to it.
    retired = {**identity.retired, keys[-2].key_id: now}
    kept = [key for key in keys[:-1] if _overlaps(retired.get(key.key_id), now)]
    retired = {key.key_id: retired[key.key_id] for key in kept}
    return msgspec.structs.replace(identity, platform_keys=(*kept, keys[-1]), retired=retired)


def _successor(keys: Sequence[PlatformKey], announced: Sequence[PlatformKey]) -> PlatformKey | None:
    """The announced key that the current one signed; a key that was seen before does not come back."""
    current, seen = keys[-1], {key.key_id for key in keys}
    for key in announced:
        signed = f"mooring-key-v1\n{key.key_id}\n{key.public_key}"
        if (
            key.signed_by == current.key_id
            and key.key_id not in seen
            and _is_key(key.public_key)
            and _is_signed(current.public_key, key.signature, signed)
        ):
            return key
    return None


def _overlaps(retired_at: float | None, now: float) -> bool:
    return retired_at is not None and retired_at - CLOCK_STEP_SECONDS <= now < retired_at + OVERLAP_SECONDS


def _is_key(public_key: str) -> bool:
    try:
        return len(decode(public_key)) == 32
    except ValueError:
        return False


def _is_signed(public_key: str, signature: str | None, signed: str) -> bool:
    try:
        return signature is not None and is_valid_signature(decode(public_key), decode(signature), signed.encode())
    except ValueError:
        return False  # the same as unsigned


def read_identity(directory: Path) -> Identity | None:
    """The identity stored here, if this machine is enrolled."""
    path = directory / "identity.json"
    return msgspec.json.decode(path.read_bytes(), type=Identity) if path.exists() else None


def store_identity(directory: Path, identity: Identity) -> None:
    """Save the identity atomically."""
    write_private(directory / "identity.json", msgspec.json.encode(identity))
