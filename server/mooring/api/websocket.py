"""WebSocket frames (RFC 6455), the server's side: bytes in, messages out, and back. No I/O.

What a caller sends is small: control frames, and at most one message that holds his token. So the bounds are tight, and
whatever breaks a rule of the protocol ends the connection with the code that the RFC names for it.
"""

import base64
import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
VERSION: Final = "13"
MESSAGE_BYTES_MAX: Final = 16 * 1024
CONTROL_BYTES_MAX: Final = 125
FINAL: Final = 0x80
MASKED: Final = 0x80
RESERVED: Final = 0x70

NORMAL, GOING_AWAY, PROTOCOL_ERROR, UNSUPPORTED = 1000, 1001, 1002, 1003
INVALID_TEXT, POLICY, TOO_BIG, INTERNAL = 1007, 1008, 1009, 1011
CODES_MAX: Final = 4999
NOT_SENT: Final = frozenset({1004, 1005, 1006, 1015})
"""Codes that stand for a close without a code, or without a frame: nobody sends them."""


class Opcode(IntEnum):
    """What a frame is."""

    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


@dataclass(frozen=True, slots=True)
class WebSocketMessage:
    """One message, whole, or one control frame."""

    opcode: Opcode
    payload: bytes

    @property
    def close_code(self) -> int:
        """The code of a close frame; one without a code ends normally."""
        return struct.unpack("!H", self.payload[:2])[0] if len(self.payload) >= 2 else NORMAL


class WebSocketError(Exception):
    """The caller broke the protocol, or a bound: the connection ends with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def accept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that accept a WebSocket; a refusal where the request does not ask for one properly."""
    key = headers.get("sec-websocket-key", "")
    if headers.get("upgrade", "").lower() != "websocket" or "upgrade" not in headers.get("connection", "").lower():
        raise Refusal(Code.MALFORMED_REQUEST, "this address speaks WebSocket: ask with `Upgrade: websocket`")
    if headers.get("sec-websocket-version") != VERSION:
        raise Refusal(
            Code.HEADER_INVALID, f"Sec-WebSocket-Version is {VERSION} here", {"header": "Sec-WebSocket-Version"}
        )
    try:
        well_formed = len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        well_formed = False
    if not well_formed:
        raise Refusal(Code.HEADER_INVALID, "Sec-WebSocket-Key is 16 bytes in base64", {"header": "Sec-WebSocket-Key"})
    answer = base64.b64encode(hashlib.sha1(key.encode() + MAGIC, usedforsecurity=False).digest()).decode()
    return {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": answer}


def frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """One whole frame of the server's, which masks nothing."""
    size = len(payload)
    first = FINAL | opcode
    if size <= CONTROL_BYTES_MAX:
        return struct.pack("!BB", first, size) + payload
    if size < 1 << 16:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


def close_frame(code: int, reason: str = "") -> bytes:
    """The frame that says that nothing more comes; a long reason is cut between two characters."""
    told = reason.encode()[: CONTROL_BYTES_MAX - 2].decode(errors="ignore").encode()
    return frame(Opcode.CLOSE, struct.pack("!H", code) + told)


class WebSocketReader:
    """Makes messages out of a caller's bytes; what is not whole yet waits here, within the bounds."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._kind: Opcode | None = None  # of the message whose fragments are arriving
        self._fragments = bytearray()

    def feed(self, data: bytes) -> list[WebSocketMessage]:
        """The messages that are whole now; raises where the protocol is broken."""
        self._bytes += data
        found: list[WebSocketMessage] = []
        while (taken := self._frame()) is not None:
            final, opcode, payload = taken
            if opcode >= Opcode.CLOSE:
                found.append(_control(opcode, payload, final=final))
            elif (message := self._fragment(opcode, payload, final=final)) is not None:
                found.append(message)
        return found

    def _frame(self) -> tuple[bool, Opcode, bytes] | None:
        """The next frame, if all of it is here: whether it is a message's last one, what it is, what is in it."""
        have = self._bytes
        if len(have) < 2:
            return None
        first, second = have[0], have[1]
        if first & RESERVED:
            raise WebSocketError(PROTOCOL_ERROR, "an extension that was not agreed on")
        if not second & MASKED:
            raise WebSocketError(PROTOCOL_ERROR, "what a caller sends is masked")
        try:
            opcode = Opcode(first & 0x0F)
        except ValueError as error:
            raise WebSocketError(PROTOCOL_ERROR, "an unknown kind of frame") from error
        size, start = second & 0x7F, 2
        if opcode >= Opcode.CLOSE and size > CONTROL_BYTES_MAX:
            raise WebSocketError(PROTOCOL_ERROR, "a control frame that is too long")
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(have) < start + width:
                return None
            size, start = int.from_bytes(have[start : start + width]), start + width
        if size + len(self._fragments) > MESSAGE_BYTES_MAX:
            raise WebSocketError(TOO_BIG, f"a message has at most {MESSAGE_BYTES_MAX} bytes")
        end = start + 4 + size
        if len(have) < end:
            return None
        payload = _unmask(bytes(have[start : start + 4]), bytes(have[start + 4 : end]))
        del have[:end]
        return bool(first & FINAL), opcode, payload

    def _fragment(self, opcode: Opcode, payload: bytes, *, final: bool) -> WebSocketMessage | None:
        if (opcode is Opcode.CONTINUATION) != (self._kind is not None):
            raise WebSocketError(PROTOCOL_ERROR, "fragments out of order")
        self._kind = self._kind or opcode
        self._fragments += payload
        if not final:
            return None
        kind, whole = self._kind, bytes(self._fragments)
        self._kind, self._fragments = None, bytearray()
        if kind is Opcode.TEXT:
            _require_text(whole)
        return WebSocketMessage(kind, whole)


def _control(opcode: Opcode, payload: bytes, *, final: bool) -> WebSocketMessage:
    if not final:
        raise WebSocketError(PROTOCOL_ERROR, "a control frame in fragments")
    received = WebSocketMessage(opcode, payload)
    if opcode is Opcode.CLOSE and payload:
        code = received.close_code
        if len(payload) == 1 or not NORMAL <= code <= CODES_MAX or code in NOT_SENT or 1016 <= code < 3000:
            raise WebSocketError(PROTOCOL_ERROR, "a close without a proper code")
        _require_text(payload[2:])
    return received


def _require_text(payload: bytes) -> None:
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        raise WebSocketError(INVALID_TEXT, "text is UTF-8") from error


def _unmask(mask: bytes, payload: bytes) -> bytes:
    """The payload without its mask: as one number, since a byte at a time is slow."""
    if not payload:
        return payload
    repeated = (mask * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(len(payload))
