"""Whatever bytes come instead of a head: the relay refuses them or forwards one request, and never crashes or hangs."""

import asyncio
from typing import Any

import h11
from hypothesis import given
from hypothesis import strategies as st

from mooring.core.kernel.errors import Code, Refusal
from mooring.relay.header_policy import COOKIES, check, cookies, has_platform_token, request_headers
from mooring.relay.http import HEAD_MAX, PeerGone, ServedConnection, value_of, wants_switch
from tests.support.fuzzing import mutated, named, thorough
from tools.soak import played

CORPUS = (
    b"GET / HTTP/1.1\r\nHost: e-0.localhost:1\r\nCookie: mooring_endpoint=a; theirs=b\r\n\r\n",
    b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /visits HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: mooring-visit\r\n"
    b"Authorization: Bearer t\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close, content-length\r\nTE: trailers\r\nX_Forwarded-For: 1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: content-length\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: transfer-encoding\r\n\r\n0\r\n\r\n",
    b"GET / HTTP/1.0\r\nAuthorization: Basic bXJndF9hYWFhYWFhYWFhYWFhYWFhYWFhYTo=\r\n\r\n",
)
PIECES = st.sampled_from(
    [
        *CORPUS,
        b"GET ", b"/ ", b"HTTP/1.1", b"\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b"Host: x\r\n", b"Host:\r\n",
        b"Content-Length: 1\r\n", b"Content-Length: 99999999999999999999\r\n", b"Content-Length: +1\r\n",
        b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked, identity\r\n", b"Connection: host\r\n",
        b"Connection: transfer-encoding\r\n", b"Cookie: \xff=\xfe; =\r\n", b"a" * 70_000, b"\r\n\r\n",
    ]
)  # fmt: skip
HEADS = st.lists(PIECES | st.binary(max_size=20), max_size=12).map(b"".join)


class QuietWriter:
    """The peer's side of the connection, which reads everything and keeps nothing."""

    written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)

    async def drain(self) -> None:
        return

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, name: str) -> Any:
        return None


async def _served(data: bytes) -> None:
    """Read one head out of these bytes as the relay does, and look at what would be forwarded."""
    reader = asyncio.StreamReader(limit=2 * HEAD_MAX)
    reader.feed_data(data)
    reader.feed_eof()
    served = ServedConnection(reader, QuietWriter())  # type: ignore[arg-type]  # as much of a writer as is used
    try:
        async with asyncio.timeout(30):
            request = await served.request()
            if request is None:
                return
            if value_of(request.headers, b"host") is None:
                return  # it is not for an endpoint
            wants_switch(request.headers, "mooring-visit")
            check(request)
            forwarded = request_headers(request.headers)
            wire = h11.Connection(h11.CLIENT).send(
                h11.Request(
                    method=request.method, target=request.target, headers=[*forwarded, (b"connection", b"close")]
                )
            )
    except (PeerGone, Refusal) as refused:
        if isinstance(refused, PeerGone) and refused.status and served.can_answer:
            await served.refuse(Refusal(Code.HEADER_INVALID, str(refused)), refused.status)
        return
    # The app reads the same one request, and nothing of the platform's.
    assert wire is not None
    app = h11.Connection(h11.SERVER)
    app.receive_data(wire)
    seen = app.next_event()
    assert isinstance(seen, h11.Request)
    assert (seen.method, seen.target) == (request.method, request.target)
    assert bool(framing(seen.headers)) == bool(framing(request.headers))
    assert not any(pair.partition("=")[0].strip() in COOKIES for pair in cookies(seen.headers))
    assert not any(has_platform_token(value) for name, value in seen.headers if name == b"authorization")


def framing(headers: Any) -> list[bytes]:
    """The headers that say how long the body is."""
    return [name for name, _ in headers if name in (b"content-length", b"transfer-encoding")]


@thorough
@given(HEADS)
def test_any_bytes_are_refused_or_forwarded_as_one_request(data: bytes) -> None:
    played()
    asyncio.run(_served(data))


def test_mutated_heads_are_refused_or_forwarded_as_one_request() -> None:
    for data in mutated(CORPUS):
        with named(data):
            asyncio.run(_served(data))
