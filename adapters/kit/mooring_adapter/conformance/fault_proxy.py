"""The address that an adapter talks to: an HTTP server that notes every exchange and misbehaves on demand.

Behind it stands the simulated platform, or, by `ForwardingBackend`, a real one: the faults and the notes are the same.
"""

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, urlsplit

import httpx

from mooring_adapter.conformance.fake_api import ApiRequest
from mooring_adapter.conformance.platform_rules import RequestRefused

BODY_BYTES_MAX: Final = 4 * 1_048_576
Answer = tuple[int, dict[str, Any]]


class Backend(Protocol):
    """What answers."""

    def answer(self, asked: ApiRequest) -> Answer:
        """What the platform answers, or a `RequestRefused`."""


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """One request and its answer, as far as a judge needs them."""

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
        """The instance that the address names."""
        parts = self.path.removeprefix("/api/v1/runtime/instances/").split("/")
        return parts[0] if self.path.startswith("/api/v1/runtime/instances/") else None

    @property
    def route(self) -> str:
        """Which of the routes it is: `claims`, `reports`, `tasks` …"""
        return self.path.rsplit("/", 1)[-1] if self.instance_id != self.path.rsplit("/", 1)[-1] else "read"

    @property
    def fence(self) -> int | None:
        """The fence that was shown."""
        shown = self.body.get("fence", self.query.get("fence"))
        return None if shown is None else int(shown)


class ConnectionDropped(Exception):
    """The connection breaks: the adapter never hears the answer."""


@dataclass(slots=True)
class ProxyFaults:
    """How the way to the platform misbehaves. Every hook may raise `ConnectionDropped`."""

    before: Callable[[ApiRequest, int], None] = lambda asked, number: None
    """Before the platform sees a request."""
    after: Callable[[ApiRequest, int, Answer], Answer] = lambda asked, number, answer: answer
    """When it has done what was asked, and before it answers."""

    def clear(self) -> None:
        """All is well again."""
        self.before = lambda asked, number: None
        self.after = lambda asked, number, answer: answer


@dataclass(slots=True)
class FaultProxy:
    """A server on a port of this machine."""

    backend: Backend
    faults: ProxyFaults = field(default_factory=ProxyFaults)
    exchanges: list[RecordedExchange] = field(default_factory=list)
    number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    _server: ThreadingHTTPServer | None = None

    def start(self) -> str:
        """Listen; the address."""
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def exchange(self, asked: ApiRequest) -> Answer:
        """Answer one request, with the faults that are wanted, and note it."""
        with self.lock:
            self.number += 1
            number = self.number
            self.exchanges.append(_noted(asked, number, 0, None))  # a poll is seen before it is answered
            index = len(self.exchanges) - 1
            noted = self.exchanges
        self.faults.before(asked, number)
        try:
            answer = self.backend.answer(asked)
        except RequestRefused as refused:
            answer = refused.status, problem(refused)
        answer = self.faults.after(asked, number, answer)
        code = answer[1].get("code") if answer[0] >= 400 else None
        with self.lock:
            noted[index] = _noted(asked, number, answer[0], code)
        return answer


def _noted(asked: ApiRequest, number: int, status: int, code: str | None) -> RecordedExchange:
    return RecordedExchange(
        number, asked.method, asked.path, asked.body, asked.query, asked.correlation_id, asked.token, status, code
    )


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is no news here: adapters are killed on purpose."""


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"
    timeout = 120
    wbufsize = -1  # an answer goes out in one piece
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._respond("GET")

    def do_POST(self) -> None:
        self._respond("POST")

    def log_message(self, format: str, *args: Any) -> None:
        """Exchanges are noted by the front."""

    def _respond(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.send_error(413)
            return
        content = self.rfile.read(length)
        try:
            status, answer = self.proxy.exchange(self._request(method, content))
        except ConnectionDropped:
            self.close_connection = True
            return
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status < 400 else "application/problem+json")
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
    """A backend that is a real platform: what comes is passed on, and its answer back."""

    url: str
    client: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=60.0, trust_env=False))

    def answer(self, asked: ApiRequest) -> Answer:
        """What the real platform answers."""
        headers = {"Authorization": f"Bearer {asked.token}"} if asked.token else {}
        if asked.correlation_id:
            headers["X-Correlation-ID"] = asked.correlation_id
        given: dict[str, Any] = {}
        if asked.method == "POST":
            given = {"data": asked.body} if asked.path.endswith("/oauth/token") else {"json": asked.body}
        said = self.client.request(
            asked.method, self.url + asked.path, params=dict(asked.query), headers=headers, **given
        )
        content = said.json() if said.content else {}
        return said.status_code, content if isinstance(content, dict) else {"items": content}


def problem(refused: RequestRefused) -> dict[str, Any]:
    """An error as the platform tells it."""
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
