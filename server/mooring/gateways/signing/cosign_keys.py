"""The keys that sign artifacts: ECDSA on P-256 and Ed25519, in the PEM form that cosign writes.

A key is identified by its fingerprint, the SHA-256 of its encoded public half, so the same key under two names is one
key. The platform stores only public halves; `SigningKey` is for those who sign: publishers, the demo, tests.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from mooring.core.kernel.validation import invalid

PEM_BYTES_MAX: Final = 8_192
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey
PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key whose signatures are trusted, with its id on the platform."""

    id: str
    public: PublicKey
    fingerprint: str
    algorithm: str

    @property
    def pem(self) -> str:
        return self.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")

    def verifies(self, signature: bytes, signed: bytes) -> bool:
        try:
            if isinstance(self.public, Ed25519PublicKey):
                self.public.verify(signature, signed)
            else:
                self.public.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key that signs artifacts."""

    private: PrivateKey

    def __repr__(self) -> str:
        return "SigningKey(…)"

    def sign(self, content: bytes) -> bytes:
        if isinstance(self.private, Ed25519PrivateKey):
            return self.private.sign(content)
        return self.private.sign(content, ec.ECDSA(hashes.SHA256()))

    def trusted(self, id: str) -> TrustedKey:
        """The public half."""
        return _trusted(id, self.private.public_key())

    @property
    def private_pem(self) -> bytes:
        """The private key in PEM form, without a passphrase."""
        return self.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_signing_key(algorithm: str = "ecdsa-p256") -> SigningKey:
    """A new key: `ecdsa-p256` or `ed25519`."""
    if algorithm == "ed25519":
        return SigningKey(Ed25519PrivateKey.generate())
    if algorithm == "ecdsa-p256":
        return SigningKey(ec.generate_private_key(ec.SECP256R1()))
    raise invalid("algorithm", "ecdsa-p256 or ed25519")


def read_signing_key(pem: bytes) -> SigningKey:
    """A private key from its unprotected PEM form."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise invalid("key", "an unprotected private key in PEM form") from error
    if isinstance(key, Ed25519PrivateKey) or (
        isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return SigningKey(key)
    raise invalid("key", "an ECDSA key on P-256 or an Ed25519 key")


def read_trusted_key(pem: str, id: str, path: str = "public_key") -> TrustedKey:
    """A public key from its PEM form."""
    if len(pem) > PEM_BYTES_MAX:
        raise invalid(path, f"at most {PEM_BYTES_MAX} characters")
    try:
        key = load_pem_public_key(pem.encode("ascii"))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise invalid(path, "a public key in PEM form, such as cosign.pub") from error
    if isinstance(key, Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return _trusted(id, key)
    raise invalid(path, "an ECDSA key on P-256 or an Ed25519 key")


def signer_of(keys: Iterable[TrustedKey], signature: bytes, signed: bytes) -> TrustedKey | None:
    """The key that made this signature; None if it is none of them."""
    return next((key for key in keys if key.verifies(signature, signed)), None)


def _trusted(id: str, public: PublicKey) -> TrustedKey:
    encoded = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    algorithm = "ed25519" if isinstance(public, Ed25519PublicKey) else "ecdsa-p256"
    return TrustedKey(id, public, f"sha256:{hashlib.sha256(encoded).hexdigest()}", algorithm)
