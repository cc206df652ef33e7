"""The agent's client certificate: asked for with the node's key, renewed in time, dropped when it is refused."""

import json
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from mooring_agent.control_plane.client_certificate import ClientCertificate
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.platform_client import PlatformClient, Unreachable
from mooring_agent.control_plane.trust import Identity
from tests.support.certificates import TestAuthority

NODE = "nod_01hzzzzzzzzzzzzzzzzzzzzzzz"


class Issuer:
    """An authority for client certificates, as the platform has one."""

    def __init__(self, name: str = "nodes") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        ca = x509.BasicConstraints(ca=True, path_length=0)
        own = self._builder(self._name, self._key.public_key(), 3600).add_extension(ca, critical=True)
        self.pem = own.sign(self._key, SHA256()).public_bytes(Encoding.PEM).decode()

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey, seconds: float) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(seconds=seconds))
        )

    def issue(self, request: str, seconds: float = 3600.0) -> str:
        key = x509.load_pem_x509_csr(request.encode()).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NODE)])
        return self._builder(name, key, seconds).sign(self._key, SHA256()).public_bytes(Encoding.PEM).decode()


def test_it_is_stored_for_its_owner_alone_and_is_due_when_a_third_is_left(tmp_path: Path) -> None:
    keys, path, issuer = make_keys(), tmp_path / "client.pem", Issuer()
    made = ClientCertificate(path)
    assert made.is_due(time.time())
    made.accept(issuer.issue(made.request(keys)[0], 3_000))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again, now = ClientCertificate(path), time.time()
    assert not again.is_due(now + 1_900)
    assert again.is_due(now + 2_100)
    assert again.is_valid(now + 2_900)
    assert not again.is_valid(now + 3_100)


def test_a_certificate_for_another_key_is_refused_and_the_one_in_use_stays(tmp_path: Path) -> None:
    keys, path, issuer = make_keys(), tmp_path / "client.pem", Issuer()
    made = ClientCertificate(path)
    made.accept(issuer.issue(made.request(keys)[0]))
    held = path.read_bytes()
    for_another = issuer.issue(ClientCertificate().request(keys)[0])
    made.request(keys)
    with pytest.raises(ValueError, match="another key"):
        made.accept(for_another)
    assert path.read_bytes() == held
    assert made.is_valid(time.time())


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "client.pem"
    path.write_text("half of a")
    assert ClientCertificate(path).is_due(time.time())
    made = ClientCertificate(path)
    made.accept(Issuer().issue(made.request(make_keys())[0]))
    path.write_bytes(path.read_bytes().replace(b"PRIVATE KEY-----", b"KEY-----"))
    without_key = ClientCertificate(path)
    without_key.load_into(ssl.create_default_context(), time.time())
    assert without_key.is_due(time.time())


class _Platform(BaseHTTPRequestHandler):
    """A simulated platform: tokens and certificates for everybody, allocations for those with a certificate."""

    protocol_version = "HTTP/1.1"
    issuer: Issuer
    shown: list[bool]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/oauth/token"):
            self._answer({"access_token": "t", "expires_in": 600})
        else:
            self._answer({"certificate": self.issuer.issue(json.loads(body)["certificate_request"])}, 201)

    def do_GET(self) -> None:
        connection = self.connection
        assert isinstance(connection, ssl.SSLSocket)
        has_certificate = bool(connection.getpeercert())
        self.shown.append(has_certificate)
        if has_certificate:
            self._answer({"allocations": ["alc_1"]})
        else:
            self._answer({"code": "certificate_required", "detail": "none"}, 403)

    def _answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def platform(tmp_path: Path, issuer: Issuer) -> Iterator[tuple[str, str]]:
    """The URL of a simulated platform and the CA file of its own certificate."""
    authority = TestAuthority(tmp_path)
    files = authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=issuer.pem)
    handler = type("Handler", (_Platform,), {"issuer": issuer, "shown": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a refused handshake is expected
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", str(authority.ca_file)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.anyio
async def test_the_first_request_gets_a_certificate_and_a_refused_one_is_replaced(tmp_path: Path) -> None:
    issuer, keys = Issuer(), make_keys()
    with platform(tmp_path, issuer) as (url, ca_file):
        identity = Identity(url, NODE, "mooring:x", (), ca_file=ca_file)
        client = PlatformClient(identity, keys, time.time, certificate=ClientCertificate(tmp_path / "client.pem"))
        assert await client.allocations() == ("alc_1",)
        await client.close()
        # A certificate of an authority that the platform does not know breaks every connection that shows it.
        foreign = ClientCertificate(tmp_path / "client.pem")
        foreign.accept(Issuer("another").issue(foreign.request(keys)[0]))
        client = PlatformClient(identity, keys, time.time, certificate=foreign)
        failures = 0
        while failures < 5:
            try:
                assert await client.allocations() == ("alc_1",)
                break
            except Unreachable:
                failures += 1
        assert 1 <= failures <= 3
        await client.close()
