"""The reverse proxy: serves an endpoint's pages under a host name of their own, to viewers with a session.

Each endpoint has its own origin (`e-<id>.localhost:<port>`, or a wildcard name in production), so that a script in one
app's page can use neither the API nor another app. A one-time link starts a session; its cookie belongs to that one
host, and neither the cookie nor any token of the platform reaches the app. Requests that another site's page makes with
the viewer's cookie are refused. HTTP and WebSocket pass through unchanged; one connection of a browser is one stream to
the app.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import h11

from mooring.commands.live.access_watch import CHECK_SECONDS, OpenVisit, while_admitted
from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import BODY_LENGTH, Prefix, is_id
from mooring.core.runtime.visit import Visit, VisitKind
from mooring.gateways.passwords import new_visit_ticket
from mooring.relay.connection_limits import ConnectionPlace
from mooring.relay.header_policy import COOKIE, SECURE_COOKIE, check, cookies, request_headers, response_headers
from mooring.relay.http import HEAD_MAX, READ_BYTES, Headers, PeerGone, ServedConnection, value_of, wants_switch, write
from mooring.relay.request_counter import RequestCounter
from mooring.relay.tunnel_connection import TunnelStream
from mooring.relay.tunnel_registry import TunnelRegistry

OPEN_PATH: Final = "/.mooring/open"
ANSWER_SECONDS: Final = 600.0
CACHE_SECONDS: Final = 5.0
CACHED_MAX: Final = 10_000
SESSIONS_TRIED_MAX: Final = 4
WEBSOCKET: Final = "websocket"
LABEL: Final = rf"e-([0-9a-z]{{{BODY_LENGTH}}})"
PORT: Final = r"(?::[0-9]{1,5})?"
PAGE: Final = b"""<!doctype html><meta charset="utf-8"><title>Mooring</title>
<body style="font: 16px system-ui; max-width: 34rem; margin: 20vh auto; padding: 0 1rem">
<h1 style="font-size: 1.25rem">This endpoint opens through Mooring</h1>
<p>Your session here has ended, or there was none. Ask for a new link: <code>mooring endpoints open</code>.</p>
"""
SAFE: Final = [
    (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]  # fmt: skip


log = logging.getLogger("mooring.relay")


class Proxy:
    poll_interval_seconds = CHECK_SECONDS

    def __init__(
        self, services: Services, tunnels: TunnelRegistry, counter: RequestCounter, domain: str, *, secure: bool
    ) -> None:
        self._services = services
        self._counter = counter
        self._tunnels = tunnels
        self._name = re.compile(rf"{LABEL}\.{re.escape(domain.lower())}{PORT}", re.ASCII)
        self._secure = secure
        self._cookie = SECURE_COOKIE if secure else COOKIE
        self._visits: dict[tuple[str, str | None], tuple[float, Visit]] = {}

    def is_endpoint(self, host: str) -> bool:
        """Whether this host name belongs to an endpoint."""
        return self._endpoint(host) is not None

    def _endpoint(self, host: str) -> str | None:
        found = self._name.fullmatch(host.lower())
        endpoint_id = None if found is None else f"{Prefix.TASK}_{found[1]}"
        return endpoint_id if endpoint_id is not None and is_id(endpoint_id, Prefix.TASK) else None

    async def serve(self, served: ServedConnection, request: h11.Request, host: str, place: ConnectionPlace) -> bool:
        """Serve one request of a browser; returns whether another may follow on its connection."""
        endpoint_id = str(self._endpoint(host))
        check(request)
        try:
            target = request.target.decode("ascii", "replace")
            if target.partition("?")[0] == OPEN_PATH:
                await self._open(served, request, endpoint_id)
                return False
            visit = await self._visit(request.headers, endpoint_id, served.remote_address)
        except Refusal as refusal:
            if refusal.code is not Code.UNAUTHENTICATED:
                raise
            await served.answer(401, [(b"content-type", b"text/html; charset=utf-8"), *SAFE], PAGE)
            return False
        self._check_origin(request, host)
        place.identify(visit)
        stream = await self._tunnels.stream_to(visit)
        try:
            count = partial(self._counter.count, endpoint_id)
            proxied = ProxiedRequest(served, stream, self._forwarded(served, host), count)
            watched = OpenVisit(visit, served.remote_address)
            ended = await while_admitted(self._services, watched, self.poll_interval_seconds, proxied.forward(request))
        finally:
            await stream.close()
        if ended is not None:
            raise ended
        if served.state.our_state is h11.DONE and served.state.their_state is h11.DONE:
            served.state.start_next_cycle()
            return True
        return False

    async def _open(self, served: ServedConnection, request: h11.Request, endpoint_id: str) -> None:
        if request.method != b"GET":
            raise Refusal(Code.METHOD_NOT_ALLOWED, "a link must be opened with GET")
        codes = parse_qs(urlsplit(request.target.decode("ascii", "replace")).query).get("code", [])
        if len(codes) != 1:
            raise Refusal(Code.UNAUTHENTICATED, "the link is incomplete")
        visit = await commands.admitted(self._services, codes[0], (VisitKind.BROWSE,), served.remote_address)
        if visit.endpoint_id != endpoint_id:
            raise Refusal(Code.UNAUTHENTICATED, "the link is for another endpoint")
        session = new_visit_ticket()
        visit = await commands.open_link(self._services, codes[0], session, served.remote_address)
        log.info(
            "a session at an endpoint started",
            extra={
                "visit_id": visit.id,
                "kind": visit.kind,
                "correlation_id": visit.correlation_id,
                "trace_id": visit.trace_id,
                "principal_id": visit.principal_id,
                "project_id": visit.project_id,
            },
        )
        seconds = int((visit.expires_at - self._services.clock.now()).total_seconds())
        cookie = f"{self._cookie}={session}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax"
        headers = [(b"location", b"/"), (b"set-cookie", (cookie + ("; Secure" if self._secure else "")).encode())]
        await served.answer(303, [*headers, *SAFE])

    async def _visit(self, headers: Iterable[tuple[bytes, bytes]], endpoint_id: str, address: str | None) -> Visit:
        """The visit of this endpoint's session; tries several cookies, as another endpoint's page may have set some."""
        named = [pair.partition("=") for pair in cookies(headers)]
        sessions = [value for name, _, value in named if name == self._cookie]
        refusal = Refusal(Code.UNAUTHENTICATED, "the browser has no session here")
        for session in sessions[:SESSIONS_TRIED_MAX]:
            try:
                visit = await self._cached_visit(session, address)
            except Refusal as refused:
                if refused.code is not Code.UNAUTHENTICATED:
                    raise
                continue
            if visit.endpoint_id == endpoint_id:
                return visit
            refusal = Refusal(Code.NOT_FOUND, "this session is for another endpoint")
        raise refusal

    async def _cached_visit(self, session: str, address: str | None) -> Visit:
        """The visit of a session from an address, cached for some seconds: a revoked permission ends it soon."""
        key = (session, address)
        now = asyncio.get_running_loop().time()
        cached = self._visits.get(key)
        if cached is not None and cached[0] > now:
            return cached[1]
        self._visits.pop(key, None)
        visit = await commands.admitted(self._services, session, (VisitKind.BROWSE,), address)
        if visit.opened_at is None:
            raise Refusal(Code.UNAUTHENTICATED, "a link is not a session")
        if len(self._visits) >= CACHED_MAX:
            self._visits.clear()
        self._visits[key] = (now + CACHE_SECONDS, visit)
        return visit

    def _check_origin(self, request: h11.Request, host: str) -> None:
        """Refuse requests of another origin's page; plain links from there are allowed."""
        origin = value_of(request.headers, b"origin")
        own = f"{'https' if self._secure else 'http'}://{host.lower()}"
        if origin is not None and origin.lower() != own:
            raise Refusal(Code.PERMISSION_DENIED, "the request comes from another site's page")
        site = value_of(request.headers, b"sec-fetch-site")
        mode = value_of(request.headers, b"sec-fetch-mode")
        if site in ("cross-site", "same-site") and not (mode == "navigate" and request.method in (b"GET", b"HEAD")):
            raise Refusal(Code.PERMISSION_DENIED, "the request comes from another site's page")

    def _forwarded(self, served: ServedConnection, host: str) -> Headers:
        scheme = b"https" if self._secure else b"http"
        address = (served.remote_address or "").encode()
        return [
            (b"x-forwarded-for", address),
            (b"x-forwarded-proto", scheme),
            (b"x-forwarded-host", host.encode("latin-1")),
        ]


