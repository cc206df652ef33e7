"""Settings of a client: timeouts, retries, labels, and its sources of time and randomness.

Everything is bounded. One attempt has a timeout, all attempts together have a deadline, and their number has a limit;
the follower of a stream gives up if it cannot reach the server for too long.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """Sources of time and randomness; a test passes its own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how far apart, a failed attempt is repeated."""

    attempts: int = 5
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0
    stream_give_up_seconds: float = 300.0
    """How long the follower of a stream keeps trying to reach the server."""

    def pause(self, failures: int, chance: float, asked_seconds: float | None = None) -> float:
        """The seconds to wait after this many failures: exponential backoff, with half of the wait random.

        A wait that the server asked for is a lower bound, so that clients which got the same answer do not all return
        at once.
        """
        grown = self.first_pause_seconds * 2.0 ** min(failures - 1, 20)
        bounded = min(grown, self.longest_pause_seconds)
        jittered = bounded * (0.5 + chance / 2)
        return jittered if asked_seconds is None else asked_seconds + jittered


@dataclass(frozen=True, slots=True)
class Exchange:
    """One attempt, for logs and metrics; it contains nothing secret."""

    method: str
    target: str
    attempt: int
    status: int | None
    correlation_id: str | None
    replayed: bool
    seconds: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ClientSettings:
    timeout_seconds: float = 30.0
    """Timeout of one attempt."""
    deadline_seconds: float = 120.0
    """Deadline of a call with all its attempts."""
    stream_silence_seconds: float = 60.0
    """How long a stream may be silent, heartbeats included, before it counts as broken."""
    answer_limit_bytes: int = 64 * 1024 * 1024
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    correlation_id: str | None = None
    """A correlation id for every call; without it the server makes one for each call."""
    user_agent: str = "mooring-sdk"
    ca_file: str | None = None
    """CA certificates to trust instead of the system's; without it, the file that MOORING_CA_FILE names.

    Verification cannot be disabled.
    """
    allow_plain_http: bool = False
    """Allow plain http to other machines. To this machine it is always allowed."""
    observe: Callable[[Exchange], None] | None = None
    """Called after every attempt, for logs and metrics."""
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of a single call."""

    correlation_id: str | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None
    """Without it every mutation gets a new key, which its retries share."""
    timeout_seconds: float | None = None
    deadline_seconds: float | None = None
