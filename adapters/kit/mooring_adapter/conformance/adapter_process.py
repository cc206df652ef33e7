"""The process of the adapter under test: any command, started with the environment variables that adapters read."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LINES_SHOWN: Final = 20


@dataclass(slots=True)
class AdapterProcess:
    """One command, started and killed as often as a scenario wants; its output is kept in a file."""

    command: Sequence[str]
    environment: dict[str, str]
    place: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="mooring-conformance-")))
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _is_wanted: bool = False
    _read_from: int = 0  # lines before this position belong to earlier scenarios

    @property
    def log(self) -> Path:
        return self.place / "adapter.log"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ended although nobody stopped it."""
        return self._is_wanted and not self.is_alive

    def start(self) -> None:
        """Start it unless it runs, in a process group of its own, so that a kill leaves nothing behind."""
        if self.is_alive:
            return
        self.starts += 1
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._is_wanted = True

    def kill(self) -> None:
        """`kill -9` it and everything that it started."""
        process = self._process
        self._is_wanted = False
        if process is not None:
            self._signal(process, signal.SIGKILL)
            process.wait()

    def stop(self, seconds: float) -> int | None:
        """Send SIGTERM; returns the exit code, or None if it did not end in time and was killed."""
        process = self._process
        if process is None:
            return 0
        self._is_wanted = False
        process.terminate()
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def forget_lines(self) -> None:
        """From now on show only what is logged later: a scenario must not show the lines of another."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0

    def last_lines(self) -> list[str]:
        if not self.log.exists():
            return []
        written = self.log.read_bytes()[self._read_from :]
        return written.decode("utf-8", errors="replace").splitlines()[-LINES_SHOWN:]

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        for path in self.place.iterdir():
            path.unlink()
        self.place.rmdir()

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return  # it has already ended