class ProxiedRequest:
    """One request to the app and its answer, on one stream."""

    def __init__(
        self, served: ServedConnection, stream: TunnelStream, forwarded: Headers, count: Callable[[], None]
    ) -> None:
        self._served = served
        self._count = count
        self._stream = stream
        self._forwarded = forwarded
        self._app = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX)

    async def forward(self, request: h11.Request) -> None:
        """Send the request to the app and its answer back; the only protocol upgrade that passes is WebSocket."""
        headers = [*request_headers(request.headers), *self._forwarded]
        if wants_switch(request.headers, WEBSOCKET):
            headers += [(b"connection", b"Upgrade"), (b"upgrade", WEBSOCKET.encode())]
        else:
            headers.append((b"connection", b"close"))
        await self._send(h11.Request(method=request.method, target=request.target, headers=headers))
        body, answer = asyncio.create_task(self._body()), asyncio.create_task(self._answer())
        try:
            await asyncio.wait((body, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                body.result()  # the browser left in the middle of its request: no answer is needed
            await answer
        finally:
            for task in (body, answer):
                task.cancel()
            await asyncio.gather(body, answer, return_exceptions=True)

    async def _body(self) -> None:
        while True:
            event = await self._served.event(ANSWER_SECONDS)
            if event is h11.PAUSED:
                return
            if isinstance(event, h11.ConnectionClosed):
                raise PeerGone("the browser closed the connection")
            try:
                await self._send(event if isinstance(event, h11.Data) else h11.EndOfMessage())
            except ConnectionError:
                return  # the app takes no more of the body: its answer, or its end, says why
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self) -> None:
        while True:
            event = await self._event()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    self._count()
                    await self._switch(event)
                    return
                continue
            if isinstance(event, h11.Response):
                self._count()
                headers = response_headers(event.headers)
                await self._served.send(
                    h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
                )
            elif isinstance(event, h11.Data):
                await self._served.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._served.send(h11.EndOfMessage())
                return
            else:
                raise PeerGone("the app closed the connection in the middle of its answer")

    async def _event(self) -> Any:
        while True:
            try:
                event = self._app.next_event()
            except h11.RemoteProtocolError as error:
                if self._served.state.our_state is h11.SEND_RESPONSE:
                    raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the app's answer is not valid HTTP") from error
                raise PeerGone("the app's answer broke off") from error
            if event is not h11.NEED_DATA:
                return event
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    self._app.receive_data(await self._stream.receive())
            except TimeoutError as error:
                raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the app did not answer in time") from error

    async def _switch(self, event: h11.InformationalResponse) -> None:
        headers = [*response_headers(event.headers), (b"connection", b"Upgrade"), (b"upgrade", WEBSOCKET.encode())]
        await self._served.send(h11.InformationalResponse(status_code=101, headers=headers))
        early = bytes(self._app.trailing_data[0])
        if early:
            await write(self._served.writer, early)
        copying = [
            asyncio.create_task(self._raw_in(bytes(self._served.state.trailing_data[0]))),
            asyncio.create_task(self._raw_out()),
        ]
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)

    async def _raw_in(self, data: bytes) -> None:
        while data or (data := await self._served.reader.read(READ_BYTES)):
            await self._stream.send(data)
            data = b""

    async def _raw_out(self) -> None:
        while data := await self._stream.receive():
            await write(self._served.writer, data)

    async def _send(self, event: Any) -> None:
        data = self._app.send(event)
        if data:
            await self._stream.send(data)
