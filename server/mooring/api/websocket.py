"""WebSocket (RFC 6455), the server's side: bytes in, text messages out, and back. No I/O.

Frames, masks, fragments and the closing handshake are those of the `websockets` library, used by its sans-I/O protocol;
see decision 23. The bounds are ours, and tight: a caller of a stream sends control frames and at most one message,
their token; one of a terminal also sends binary messages.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.protocol import SEND_EOF, Protocol, Side, State

MESSAGE_BYTES_MAX: Final = 16 * 1024
REASON_BYTES_MAX: Final = 123
DATA: Final = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)
EMPTY_CLOSE: Final = Frame(Opcode.CLOSE, b"").serialize(mask=False)
NORMAL_CLOSE: Final = Frame(Opcode.CLOSE, Close(CloseCode.NORMAL_CLOSURE, "").serialize()).serialize(mask=False)
"""The library echoes a close without a code as it came; callers of ours always get one."""

# The library logs every frame at the level `debug`, and a first message holds a token: this logger never gets there.
log = logging.getLogger("mooring.websocket")
log.setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Message:
    """A whole message of the caller."""

    data: bytes
    is_text: bool


class WebSocket:
    """One open WebSocket. After each call, what `outgoing` returns is to be sent."""

    def __init__(self, *, takes_binary: bool = False) -> None:
        self._takes_binary = takes_binary
        self._protocol = Protocol(Side.SERVER, max_size=MESSAGE_BYTES_MAX, logger=log)
        self._outgoing: list[bytes] = []
        self._kind: Opcode | None = None  # of the message whose fragments are arriving
        self._message = bytearray()
        self.is_finished = False  # nothing more is read: the caller closed too, or broke the protocol

    @property
    def is_open(self) -> bool:
        """Whether messages may still be sent: no close frame of ours is on its way."""
        return self._protocol.state is State.OPEN

    def receive(self, data: bytes) -> list[bytes]:
        """The data of the messages that are complete now; see `messages`."""
        return [each.data for each in self.messages(data)]

    def messages(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Pings and closes are answered; violations close with their code."""
        self._protocol.receive_data(data)
        messages = []
        for event in self._protocol.events_received():
            message = self._whole(event) if isinstance(event, Frame) and event.opcode in DATA else None
            if message is not None:
                messages.append(message)
        self._collect()
        return messages

    def send(self, messages: Iterable[bytes]) -> None:
        """Send text messages, each a frame."""
        for message in messages:
            self._protocol.send_text(message)
        self._collect()

    def send_binary(self, message: bytes) -> None:
        """Send a binary message, one frame."""
        self._protocol.send_binary(message)
        self._collect()

    def ping(self) -> None:
        """Ask the caller for a sign of life."""
        self._protocol.send_ping(b"")
        self._collect()

    def close(self, code: int, reason: str = "") -> None:
        """Say that nothing more comes, and wait for the caller's close frame."""
        self._protocol.send_close(code, _short(reason))
        self._collect()

    def fail(self, code: int, reason: str) -> None:
        """Close, and read nothing more: what the caller did is not allowed."""
        self._protocol.fail(code, _short(reason))
        self._collect()

    def outgoing(self) -> bytes:
        """The bytes that are to be sent now."""
        data, self._outgoing = b"".join(self._outgoing), []
        return data

    def _whole(self, frame: Frame) -> Message | None:
        """The message that this frame completes; one of a kind that is not taken closes the connection."""
        self._kind = self._kind or frame.opcode
        self._message += frame.data
        if not frame.fin:
            return None
        kind, message = self._kind, bytes(self._message)
        self._kind, self._message = None, bytearray()
        if kind is Opcode.BINARY and self._takes_binary:
            return Message(message, is_text=False)
        if kind is not Opcode.TEXT:
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "messages are text")
            return None
        try:
            message.decode()
        except UnicodeDecodeError:
            self._protocol.fail(CloseCode.INVALID_DATA, "text is UTF-8")
            return None
        return Message(message, is_text=True)

    def _collect(self) -> None:
        for data in self._protocol.data_to_send():
            if data == SEND_EOF:
                self.is_finished = True
            else:
                self._outgoing.append(NORMAL_CLOSE if data == EMPTY_CLOSE else data)


def _short(reason: str) -> str:
    """A reason that fits into a control frame, cut between two characters."""
    return reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
