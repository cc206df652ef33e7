"""The token service of a private registry: it knows one user, and lets them pull and push everything."""

import base64
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mooring.gateways.registry.registry_token import RegistryTokenIssuer, granted, new_signing_pair, read_scopes
from tests.support.certificates import KeyFiles

USER, PASSWORD = "pusher", "lantern-orchard-93"
HTPASSWD = "pusher:$2y$05$abcdefghijklmnopqrstuu.vdL53ojMqZZd066q3wu5AEIBedI78m\n"
"""The line of that user for a registry with passwords: bcrypt, the only form that it takes."""
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
LIFETIME_SECONDS = 60


@dataclass
class TokenService:
    """A service that answers; `auth` is what its registry is configured with."""

    host: str
    auth: dict[str, Any]
    answers: threading.Event = field(default_factory=threading.Event)  # clear: it says nothing


@contextmanager
def running_token_service(directory: Path, files: KeyFiles, listening: socket.socket) -> Iterator[TokenService]:
    """Serve tokens over TLS on this socket."""
    pair = new_signing_pair(datetime.now(UTC))
    (directory / "bundle.pem").write_bytes(pair.certificate_pem)
    issuer = RegistryTokenIssuer(pair, issuer="tokens", service="private", lifetime_seconds=LIFETIME_SECONDS)
    address, port = listening.getsockname()
    realm = {"realm": f"https://{address}:{port}/token", "issuer": "tokens", "service": "private"}
    service = TokenService(f"{address}:{port}", {"token": {**realm, "rootcertbundle": str(directory / "bundle.pem")}})
    service.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            service.answers.wait()
            known = self.headers.get("Authorization") == BASIC
            access = granted(
                read_scopes(parse_qs(urlsplit(self.path).query).get("scope", [])),
                lambda _: frozenset({"pull", "push"}),
            )
            body = json.dumps(issuer.issue(USER, access).document() if known else {}).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *words: Any) -> None:
            """Nobody reads it."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server = HTTPServer((address, port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = context.wrap_socket(listening, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()
