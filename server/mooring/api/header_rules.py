"""Headers that may occur only once in a request.

Where a header occurs twice, a proxy in front of the platform may read one value and the platform the other. So whatever
identifies the caller, the request or its meaning is refused when it is repeated, even with the same value.
"""

from collections.abc import Iterable
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

SINGLE: Final = {
    name.lower().encode(): name
    for name in (
        "Authorization", "Content-Length", "Content-Type", "Host", "Idempotency-Key", "Last-Event-ID",
        "Sec-WebSocket-Key", "Sec-WebSocket-Version", "X-Correlation-ID",
    )
}  # fmt: skip


def require_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a request in which one of these headers occurs more than once."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen:
            raise Refusal(
                Code.HEADER_INVALID,
                f"{SINGLE[name]} occurs more than once; send it once",
                {"header": SINGLE[name]},
            )
        if name in SINGLE:
            seen.add(name)
