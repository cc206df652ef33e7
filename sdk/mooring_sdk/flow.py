"""How the SDK speaks HTTP without doing it.

Every call, page, token exchange and event stream is a *flow*: a generator that yields what it wants done (an
effect) and receives what came of it. A flow knows no socket, no thread and no event loop, so that there is
one source for the synchronous and the asynchronous client: two small drivers (`drivers.py`) perform the
effects. What fails is thrown into the flow as a `ConnectionFailed`.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mooring_sdk.secret import Secret


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. Headers and content are not shown: they may hold secrets."""

    method: str
    target: str  # path and query
    headers: dict[str, str] = field(repr=False)
    content: bytes | None = field(default=None, repr=False)
    read_timeout_seconds: float = 30.0
    total_timeout_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Response:
    """One HTTP answer; the names of headers are in lower case."""

    status: int
    headers: dict[str, str] = field(repr=False)
    body: bytes = field(default=b"", repr=False)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request and receive its whole answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class Pause:
    """Let some time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Authorize:
    """Have a token that is not the stale one; one caller at a time fetches it, the others wait for it."""

    stale: Secret | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Send a request and receive the head of its answer; on success the body is then read piece by piece."""

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """The next piece of the open answer; empty when it has ended."""


@dataclass(frozen=True, slots=True)
class Close:
    """Close the open answer."""


@dataclass(frozen=True, slots=True)
class Emit:
    """Hand one item to whoever iterates."""

    item: Any


Effect = Send | Pause | Authorize | Open | Read | Close | Emit
Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]


def send(request: Request) -> Flow[Response]:
    """Send, with the type of what comes back."""
    response: Response = yield Send(request)
    return response


def authorize(stale: Secret | None = None) -> Flow[Secret | None]:
    """Authorize, with the type of what comes back."""
    secret: Secret | None = yield Authorize(stale)
    return secret


def open_stream(request: Request) -> Flow[Response]:
    """Open, with the type of what comes back."""
    response: Response = yield Open(request)
    return response


def read_piece() -> Flow[bytes]:
    """Read, with the type of what comes back."""
    piece: bytes = yield Read()
    return piece
