"""How many refusals of one node are written down: a node that refuses without end fills no audit trail.

A refusal is worth a row each, up to a number; beyond it one row in a while says how many there were since the last.
What a node refuses is its own word, so only the number is bounded and nothing is decided by it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

BURST: Final = 100
SECONDS_PER_ROW: Final = 60.0
NODES_MAX: Final = 20_000


class RefusalLimit:
    """One per process: a bucket for each node; the least recently seen is forgotten first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float, int]] = OrderedDict()

    def take(self, node_id: str) -> int | None:
        """How many were not written since the last row, if this one may be written; none if it may not."""
        now = self._clock()
        left, at, silent = self._buckets.pop(node_id, (float(BURST), now, 0))
        left = min(float(BURST), left + (now - at) / SECONDS_PER_ROW)
        written = left >= 1
        self._buckets[node_id] = (left - 1, now, 0) if written else (left, now, silent + 1)
        if len(self._buckets) > NODES_MAX:
            self._buckets.popitem(last=False)
        return silent if written else None
