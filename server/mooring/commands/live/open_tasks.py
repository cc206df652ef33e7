"""Reserves room for tasks that are being created: requests at the same moment do not see each other's rows yet.

A request reserves before it counts the open tasks of its project, and adds what was reserved before it. So no number of
requests at once creates more tasks than the limit in one process; near the limit one may be refused that would have
fitted, and is tried again. Other replicas count for themselves.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class OpenTaskReservations:
    """How many tasks of each project are being created in this process."""

    def __init__(self) -> None:
        self._reserved: dict[str, int] = {}

    @contextmanager
    def reserve(self, project_id: str, count: int) -> Iterator[int]:
        """Reserve room until the end of the block; yields how much was reserved before."""
        before = self._reserved.get(project_id, 0)
        self._reserved[project_id] = before + count
        try:
            yield before
        finally:
            left = self._reserved[project_id] - count
            if left:
                self._reserved[project_id] = left
            else:
                del self._reserved[project_id]
