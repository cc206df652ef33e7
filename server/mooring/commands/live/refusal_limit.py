"""Limits the audit rows for rejected tasks and refused reports of one node, so that it cannot flood the audit trail.

Each of them gets a row, up to a number; after that one row per minute says how many there were since the last. The
limit applies only to the audit rows, and decides nothing else.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BURST: Final = 100
SECONDS_PER_ROW: Final = 60.0
NODES_MAX: Final = 20_000


class RefusalLimit:
    """A token bucket for each node; the least recently used one is dropped first. One per process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float, int]] = OrderedDict()

    def take(self, node_id: str) -> int | None:
        """How many rows were suppressed since the last one, if this one may be written; None if it may not."""
        now = self._clock()
        left, at, suppressed = self._buckets.pop(node_id, (float(BURST), now, 0))
        left = min(float(BURST), left + (now - at) / SECONDS_PER_ROW)
        written = left >= 1
        self._buckets[node_id] = (left - 1, now, 0) if written else (left, now, suppressed + 1)
        if len(self._buckets) > NODES_MAX:
            self._buckets.popitem(last=False)
        return suppressed if written else None
