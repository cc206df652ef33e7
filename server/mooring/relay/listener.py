"""The relay's listener: nodes dial `/tunnels/<task>`, viewers `/visits`, browsers an endpoint's own name.

It is a socket of its own, apart from the API: an endpoint's pages never share an origin with the API or the console,
and the bytes of tunnels never pass through the API's requests.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import h11

from mooring.commands import visit as commands
from mooring.commands.work import Services
from mooring.core.caller import Caller
from mooring.core.decision import PrincipalKind
from mooring.core.errors import Code, Refusal
from mooring.core.visit import VisitKind
from mooring.relay.carrier import Carrier, Stream
from mooring.relay.desk import Desk
from mooring.relay.frames import (
    DATA,
    END,
    FRAME_MAX,
    RESIZE,
    SIGNAL,
    Frame,
    FrameRefused,
    packed,
    read_frame,
)
from mooring.relay.http import Hangup, Served, value_of, wants_switch
from mooring.relay.proxy import Proxy

TUNNEL: Final = "mooring-tunnel"
VISIT: Final = "mooring-visit"
CONNECTIONS_MAX: Final = 4_000
STATUS: Final = {
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.RATE_LIMITED: 429,
    Code.TEMPORARILY_UNAVAILABLE: 503,
}

log = logging.getLogger("mooring.relay")

Authenticate = Callable[[str], Awaitable[Caller]]


class Relay:
    """One process's relay."""

    def __init__(self, services: Services, authenticate: Authenticate, desk: Desk, proxy: Proxy) -> None:
        self._services = services
        self._authenticate = authenticate
        self._desk = desk
        self._proxy = proxy
        self._open: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection to its end."""
        task = asyncio.current_task()
        if task is None or len(self._open) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._open.add(task)
        try:
            await self._serve(Served(reader, writer))
        except (Hangup, FrameRefused, ConnectionError, h11.LocalProtocolError) as error:
            log.debug("a connection ended: %s", error)
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        """End every connection."""
        self._desk.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, served: Served) -> None:
        while True:
            request = await served.event()
            if not isinstance(request, h11.Request):
                return
            try:
                host = value_of(request.headers, b"host") or ""
                if self._proxy.is_endpoint(host):
                    if not await self._proxy.serve(served, request, host):
                        return
                    continue
                await self._dialled(served, request)
                return
            except Refusal as refusal:
                if served.state.our_state is not h11.SEND_RESPONSE:
                    raise Hangup(refusal.detail) from refusal
                await served.refuse(refusal, STATUS.get(refusal.code, 500))
                return

    async def _dialled(self, served: Served, request: h11.Request) -> None:
        path = request.target.decode("ascii", "replace")
        scheme, _, token = (value_of(request.headers, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refusal(Code.UNAUTHENTICATED, "the relay is for those who bring a token or a ticket")
        if path.startswith("/tunnels/") and wants_switch(request.headers, TUNNEL):
            await self._node(served, path.removeprefix("/tunnels/"), token.strip())
        elif path == "/visits" and wants_switch(request.headers, VISIT):
            await self._viewer(served, token.strip())
        else:
            raise Refusal(Code.NOT_FOUND, "the relay has nothing here")

    async def _node(self, served: Served, task_id: str, token: str) -> None:
        caller = await self._authenticate(token)
        if caller.actor.kind is not PrincipalKind.NODE:
            raise Refusal(Code.NOT_FOUND, "the relay has nothing here")
        awaited = self._desk.expects(task_id, caller.actor.id)
        if awaited is None:
            raise Refusal(Code.NOT_FOUND, "nobody waits for this tunnel here")
        await _drained(served)
        early = await served.switch(TUNNEL.encode())
        if early:
            raise Hangup("a node sends nothing before it is asked")
        carrier = Carrier(served.reader, served.writer, awaited.ports)
        if not awaited.carrier.done():
            awaited.carrier.set_result(carrier)
        await carrier.carry()

    async def _viewer(self, served: Served, ticket: str) -> None:
        visit = await commands.admitted(self._services, ticket, (VisitKind.CONNECT, VisitKind.EXEC))
        if visit.kind == VisitKind.EXEC:
            visit = await commands.start_command(self._services, visit, served.remote_address)
            stream = await self._desk.command(visit)
        else:
            stream = await self._desk.stream_to(visit)
        try:
            await _drained(served)
            early = await served.switch(VISIT.encode())
            if early:
                raise Hangup("a viewer sends nothing before the answer")
            await _joined(served, stream)
        finally:
            await stream.close()


async def _drained(served: Served) -> None:
    """Read the request to its end: it has no body."""
    while True:
        event = await served.event()
        if isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
            return
        if isinstance(event, h11.Data):
            raise Refusal(Code.CONFLICT, "this request has no body")


async def _joined(served: Served, stream: Stream) -> None:
    """Carry frames between a viewer and what is inside, until either is gone."""

    async def inward() -> None:
        while (frame := await read_frame(served.reader)) is not None:
            if frame.kind == DATA:
                await stream.send(frame.data)
            elif frame.kind in (END, RESIZE, SIGNAL):
                await stream.tell(frame.kind, frame.data)
            else:
                raise FrameRefused(f"a viewer sends no {frame.kind!r}")

    async def outward() -> None:
        while True:
            frame: Frame = await stream.next()
            served.writer.write(packed(frame.kind, 0, frame.data[:FRAME_MAX]))
            await served.writer.drain()
            if frame.kind not in (DATA, END):
                return

    going = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        finished, _ = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
    finally:
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)
