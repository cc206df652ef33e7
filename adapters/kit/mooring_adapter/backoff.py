"""How long the kit waits before it tries again: the SDK's retry policy, with the count of failures kept.

Every loop of the kit that retries uses this one, so that all of them slow down and recover in the same way.
"""

import random
from collections.abc import Callable
from typing import Final

from mooring_sdk import RetryPolicy

LOOP_POLICY: Final = RetryPolicy(first_pause_seconds=0.2, longest_pause_seconds=15.0)


class RetryBackoff:
    """Pauses that double with each failure in a row, half of each chosen at random."""

    def __init__(self, policy: RetryPolicy = LOOP_POLICY, chance: Callable[[], float] = random.random) -> None:
        self._policy, self._chance = policy, chance
        self.failures = 0

    def reset(self) -> None:
        """Start again with the shortest pause, after a success."""
        self.failures = 0

    def next_pause(self) -> float:
        """Count one more failure and return the seconds to wait."""
        self.failures += 1
        return self._policy.pause(self.failures, self._chance())
