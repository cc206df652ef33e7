"""A server that misbehaves on purpose: each path has a handler, which writes to the connection whatever it likes.

It begins as an honest registry over what a test puts into it, so that a test spoils one thing and leaves the rest.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from server.tests.support.images import SampleArtifact

CHUNK = b"\0" * 65_536


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Handler = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Adversary:
    """What is served under which path, and what was asked."""

    def __init__(self) -> None:
        self.routes: dict[str, Handler] = {}
        self.asked: list[Asked] = []
        self.port = 0
        self.gave_up = asyncio.Event()  # somebody hung up on a handler

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    def times(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(each.path == path for each in self.asked)

    def put(self, repository: str, artifact: SampleArtifact, tag: str | None = None) -> None:
        """Serve an artifact honestly."""
        for part in artifact.parts:
            self.put(repository, part)
        for digest, content in artifact.blobs.items():
            self.routes[f"/v2/{repository}/blobs/{digest}"] = serve(content)
        served = serve(artifact.manifest.raw, artifact.manifest.media_type)
        for reference in (artifact.digest, tag):
            if reference is not None:
                self.routes[f"/v2/{repository}/manifests/{reference}"] = served

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            asked = Asked(method, path, headers, body)
            self.asked.append(asked)
            await self.routes.get(path.partition("?")[0], status(404))(asked, writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gave_up.set()
        except RuntimeError:
            if not writer.is_closing():
                raise
            self.gave_up.set()  # so does a loop say that the connection is closed
        finally:
            writer.close()


def head(code: int, **headers: str | int) -> bytes:
    """The head of an answer after which the connection is closed."""
    lines = [f"HTTP/1.1 {code} X", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def status(code: int, **headers: str | int) -> Handler:
    """An answer without a body."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(code, content_length=0, **headers))

    return handler


def serve(content: bytes, content_type: str = "application/octet-stream", *, ranges: bool = True) -> Handler:
    """Content, or the part of it that is asked for."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        begin, code, further = 0, 200, {}
        wanted = asked.headers.get("range")
        if ranges and wanted is not None:
            begin, code = int(wanted.removeprefix("bytes=").rstrip("-")), 206
            further["content_range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        part = content[begin:]
        writer.write(head(code, content_type=content_type, content_length=len(part), **further))
        if asked.method != "HEAD":
            writer.write(part)

    return handler


def in_turn(*handlers: Handler) -> Handler:
    """One handler after the other, the last one for ever."""
    left = list(handlers)

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return handler


def breaks_after(content: bytes, taken: int, content_type: str = "application/octet-stream") -> Handler:
    """Content that breaks off after so many bytes of what is asked for."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        begin = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        part = content[begin:]
        span = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        code = 206 if "range" in asked.headers else 200
        writer.write(head(code, content_type=content_type, content_length=len(part), content_range=span))
        writer.write(part[:taken])

    return handler


def announces(size: int) -> Handler:
    """Says a size, and sends without end."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=size))
        while asked.method != "HEAD":
            writer.write(CHUNK)
            await writer.drain()

    return handler


async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Says no size, and sends without end."""
    writer.write(head(200, transfer_encoding="chunked"))
    while True:
        writer.write(b"10000\r\n" + CHUNK + b"\r\n")
        await writer.drain()


def drips(size: int, pause: Callable[[], Awaitable[None]]) -> Handler:
    """Sends a byte at a time, and waits between them."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=size))
        for _ in range(size):
            writer.write(b"x")
            await writer.drain()
            await pause()

    return handler


async def silent(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Takes the request and says nothing."""
    await asyncio.Event().wait()


def stalls_after(content: bytes, taken: int) -> Handler:
    """Sends the beginning of what it announced, and then nothing more, the connection open."""

    async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=len(content)) + content[:taken])
        await writer.drain()
        await asyncio.Event().wait()

    return handler


@asynccontextmanager
async def adversary(host: str = "127.0.0.1") -> AsyncIterator[Adversary]:
    """An adversary that listens on loopback."""
    made = Adversary()
    handlers: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        await made.handle(reader, writer)

    server = await asyncio.start_server(accept, host, 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
