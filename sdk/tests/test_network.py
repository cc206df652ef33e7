"""The drivers on real sockets: keep-alive, broken connections, certificates, proxies."""

import asyncio
import datetime
import ipaddress
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mooring_sdk import AsyncClient, Client, ClientSettings, ConnectionFailed, RetryPolicy
from sdk.tests.support.fake_platform import project, server_sent

ONCE = RetryPolicy(attempts=1)


class NetworkHandler(BaseHTTPRequestHandler):
    """A small platform: it cuts the first streams and answers everything else with a project."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: Any = self.server
        server.seen.append(self.headers)
        if self.path.endswith("/events/stream"):
            self._stream(server)
            return
        body = json.dumps(project()).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, server: Any) -> None:
        last = int((self.headers.get("last-event-id") or "c0").removeprefix("c"))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(server_sent(last + 1, last + 2))
        self.wfile.flush()
        self.close_connection = True  # the client has to reconnect

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class NetworkServer(ThreadingHTTPServer):
    """A server that ignores clients which disconnect."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Any]:
    """The small platform on a free port."""
    server: Any = NetworkServer(("127.0.0.1", 0), NetworkHandler)
    server.seen = []
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(timeout=60)
        server.server_close()


def quick(**more: Any) -> ClientSettings:
    """Very short waits."""
    policy = RetryPolicy(first_pause_seconds=0.001, longest_pause_seconds=0.001)
    return ClientSettings(**{"retry": policy, "timeout_seconds": 180.0, "deadline_seconds": 180.0, **more})


def test_events_are_followed_over_real_connections_that_break() -> None:
    with serving() as server, Client(f"http://127.0.0.1:{server.server_port}", token="t", settings=quick()) as client:
        events = client.follow_events()
        got = [next(events).data["number"] for _ in range(9)]
        events.close()
    assert got == list(range(1, 10))


def test_events_are_followed_over_real_connections_that_break_on_asyncio() -> None:
    async def follow(url: str) -> list[int]:
        async with AsyncClient(url, token="t", settings=quick()) as client:
            events = client.follow_events()
            got = [(await anext(events)).data["number"] for _ in range(9)]
            await events.aclose()
            return got

    with serving() as server:
        assert asyncio.run(follow(f"http://127.0.0.1:{server.server_port}")) == list(range(1, 10))


def test_a_port_that_nobody_listens_on_is_a_connection_that_failed() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # keeps others from listening there
        client = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", token="t", settings=quick(retry=ONCE))
        with client, pytest.raises(ConnectionFailed) as caught:
            client.get_project("prj_vision")
    assert not caught.value.was_sent


def test_a_proxy_of_the_environment_does_not_stand_before_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving() as server, Client(f"http://127.0.0.1:{server.server_port}", token="t") as client:
        assert client.get_project("prj_vision").slug == "vision"


def test_a_certificate_that_nobody_vouches_for_is_refused_and_no_token_is_sent(tmp_path: Path) -> None:
    context, _ = certificate(tmp_path)
    with serving(context) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        client = Client(url, token="t", settings=quick(retry=ONCE))
        with client, pytest.raises(ConnectionFailed, match=r"(?i)certificate"):
            client.get_project("prj_vision")
        assert server.seen == []


def test_certificates_of_one_s_own_can_be_named(tmp_path: Path) -> None:
    context, file = certificate(tmp_path)
    with serving(context) as server:
        url = f"https://127.0.0.1:{server.server_port}"
        with Client(url, token="t", settings=quick(ca_file=str(file))) as client:
            assert client.get_project("prj_vision").slug == "vision"


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's TLS context with a self-signed certificate, and the file of that certificate."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    file, key_file = directory / "certificate.pem", directory / "key.pem"
    file.write_bytes(made.public_bytes(Encoding.PEM))
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key_file)
    return context, file
