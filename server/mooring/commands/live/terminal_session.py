"""One terminal that its process holds: a command in a sandbox, the last of its output, and at most one viewer.

What the command prints goes through a ring buffer. While somebody looks, the command is read only as fast as they take
it, so an endless one grows no memory, here or in their browser. While nobody looks it goes on, the oldest output is let
go, and after a bounded time it ends. A viewer who comes back says how much they have, and gets the rest.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

from mooring.commands.live.access_watch import OpenVisit, while_admitted
from mooring.commands.runtime import exec_recording as recordings
from mooring.commands.runtime import visit as commands
from mooring.commands.runtime.exec_recording import ExecRecorder
from mooring.commands.services import Services
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.visit import Visit

BUFFER_BYTES: Final = 65_536
PIECE_BYTES: Final = 8_192
MERGED_BYTES: Final = 2_048
PIECES_MAX: Final = 256
CREDIT_BYTES: Final = 131_072
"""How much a viewer may have in flight that they did not say they have shown."""
OUTPUT, ERRORS, END, RESIZE, SIGNAL, EXIT, FAILURE = b"d", b"w", b"e", b"r", b"s", b"x", b"f"
"""The letters of the frames of a tunnel; see `relay/frames.py`."""

log = logging.getLogger("mooring.terminal")


class CommandFrame(Protocol):
    @property
    def kind(self) -> bytes: ...
    @property
    def data(self) -> bytes: ...


class CommandStream(Protocol):
    """The stream of a command in a sandbox."""

    async def next(self) -> CommandFrame: ...
    async def send(self, data: bytes) -> None: ...
    async def send_control(self, kind: bytes, data: bytes = b"") -> None: ...
    async def end(self) -> None: ...
    def failure(self, data: bytes) -> Refusal: ...


OpenStream = Callable[[Visit], Awaitable[CommandStream]]


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Some output, of one of the two kinds, and the offset behind it."""

    kind: bytes
    data: bytes
    end: int


@dataclass(slots=True)
class OutputBuffer:
    """The newest output, at most BUFFER_BYTES of it; offsets count all bytes that there ever were."""

    pieces: "deque[OutputPiece]" = field(default_factory=deque)
    begin: int = 0
    end: int = 0

    def add(self, kind: bytes, data: bytes) -> None:
        """Append at most PIECE_BYTES; small output is put together, so that the pieces are few too."""
        self.end += len(data)
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.kind == kind and len(last.data) + len(data) <= MERGED_BYTES:
            self.pieces[-1] = OutputPiece(kind, last.data + data, self.end)
            return
        self.pieces.append(OutputPiece(kind, data, self.end))
        while self.end - self.begin > BUFFER_BYTES or len(self.pieces) > PIECES_MAX:
            self.begin = self.pieces.popleft().end

    def would_lose(self, offset: int, size: int) -> bool:
        """Whether so much more output might push out some that lies behind this offset."""
        if self.end + size - offset > BUFFER_BYTES - PIECE_BYTES:
            return True
        return len(self.pieces) >= PIECES_MAX and self.pieces[0].end > offset

    def after(self, offset: int) -> OutputPiece | None:
        """The next output behind an offset; what is no longer there is skipped."""
        for piece in self.pieces:
            if piece.end > offset:
                left = piece.end - max(offset, piece.end - len(piece.data))
                return OutputPiece(piece.kind, piece.data[-left:], piece.end)
        return None


@dataclass(eq=False, slots=True)
class TerminalViewer:
    """Who looks at a terminal now."""

    offset: int
    credit: int = CREDIT_BYTES
    refusal: Refusal | None = None
    """Why they no longer do; None while they do."""


