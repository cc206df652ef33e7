"""HTTP without I/O.

Every call, page, token exchange and event stream is a *flow*: a generator that yields an effect and receives its
outcome. A flow knows no socket, thread or event loop, so the blocking and the asyncio client share one
implementation: two small drivers (`drivers.py`) perform the effects. A failure is thrown into the flow as a
`ConnectionFailed`.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mooring_sdk.secret import Secret


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. Headers and content are not in its repr: they may hold secrets."""

    method: str
    target: str  # path and query
    headers: dict[str, str] = field(repr=False)
    content: bytes | None = field(default=None, repr=False)
    read_timeout_seconds: float = 30.0
    total_timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP response; header names are in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and receive the whole response."""

    request: Request


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait before the next attempt."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Authorize:
    """Get a token other than the stale one; one caller at a time fetches it, the others wait."""

    stale: Secret | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and receive the head of its response; on success the body is then read in chunks."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """The next chunk of the open response; empty at its end."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the open response."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand one item to the caller that iterates."""

    item: Any


Effect = Send | Backoff | Authorize | Open | Read | Close | Emit
Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]


def send(request: Request) -> Flow[Response]:
    """`Send`, with the type of its outcome."""
    response: Response = yield Send(request)
    return response


def authorize(stale: Secret | None = None) -> Flow[Secret | None]:
    """Perform an `Authorize` step, and give its outcome the right type."""
    secret: Secret | None = yield Authorize(stale)
    return secret


def open_stream(request: Request) -> Flow[Response]:
    """Perform an `Open` step, and give its outcome the right type."""
    response: Response = yield Open(request)
    return response


def read_piece() -> Flow[bytes]:
    """Perform a `Read` step, and give its outcome the right type."""
    piece: bytes = yield Read()
    return piece
