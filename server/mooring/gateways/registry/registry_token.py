"""The platform's own token service for a registry: short-lived tokens for single repositories and actions.

A registry that is configured to trust the platform's certificate (`auth.token` with `rootcertbundle`) accepts a JWT
that lists repositories and actions, and refuses everything else. So a publisher gets the right to push to one
repository for some minutes, a node gets the right to pull from one, and neither needs a password. The token carries
the certificate, so the registry needs only the bundle. To rotate a key, add the new certificate to the bundle, sign
with the new key, then remove the old certificate.

`read_scopes` and `granted` are for the endpoint that the registry sends its clients to: the requested access is reduced
to what the client may have. A token without any access is still a valid token, as the protocol requires.
"""

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from mooring.core.kernel.validation import invalid
from mooring.gateways.lazy_import import lazy_module
from mooring.gateways.registry.image_manifest import repository_name

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = lazy_module("cryptography.x509")

ACTIONS: Final = ("pull", "push", "delete")
LIFETIME_SECONDS: Final = 300
LIFETIME_SECONDS_MAX: Final = 3_600
EARLY_SECONDS: Final = 30  # clocks differ
CERTIFICATE_DAYS: Final = 3_650
SCOPES_MAX: Final = 32
SCOPE_LENGTH_MAX: Final = 400
_COORDINATE_BYTES: Final = 32
_SCOPE: Final = re.compile(r"repository(?:\([a-z0-9]+\))?:(?P<name>[^:]+):(?P<actions>[a-z*,]+)")


@dataclass(frozen=True, slots=True)
class RepositoryAccess:
    """What may be done with one repository."""

    repository: str
    actions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token as it is returned to the client."""

    token: str
    issued_at: datetime
    expires_in: int

    def document(self) -> dict[str, object]:
        """The body of the token endpoint's answer, with both names that clients expect."""
        return {
            "token": self.token,
            "access_token": self.token,
            "expires_in": self.expires_in,
            "issued_at": self.issued_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }


@dataclass(frozen=True, slots=True)
class SigningPair:
    """A key that signs tokens, and its certificate, which the registry trusts."""

    private_key_pem: bytes
    certificate_pem: bytes

    def __repr__(self) -> str:
        return "SigningPair(…)"


def new_signing_pair(now: datetime, name: str = "mooring registry tokens") -> SigningPair:
    """A new key with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=CERTIFICATE_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return SigningPair(private, certificate.public_bytes(Encoding.PEM))


class RegistryTokenIssuer:
    """Signs tokens for one registry."""

    def __init__(
        self,
        pair: SigningPair,
        *,
        issuer: str,
        service: str,
        lifetime_seconds: int = LIFETIME_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        key = load_pem_private_key(pair.private_key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ValueError("the key that signs tokens must be a P-256 key")
        if not 1 <= lifetime_seconds <= LIFETIME_SECONDS_MAX:
            raise ValueError(f"a token may be valid for at most {LIFETIME_SECONDS_MAX} seconds")
        self._key = key
        self._issuer = issuer
        self._service = service
        self._lifetime = lifetime_seconds
        self._clock = clock
        certificate = x509.load_pem_x509_certificate(pair.certificate_pem)
        self._header = {
            "typ": "JWT",
            "alg": "ES256",
            "kid": key_id(key.public_key()),
            "x5c": [base64.b64encode(certificate.public_bytes(Encoding.DER)).decode("ascii")],
        }

    @property
    def service(self) -> str:
        """The audience: the registry's name for itself."""
        return self._service

    def token(self, repository: str, actions: Sequence[str]) -> str:
        """A token for the platform itself."""
        return self.issue("mooring", [RepositoryAccess(repository, tuple(actions))]).token

    def issue(self, subject: str, access: Sequence[RepositoryAccess]) -> IssuedToken:
        """A token for a subject with this access."""
        now = int(self._clock())
        claims = {
            "iss": self._issuer,
            "sub": subject,
            "aud": self._service,
            "iat": now,
            "nbf": now - EARLY_SECONDS,
            "exp": now + self._lifetime,
            "jti": secrets.token_urlsafe(16),
            "access": [
                {"type": "repository", "name": repository_name(each.repository), "actions": _actions(each.actions)}
                for each in access
            ],
        }
        signed = f"{_encoded(self._header)}.{_encoded(claims)}"
        signature = decode_dss_signature(self._key.sign(signed.encode("ascii"), ec.ECDSA(hashes.SHA256())))
        raw = b"".join(number.to_bytes(_COORDINATE_BYTES, "big") for number in signature)
        return IssuedToken(f"{signed}.{_unpadded(raw)}", datetime.fromtimestamp(now, UTC), self._lifetime)


def key_id(public_key: ec.EllipticCurvePublicKey) -> str:
    """The key id as version 2 of the registry computes it: the hash of the key in groups of four."""
    encoded = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    text = base64.b32encode(hashlib.sha256(encoded).digest()[:30]).decode("ascii")
    return ":".join(text[place : place + 4] for place in range(0, len(text), 4))


def read_scopes(values: Iterable[str]) -> list[RepositoryAccess]:
    """The access that a client asks for; scopes that are not repositories are ignored."""
    asked: dict[str, set[str]] = {}
    words = [word for value in values for word in value.split()]
    if len(words) > SCOPES_MAX:
        raise invalid("scope", f"at most {SCOPES_MAX} scopes")
    for word in words:
        scope = _SCOPE.fullmatch(word) if len(word) <= SCOPE_LENGTH_MAX else None
        if scope is None:
            if word.startswith("repository"):
                raise invalid("scope", "scopes such as repository:team/app:pull,push")
            continue
        name = repository_name(scope["name"], "scope")
        named = {each for each in scope["actions"].split(",") if each}
        asked.setdefault(name, set()).update(ACTIONS if "*" in named else named & set(ACTIONS))
    return [RepositoryAccess(name, _actions(actions)) for name, actions in asked.items()]


def granted(asked: Sequence[RepositoryAccess], allowed: Callable[[str], frozenset[str]]) -> list[RepositoryAccess]:
    """The part of the requested access that is granted; `allowed` gives the caller's actions on a repository."""
    given = [
        RepositoryAccess(each.repository, _actions(set(each.actions) & allowed(each.repository))) for each in asked
    ]
    return [each for each in given if each.actions]


def _actions(actions: Iterable[str]) -> tuple[str, ...]:
    named = set(actions)
    if not named <= set(ACTIONS):
        raise invalid("actions", f"some of {', '.join(ACTIONS)}")
    return tuple(each for each in ACTIONS if each in named)


def _encoded(document: object) -> str:
    return _unpadded(json.dumps(document, separators=(",", ":")).encode())


def _unpadded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode("ascii")