@dataclass(eq=False, slots=True)
class TerminalSession:
    """A terminal while its process holds it, and for a short time after its end."""

    services: Services
    visit: Visit
    open_stream: OpenStream
    resume_seconds: float
    check_seconds: float
    is_started: bool = False
    is_recorded: bool = False
    is_over: bool = False
    exit_code: int | None = None
    refusal: Refusal | None = None
    """Why it ended, if the command did not end by itself."""
    viewer: TerminalViewer | None = None
    output: OutputBuffer = field(default_factory=OutputBuffer)
    used: OpenVisit = field(init=False)
    _stream: CommandStream | None = None
    _recorder: ExecRecorder | None = None
    _stop: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _leaving: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.used = OpenVisit(self.visit, None)

    # The viewer -----------------------------------------------------------------------------------------------------

    def attach(self, after: int, remote_address: str | None) -> TerminalViewer:
        """Look at the terminal from this offset on; who looked at it before no longer does."""
        if self.viewer is not None:
            self.viewer.refusal = Refusal(
                Code.CONFLICT, "this terminal was opened in another window", {"terminal": "taken_over"}
            )
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if remote_address is not None:
            self.used.remote_address = remote_address
        self.viewer = TerminalViewer(min(max(after, self.output.begin), self.output.end))
        self._changed.set()
        return self.viewer

    def detach(self, viewer: TerminalViewer) -> None:
        """They are gone; without another one in time, the terminal ends."""
        if self.viewer is not viewer:
            return
        self.viewer = None
        self._changed.set()
        if not self.is_over:
            gone = Refusal(Code.CONFLICT, f"nobody came back to it within {self.resume_seconds:.0f} s")
            self._leaving = asyncio.get_running_loop().call_later(self.resume_seconds, self.end, gone)

    async def next_output(self, viewer: TerminalViewer) -> OutputPiece | None:
        """What the viewer is to be sent next; None when there will be no more. Raises why they may see no more."""
        while True:
            if viewer.refusal is not None:
                raise viewer.refusal
            piece = self.output.after(viewer.offset) if viewer.credit > 0 else None
            if piece is not None:
                viewer.offset = piece.end
                viewer.credit -= len(piece.data)
                self._changed.set()
                return piece
            if self.is_over and viewer.offset >= self.output.end:
                if self.refusal is not None:
                    raise self.refusal
                return None
            await self._change()

    async def started(self, viewer: TerminalViewer) -> None:
        """Wait until the command runs, or never will."""
        while not (self.is_started or self.is_over or viewer.refusal is not None):
            await self._change()

    def shown(self, viewer: TerminalViewer, size: int) -> None:
        """The viewer has shown so many more bytes."""
        viewer.credit = min(CREDIT_BYTES, viewer.credit + size)
        self._changed.set()

    async def send(self, data: bytes) -> None:
        """Input, as fast as the command takes it."""
        if self._stream is not None:
            await self._stream.send(data)

    async def control(self, kind: bytes, data: bytes = b"") -> None:
        """The end of the input, a window size or a signal."""
        if self._stream is None:
            return
        if kind == RESIZE:
            size = json.loads(data)
            if self._recorder is not None:
                self._recorder.resized(int(size["columns"]), int(size["rows"]))
        await self._stream.send_control(kind, data)

    # The command ----------------------------------------------------------------------------------------------------

    def end(self, refusal: Refusal) -> None:
        """End it, for this reason; the first reason counts."""
        if not self._stop.done():
            self._stop.set_exception(refusal)

    async def run(self) -> None:
        """Start the command and pass on what it prints, until it ends, its user ends it, or loses the right to it."""
        fields = {"visit_id": self.visit.id, "correlation_id": self.visit.correlation_id}
        log.info("a terminal was opened", extra=fields)
        try:
            self._recorder = await recordings.begin(self.services, self.visit)  # no command before its recording
            self.is_recorded = self._recorder is not None
            recording = () if self._recorder is None else (self._recorder.keep_flushing(),)
            running = (self._command(), self._stopped(), *recording)
            self.refusal = await while_admitted(self.services, self.used, self.check_seconds, *running)
        except Refusal as refusal:
            self.refusal = refusal
        except ConnectionError:
            self.refusal = Refusal(Code.TEMPORARILY_UNAVAILABLE, "the node closed the connection")
        except Exception:  # one failed terminal must not affect the others
            log.exception("a terminal failed; closing it", extra=fields)
            self.refusal = Refusal(Code.INTERNAL, "Mooring failed; its log has the cause")
        finally:
            self.end(Refusal(Code.CONFLICT, "it is over"))
            self._stop.exception()  # seen, also if nobody waited for it
            self.is_over = True
            self._changed.set()
            await self._finish()
            log.info("a terminal ended", extra={**fields, "reason": self.reason})

    @property
    def reason(self) -> str:
        """Why it ended."""
        return self.refusal.detail if self.refusal else f"the command ended with {self.exit_code}"

    async def _stopped(self) -> None:
        await asyncio.shield(self._stop)

    async def _command(self) -> None:
        self._stream = await self.open_stream(self.visit)
        if self._recorder is not None:
            self._add(OUTPUT if self.visit.terminal else ERRORS, recordings.NOTICE)
        self.is_started = True
        self._changed.set()
        while True:
            frame = await self._stream.next()
            if frame.kind in (OUTPUT, ERRORS):
                await self._take(frame)
            elif frame.kind == EXIT:
                with suppress(ValueError):
                    self.exit_code = int(frame.data)
                return
            elif frame.kind == FAILURE:
                raise self._stream.failure(frame.data)
            elif frame.kind != END:
                return

    async def _take(self, frame: CommandFrame) -> None:
        """Keep output; while somebody looks, not more than they will still be sent."""
        for begin in range(0, len(frame.data), PIECE_BYTES):
            data = frame.data[begin : begin + PIECE_BYTES]
            if self._recorder is not None:  # what must be recorded is recorded before it is shown
                await self._recorder.show(data, errors=frame.kind == ERRORS)
            while self.viewer is not None and self.output.would_lose(self.viewer.offset, len(data)):
                await self._change()
            self._add(frame.kind, data)

    def _add(self, kind: bytes, data: bytes) -> None:
        self.output.add(kind, data)
        self._changed.set()

    async def _change(self) -> None:
        """Wait until anything changed; who waits looks again at what they wait for."""
        self._changed.clear()
        await self._changed.wait()

    async def _finish(self) -> None:
        if self._stream is not None:
            await self._stream.end()
        try:
            if self._recorder is not None:
                await self._recorder.close()
            await commands.finish_terminal(self.services, self.visit, self.reason)
        except Refusal as refusal:
            log.warning("cannot record the end of terminal %s: %s", self.visit.id, refusal.detail)
