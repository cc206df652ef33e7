"""The agent's own keys.

Two private keys are created on this machine and never leave it: one signs assertions and receipts, the other opens
sealed secrets. Which keys of the platform this agent trusts is in `trust.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from mooring_agent.atomic_files import write_private
from mooring_agent.control_plane.messages import SealedSecret, decode, encode
from mooring_agent.kernel import hostile_files

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
    hostile_files.make_private(directory)
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
