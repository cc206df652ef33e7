"""The embedded PostgreSQL: a real server that runs as a child of the process that needs it; nothing to install.

`binaries` finds the programs, `cluster` creates and configures the data, `processes` and `launcher` start a program as
the right account so that it ends with its parent, and `supervisor` keeps the server running. Only `__main__` imports
this package; with `MOORING_DATABASE_URL` set it is not used.
"""

from mooring.embedded.errors import (
    AlreadyRunning,
    BinariesMissing,
    DataDirectoryUnusable,
    EmbeddedPostgresError,
    StartFailed,
    VersionMismatch,
)
from mooring.embedded.supervisor import EmbeddedPostgres, Log

__all__ = [
    "AlreadyRunning",
    "BinariesMissing",
    "DataDirectoryUnusable",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "Log",
    "StartFailed",
    "VersionMismatch",
]
