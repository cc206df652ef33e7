"""The client of the relay: a connection that carries frames.

A ticket is sent in a header and the connection is upgraded; after that both sides send frames: one letter, the number
of a stream (always 0 here), a length, and data. `d` data, `e` end of a direction, `r` window size, `s` signal, `w` a
command's standard error if it is separate, `x` exit code, `f` failure, `c` close.
"""

import asyncio
import json
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from mooring_cli.invocation import Invocation

HEAD: Final = struct.Struct("!cII")
FRAME_MAX: Final = 65_536
HEAD_MAX: Final = 65_536
DATA, ERRORS, END, RESIZE, SIGNAL, EXIT, FAILURE, CLOSE = b"d", b"w", b"e", b"r", b"s", b"x", b"f", b"c"


class VisitRefused(click.ClickException):
    """The relay or the sandbox refused the connection."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class RelayConnection:
    """One connection to the relay, upgraded to frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, kind: bytes, data: bytes = b"") -> None:
        """Send data in one frame, or in several if it is long."""
        for start in range(0, len(data) or 1, FRAME_MAX):
            part = data[start : start + FRAME_MAX]
            self.writer.write(HEAD.pack(kind, 0, len(part)) + part)
        await self.writer.drain()

    async def next(self) -> tuple[bytes, bytes]:
        """The next frame; a lost connection reads as closed."""
        try:
            kind, _, length = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            return kind, await self.reader.readexactly(min(length, FRAME_MAX))
        except (asyncio.IncompleteReadError, ConnectionError):
            return CLOSE, b""

    def close(self) -> None:
        self.writer.close()


@dataclass(frozen=True, slots=True)
class RelayTrust:
    """Which relays may see a ticket: those with a trusted certificate, this machine's, or any if that was allowed."""

    ca_file: str | None = None
    allow_plain_http: bool = False

    def context_for(self, url: str) -> ssl.SSLContext | None:
        """The TLS context for a relay, None for plain http; refuses plain http to another machine."""
        from mooring_sdk import AddressRefusedHere
        from mooring_sdk.drivers import tls_context
        from mooring_sdk.session import checked_url

        try:
            checked_url(url, allow_plain_http=self.allow_plain_http)
            return tls_context("https", self.ca_file) if urlsplit(url).scheme == "https" else None
        except AddressRefusedHere as refused:
            raise VisitRefused(f"the relay is refused: {refused}") from refused


def relay_trust(invocation: "Invocation") -> RelayTrust:
    """The trust of this run: the relay is trusted like the server that named it."""
    return RelayTrust(invocation.ca_file, invocation.allows_plain_http)


async def dial(url: str, ticket: str, trust: RelayTrust) -> RelayConnection:
    """Present a ticket to the relay, and upgrade the connection to frames."""
    parts = urlsplit(url)
    secure = trust.context_for(url)
    try:
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), ssl=secure, limit=HEAD_MAX
        )
    except OSError as error:
        raise VisitRefused(f"the relay at {url} cannot be reached: {error.strerror or error}") from error
    asked = (
        f"GET /visits HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\nUpgrade: mooring-visit\r\n"
        f"Authorization: Bearer {ticket}\r\n\r\n"
    )
    writer.write(asked.encode("ascii"))
    await writer.drain()
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
        writer.close()
        raise VisitRefused("the relay closed the connection") from error
    if not head.startswith(b"HTTP/1.1 101 "):
        body = await reader.read(HEAD_MAX)
        writer.close()
        raise VisitRefused(_refusal(head, body), int(head.split(b" ", 2)[1]))
    return RelayConnection(reader, writer)


def failure_of(data: bytes) -> VisitRefused:
    """The error in a failure frame."""
    try:
        problem = json.loads(data)
        return VisitRefused(f"{problem['detail']} ({problem['code']})")
    except (ValueError, KeyError, TypeError):
        return VisitRefused("an unknown error occurred inside the sandbox")


def _refusal(head: bytes, body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the relay answered {head.partition(b' ')[2].partition(b' ')[0].decode('ascii', 'replace')}"
