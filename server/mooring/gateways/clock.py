"""Time and chance, which enter here and nowhere else.

The virtual clock is a product, not a mock: the simulated world runs on it, one step at a time, from a seed.
"""

import os
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from mooring.core.kernel.ids import ENTROPY_BYTES, Prefix, encode

CHANCES: Final = 400
STEP_SHIFT: Final = 40
"""The next id of a millisecond is up to 2^40 further on: half of all numbers are left for more than can be made."""
BACK_MAX: Final = 1_000
"""A clock that goes back by up to a second is waited for: ids go on from the last. One that was wrong is believed."""


class Clock(Protocol):
    """Tells the time and makes ids."""

    def now(self) -> datetime: ...

    def mint(self, prefix: Prefix) -> str: ...


class SystemClock:
    """The machine's clock and the kernel's chance, which is fetched for many ids at once.

    Ids that are made one after the other sort in that order, also within a millisecond and where the clock goes back a
    little: of what is asked for in one request the first is the first for everybody who sorts by id.
    """

    def __init__(self) -> None:
        self._chance = b""
        self._used = 0
        self._moment = 0
        self._last = 0

    def now(self) -> datetime:
        """The time, in UTC."""
        return datetime.now(UTC)

    def mint(self, prefix: Prefix) -> str:
        """A new id."""
        begin = self._used
        if begin >= len(self._chance):
            self._chance, begin = os.urandom(ENTROPY_BYTES * CHANCES), 0
        self._used = begin + ENTROPY_BYTES
        chance, moment = int.from_bytes(self._chance[begin : self._used]), time.time_ns() // 1_000_000
        if self._moment - BACK_MAX <= moment <= self._moment:  # the same, or a clock that was set a little
            self._last += 1 + (chance >> STEP_SHIFT)
        else:
            self._moment, self._last = moment, chance >> 1  # there is room to count on
        return encode(prefix, self._moment, self._last.to_bytes(ENTROPY_BYTES))


class VirtualClock:
    """A simulated clock that moves only when it is told to; its ids come from a seed."""

    def __init__(self, start: datetime, seed: int) -> None:
        self._now = start
        self._random = random.Random(seed)

    def now(self) -> datetime:
        """The virtual time."""
        return self._now

    def advance(self, by: timedelta) -> None:
        """Let virtual time pass."""
        if by < timedelta(0):
            raise ValueError("time does not go back")
        self._now += by

    def mint(self, prefix: Prefix) -> str:
        """The next id of this seed."""
        return encode(prefix, int(self._now.timestamp() * 1000), self._random.randbytes(ENTROPY_BYTES))
