"""The certificate authority of one machine: made once, limited to this machine, its certificate renewed in time."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from mooring.gateways.tls.local_authority import LocalAuthority, machine_names
from mooring.gateways.tls.server_certificate import CertificateRefused, ServerCertificate
from tests.support.certificates import shown_certificate

NOW = datetime.now(UTC)


def test_the_authority_is_made_once_and_its_certificate_renewed_before_it_ends(tmp_path: Path) -> None:
    assert LocalAuthority(tmp_path, "127.0.0.1").renew(NOW)
    first = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.crt").read_bytes()
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert not LocalAuthority(tmp_path, "127.0.0.1").renew(NOW + timedelta(days=59))
    running = LocalAuthority(tmp_path, "127.0.0.1")
    assert running.renew(NOW + timedelta(days=61))
    assert not running.renew(NOW + timedelta(days=61))
    assert (tmp_path / "ca.crt").read_bytes() == first[0]
    assert (tmp_path / "server.crt").read_bytes() != first[1]


def test_clients_that_trust_it_accept_every_name_of_the_machine(tmp_path: Path) -> None:
    authority = LocalAuthority(tmp_path, "192.168.7.7")
    authority.renew()
    served = ServerCertificate(authority.files)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    for name in ("localhost", "127.0.0.1", "::1", "192.168.7.7", "e-1.apps.localhost"):
        assert shown_certificate(served.context, trusted, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shown_certificate(served.context, trusted, "mooring.example")


def test_a_stolen_key_of_the_authority_cannot_sign_for_another_site(tmp_path: Path) -> None:
    LocalAuthority(tmp_path, "127.0.0.1").renew()
    key = load_pem_private_key((tmp_path / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    own = load_pem_private_key((tmp_path / "server.key").read_bytes(), None).public_key()
    assert isinstance(own, ec.EllipticCurvePublicKey)
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bank.example")]))
        .issuer_name(issuer.subject)
        .public_key(own)
        .serial_number(7)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("bank.example")]), critical=False)
        .sign(key, SHA256())
    )
    (tmp_path / "forged.pem").write_bytes(forged.public_bytes(Encoding.PEM) + (tmp_path / "server.key").read_bytes())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "forged.pem")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree violation"):
        shown_certificate(server, trusted, "bank.example")


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    LocalAuthority(tmp_path, "127.0.0.1").renew()
    (tmp_path / "ca.key").chmod(0o640)
    with pytest.raises(CertificateRefused, match="chmod 600"):
        LocalAuthority(tmp_path, "127.0.0.1").renew()


def test_the_names_of_a_machine_are_names_that_a_certificate_can_have() -> None:
    local = ["localhost", "*.apps.localhost", "127.0.0.1", "::1"]
    assert machine_names("GPU-7", "0.0.0.0") == [*local, "gpu-7"]
    assert machine_names("not_a_name", "10.0.0.5") == [*local, "10.0.0.5"]
