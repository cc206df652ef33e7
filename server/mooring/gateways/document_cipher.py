"""Seals documents in rows: AES-256-GCM under one data key, which is itself a secret sealed by the master key.

A secret of its own for each document would cost a second row and a second encryption; a rotation of the master key
rewraps the one data key and touches no document.
"""

import hashlib
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mooring.gateways.secrets import NONCE_BYTES, CannotUnseal


class AesDocumentCipher:
    """One data key, named by its fingerprint."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self.key_id = hashlib.sha256(b"mooring-document-key\n" + key).hexdigest()[:16]

    def seal(self, plain: bytes, bound: str) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, plain, bound.encode())

    def open(self, sealed: bytes, bound: str) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound.encode())
        except (InvalidTag, ValueError) as error:
            raise CannotUnseal(f"a document of {bound} was moved or changed after it was sealed") from error
