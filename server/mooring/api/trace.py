"""Correlation and trace ids: the caller's if they are well formed, otherwise generated here.

A correlation id is a label. Its length and alphabet are bounded, it is on every response, event, audit row and log
line, and it never grants access: reads by it are filtered by what the caller may see.
"""

import random
import re
from typing import Final

import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from mooring.gateways.clock import Clock

CORRELATION_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}$"
_CORRELATION: Final = re.compile(CORRELATION_PATTERN + r"\Z")
_TRACEPARENT: Final = re.compile(r"^(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?\Z")


class RequestTrace(msgspec.Struct, frozen=True):
    """The ids of one request."""

    correlation_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    flags: str = "01"
    refusal: Refusal | None = None

    @property
    def traceparent(self) -> str:
        """The W3C header of this request's own span."""
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def begin(headers: dict[str, str], clock: Clock) -> RequestTrace:
    """The ids for a request with these headers."""
    correlation = headers.get("x-correlation-id")
    refusal = None
    if correlation is not None and not _CORRELATION.match(correlation):
        refusal = Refusal(
            Code.HEADER_INVALID,
            "X-Correlation-ID must have 1 to 128 letters, digits, dots, colons, hyphens and underscores",
            {"header": "X-Correlation-ID"},
        )
        correlation = None
    correlation_id = correlation or clock.mint(Prefix.CORRELATION)
    sent = headers.get("traceparent")
    parent = None if sent is None else _TRACEPARENT.match(sent.strip())
    if parent is None or set(parent[1]) == {"0"} or set(parent[2]) == {"0"}:
        random_hex = f"{random.getrandbits(192):048x}"
        return RequestTrace(correlation_id, random_hex[:32], random_hex[32:], None, refusal=refusal)
    return RequestTrace(correlation_id, parent[1], f"{random.getrandbits(64):016x}", parent[2], parent[3], refusal)
