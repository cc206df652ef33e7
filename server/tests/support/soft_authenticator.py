"""An authenticator in software: it makes passkeys and signs with them, honestly or as a test wants."""

import base64
import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclass
class SoftAuthenticator:
    """One passkey for one host; what it says of the page and of its user can be made wrong."""

    origin: str
    host: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    credential_id: bytes = field(default_factory=lambda: os.urandom(32))
    count: int = 0
    flags: int = PRESENT | VERIFIED

    def registration(self, options: dict[str, Any], name: str = "laptop") -> dict[str, Any]:
        """The body of a registration that answers these options."""
        numbers = self.key.public_key().public_numbers()
        public = {1: 2, 3: -7, -1: 1, -2: numbers.x.to_bytes(32, "big"), -3: numbers.y.to_bytes(32, "big")}
        length = len(self.credential_id).to_bytes(2, "big")
        attested = bytes(16) + length + self.credential_id + cbor2.dumps(public)
        data = self._data(self.flags | ATTESTED) + attested
        return {
            "name": name,
            "credential_id": encode(self.credential_id),
            "client_data": encode(self._client_data("webauthn.create", options["challenge"])),
            "attestation": encode(cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})),
        }

    def sign_in(self, options: dict[str, Any]) -> dict[str, Any]:
        """The body of a sign-in that answers these options."""
        self.count += 1
        client_data = self._client_data("webauthn.get", options["challenge"])
        data = self._data(self.flags)
        signed = self.key.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(hashes.SHA256()))
        return {
            "credential_id": encode(self.credential_id),
            "client_data": encode(client_data),
            "authenticator_data": encode(data),
            "signature": encode(signed),
        }

    def _data(self, flags: int) -> bytes:
        return hashlib.sha256(self.host.encode()).digest() + bytes([flags]) + self.count.to_bytes(4, "big")

    def _client_data(self, kind: str, challenge: str) -> bytes:
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said).encode()
