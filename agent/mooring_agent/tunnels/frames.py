"""The frames of a tunnel: one letter, the number of a stream, a length, bytes.

One tunnel carries many streams: connections to ports of one sandbox, or one command with a terminal or with pipes. The
letters: `o` open, `d` data, `w` data of a command's standard error where that is separate from its output, `a` credit
for so many more bytes, `e` end of this direction, `r` window size, `s` signal, `x` exit code, `f` failure, `c` close.
Each direction of a stream may have `WINDOW` bytes in flight that were not acknowledged by `a`: a slow reader delays its
own stream and no other.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Final

HEAD: Final = struct.Struct("!cII")
FRAME_MAX: Final = 65_536
WINDOW: Final = 1_048_576
OPEN, DATA, ROOM, END, RESIZE, SIGNAL, EXIT, FAILURE, CLOSE = b"o", b"d", b"a", b"e", b"r", b"s", b"x", b"f", b"c"
ERRORS: Final = b"w"
KINDS: Final = frozenset((OPEN, DATA, ERRORS, ROOM, END, RESIZE, SIGNAL, EXIT, FAILURE, CLOSE))


class FrameRefused(Exception):
    """A malformed frame, or one that is not allowed now."""


@dataclass(frozen=True, slots=True)
class TunnelFrame:
    kind: bytes
    stream: int
    data: bytes = b""


async def read_frame(reader: asyncio.StreamReader) -> TunnelFrame | None:
    """The next frame; None when the other side is gone."""
    try:
        kind, stream, length = HEAD.unpack(await reader.readexactly(HEAD.size))
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameRefused("a tunnel ended within a frame") from error
        return None
    if kind not in KINDS or length > FRAME_MAX:
        raise FrameRefused(f"unknown frame {kind!r} of {length} bytes")
    try:
        return TunnelFrame(kind, stream, await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise FrameRefused("a tunnel ended within a frame") from error


def packed(kind: bytes, stream: int, data: bytes = b"") -> bytes:
    if len(data) > FRAME_MAX:
        raise ValueError(f"a frame has at most {FRAME_MAX} bytes")
    return HEAD.pack(kind, stream, len(data)) + data
