"""The platform's side of these tests: it signs and seals as the node plane's page says, with code of its own."""

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring_agent.control_plane.messages import Envelope, decode, encode
from mooring_agent.tasks.verifier import TaskVerifier

NODE = "nod_01hzzzzzzzzzzzzzzzzzzzzzzz"
AUDIENCE = "https://platform.example"
ALLOCATION = "alc_01hzzzzzzzzzzzzzzzzzzzzzzz"
OTHER_ALLOCATION = "alc_02hzzzzzzzzzzzzzzzzzzzzzzz"
CREATE = {
    "hostname": "box",
    "network": {"name": "prj-1", "address": "10.77.0.2", "subnet": "10.77.0.0/24"},
}


def raw(public: Any) -> bytes:
    """The 32 bytes of a public key."""
    return bytes(public.public_bytes(Encoding.Raw, PublicFormat.Raw))


@dataclass
class FakePlatform:
    """Signs tasks for one node."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    key_id: str = "key-1"
    made: int = 0

    @property
    def verifier(self) -> TaskVerifier:
        """The verifier of a node that pins this key."""
        return TaskVerifier(NODE, AUDIENCE, {self.key_id: raw(self.key.public_key())})

    def payload(self, type: str, arguments: dict[str, Any], **other: Any) -> dict[str, Any]:
        """A task's payload; `other` replaces single fields."""
        self.made += 1
        now = time.time()
        return {
            "v": 1,
            "task_id": f"tsk_01h{self.made:023d}",
            "type": type,
            "node_id": NODE,
            "audience": AUDIENCE,
            "fence": 1,
            "tenant_id": "ten_1",
            "project_id": "prj_1",
            "allocation_id": ALLOCATION,
            "owner": ALLOCATION,
            "issued_at": now,
            "expires_at": now + 600,
            "correlation_id": "cor_1",
            "arguments": arguments,
            **other,
        }

    def sign(self, payload: dict[str, Any] | bytes) -> Envelope:
        """The envelope of a payload."""
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        return Envelope(encode(data), self.key_id, encode(self.key.sign(b"mooring-task-v1\n" + data)))

    def task(self, type: str, arguments: dict[str, Any] | None = None, **other: Any) -> Any:
        """A verified task."""
        return self.verifier.verify(self.sign(self.payload(type, arguments or {}, **other)), time.time())


def seal(value: bytes, sealing_public: str, task_id: str, purpose: str, name: str) -> dict[str, str]:
    """Seal a secret to a node for one task."""
    info = f"mooring-seal-v1\n{NODE}\n{task_id}\n{purpose}\n{name}".encode()
    ephemeral = X25519PrivateKey.generate()
    shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(decode(sealing_public)))
    nonce = os.urandom(12)
    key = HKDF(SHA256(), 32, salt=None, info=info).derive(shared)
    return {
        "name": name,
        "purpose": purpose,
        "ephemeral_key": encode(raw(ephemeral.public_key())),
        "nonce": encode(nonce),
        "ciphertext": encode(AESGCM(key).encrypt(nonce, value, info)),
    }
