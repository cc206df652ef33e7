"""A certificate authority for one machine, which `mooring up --tls` makes and uses.

It signs one certificate, for the names and addresses of this machine, and renews it long before it ends. The authority
lasts for ten years, so that browsers have to trust it only once. What it can sign is limited in its own certificate to
this machine's names, `localhost` and private addresses: a stolen key cannot be used to pose as another site.
"""

import fcntl
import ipaddress
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from mooring.gateways.lazy_import import lazy_module
from mooring.gateways.tls.server_certificate import CertificateFiles, CertificateRefused

if TYPE_CHECKING:
    from cryptography import x509
else:
    x509 = lazy_module("cryptography.x509")

AUTHORITY_LIFETIME: Final = timedelta(days=3_650)
LIFETIME: Final = timedelta(days=90)
RENEW_BEFORE: Final = timedelta(days=30)
EARLY: Final = timedelta(hours=1)
"""Clocks differ: a certificate is valid a little before it was made."""
SERVER_AUTH: Final = "1.3.6.1.5.5.7.3.1"
LOCAL_NAMES: Final = ("localhost", "*.apps.localhost")
LOOPBACKS: Final = ("127.0.0.1", "::1")
PRIVATE_NETWORKS: Final = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


@dataclass(frozen=True, slots=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: "x509.Certificate"


class LocalAuthority:
    """The authority in a directory, and the certificate that it keeps valid there."""

    def __init__(self, directory: Path, listen_host: str) -> None:
        self._directory = directory
        self._names = machine_names(socket.gethostname(), listen_host)
        self.certificate_path = directory / "ca.crt"
        self._key_path = directory / "ca.key"
        self.files = CertificateFiles(directory / "server.crt", directory / "server.key")
        self._next_check = datetime.min.replace(tzinfo=UTC)

    def renew(self, now: datetime | None = None) -> bool:
        """Make what is missing and renew what ends soon; returns whether the server's certificate is a new one."""
        moment = now or datetime.now(UTC)
        if moment < self._next_check:
            return False
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        with self._locked():
            authority = self._authority(moment)
            is_due = self._is_due(authority, moment)
            if is_due:
                self._issue(authority, moment)
        self._next_check = moment + timedelta(hours=1)
        return is_due

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two servers of one directory make one authority."""
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _authority(self, now: datetime) -> _Authority:
        if not self._key_path.exists() or not self.certificate_path.exists():
            return self._create(now)
        if self._key_path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise CertificateRefused(f"other users may read {self._key_path}; run: chmod 600 {self._key_path}")
        try:
            key = load_pem_private_key(self._key_path.read_bytes(), None)
            certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise CertificateRefused(
                f"the certificate authority in {self._directory} cannot be read; move that directory away to make "
                f"a new one: {error}"
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise CertificateRefused(f"{self._key_path} is not the key of {self.certificate_path}; move both away")
        if certificate.not_valid_after_utc - now < LIFETIME:
            return self._create(now)
        return _Authority(key, certificate)

    def _create(self, now: datetime) -> _Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name(f"Mooring on {socket.gethostname()[:40]} ({now:%Y-%m-%d})")
        permitted: list[x509.GeneralName] = [
            x509.DNSName(each)
            for each in ("localhost", *(name for name in self._names if not _is_address(name)))
            if "*" not in each
        ]
        permitted += [x509.IPAddress(ipaddress.ip_network(each)) for each in (*PRIVATE_NETWORKS, *self._addresses())]
        builder = (
            _builder(name, name, key.public_key(), now, AUTHORITY_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.NameConstraints(permitted, None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        certificate = builder.sign(key, SHA256())
        _write(self._key_path, _pem(key), 0o600)
        _write(self.certificate_path, certificate.public_bytes(Encoding.PEM), 0o644)
        return _Authority(key, certificate)

    def _addresses(self) -> list[str]:
        return [each for each in self._names if _is_address(each)]

    def _is_due(self, authority: _Authority, now: datetime) -> bool:
        try:
            served = x509.load_pem_x509_certificate(self.files.certificate.read_bytes())
            key = load_pem_private_key(self.files.key.read_bytes(), None)
            shown = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
            return True
        return (
            served.not_valid_after_utc - now < RENEW_BEFORE
            or served.issuer != authority.certificate.subject
            or set(shown) != set(_alternatives(self._permitted(authority)))
            or key.public_key() != served.public_key()
        )

    def _permitted(self, authority: _Authority) -> list[str]:
        """The names of this machine that the authority may sign: its host name may have changed since."""
        permitted = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints).value
        names = [each.value for each in permitted.permitted_subtrees or () if isinstance(each, x509.DNSName)]
        networks = [each.value for each in permitted.permitted_subtrees or () if isinstance(each, x509.IPAddress)]
        found = []
        for name in self._names:
            if _is_address(name):
                address = ipaddress.ip_address(name)
                is_allowed = any(address in each for each in networks)  # type: ignore[operator]  # always networks
            else:
                is_allowed = any(name == each or name.endswith(f".{each}") for each in names)
            if is_allowed:
                found.append(name)
        return found

    def _issue(self, authority: _Authority, now: datetime) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = authority.certificate.subject
        public = authority.key.public_key()
        builder = (
            _builder(_name("Mooring"), issuer, key.public_key(), now, LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier(SERVER_AUTH)]), critical=False)
            .add_extension(x509.SubjectAlternativeName(_alternatives(self._permitted(authority))), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
        )
        # The key first: a server that reads between the two writes finds a pair that does not match, and waits.
        _write(self.files.key, _pem(key), 0o600)
        _write(self.files.certificate, builder.sign(authority.key, SHA256()).public_bytes(Encoding.PEM), 0o644)


def machine_names(host_name: str, listen_host: str) -> list[str]:
    """The names and addresses under which this machine is reached."""
    names = [*LOCAL_NAMES, *LOOPBACKS]
    for each in (host_name.lower(), listen_host.lower()):
        if _is_address(each):
            address = ipaddress.ip_address(each)
            if not address.is_unspecified:
                names.append(str(address))
        elif _HOST_NAME.fullmatch(each):
            names.append(each)
    return list(dict.fromkeys(names))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _alternatives(names: Sequence[str]) -> list["x509.GeneralName"]:
    return [x509.IPAddress(ipaddress.ip_address(each)) if _is_address(each) else x509.DNSName(each) for each in names]


def _name(text: str) -> "x509.Name":
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _builder(
    subject: "x509.Name", issuer: "x509.Name", key: ec.EllipticCurvePublicKey, now: datetime, lifetime: timedelta
) -> "x509.CertificateBuilder":
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLY)
        .not_valid_after(now + lifetime)
    )


def _usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file in one step; it has this mode from the beginning."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
