"""What nodes trust the platform by: signatures on tasks, and secrets that are sealed to one node.

A secret is sealed to the node's X25519 key: an ephemeral key, HKDF-SHA256 over the shared secret, AES-256-GCM. The
context of the secret goes into the key derivation and into the associated data, so it cannot be opened in another one.
"""

import secrets
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.fleet.task_envelope import TASK_CONTEXT, SealedSecret, TaskEnvelope, encode

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12


class TaskSigner:
    """Signs what nodes must trust, with the current key."""

    __slots__ = ("_key", "key_id")

    def __init__(self, key_id: str, private_key: bytes) -> None:
        self.key_id = key_id
        self._key = Ed25519PrivateKey.from_private_bytes(private_key)

    def __repr__(self) -> str:
        return f"TaskSigner({self.key_id})"

    def sign(self, payload: bytes, context: bytes = TASK_CONTEXT) -> TaskEnvelope:
        """The payload with the platform's signature; `context` keeps signatures for different uses apart."""
        return TaskEnvelope(encode(payload), self.key_id, encode(self._key.sign(context + payload)))


def seal_to_node(sealing_key: bytes, info: bytes, secret: bytes, *, name: str, purpose: str) -> SealedSecret:
    """Seal a secret so that only the holder of this node's key can open it, and only in the context `info`."""
    ephemeral = X25519PrivateKey.generate()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(sealing_key))
    key = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(shared)
    nonce = secrets.token_bytes(NONCE_BYTES)
    public = ephemeral.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return SealedSecret(name, purpose, public, nonce, AESGCM(key).encrypt(nonce, secret, info))
