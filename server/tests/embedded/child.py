"""A process that supervises an embedded server until its input ends; run by the tests, which may kill it.

Prints one line when the server is ready: the postmaster's process id, and what `SELECT current_user` answered
through the DSN. Standard library only, because one test runs it by the system's Python as another user.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from mooring.embedded import EmbeddedPostgres
from mooring.embedded.binaries import find_installation


class Stderr:
    """Logs to stderr."""

    def info(self, event: str, /, **fields: object) -> None:
        print(event, fields, file=sys.stderr)

    warning = info
    error = info


async def main(directory: Path) -> None:
    async with EmbeddedPostgres(directory, log=Stderr()) as server:
        psql = find_installation().program("psql")
        command = [str(psql), server.dsn, "-XAtc", "SELECT current_user"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        print(server.postmaster_pid, done.stdout.strip(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main(Path(sys.argv[1])))
