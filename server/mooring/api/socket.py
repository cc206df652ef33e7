"""A stream as a WebSocket: the same pieces as server-sent events, each a message.

A caller shows their token in the `Authorization` header or, where they cannot set one, as in a browser, in the first
message, `{"token": "…"}`, within a bounded time; never in the address. After that a caller sends nothing but control
frames: a further message ends the connection. Callers are pinged, and one that stays silent is cut off.

Messages are JSON objects with a `kind`: `open` and `still_here` carry the cursor, `item` one item with its cursor,
`closed` the reason why the stream ends, right before the close frame. A close code of the platform's own is 4000 plus
the status with which HTTP would have answered.
"""

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from mooring.api.request_cycle import SWITCH
from mooring.api.stream import StreamChunk
from mooring.core.kernel.errors import Code, Refusal

# Imported when the first WebSocket is opened: the library behind them takes a while to load.
SESSION: Final = "mooring.api.websocket_session"
HANDSHAKE: Final = "websockets.utils"
VERSION: Final = "13"
PING_SECONDS: Final = 20.0
SILENT_SECONDS_MAX: Final = 60.0

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


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
    return {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": _accept_key(key)}


@dataclass(frozen=True, slots=True)
class WebSocketResponse:
    """A response that continues as a WebSocket: its pieces, or how to get them once a token was shown."""

    headers: dict[str, str]
    pieces: AsyncGenerator[StreamChunk, None] | None = None
    admit: Callable[[str], Awaitable["WebSocketResponse"]] | None = None
    ping_seconds: float = PING_SECONDS
    silent_seconds_max: float = SILENT_SECONDS_MAX

    async def send(self, common: dict[str, str], send: Send, receive: Receive) -> None:
        """Upgrade the connection to a WebSocket, then send messages until one side closes it."""
        await self.upgrade(common, send)
        await import_module(SESSION).WebSocketSession(self, send, receive, common["x-correlation-id"]).run()

    async def upgrade(self, common: dict[str, str], send: Send) -> None:
        """From here on the connection is a WebSocket."""
        await send({"type": SWITCH, "headers": {**common, **self.headers}})


def _accept_key(key: str) -> str:
    accepted: str = import_module(HANDSHAKE).accept_key(key)
    return accepted
