"""The embedded PostgreSQL: a real server, run as a child of the process that needs it, with nothing to
install.

`binaries` finds the programs, `cluster` makes and configures the data, `processes` and `launcher` start a
program as the right account so that it ends with its parent, and `supervisor` keeps the server alive. Nothing
here is imported by the rest of the server except where the parts are put together; with
`MOORING_DATABASE_URL` set it is not used.
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
