"""The agent's own keys, and the platform keys that it trusts.

Two private keys are created on this machine and never leave it: one signs assertions and receipts, the other opens
sealed secrets. The platform's keys are pinned at enrolment; a new one is trusted only if a pinned one signed it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mooring_agent.atomic_files import write_private
from mooring_agent.control_plane.messages import PlatformKey, SealedSecret, decode, encode

KEY_CONTEXT: Final = b"mooring-key-v1\n"
SEAL_CONTEXT: Final = "mooring-seal-v1"


class SecretUnreadable(Exception):
    """A sealed secret that this node cannot open, or that was altered."""


@dataclass(frozen=True, slots=True)
class NodeKeys:
    signing: Ed25519PrivateKey
    sealing: X25519PrivateKey

    @property
    def signing_public(self) -> str:
        """The public half of the signing key."""
        return encode(bytes(self.signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)))

    @property
    def sealing_public(self) -> str:
        """The public half of the key that secrets are sealed to."""
        return encode(self.sealing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, context: bytes, body: bytes) -> bytes:
        """Sign bytes for one purpose; the context keeps the signature from being valid for another."""
        return self.signing.sign(context + body)

    def open(self, secret: SealedSecret, node_id: str, task_id: str) -> bytes:
        """Decrypt a secret that was sealed to this node for this task, purpose and name."""
        info = "\n".join((SEAL_CONTEXT, node_id, task_id, secret.purpose, secret.name)).encode()
        try:
            shared = self.sealing.exchange(X25519PublicKey.from_public_bytes(decode(secret.ephemeral_key)))
            key = HKDF(SHA256(), 32, salt=None, info=info).derive(shared)
            return AESGCM(key).decrypt(decode(secret.nonce), decode(secret.ciphertext), info)
        except (ValueError, InvalidTag) as error:
            raise SecretUnreadable(f"the secret {secret.name!r} was not sealed to this node for this task") from error


def make_keys() -> NodeKeys:
    return NodeKeys(Ed25519PrivateKey.generate(), X25519PrivateKey.generate())


def load_or_create_keys(directory: Path) -> NodeKeys:
    """The keys of this directory, created if there are none; only their owner may read them."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(directory, 0o700)
    path = directory / "node.keys"
    if not path.exists():
        keys = make_keys()
        raw = (Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        write_private(path, keys.signing.private_bytes(*raw) + keys.sealing.private_bytes(*raw))
    data = path.read_bytes()
    if len(data) != 64:
        raise ValueError(f"{path} does not hold two keys of 32 bytes; enrol this machine again")
    return NodeKeys(Ed25519PrivateKey.from_private_bytes(data[:32]), X25519PrivateKey.from_private_bytes(data[32:]))


def is_valid_signature(public_key: bytes, signature: bytes, signed: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True


class Identity(msgspec.Struct, frozen=True):
    """What enrolment established about this agent; stored in `identity.json`."""

    url: str
    node_id: str
    audience: str
    platform_keys: tuple[PlatformKey, ...]

    @property
    def pinned(self) -> Mapping[str, bytes]:
        return {key.key_id: decode(key.public_key) for key in self.platform_keys}


def with_announced_keys(identity: Identity, announced: Sequence[PlatformKey]) -> Identity:
    """The identity with every announced key that a pinned key signed; other keys are ignored."""
    pinned = dict(identity.pinned)
    accepted = list(identity.platform_keys)
    for key in announced:
        if key.key_id in pinned or key.signed_by not in pinned or key.signature is None:
            continue
        try:
            public, signature = decode(key.public_key), decode(key.signature)
        except ValueError:
            continue  # the same as unsigned
        if is_valid_signature(
            pinned[key.signed_by], signature, KEY_CONTEXT + f"{key.key_id}\n{key.public_key}".encode()
        ):
            pinned[key.key_id] = public
            accepted.append(PlatformKey(key.key_id, key.public_key))
    if len(accepted) == len(identity.platform_keys):
        return identity
    return msgspec.structs.replace(identity, platform_keys=tuple(accepted))


def read_identity(directory: Path) -> Identity | None:
    """The identity stored here, if this machine is enrolled."""
    path = directory / "identity.json"
    return msgspec.json.decode(path.read_bytes(), type=Identity) if path.exists() else None


def store_identity(directory: Path, identity: Identity) -> None:
    """Save the identity atomically."""
    write_private(directory / "identity.json", msgspec.json.encode(identity))
