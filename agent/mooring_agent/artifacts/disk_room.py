"""How much of the machine's disk images and artifacts may take: what is free, without a reserve for the agent itself.

The agent's journal and receipts are on the same disk as a rule, and so are the sandboxes of all tenants. Whatever a
tenant lets the agent fetch or unpack must leave the reserve free.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.supervisor.log_room import RESERVE_BYTES

GIB: Final = 1 << 30
RESERVE_FILES: Final = 20_000


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """The room on the disk of a directory."""

    directory: Path
    reserve_bytes: int = RESERVE_BYTES
    reserve_files: int = RESERVE_FILES

    def bytes_left(self) -> int:
        """The bytes that may still be used; negative when the reserve is in use."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize - self.reserve_bytes

    def files_left(self) -> int:
        """The number of files that may still be created; a file system without such a limit has room for many."""
        disk = os.statvfs(self.directory)
        return disk.f_favail - self.reserve_files if disk.f_files else 1 << 62
