"""The relay's listener: nodes connect to `/tunnels/<task>`, viewers to `/visits`, browsers to an endpoint's own host.

It has its own socket, separate from the API: an endpoint's pages never share an origin with the API or the console,
and the bytes of tunnels never pass through the API's requests.
"""

import asyncio
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import h11

from mooring.commands.live.access_watch import CHECK_SECONDS, OpenVisit, while_admitted
from mooring.commands.runtime import exec_recording as recordings
from mooring.commands.runtime import visit as commands
from mooring.commands.runtime.exec_recording import ExecRecorder
from mooring.commands.services import Services
from mooring.core.fleet.node_certificate import require_certificate
from mooring.core.identity.caller import Caller
from mooring.core.kernel.decision import PrincipalKind
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit, VisitKind
from mooring.gateways.tls.node_authority import shown_certificate
from mooring.relay.connection_limits import ConnectionLimits, ConnectionPlace, TooManyConnections
from mooring.relay.frames import (
    DATA,
    END,
    ERRORS,
    FAILURE,
    FRAME_MAX,
    RESIZE,
    SIGNAL,
    FrameRefused,
    TunnelFrame,
    packed,
    read_frame,
)
from mooring.relay.http import READ_BYTES, PeerGone, ServedConnection, value_of, wants_switch, write
from mooring.relay.proxy import Proxy
from mooring.relay.tunnel_connection import BYTES, TunnelConnection, TunnelStream
from mooring.relay.tunnel_registry import AwaitedNode, TunnelRegistry

TUNNEL: Final = "mooring-tunnel"
VISIT: Final = "mooring-visit"
REFUSE_SECONDS: Final = 1.0
REFUSING_MAX: Final = 64
"""How many connections are sent a refusal at once; more than that are closed without one."""
CONTROL_BYTES_MAX: Final = 256
STATUS: Final = {
    Code.HEADER_INVALID: 400,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.UNAUTHENTICATED: 401,
    Code.CERTIFICATE_REQUIRED: 403,
    Code.PERMISSION_DENIED: 403,
    Code.CALLER_ADDRESS_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.LIMIT_REACHED: 409,
    Code.RATE_LIMITED: 429,
    Code.TEMPORARILY_UNAVAILABLE: 503,
}

log = logging.getLogger("mooring.relay")

Authenticate = Callable[[str], Awaitable[Caller]]


