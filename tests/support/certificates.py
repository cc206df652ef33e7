"""Certificates for tests: an authority, and what it signs, with any dates and names."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

LOOPBACK = ("localhost", "127.0.0.1", "*.apps.localhost")


@dataclass(frozen=True)
class KeyFiles:
    """A certificate and its key, each in a file."""

    certificate: Path
    key: Path

    @property
    def environment(self) -> dict[str, str]:
        """The settings with which a server serves it."""
        return {"MOORING_TLS_CERT_FILE": str(self.certificate), "MOORING_TLS_KEY_FILE": str(self.key)}


class TestAuthority:
    """A certificate authority of a test's own."""

    __test__ = False

    def __init__(self, directory: Path, name: str = "Test authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = _builder(self._name, self._name, self._key, days=30.0)
        self._certificate = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
            self._key, hashes.SHA256()
        )
        self.ca_file = directory / f"{name.replace(' ', '-').lower()}.pem"
        self.ca_file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str = "server", names: tuple[str, ...] = LOOPBACK, *, days: float = 1.0) -> KeyFiles:
        """A certificate for these names; with negative days it has expired. The same name replaces the files."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        alternatives = x509.SubjectAlternativeName([_name(each) for each in names])
        made = _builder(subject, self._name, key, days=days).add_extension(alternatives, critical=False)
        files = KeyFiles(self._directory / f"{name}.crt", self._directory / f"{name}.key")
        replace_file(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        replace_file(files.certificate, made.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return files

    @property
    def trusted(self) -> ssl.SSLContext:
        """A client's context that trusts this authority and no other."""
        return ssl.create_default_context(cafile=str(self.ca_file))


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file by a rename, as certificate clients do."""
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_bytes(data)
    fresh.chmod(0o600)
    fresh.rename(path)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=max(1.0, 1.0 - days)))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def shown_certificate(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, Any]:
    """The certificate that a client gets of a server for this name, in memory; raises what a connection would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(10):
        done = 0
        for side in (calling, serving):
            try:
                side.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
        if done == 2:
            return calling.getpeercert() or {}
    raise AssertionError("the handshake did not end")
