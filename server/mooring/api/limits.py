"""Rate limits for callers and addresses, bounded in memory."""

import time
from collections import OrderedDict
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

BUCKETS_MAX: Final = 50_000


class RateLimit:
    """A token bucket per caller; the least recently used bucket is dropped first."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str, cost: float = 1.0) -> None:
        """Count one request of this caller, or refuse it."""
        now = time.monotonic()
        left, at = self._buckets.get(who, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        if left < cost:
            wait = (cost - left) / self._per_second if self._per_second else 60.0
            seconds = max(1, int(wait + 0.999))
            raise Refusal(Code.RATE_LIMITED, f"try again in {seconds} s", {"retry_after_seconds": seconds})
        self._buckets[who] = (left - cost, now)
        self._buckets.move_to_end(who)
        if len(self._buckets) > BUCKETS_MAX:
            self._buckets.popitem(last=False)

    def give_back(self, who: str) -> None:
        """Undo one count, for a request that turned out not to matter."""
        self.take(who, -1.0)

    def left(self, who: str) -> float:
        """How many requests this caller may send now."""
        now = time.monotonic()
        left, at = self._buckets.get(who, (self._burst, now))
        return min(self._burst, left + (now - at) * self._per_second)
