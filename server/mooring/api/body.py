"""Reading a request's body within limits of size and time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mooring.core.kernel.errors import Code, Refusal

Receive = Callable[[], Awaitable[dict[str, Any]]]


async def read_body(receive: Receive, headers: dict[str, str], limit_bytes: int, timeout_seconds: float) -> bytes:
    """The whole body, or a refusal as soon as it is too large or too slow."""
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise too_large(limit_bytes)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _chunks(receive, limit_bytes)
    except TimeoutError as error:
        raise Refusal(Code.MALFORMED_REQUEST, f"the body did not arrive within {timeout_seconds:g} s") from error


async def _chunks(receive: Receive, limit_bytes: int) -> bytes:
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(Code.MALFORMED_REQUEST, "the request ended before its body was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        chunks.append(chunk)
        if not message.get("more_body"):
            return b"".join(chunks)


def too_large(limit_bytes: int) -> Refusal:
    return Refusal(Code.BODY_TOO_LARGE, f"the body is larger than {limit_bytes} bytes", {"limit_bytes": limit_bytes})
