"""A real HTTP receiver on loopback, which remembers what it got and answers as the test says, and how a test uses it.

Each connection is one request. What is answered is decided by a function that may wait as long as it likes, so that a
test says when a receiver is slow, and for how long, without a clock.
"""

import asyncio
import base64
import hashlib
import hmac
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

WAIT_SECONDS = 120.0
NOBODY = "http://127.0.0.2:9/in"  # nobody listens there, and no name has to be resolved


@dataclass(frozen=True)
class Received:
    """One request."""

    line: str
    headers: dict[str, str]
    body: bytes


Reply = Callable[[Received], Awaitable[bytes]]


def answer(status: int, body: bytes = b"", **headers: str) -> Reply:
    """Always this answer."""

    async def reply(_: Received) -> bytes:
        return http(status, body, **headers)

    return reply


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def never(_: Received) -> bytes:
    """No answer, for as long as the other side waits for it."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


class Receiver:
    """Listens, and remembers."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.received: list[Received] = []
        self.port = 0
        self._arrived = asyncio.Condition()

    async def wait_for(self, count: int) -> list[Received]:
        """What was received, as soon as it is so many."""
        async with asyncio.timeout(WAIT_SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.received) >= count)
        return self.received

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            got = Received(head[0], headers, body)
            async with self._arrived:
                self.received.append(got)
                self._arrived.notify_all()
            writer.write(await self.reply(got))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the other side went away
        except RuntimeError:
            if not writer.is_closing():
                raise  # so does a loop say that the connection is closed
        finally:
            writer.close()


@asynccontextmanager
async def receiver(
    reply: Reply | None = None, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that listens on loopback."""
    made = Receiver(reply or answer(204))
    handlers: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        task.add_done_callback(handlers.discard)
        await made.handle(reader, writer)

    server = await asyncio.start_server(accept, host, port, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)


async def made(client: httpx.AsyncClient, place: str, **body: Any) -> dict[str, Any]:
    """A webhook in a place, with its key."""
    answered = await client.post(f"{place}/webhooks", json={"url": NOBODY, **body})
    assert answered.status_code == 201, answered.text
    return dict(answered.json())


def verifies(key: str, got: Received) -> bool:
    """Whether one of the signatures is that of this key, as a receiver would look."""
    headers = got.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + got.body
    secret = base64.b64decode(key.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
    return f"v1,{expected}" in headers["webhook-signature"].split(" ")