class Relay:
    """The relay of one process; it checks every `poll_interval_seconds` whether open visits are still allowed."""

    poll_interval_seconds = CHECK_SECONDS

    def __init__(
        self,
        services: Services,
        authenticate: Authenticate,
        tunnels: TunnelRegistry,
        proxy: Proxy,
        limits: ConnectionLimits,
        *,
        needs_certificates: bool = False,
    ) -> None:
        self._services = services
        self.limits = limits
        self._refusing = 0
        self._needs_certificates = needs_certificates
        self._authenticate = authenticate
        self._tunnels = tunnels
        self._proxy = proxy
        self._open: set[asyncio.Task[None]] = set()
        self._closing = False

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it ends."""
        task = asyncio.current_task()
        served = ServedConnection(reader, writer)
        try:
            place = self.limits.enter(served.remote_address)
        except TooManyConnections as refusal:
            await self._turn_away(served, refusal)
            return
        if task is not None:
            self._open.add(task)
        try:
            await self._serve(served, place)
        except (PeerGone, FrameRefused, ConnectionError, ssl.SSLError, h11.LocalProtocolError) as error:
            log.debug("a connection ended: %s", error)
        except asyncio.CancelledError:
            if not self._closing:
                raise  # otherwise the relay itself cancels what is open
        except Exception:  # one failed connection must not affect the others
            log.exception("failed to serve a connection; closing it")
        finally:
            place.leave()
            if task is not None:
                self._open.discard(task)
            writer.close()
            with suppress(OSError):  # TLS may fail to end in order, which is not a ConnectionError
                await writer.wait_closed()

    async def _turn_away(self, served: ServedConnection, refusal: TooManyConnections) -> None:
        """Say why, in a bounded time and to a bounded number, and close."""
        try:
            if self._refusing < REFUSING_MAX and not self._closing:
                self._refusing += 1
                try:
                    async with asyncio.timeout(REFUSE_SECONDS):
                        await served.refuse_unread(refusal, STATUS[refusal.code])
                        await served.reader.read(READ_BYTES)  # a close with unread bytes would discard the answer
                finally:
                    self._refusing -= 1
        except (ConnectionError, TimeoutError) as error:
            log.debug("a refused connection ended: %s", error)
        finally:
            served.writer.close()

    async def close(self) -> None:
        self._closing = True
        self._tunnels.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, served: ServedConnection, place: ConnectionPlace) -> None:
        try:
            while await self._one(served, place):
                pass
        except PeerGone as hangup:
            if not hangup.status or not served.can_answer:
                raise
            await served.refuse(Refusal(Code.HEADER_INVALID, str(hangup)), hangup.status)

    async def _one(self, served: ServedConnection, place: ConnectionPlace) -> bool:
        """Serve one request; returns whether another may follow on its connection."""
        request = await served.request()
        if request is None:
            return False
        try:
            host = value_of(request.headers, b"host") or ""
            if self._proxy.is_endpoint(host):
                return await self._proxy.serve(served, request, host, place)
            await self._serve_upgrade(served, request, place)
        except Refusal as refusal:
            if not served.can_answer:
                raise PeerGone(refusal.detail) from refusal
            await served.refuse(refusal, STATUS.get(refusal.code, 500))
        return False

    async def _serve_upgrade(self, served: ServedConnection, request: h11.Request, place: ConnectionPlace) -> None:
        path = request.target.decode("ascii", "replace")
        scheme, _, token = (value_of(request.headers, b"authorization") or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refusal(Code.UNAUTHENTICATED, "the relay needs a bearer token or a ticket")
        if path.startswith("/tunnels/") and wants_switch(request.headers, TUNNEL):
            await self._node(served, path.removeprefix("/tunnels/"), token.strip(), place)
        elif path == "/visits" and wants_switch(request.headers, VISIT):
            await self._viewer(served, token.strip(), place)
        else:
            raise Refusal(Code.NOT_FOUND, "there is nothing here")

    async def _node(self, served: ServedConnection, task_id: str, token: str, place: ConnectionPlace) -> None:
        caller = await self._authenticate(token)
        if caller.actor.kind is not PrincipalKind.NODE:
            raise Refusal(Code.NOT_FOUND, "there is nothing here")
        if self._needs_certificates:
            shown = shown_certificate(served.writer.get_extra_info("ssl_object"))
            require_certificate(shown, caller.actor.id, self._services.clock.now())
        awaited = self._tunnels.take_awaited(task_id, caller.actor.id)
        if awaited is None:
            raise Refusal(Code.NOT_FOUND, "no visit waits for this tunnel here")
        place.identify(None)
        try:
            tunnel = await self._accept_tunnel(served, awaited)
        except BaseException:
            if not awaited.tunnel.done():
                awaited.tunnel.set_exception(Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node hung up"))
            raise
        if awaited.tunnel.done():
            raise PeerGone("the visit that waited for this tunnel is gone")
        awaited.tunnel.set_result(tunnel)
        try:
            await tunnel.run()
        finally:
            self._tunnels.forget(tunnel)

    async def _accept_tunnel(self, served: ServedConnection, awaited: AwaitedNode) -> TunnelConnection:
        await _read_end(served)
        if await served.switch(TUNNEL.encode()):
            raise PeerGone("the node sent data before it was asked")
        return TunnelConnection(served.reader, served.writer, awaited.ports)

    async def _viewer(self, served: ServedConnection, ticket: str, place: ConnectionPlace) -> None:
        visit = await commands.admitted(
            self._services, ticket, (VisitKind.CONNECT, VisitKind.EXEC), served.remote_address
        )
        place.identify(visit)
        visit_fields = {
            "visit_id": visit.id,
            "kind": visit.kind,
            "correlation_id": visit.correlation_id,
            "trace_id": visit.trace_id,
            "principal_id": visit.principal_id,
            "project_id": visit.project_id,
        }
        is_command = visit.kind == VisitKind.EXEC
        await _read_end(served)
        recorder: ExecRecorder | None = None
        if is_command:
            visit = await commands.start_command(self._services, visit, served.remote_address)
            recorder = await recordings.begin(self._services, visit)  # no command starts before its recording
        try:
            stream = await (self._tunnels.command(visit) if is_command else self._tunnels.stream_to(visit))
            log.info("a visit started", extra=visit_fields)
            reason = "the connection broke"
            try:
                if await served.switch(VISIT.encode()):
                    raise PeerGone("the viewer sent data before the answer")
                reason = await self._join(served, stream, visit, recorder)
            finally:
                await stream.close()
                if is_command:
                    stream.tunnel.hang_up()
                log.info("a visit ended", extra={**visit_fields, "reason": reason})
        finally:
            if recorder is not None:
                await _finish(recorder, visit)

    async def _join(
        self, served: ServedConnection, stream: TunnelStream, visit: Visit, recorder: ExecRecorder | None
    ) -> str:
        """Copy frames between a viewer and the sandbox until either is gone or not allowed any more; returns why."""
        if recorder is not None:
            # A command with pipes has its output for itself, so the notice goes where errors go.
            await write(served.writer, packed(DATA if visit.terminal else ERRORS, 0, recordings.NOTICE))
        copying = [
            _to_sandbox(served, stream, controls=visit.kind == VisitKind.EXEC, recorder=recorder),
            _to_viewer(served, stream, recorder),
            *(() if recorder is None else (recorder.keep_flushing(),)),
        ]
        refusal: Refusal | None
        try:
            watched = OpenVisit(visit, served.remote_address)
            refusal = await while_admitted(self._services, watched, self.poll_interval_seconds, *copying)
        except Refusal as refused:
            if recorder is None:
                raise
            refusal = refused  # the recording is full, or cannot be stored
        if refusal is None:
            return "it was closed"
        problem = {"code": refusal.code.value, "detail": refusal.detail}
        await write(served.writer, packed(FAILURE, 0, json.dumps(problem).encode()))
        return refusal.detail


async def _finish(recorder: ExecRecorder, visit: Visit) -> None:
    try:
        await recorder.close()
    except Refusal as refusal:
        log.warning("cannot finish the recording of visit %s; its end may be missing: %s", visit.id, refusal.detail)


async def _read_end(served: ServedConnection) -> None:
    """Read the end of the request, which must not have a body."""
    while True:
        event = await served.event()
        if isinstance(event, h11.EndOfMessage) or event is h11.PAUSED:
            return
        if isinstance(event, h11.Data):
            raise Refusal(Code.CONFLICT, "this request has no body")


async def _to_sandbox(
    served: ServedConnection, stream: TunnelStream, *, controls: bool, recorder: ExecRecorder | None
) -> None:
    """Forward what a viewer sends: data until its end, and for a command window sizes and signals."""
    open_for_data = True
    while (frame := await read_frame(served.reader)) is not None:
        if frame.stream != 0:
            raise FrameRefused("a viewer has only one stream")
        if frame.kind == DATA and open_for_data:
            await stream.send(frame.data)
        elif frame.kind == END and open_for_data and not frame.data:
            open_for_data = False
            await stream.send_control(END)
        elif frame.kind in (RESIZE, SIGNAL) and controls and len(frame.data) <= CONTROL_BYTES_MAX:
            if recorder is not None and frame.kind == RESIZE:
                _record_size(recorder, frame.data)
            await stream.send_control(frame.kind, frame.data)
        else:
            raise FrameRefused(f"a viewer must not send {frame.kind!r} now")


def _record_size(recorder: ExecRecorder, data: bytes) -> None:
    with suppress(ValueError, KeyError, TypeError):  # the node refuses a malformed frame
        message = json.loads(data)
        recorder.resized(int(message["columns"]), int(message["rows"]))


async def _to_viewer(served: ServedConnection, stream: TunnelStream, recorder: ExecRecorder | None) -> None:
    """Forward what comes from the sandbox, until it ends; what must be recorded is recorded before it is shown."""
    while True:
        frame: TunnelFrame = await stream.next()
        if recorder is not None and frame.kind in BYTES:
            await recorder.show(frame.data, errors=frame.kind == ERRORS)
        await write(served.writer, packed(frame.kind, 0, frame.data[:FRAME_MAX]))
        if frame.kind not in (*BYTES, END):
            return
