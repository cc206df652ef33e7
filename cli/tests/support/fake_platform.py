"""A platform on a real port that answers from a table and records the requests."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

TENANT = "ten_01acme"
PROJECT = "prj_01vision"
CREATED = "2999-01-31T12:00:00Z"


@dataclass(frozen=True)
class RecordedRequest:
    """One recorded request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class CannedResponse:
    """One prepared answer."""

    status: int = 200
    body: Any = None
    raw: bytes | None = None
    media_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)


Answer = CannedResponse | Callable[[RecordedRequest], CannedResponse]


class FakeCliPlatform:
    """The fake: `on` sets an answer, `asked` has the requests."""

    def __init__(self) -> None:
        self.asked: list[RecordedRequest] = []
        self.url = ""
        self._answers: dict[tuple[str, str], Answer] = {}
        self.on("GET", "/healthz", CannedResponse(body={"status": "ok"}))
        self.on("GET", "/api/v1/whoami", CannedResponse(body=whoami()))
        self.on("GET", "/api/v1/projects", CannedResponse(body={"items": [project()], "next_cursor": None}))
        self.on("GET", f"/api/v1/tenants/{TENANT}", CannedResponse(body=tenant()))

    def on(self, method: str, path: str, answer: Answer) -> None:
        """Answer this request like this from now on."""
        self._answers[method, path] = answer

    def answer(self, asked: RecordedRequest) -> CannedResponse:
        """Record the request, and return its answer."""
        self.asked.append(asked)
        answer = self._answers.get((asked.method, asked.path))
        if answer is None:
            return problem(404, "not_found", f"the double knows no {asked.method} {asked.path}")
        return answer if isinstance(answer, CannedResponse) else answer(asked)

    def of(self, method: str) -> list[RecordedRequest]:
        """The requests with this method."""
        return [each for each in self.asked if each.method == method]


class FakePlatformHandler(BaseHTTPRequestHandler):
    """Parses requests for the fake."""

    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        platform: FakeCliPlatform = self.server.platform  # type: ignore[attr-defined]
        parts = urlsplit(self.path)
        content = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = (
            json.loads(content) if content and "json" in headers.get("content-type", "") else content.decode() or None
        )
        given = platform.answer(RecordedRequest(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
        raw = given.raw if given.raw is not None else b"" if given.body is None else json.dumps(given.body).encode()
        self.send_response(given.status)
        for name, value in {"x-correlation-id": "cor_from-double", **given.headers}.items():
            self.send_header(name, value)
        self.send_header("content-type", given.media_type)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class FakePlatformServer(ThreadingHTTPServer):
    """A server that ignores clients which disconnect."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving() -> Iterator[FakeCliPlatform]:
    """The fake on a free local port."""
    server: Any = FakePlatformServer(("127.0.0.1", 0), FakePlatformHandler)
    server.platform = FakeCliPlatform()
    server.platform.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.platform
    finally:
        server.shutdown()
        thread.join(timeout=120)
        server.server_close()


def problem(status: int, code: str, detail: str = "it was refused", *, retryable: bool = False) -> CannedResponse:
    content = {
        "type": f"urn:mooring:error:{code}",
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        "remedy": "do it in another way",
        "retryable": retryable,
        "correlation_id": "cor_problem",
        "details": {"a": 1},
    }
    return CannedResponse(status, content, media_type="application/problem+json")


def whoami(**changes: Any) -> dict[str, Any]:
    """A tenant's admin, unless changed."""
    return {
        "kind": "user",
        "id": "usr_01ada",
        "tenant_id": TENANT,
        "token_id": "tok_01",
        "token_kind": "personal",
        "expires_at": CREATED,
        "break_glass_id": None,
        "roles": [{"role": "tenant_admin", "project_id": None}],
        "platform_actions": [],
        "tenant_actions": ["project.create"],
        "project_actions": {},
        **changes,
    }


def tenant(slug: str = "acme") -> dict[str, Any]:
    return {"id": TENANT, "slug": slug, "display_name": "Acme", "created_at": CREATED, "revision": 0, "etag": "0"}


def project(slug: str = "vision", **changes: Any) -> dict[str, Any]:
    return {
        "id": PROJECT,
        "tenant_id": TENANT,
        "slug": slug,
        "display_name": slug.capitalize(),
        "created_at": CREATED,
        "revision": 3,
        "etag": "3",
        "allowed_actions": ["project.update"],
        **changes,
    }


def account(**changes: Any) -> dict[str, Any]:
    return {
        "id": "sa_01ci",
        "tenant_id": TENANT,
        "project_id": PROJECT,
        "name": "ci",
        "description": "",
        "status": "active",
        "actions": ["project.read"],
        "created_at": CREATED,
        "revision": 0,
        "generation": 0,
        "etag": "0.0",
        **changes,
    }


def page(*items: Any) -> CannedResponse:
    """The last page of a list, with these items."""
    return CannedResponse(body={"items": list(items), "next_cursor": None})
