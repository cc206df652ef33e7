"""A process that supervises an embedded server until its input ends; run by the tests, which may kill it.

Prints one line when the server is ready: the postmaster's process id, and what `SELECT current_user` answered
through the DSN. With a second argument, `held`, it never comes to that: its initdb does not end.
Standard library only, because one test runs it by the system's Python as another user.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from mooring.embedded import EmbeddedPostgres
from mooring.embedded.binaries import Installation, find_installation


class Stderr:
    """Logs to stderr."""

    def info(self, event: str, **fields: object) -> None:
        print(event, fields, file=sys.stderr)

    warning = info
    error = info


HELD = """#!/bin/sh
"{initdb}" "$@" && while echo >> held; do :; done
"""


def hold_initdb(directory: Path) -> None:
    """Let initdb make its cluster and then stay and write into it, for as long as somebody lets it."""
    real = Installation.program

    def program(self: Installation, name: str) -> Path:
        if name != "initdb":
            return real(self, name)
        script = directory / "initdb"
        script.write_text(HELD.format(initdb=real(self, name)))
        script.chmod(0o755)
        return script

    Installation.program = program  # type: ignore[method-assign]


async def main(directory: Path) -> None:
    async with EmbeddedPostgres(directory, log=Stderr()) as server:
        psql = find_installation().program("psql")
        command = [str(psql), server.dsn, "-XAtc", "SELECT current_user"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
        print(server.postmaster_pid, done.stdout.strip(), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if sys.argv[2:] == ["held"]:
    hold_initdb(Path(sys.argv[1]))
asyncio.run(main(Path(sys.argv[1])))
