"""How much of the machine's disk the logs of one owner may take.

A tenant decides how much its programs print and how many it starts. The logs are on the machine's own disk, beside
those of other tenants and the agent's journal. So the logs of an owner have one limit together, and they leave a
reserve of the disk free. When the limit is reached, the oldest logs of ended programs make room; if there are none,
output is lost.
"""

import os
from collections.abc import Callable
from typing import Final

LOGS_BYTES: Final = 512 << 20
RESERVE_BYTES: Final = 2 << 30
_RESERVE_SHARE: Final = 20  # at most this part of a small disk is kept free


class LogRoom:
    """The room for all logs below one directory."""

    def __init__(self, directory: int, limit_bytes: int = LOGS_BYTES, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._reserve = reserve_bytes
        self._used = 0
        self.make_room: Callable[[], bool] = lambda: False  # removes something, or returns that there is nothing

    def add(self, size: int) -> None:
        """Count what is there already."""
        self._used += size

    def claim(self, size: int) -> bool:
        """Count this many bytes more, if there is room for them."""
        while self._used + size > self._limit:
            if not self.make_room():
                return False
        self._used += size
        return True

    def release(self, size: int) -> None:
        self._used -= size

    def has_reserve(self) -> bool:
        """Whether the disk has more free than its reserve."""
        disk = os.fstatvfs(self._directory)
        reserve = min(self._reserve, disk.f_blocks * disk.f_frsize // _RESERVE_SHARE)
        return disk.f_bavail * disk.f_frsize > reserve
