"""The server that an adapter talks to: it records every exchange and misbehaves on demand.

Its backend is the simulated platform or, with `ForwardingBackend`, a real one; faults and records are the same.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

import httpx

from mooring_adapter.conformance.fake_api import ApiRequest, ApiResponse
from mooring_adapter.conformance.platform_rules import RequestRefused

BODY_BYTES_MAX: Final = 4 * 1_048_576


class Backend(Protocol):
    def answer(self, request: ApiRequest) -> ApiResponse:
        """The platform's response; may raise `RequestRefused`."""


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """One request and its response, as far as scenarios need them."""

    number: int
    method: str
    path: str
    body: Mapping[str, Any]
    query: Mapping[str, str]
    correlation_id: str
    token: str | None
    status: int
    code: str | None

    @property
    def instance_id(self) -> str | None:
        """The instance in the path."""
        parts = self.path.removeprefix("/api/v1/runtime/instances/").split("/")
        return parts[0] if self.path.startswith("/api/v1/runtime/instances/") else None

    @property
    def route(self) -> str:
        """The name of the route: `claims`, `reports`, `tasks` …"""
        return self.path.rsplit("/", 1)[-1] if self.instance_id != self.path.rsplit("/", 1)[-1] else "read"

    @property
    def fence(self) -> int | None:
        """The fence of the request."""
        shown = self.body.get("fence", self.query.get("fence"))
        return None if shown is None else int(shown)


class ConnectionDropped(Exception):
    """The connection breaks: the adapter never receives the response."""


@dataclass(slots=True)
class ProxyFaults:
    """How the connection to the platform misbehaves. Every hook may raise `ConnectionDropped`."""

    before: Callable[[ApiRequest, int], None] = lambda request, number: None
    """Called before the platform gets a request."""
    after: Callable[[ApiRequest, int, ApiResponse], ApiResponse] = lambda request, number, response: response
    """Called after the platform has handled it and before the adapter gets the response."""

    def clear(self) -> None:
        """Remove all faults."""
        self.before = lambda request, number: None
        self.after = lambda request, number, response: response


@dataclass(slots=True)
class FaultProxy:
    """An HTTP server on a local port."""

    backend: Backend
    faults: ProxyFaults = field(default_factory=ProxyFaults)
    exchanges: list[RecordedExchange] = field(default_factory=list)
    number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    def start(self) -> str:
        """Listen; returns the URL."""
        handler = type("Handler", (_ProxyHandler,), {"proxy": self})
        self._server = _ProxyServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def exchange(self, request: ApiRequest) -> ApiResponse:
        """Answer one request with the configured faults, and record it."""
        with self.lock:
            self.number += 1
            number = self.number
            self.exchanges.append(_record(request, number, 0, None))  # a poll is visible before it is answered
            index = len(self.exchanges) - 1
            recorded = self.exchanges
        self.faults.before(request, number)
        try:
            response = self.backend.answer(request)
        except RequestRefused as refused:
            response = ApiResponse(refused.status, problem(refused))
        response = self.faults.after(request, number, response)
        code = response.body.get("code") if response.status >= 400 else None
        with self.lock:
            recorded[index] = _record(request, number, response.status, code)
        return response


def _record(request: ApiRequest, number: int, status: int, code: str | None) -> RecordedExchange:
    return RecordedExchange(
        number,
        request.method,
        request.path,
        request.body,
        request.query,
        request.correlation_id,
        request.token,
        status,
        code,
    )


class _ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore broken connections: adapters are killed on purpose."""


class _ProxyHandler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"
    timeout = 120
    wbufsize = -1  # a response is sent in one piece
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._respond("GET")

    def do_POST(self) -> None:
        self._respond("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the proxy records the exchanges."""

    def _respond(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.send_error(413)
            return
        content = self.rfile.read(length)
        try:
            response = self.proxy.exchange(self._request(method, content))
        except ConnectionDropped:
            self.close_connection = True
            return
        body = json.dumps(response.body).encode()
        self.send_response(response.status)
        self.send_header("Content-Type", "application/json" if response.status < 400 else "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _request(self, method: str, content: bytes) -> ApiRequest:
        parts = urlsplit(self.path)
        if self.headers.get("Content-Type", "").startswith("application/x-www-form-urlencoded"):
            body: Any = dict(parse_qsl(content.decode()))
        else:
            try:
                body = json.loads(content) if content else {}
            except ValueError:
                body = {}
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        return ApiRequest(
            method,
            parts.path,
            dict(parse_qsl(parts.query)),
            body if isinstance(body, dict) else {},
            self.headers.get("X-Correlation-ID", ""),
            token if scheme == "Bearer" else None,
        )


@dataclass(slots=True)
class ForwardingBackend:
    """A backend that forwards every request to a real platform."""

    url: str
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60.0, trust_env=False))

    def answer(self, request: ApiRequest) -> ApiResponse:
        """The real platform's response."""
        headers = {"Authorization": f"Bearer {request.token}"} if request.token else {}
        if request.correlation_id:
            headers["X-Correlation-ID"] = request.correlation_id
        given: dict[str, Any] = {}
        if request.method == "POST":
            given = {"data": request.body} if request.path.endswith("/oauth/token") else {"json": request.body}
        response = self.client.request(
            request.method, self.url + request.path, params=dict(request.query), headers=headers, **given
        )
        content = response.json() if response.content else {}
        return ApiResponse(response.status_code, content if isinstance(content, dict) else {"items": content})


def problem(refused: RequestRefused) -> dict[str, Any]:
    """The problem document of a refusal."""
    return {
        "type": "about:blank",
        "title": refused.code,
        "status": refused.status,
        "code": refused.code,
        "detail": f"{refused.detail} (simulated platform)",
        "retryable": refused.retryable,
        "correlation_id": "simulated",
        "details": {},
    }
