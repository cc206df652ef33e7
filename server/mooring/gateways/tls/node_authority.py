"""The authority that signs the client certificates of nodes, and the reading of those that connections show."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from mooring.core.fleet.node_certificate import IssuedCertificate, NodeCertificate
from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = lazy_module("cryptography.x509")

LIFETIME: Final = timedelta(days=3_650)
EARLY: Final = timedelta(minutes=5)
CLIENT_AUTH: Final = "1.3.6.1.5.5.7.3.2"
NAME: Final = "Mooring nodes"


class CertificateRequestRefused(Exception):
    """A request for a certificate that cannot be signed."""


@dataclass(frozen=True, slots=True)
class AuthorityPair:
    """The key of the authority and its own certificate."""

    private_key_pem: bytes
    certificate_pem: bytes

    def __repr__(self) -> str:
        return "AuthorityPair(…)"


def new_authority_pair(now: datetime) -> AuthorityPair:
    """A new key with a self-signed certificate, which may sign certificates and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return AuthorityPair(private, certificate.public_bytes(Encoding.PEM))


class NodeAuthority:
    """Signs client certificates that name one node each."""

    def __init__(self, pair: AuthorityPair, lifetime: timedelta) -> None:
        key = load_pem_private_key(pair.private_key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the node authority must be a P-256 key")
        self._key = key
        self._lifetime = lifetime
        self._name = x509.load_pem_x509_certificate(pair.certificate_pem).subject
        self.certificate_pem = pair.certificate_pem.decode("ascii")

    def issue(self, request: str, node_id: str, now: datetime) -> IssuedCertificate:
        """Certify the key of a request for a node; nothing else of the request is used."""
        key = key_of_request(request)
        not_after = (now + self._lifetime).replace(microsecond=0)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node_id)]))
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - min(EARLY, self._lifetime / 10))
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier(CLIENT_AUTH)]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, SHA256())
        )
        return IssuedCertificate(made.public_bytes(Encoding.PEM).decode("ascii"), not_after)


def key_of_request(request: str) -> ec.EllipticCurvePublicKey:
    """The key that a request wants certified; raises CertificateRequestRefused."""
    try:
        wanted = x509.load_pem_x509_csr(request.encode())
        key = wanted.public_key()
        is_proven = wanted.is_signature_valid
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateRequestRefused("a PKCS #10 request, PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateRequestRefused("a request of a P-256 key")
    if not is_proven:
        raise CertificateRequestRefused("a request that its own key signed")
    return key


def shown_certificate(connection: ssl.SSLObject | None) -> NodeCertificate | None:
    """The client certificate of a connection, which TLS has verified against the node authority; None without one."""
    shown: dict[str, Any] | None = None if connection is None else connection.getpeercert()
    if not shown:
        return None
    names = [value for part in shown["subject"] for kind, value in part if kind == "commonName"]
    not_after = datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), UTC)
    return NodeCertificate(names[0], not_after) if len(names) == 1 else None
