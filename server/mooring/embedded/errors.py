"""Errors of the embedded PostgreSQL, one for each thing that the operator can do about it.

Every message names the path, the process or the version concerned, because `mooring up` prints it unchanged.
"""

from pathlib import Path


class EmbeddedPostgresError(Exception):
    """The embedded database cannot be used; the message says why and what to do."""


class AlreadyRunning(EmbeddedPostgresError):
    """Another process holds the lock of this data directory."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid else "another process"
        super().__init__(
            f"the embedded database in {directory} is already in use by {holder}; "
            "stop that one first, or choose another data directory"
        )
        self.directory = directory
        self.pid = pid


class BinariesMissing(EmbeddedPostgresError):
    """No usable PostgreSQL binaries were found on this machine."""


class VersionMismatch(EmbeddedPostgresError):
    """Another major version of PostgreSQL wrote the data, and it is not installed."""


class DataDirectoryUnusable(EmbeddedPostgresError):
    """The account that must use the data directory cannot create, reach or write it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"the data directory cannot be used: {path}: {why}")
        self.path = path


class StartFailed(EmbeddedPostgresError):
    """PostgreSQL was started but did not become ready."""
