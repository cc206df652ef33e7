"""The only source of time and randomness.

The virtual clock is part of the product and not a mock: the simulated world runs on it, step by step, from a seed.
"""

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from mooring.core.kernel.ids import ENTROPY_BYTES, Prefix, encode

ENTROPY_BATCH: Final = 400
STEP_SHIFT: Final = 40
"""The next id of a millisecond is up to 2^40 higher. Half of all numbers are reserved for that: more than enough."""
BACK_MAX: Final = 1_000
"""If the clock goes back by up to this many milliseconds, ids continue from the last one. A larger step is accepted."""


class Clock(Protocol):
    """Tells the time and makes ids."""

    def now(self) -> datetime: ...

    def mint(self, prefix: Prefix) -> str: ...


class SystemClock:
    """The machine's clock and the kernel's random source, which is read for many ids at once.

    Ids sort in the order in which they were made, also within a millisecond and when the clock goes back a little. So
    the resources of one request sort in the order in which they were requested.
    """

    def __init__(self) -> None:
        self._entropy = b""
        self._used = 0
        self._moment = 0
        self._last = 0

    def now(self) -> datetime:
        return datetime.now(UTC)

    def mint(self, prefix: Prefix) -> str:
        begin = self._used
        if begin >= len(self._entropy):
            self._entropy, begin = os.urandom(ENTROPY_BYTES * ENTROPY_BATCH), 0
        self._used = begin + ENTROPY_BYTES
        entropy, moment = int.from_bytes(self._entropy[begin : self._used]), time.time_ns() // 1_000_000
        if (
            self._moment - BACK_MAX <= moment <= self._moment
        ):  # the same millisecond, or a clock that went back a little
            self._last += 1 + (entropy >> STEP_SHIFT)
        else:
            self._moment, self._last = moment, entropy >> 1  # leaves room to count up
        return encode(prefix, self._moment, self._last.to_bytes(ENTROPY_BYTES))


class VirtualClock:
    """A simulated clock that moves only by `advance`; its ids come from a seed."""

    def __init__(self, start: datetime, seed: int) -> None:
        self._now = start
        self._random = random.Random(seed)

    def now(self) -> datetime:
        return self._now

    def advance(self, by: timedelta) -> None:
        if by < timedelta(0):
            raise ValueError("virtual time cannot go back")
        self._now += by

    def mint(self, prefix: Prefix) -> str:
        return encode(prefix, int(self._now.timestamp() * 1000), self._random.randbytes(ENTROPY_BYTES))
