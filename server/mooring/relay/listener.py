"""The relay's listener: nodes dial `/tunnels/<task>`, viewers `/visits`, browsers an endpoint's own name.

It is a socket of its own, apart from the API: an endpoint's pages never share an origin with the API or the console,
and the bytes of tunnels never pass through the API's requests.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import h11

from mooring.commands.runtime import visit as commands
from mooring.commands.services import Services
from mooring.core.identity.caller import Caller
from mooring.core.kernel.decision import PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit, VisitKind
from mooring.relay.access_watch import LOOK_SECONDS, while_admitted
from mooring.relay.frames import (
    DATA,
    END,
    FAILURE,
    FRAME_MAX,
    RESIZE,
    SIGNAL,
    FrameRefused,
    TunnelFrame,
    packed,
    read_frame,
)
from mooring.relay.http import PeerGone, ServedConnection, value_of, wants_switch, write
from mooring.relay.proxy import Proxy
from mooring.relay.tunnel_connection import BYTES, TunnelConnection, TunnelStream
from mooring.relay.tunnel_registry import AwaitedNode, TunnelRegistry

TUNNEL: Final = "mooring-tunnel"
VISIT: Final = "mooring-visit"
CONNECTIONS_MAX: Final = 4_000
CONTROL_BYTES_MAX: Final = 256
STATUS: Final = {
    Code.HEADER_INVALID: 400,
    Code.METHOD_NOT_ALLOWED: 405,
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
    """One process's relay; it looks again whether what is open still counts, every `poll_interval_seconds`."""

    poll_interval_seconds = LOOK_SECONDS
    connections_max = CONNECTIONS_MAX

    def __init__(self, services: Services, authenticate: Authenticate, desk: TunnelRegistry, proxy: Proxy) -> None:
        self._services = services
        self._authenticate = authenticate
        self._desk = desk
        self._proxy = proxy
        self._open: set[asyncio.Task[None]] = set()
        self._closing = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection to its end."""
        task = asyncio.current_task()
        if task is None or len(self._open) >= self.connections_max:
            writer.close()
            return
        self._open.add(task)
        try:
            await self._serve(ServedConnection(reader, writer))
        except (PeerGone, FrameRefused, ConnectionError, h11.LocalProtocolError) as error:
            log.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            if not self._closing:
                raise  # else this is how the relay ends what is open
        except Exception:  # one connection's trouble is no other's
            log.exception("a connection failed")
        finally:
            self._open.discard(task)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def close(self) -> None:
        """End every connection."""
        self._closing = True
        self._desk.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, served: ServedConnection) -> None:
        try:
            while await self._one(served):
                pass
        except PeerGone as hangup:
            if not hangup.status or not served.can_answer:
                raise
            await served.refuse(Refusal(Code.HEADER_INVALID, str(hangup)), hangup.status)

    async def _one(self, served: ServedConnection) -> bool:
        """One request; whether another may follow on its connection."""
        request = await served.request()
        if request is None:
            return False
        try:
            host = value_of(request.headers, b"host") or ""
            if self._proxy.is_endpoint(host):
                return await self._proxy.serve(served, request, host)
            await self._dialled(served, request)
        except Refusal as refusal:
            if not served.can_answer:
                raise PeerGone(refusal.detail) from refusal
            await served.refuse(refusal, STATUS.get(refusal.code, 500))
        return False

    async def _dialled(self, served: ServedConnection, request: h11.Request) -> None:
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

    async def _node(self, served: ServedConnection, task_id: str, token: str) -> None:
        caller = await self._authenticate(token)
        if caller.actor.kind is not PrincipalKind.NODE:
            raise Refusal(Code.NOT_FOUND, "the relay has nothing here")
        awaited = self._desk.expects(task_id, caller.actor.id)
        if awaited is None:
            raise Refusal(Code.NOT_FOUND, "nobody waits for this tunnel here")
        try:
            carrier = await self._taken_up(served, awaited)
        except BaseException:
            if not awaited.carrier.done():
                awaited.carrier.set_exception(Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node hung up"))
            raise
        if awaited.carrier.done():
            raise PeerGone("whoever waited for this tunnel is gone")
        awaited.carrier.set_result(carrier)
        try:
            await carrier.carry()
        finally:
            self._desk.forget(carrier)

    async def _taken_up(self, served: ServedConnection, awaited: AwaitedNode) -> TunnelConnection:
        await _drained(served)
        if await served.switch(TUNNEL.encode()):
            raise PeerGone("a node sends nothing before it is asked")
        return TunnelConnection(served.reader, served.writer, awaited.ports)

    async def _viewer(self, served: ServedConnection, ticket: str) -> None:
        visit = await commands.admitted(self._services, ticket, (VisitKind.CONNECT, VisitKind.EXEC))
        told = {
            "visit_id": visit.id,
            "kind": visit.kind,
            "correlation_id": visit.correlation_id,
            "trace_id": visit.trace_id,
            "principal_id": visit.principal_id,
            "project_id": visit.project_id,
        }
        is_command = visit.kind == VisitKind.EXEC
        if is_command:
            visit = await commands.start_command(self._services, visit, served.remote_address)
        stream = await (self._desk.command(visit) if is_command else self._desk.stream_to(visit))
        log.info("a visit begins", extra=told)
        ended = "it broke off"
        try:
            await _drained(served)
            if await served.switch(VISIT.encode()):
                raise PeerGone("a viewer sends nothing before the answer")
            ended = await self._joined(served, stream, visit)
        finally:
            await stream.close()
            if is_command:
                stream.carrier.hang_up()
            log.info("a visit ends", extra={**told, "reason": ended})

    async def _joined(self, served: ServedConnection, stream: TunnelStream, visit: Visit) -> str:
        """Carry frames between a viewer and what is inside, until either is gone or may no longer; why it ended."""
        going = (_inward(served, stream, controls=visit.kind == VisitKind.EXEC), _outward(served, stream))
        refusal = await while_admitted(self._services, visit, self.poll_interval_seconds, *going)
        if refusal is None:
            return "it is over"
        said = {"code": refusal.code.value, "detail": refusal.detail}
        await write(served.writer, packed(FAILURE, 0, json.dumps(said).encode()))
        return refusal.detail


async def _drained(served: ServedConnection) -> None:
    """Read the request to its end: it has no body."""
    while True:
        event = await served.event()
        if isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
            return
        if isinstance(event, h11.Data):
            raise Refusal(Code.CONFLICT, "this request has no body")


async def _inward(served: ServedConnection, stream: TunnelStream, *, controls: bool) -> None:
    """What a viewer sends: data until its end, and for a command window sizes and signals."""
    open_for_data = True
    while (frame := await read_frame(served.reader)) is not None:
        if frame.stream != 0:
            raise FrameRefused("a viewer has one stream")
        if frame.kind == DATA and open_for_data:
            await stream.send(frame.data)
        elif frame.kind == END and open_for_data and not frame.data:
            open_for_data = False
            await stream.tell(END)
        elif frame.kind in (RESIZE, SIGNAL) and controls and len(frame.data) <= CONTROL_BYTES_MAX:
            await stream.tell(frame.kind, frame.data)
        else:
            raise FrameRefused(f"a viewer sends no such {frame.kind!r} now")


async def _outward(served: ServedConnection, stream: TunnelStream) -> None:
    """What comes from inside, to its end."""
    while True:
        frame: TunnelFrame = await stream.next()
        await write(served.writer, packed(frame.kind, 0, frame.data[:FRAME_MAX]))
        if frame.kind not in (*BYTES, END):
            return
