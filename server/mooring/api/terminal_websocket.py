"""One WebSocket of a terminal while it is open: three tasks read, send and ping, until one of them ends.

It is imported when the first one is opened, since the library behind it takes a while to load.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
from websockets.frames import CloseCode

from mooring.api.problem import STATUS, problem
from mooring.api.request_cycle import BYTES
from mooring.api.terminal_socket import TerminalRequest
from mooring.api.websocket import WebSocket
from mooring.api.websocket_session import CLOSE_SECONDS, FIRST_MESSAGE_SECONDS, OWN_CODES, Receive, Send, encode
from mooring.commands.live.terminal_session import CREDIT_BYTES, END, EXIT, RESIZE, SIGNAL, TerminalSession
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import SIZE_MAX

if TYPE_CHECKING:
    from mooring.api.terminal_socket import TerminalSocketResponse
    from mooring.commands.live.terminal_session import TerminalViewer

INPUT, SHOWN = b"d", b"a"
CONTROL_BYTES_MAX: Final = 256


class WindowSize(msgspec.Struct):
    columns: int
    rows: int


class BrokenRule(Exception):
    """The caller sent what they must not; the message says what."""


@dataclass(slots=True)
class TerminalWebSocket:
    """One viewer's WebSocket."""

    socket: "TerminalSocketResponse"
    write: Send
    receive: Receive
    correlation_id: str
    protocol: WebSocket = field(default_factory=lambda: WebSocket(takes_binary=True))
    first: "asyncio.Future[TerminalRequest]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    session: TerminalSession | None = None
    viewer: "TerminalViewer | None" = None
    received_at: float = field(default_factory=time.monotonic)
    is_passing_on: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Read, send and ping, until one of the three ends."""
        tasks = [asyncio.create_task(each) for each in (self._read(), self._send_output(), self._ping())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not self.protocol.is_open and not tasks[0].done():  # the caller answers our close, or does not
                await asyncio.wait(tasks[:1], timeout=CLOSE_SECONDS)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            if self.session is not None and self.viewer is not None:
                self.session.detach(self.viewer)
        failures = [each for each in outcomes if isinstance(each, Exception)]
        if failures:
            await self._close(CloseCode.INTERNAL_ERROR, "Mooring failed; its log says why")
            raise RuntimeError("the WebSocket of a terminal failed") from failures[0]

    async def _read(self) -> None:
        """Take what the caller sends, until they close or break a rule."""
        while (received := await self.receive())["type"] == BYTES:
            self.received_at = time.monotonic()
            for message in self.protocol.messages(received["body"]):
                try:
                    await self._take(message.data, is_text=message.is_text)
                except BrokenRule as broken:
                    self.protocol.fail(CloseCode.POLICY_VIOLATION, str(broken))
                    break
            await self._flush()
            if self.protocol.is_finished:
                return

    async def _take(self, data: bytes, *, is_text: bool) -> None:
        if not self.first.done():
            self.first.set_result(_first_message(data if is_text else b""))
            return
        if is_text:
            raise BrokenRule("only the first message is text")
        if self.session is None or self.viewer is None:
            raise BrokenRule("wait until the terminal is open")
        if self.viewer.refusal is not None:
            return  # somebody else has it; the reason is on its way
        kind, content = data[:1], data[1:]
        if kind == INPUT and content:
            await self._pass_on(self.session.send(content))
        elif kind == SHOWN and len(content) == 4:
            self.session.shown(self.viewer, min(int.from_bytes(content), CREDIT_BYTES))
        elif kind in (RESIZE, SIGNAL, END) and len(content) <= CONTROL_BYTES_MAX:
            await self._pass_on(self.session.control(kind, _checked(kind, content)))
        else:
            raise BrokenRule("a terminal takes the letters d, a, r, s and e")

    async def _pass_on(self, sending: Awaitable[None]) -> None:
        """Send to the command as fast as it takes it; until then nothing more is read, and nobody is called silent."""
        self.is_passing_on = True
        try:
            with contextlib.suppress(ConnectionError):  # the terminal ends, and says why
                await sending
        finally:
            self.is_passing_on = False
            self.received_at = time.monotonic()

    async def _send_output(self) -> None:
        """Send what the command prints, from where the caller left off."""
        try:
            session = self.session = await self._found()
            first = self.first.result()
            viewer = self.viewer = session.attach(first.after, self.socket.remote_address)
            if not session.is_started and not session.is_over:
                await self._say({"kind": "opening"})
                await session.started(viewer)
            await self._say(_opened(session, viewer.offset))
            while (piece := await session.next_output(viewer)) is not None:
                await self._send_binary(piece.kind + piece.data)
        except Refusal as refusal:
            await self._refuse(refusal)
            return
        await self._send_binary(EXIT + str(session.exit_code if session.exit_code is not None else "").encode())
        await self._close(CloseCode.NORMAL_CLOSURE, session.reason)

    async def _found(self) -> TerminalSession:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_SECONDS):
                first = await self.first
        except TimeoutError as error:
            raise Refusal(Code.UNAUTHENTICATED, "no first message came: send a ticket, or {} to resume") from error
        if self.socket.find is None:
            raise ValueError("the WebSocket of a terminal has a way to find it")
        return await self.socket.find(first)

    async def _ping(self) -> None:
        """Cut off a caller who sends nothing, not even an answer to a ping."""
        while True:
            await asyncio.sleep(self.socket.ping_seconds)
            silent = time.monotonic() - self.received_at
            if silent > self.socket.silent_seconds_max and not self.is_passing_on:
                await self._close(CloseCode.POLICY_VIOLATION, "nothing was received, not even an answer to a ping")
                return
            if self.protocol.is_open:
                self.protocol.ping()
                await self._flush()

    async def _refuse(self, refusal: Refusal) -> None:
        body = problem(refusal, self.correlation_id)
        await self._say({"kind": "closed", "reason": refusal.detail, "problem": body})
        await self._close(OWN_CODES + STATUS[refusal.code], refusal.detail)

    async def _say(self, message: dict[str, Any]) -> None:
        if self.protocol.is_open:
            self.protocol.send([encode(message)])
            await self._flush()

    async def _send_binary(self, message: bytes) -> None:
        if self.protocol.is_open:
            self.protocol.send_binary(message)
            await self._flush()

    async def _close(self, code: int, reason: str) -> None:
        if self.protocol.is_open:
            self.protocol.close(code, reason)
            await self._flush()

    async def _flush(self) -> None:
        """Send what is to be sent, one task after the other, so that nothing overtakes and the close comes last."""
        async with self.writing:
            if data := self.protocol.outgoing():
                await self.write({"type": BYTES, "body": data})


def _first_message(data: bytes) -> TerminalRequest:
    try:
        return msgspec.json.decode(data, type=TerminalRequest)
    except msgspec.MsgspecError as error:
        raise BrokenRule('the first message is {"ticket": "…"}, or {} to resume a terminal') from error


def _checked(kind: bytes, content: bytes) -> bytes:
    """A control of the caller's, in the form in which it is passed on."""
    if kind == RESIZE:
        try:
            size = msgspec.json.decode(content, type=WindowSize)
        except msgspec.MsgspecError as error:
            raise BrokenRule('a window size is {"columns": 80, "rows": 24}') from error
        if not (1 <= size.columns <= SIZE_MAX and 1 <= size.rows <= SIZE_MAX):
            raise BrokenRule(f"a window has 1 to {SIZE_MAX} columns and rows")
        return json.dumps({"columns": size.columns, "rows": size.rows}).encode()
    if kind == END and content:
        raise BrokenRule("the end of the input has no data")
    return content


def _opened(session: TerminalSession, offset: int) -> dict[str, Any]:
    visit = session.visit
    return {
        "kind": "open",
        "id": visit.id,
        "owner": visit.owner,
        "instance_id": visit.instance_id,
        "argv": visit.argv,
        "user": visit.run_as,
        "terminal": visit.terminal,
        "recorded": session.is_recorded,
        "offset": offset,
        "resume_seconds": session.resume_seconds,
        "credit_bytes": CREDIT_BYTES,
    }
