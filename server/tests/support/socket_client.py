"""A WebSocket client for tests that writes its frames by hand, so that it can also break the protocol."""

import asyncio
import base64
import json
import os
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

PATIENCE_SECONDS = 120.0


class Refused(Exception):
    """The server did not switch the protocol."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:500]!r}")
        self.status = status
        self.body = json.loads(body) if body else {}


def masked(opcode: int, payload: bytes = b"", *, final: bool = True, reserved: int = 0) -> bytes:
    """A frame as a caller sends it: masked."""
    first = (0x80 if final else 0) | reserved | opcode
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))


@dataclass
class OpenWebSocket:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: dict[str, str]
    closed: tuple[int, str] | None = None

    async def send(self, data: bytes) -> None:
        """Raw bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def say(self, message: object) -> None:
        """A text message of JSON."""
        await self.send(masked(1, json.dumps(message).encode()))

    async def frame(self) -> tuple[int, bytes]:
        """The next frame of the server, which is never masked."""
        first, second = await self.reader.readexactly(2)
        assert not second & 0x80, "a server masks nothing"
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def messages(self) -> AsyncGenerator[dict[str, Any], None]:
        """Each message, until the server closes; pings are answered."""
        while True:
            opcode, payload = await self.frame()
            if opcode == 8:
                self.closed = (struct.unpack("!H", payload[:2])[0], payload[2:].decode())
                await self.send(masked(8, payload[:2]))
                return
            if opcode == 9:
                await self.send(masked(10, payload))
            elif opcode == 1:
                yield json.loads(payload)

    async def items(self) -> AsyncGenerator[dict[str, Any], None]:
        """Each item of the stream."""
        async for message in self.messages():
            if message["kind"] == "item":
                yield message

    async def end(self) -> tuple[list[dict[str, Any]], tuple[int, str]]:
        """All messages until the server closes, and how it closes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            messages = [message async for message in self.messages()]
        assert self.closed is not None
        return messages, self.closed


@asynccontextmanager
async def connect(url: str, path: str, token: str | None = None, **headers: str) -> AsyncIterator[OpenWebSocket]:
    """A WebSocket to this path; leaving aborts the connection."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    named = {
        "Host": parts.netloc,
        "Connection": "keep-alive, Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **({} if token is None else {"Authorization": f"Bearer {token}"}),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    try:
        writer.write(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, _, rest = head.partition("\r\n")
        headers_received = dict(line.lower().split(": ", 1) for line in rest.strip().split("\r\n"))
        code = int(status.split(" ")[1])
        if code != 101:
            raise Refused(code, await reader.readexactly(int(headers_received.get("content-length", 0))))
        yield OpenWebSocket(reader, writer, headers_received)
    finally:
        writer.transport.abort()
