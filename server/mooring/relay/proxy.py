"""The reverse proxy: an endpoint's pages under a name of their own, for whoever holds a session of that endpoint.

Each endpoint has an origin of its own (`e-<id>.localhost:<port>`, or a wildcard name in production), so that a script
in one app's page can use neither the API nor another app. A link that counts once starts a session; its cookie belongs
to that one host, and neither it nor any token of the platform's reaches the app. What another site's page sends in the
viewer's name is refused. HTTP and WebSocket pass through as they are; one connection of a browser is one stream to the
app.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import h11

from mooring.commands import visit as commands
from mooring.commands.work import Services
from mooring.core.errors import Code, Refusal
from mooring.core.ids import BODY_LENGTH, Prefix, is_id
from mooring.core.token import TOKEN_PREFIX
from mooring.core.visit import Visit, VisitKind
from mooring.gateways.passwords import new_visit_ticket
from mooring.relay.carrier import Stream
from mooring.relay.desk import Desk
from mooring.relay.http import HEAD_MAX, READ_BYTES, Hangup, Headers, Served, value_of

OPEN_PATH: Final = "/.mooring/open"
COOKIE: Final = "mooring_endpoint"
ANSWER_SECONDS: Final = 600.0
REMEMBER_SECONDS: Final = 5.0
REMEMBERED_MAX: Final = 10_000
HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"upgrade",
    )
)
NOT_BACK: Final = frozenset((b"strict-transport-security", b"alt-svc", b"public-key-pins"))
LABEL: Final = re.compile(rf"^e-([0-9a-z]{{{BODY_LENGTH}}})$")
PAGE: Final = b"""<!doctype html><meta charset="utf-8"><title>Mooring</title>
<body style="font: 16px system-ui; max-width: 34rem; margin: 20vh auto; padding: 0 1rem">
<h1 style="font-size: 1.25rem">This endpoint opens through Mooring</h1>
<p>Your session here has ended, or there was none. Ask for a new link: <code>mooring endpoints open</code>.</p>
"""
SAFE: Final = [
    (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
]  # fmt: skip


class Proxy:
    """The proxy of one relay."""

    def __init__(self, services: Services, desk: Desk, domain: str, *, secure: bool) -> None:
        self._services = services
        self._desk = desk
        self._domain = domain.lower()
        self._secure = secure
        self._cookie = f"__Host-{COOKIE}" if secure else COOKIE
        self._known: dict[str, tuple[float, Visit]] = {}

    def is_endpoint(self, host: str) -> bool:
        """Whether this name is an endpoint's."""
        return self._endpoint(host) is not None

    def _endpoint(self, host: str) -> str | None:
        label, dot, rest = host.lower().partition(".")
        if not dot or rest.partition(":")[0] != self._domain:
            return None
        found = LABEL.fullmatch(label)
        endpoint_id = None if found is None else f"{Prefix.TASK}_{found[1]}"
        return endpoint_id if endpoint_id is not None and is_id(endpoint_id, Prefix.TASK) else None

    async def serve(self, served: Served, request: h11.Request, host: str) -> bool:
        """One request of a browser; whether another may follow on its connection."""
        endpoint_id = self._endpoint(host)
        target = request.target.decode("ascii", "replace")
        if target.partition("?")[0] == OPEN_PATH:
            await self._open(served, target, str(endpoint_id))
            return False
        session = self._session(request.headers)
        if session is None:
            await served.answer(401, [(b"content-type", b"text/html; charset=utf-8"), *SAFE], PAGE)
            return False
        try:
            visit = await self._visit(session)
        except Refusal as refusal:
            if refusal.code is not Code.UNAUTHENTICATED:
                raise
            await served.answer(401, [(b"content-type", b"text/html; charset=utf-8"), *SAFE], PAGE)
            return False
        if visit.endpoint_id != endpoint_id:
            raise Refusal(Code.NOT_FOUND, "this session is for another endpoint")
        self._check_origin(request, host)
        stream = await self._desk.stream_to(visit)
        try:
            await Exchange(served, stream, self._cookie, self._forwarded(served, host)).carry(request)
        finally:
            await stream.close()
        if served.state.our_state is h11.DONE and served.state.their_state is h11.DONE:
            served.state.start_next_cycle()
            return True
        return False

    async def _open(self, served: Served, target: str, endpoint_id: str) -> None:
        codes = parse_qs(urlsplit(target).query).get("code", [])
        if len(codes) != 1:
            raise Refusal(Code.UNAUTHENTICATED, "the link is not whole")
        visit = await commands.admitted(self._services, codes[0], (VisitKind.BROWSE,))
        if visit.endpoint_id != endpoint_id:
            raise Refusal(Code.UNAUTHENTICATED, "the link is for another endpoint")
        session = new_visit_ticket()
        visit = await commands.open_link(self._services, codes[0], session, served.remote_address)
        seconds = int((visit.expires_at - self._services.clock.now()).total_seconds())
        cookie = f"{self._cookie}={session}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax"
        told = [(b"location", b"/"), (b"set-cookie", (cookie + ("; Secure" if self._secure else "")).encode())]
        await served.answer(303, [*told, *SAFE])

    def _session(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        for pair in _cookies(headers):
            name, _, value = pair.partition("=")
            if name == self._cookie:
                return value
        return None

    async def _visit(self, session: str) -> Visit:
        """The visit of a session; asked anew after a few seconds, so that a right that was taken ends it."""
        now = asyncio.get_running_loop().time()
        known = self._known.get(session)
        if known is not None and known[0] > now:
            return known[1]
        self._known.pop(session, None)
        visit = await commands.admitted(self._services, session, (VisitKind.BROWSE,))
        if visit.opened_at is None:
            raise Refusal(Code.UNAUTHENTICATED, "a link is no session")
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        self._known[session] = (now + REMEMBER_SECONDS, visit)
        return visit

    def _check_origin(self, request: h11.Request, host: str) -> None:
        """What another origin's page does in the viewer's name is refused; a plain link to here is not."""
        origin = value_of(request.headers, b"origin")
        own = f"{'https' if self._secure else 'http'}://{host.lower()}"
        if origin is not None and origin.lower() != own:
            raise Refusal(Code.PERMISSION_DENIED, "another site's page asks for this")
        site = value_of(request.headers, b"sec-fetch-site")
        mode = value_of(request.headers, b"sec-fetch-mode")
        if site in ("cross-site", "same-site") and not (mode == "navigate" and request.method in (b"GET", b"HEAD")):
            raise Refusal(Code.PERMISSION_DENIED, "another site's page asks for this")

    def _forwarded(self, served: Served, host: str) -> Headers:
        scheme = b"https" if self._secure else b"http"
        address = (served.remote_address or "").encode()
        return [
            (b"x-forwarded-for", address), (b"x-forwarded-proto", scheme), (b"x-forwarded-host",
            host.encode("latin-1")), ]  # fmt: skip


class Exchange:
    """One request to the app and its answer, on a stream of their own."""

    def __init__(self, served: Served, stream: Stream, cookie: str, forwarded: Headers) -> None:
        self._served = served
        self._stream = stream
        self._cookie = cookie
        self._forwarded = forwarded
        self._app = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX)

    async def carry(self, request: h11.Request) -> None:
        """Pass the request on, and the answer back."""
        switching = value_of(request.headers, b"upgrade")
        headers = [*self._inward(request.headers), *self._forwarded]
        headers += (
            [(b"connection", b"close")]
            if switching is None
            else [(b"connection", b"Upgrade"), (b"upgrade", switching.encode("latin-1"))]
        )
        await self._send(h11.Request(method=request.method, target=request.target, headers=headers))
        body = asyncio.create_task(self._body())
        try:
            await self._answer()
        finally:
            body.cancel()
            await asyncio.gather(body, return_exceptions=True)

    async def _body(self) -> None:
        while True:
            event = await self._served.event(ANSWER_SECONDS)
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return
            await self._send(event if isinstance(event, h11.Data) else h11.EndOfMessage())
            if isinstance(event, h11.EndOfMessage):
                return

    async def _answer(self) -> None:
        while True:
            event = await self._event()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 101:
                    await self._switch(event)
                    return
                continue
            if isinstance(event, h11.Response):
                told = self._outward(event.headers)
                await self._served.send(h11.Response(status_code=event.status_code, headers=told, reason=event.reason))
            elif isinstance(event, h11.Data):
                await self._served.send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._served.send(h11.EndOfMessage())
                return
            else:
                raise Hangup("the app hung up in the middle of its answer")

    async def _event(self) -> Any:
        while True:
            try:
                event = self._app.next_event()
            except h11.RemoteProtocolError as error:
                if self._served.state.our_state is h11.SEND_RESPONSE:
                    raise Refusal(Code.TEMPORARILY_UNAVAILABLE, "the app did not answer in HTTP") from error
                raise Hangup("the app broke off") from error
            if event is not h11.NEED_DATA:
                return event
            async with asyncio.timeout(ANSWER_SECONDS):
                self._app.receive_data(await self._stream.receive())

    async def _switch(self, event: h11.InformationalResponse) -> None:
        told = [(name, value) for name, value in event.headers if name not in (b"connection", b"upgrade")]
        protocol = value_of(event.headers, b"upgrade") or "websocket"
        told += [(b"connection", b"Upgrade"), (b"upgrade", protocol.encode("latin-1"))]
        await self._served.send(h11.InformationalResponse(status_code=101, headers=told))
        early = bytes(self._app.trailing_data[0])
        if early:
            self._served.writer.write(early)
        going = [
            asyncio.create_task(self._raw_in(bytes(self._served.state.trailing_data[0]))),
            asyncio.create_task(self._raw_out()),
        ]
        try:
            await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in going:
                task.cancel()
            await asyncio.gather(*going, return_exceptions=True)

    async def _raw_in(self, data: bytes) -> None:
        while data or (data := await self._served.reader.read(READ_BYTES)):
            await self._stream.send(data)
            data = b""

    async def _raw_out(self) -> None:
        while data := await self._stream.receive():
            self._served.writer.write(data)
            await self._served.writer.drain()

    async def _send(self, event: Any) -> None:
        data = self._app.send(event)
        if data:
            await self._stream.send(data)

    def _inward(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The request's headers without what is the platform's, or of the hop alone."""
        kept: Headers = []
        for name, value in headers:
            if name in HOP or name.startswith(b"x-forwarded-"):
                continue
            if name == b"authorization" and _is_platforms(value):
                continue
            if name == b"cookie":
                value = "; ".join(
                    pair for pair in _cookies([(name, value)]) if pair.partition("=")[0] != self._cookie
                ).encode("latin-1")
                if not value:
                    continue
            kept.append((name, value))
        return kept

    def _outward(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The answer's headers; a cookie of the app's stays on the app's own host."""
        kept: Headers = []
        for name, value in headers:
            if name in HOP or name in NOT_BACK:
                continue
            if name == b"set-cookie":
                value = _at_home(value)
                if value.partition(b"=")[0].strip().decode("latin-1") == self._cookie:
                    continue
            kept.append((name, value))
        return kept


def _cookies(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    joined = "; ".join(value.decode("latin-1") for name, value in headers if name == b"cookie")
    return [pair.strip() for pair in joined.split(";") if pair.strip()]


def _is_platforms(value: bytes) -> bool:
    token = value.decode("latin-1").partition(" ")[2].strip()
    return token.startswith(tuple(TOKEN_PREFIX.values()))


def _at_home(value: bytes) -> bytes:
    """A cookie without its domain: it goes back to the host that set it and to no sibling."""
    first, *attributes = value.split(b";")
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join((first, *kept))
