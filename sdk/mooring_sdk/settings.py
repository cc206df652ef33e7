"""What a client can be told: times, retries, labels, and where time and chance come from.

Everything is bounded. One attempt has a time-out, all attempts together have a deadline, and their number
has a limit; the follower of a stream gives up after a time without any answer.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Timing:
    """Where time and chance come from; a test gives its own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random
    sleep: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, and how long apart, what may succeed later is tried again."""

    attempts: int = 5
    first_pause_seconds: float = 0.2
    longest_pause_seconds: float = 10.0
    stream_give_up_seconds: float = 300.0
    """How long the follower of a stream goes on without reaching the server."""

    def pause(self, failures: int, chance: float, asked_seconds: float | None = None) -> float:
        """The seconds to wait after so many failures: doubled each time, half of it by chance.

        What the server asked for is a lower bound, so that a crowd that was told the same does not come at
        once.
        """
        grown = self.first_pause_seconds * 2.0 ** min(failures - 1, 20)
        bounded = min(grown, self.longest_pause_seconds)
        jittered = bounded * (0.5 + chance / 2)
        return jittered if asked_seconds is None else asked_seconds + jittered


@dataclass(frozen=True, slots=True)
class Exchange:
    """What is told about one attempt: nothing in it is secret."""

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
    """How a client behaves."""

    timeout_seconds: float = 30.0
    """Longest time that one attempt may take."""
    deadline_seconds: float = 120.0
    """Longest time that a call may take with all its attempts."""
    stream_silence_seconds: float = 60.0
    """How long a stream may be silent, heartbeats included, before it is taken for broken."""
    answer_limit_bytes: int = 64 * 1024 * 1024
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    correlation_id: str | None = None
    """A label that every call carries; without it the server makes one for each."""
    user_agent: str = "mooring-sdk"
    ca_file: str | None = None
    """Certificates to trust instead of the system's. Verification cannot be switched off."""
    allow_plain_http: bool = False
    """Send tokens unencrypted to other machines too. To this machine itself plain http is always allowed."""
    observe: Callable[[Exchange], None] | None = None
    """Called after every attempt, for logs and metrics."""
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What one call may have of its own."""

    correlation_id: str | None = None
    traceparent: str | None = None
    idempotency_key: str | None = None
    """Without it a mutation gets a new key of its own, kept over its retries."""
    timeout_seconds: float | None = None
    deadline_seconds: float | None = None
