"""The root key of the tests' platforms: its public half is in their settings."""

from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.identity.platform_key import encoded

ROOT: Final = Ed25519PrivateKey.from_private_bytes(b"the root key of the tests' world"[:32])
ROOT_KEY: Final = encoded(ROOT.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))


def signed(prepared: dict[str, Any], root: Ed25519PrivateKey = ROOT) -> dict[str, str]:
    """The body that puts a prepared key into use."""
    return {"key_id": prepared["key_id"], "root_signature": encoded(root.sign(prepared["document"].encode()))}
