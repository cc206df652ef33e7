"""`mooring up` as a process for end-to-end tests, each with its own database.

Tests start, stop and restart it by its own command; everything else goes through the public API. The result of the
first start (database cluster, schema, first admin) is made once in a test run and copied for each test.
test_up.py and test_demo.py test the first start itself.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mooring_sdk import Client, ClientSettings, MooringError, RetryPolicy
from tools.ports import free_port

START_SECONDS_MAX = 180.0
FIRST_ADMIN = "admin@mooring.local"
PASSWORD = "correct horse battery staple"
WITHOUT_DURABILITY = "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\n"
"""Tests kill processes, never the machine, so nothing has to survive a loss of power."""
HIGH_LIMITS = {
    "MOORING_RATE_LIMIT_PER_SECOND": "10000",
    "MOORING_RATE_LIMIT_BURST": "10000",
    "MOORING_SIGN_IN_LIMIT_PER_MINUTE": "10000",
    "MOORING_DATABASE_CONNECT_TIMEOUT_SECONDS": "60",
    "MOORING_CHECK_WAIT_SECONDS": "60",
}
shared: Path | None = None
"""A directory shared by all workers of a test run, which pytest clears; without it every start is a first start."""


@dataclass
class MooringProcess:
    """One Mooring with its data directory; the address stays the same over restarts."""

    directory: Path
    port: int
    process: "subprocess.Popen[bytes] | None" = None
    environment: dict[str, str] = field(default_factory=dict)
    relay_port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def code(self) -> str:
        """The first admin's one-time code."""
        return (self.directory / "code").read_text(encoding="utf-8").strip()

    def start(self) -> None:
        """Start the process and wait until it is ready."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        own = {
            "MOORING_FIRST_ADMIN_CODE_FILE": str(self.directory / "code"),
            "MOORING_RELAY_LISTEN_PORT": str(self.relay_port),
            **HIGH_LIMITS,
            **self.environment,
        }
        command = [sys.executable, "-m", "mooring_cli", "up", "--no-node", "--data-dir", str(self.directory / "data")]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], env={**inherited, **own}, stdout=log, stderr=log
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        assert self.process is not None
        patient = ClientSettings(
            timeout_seconds=5,
            deadline_seconds=START_SECONDS_MAX,
            retry=RetryPolicy(attempts=20, first_pause_seconds=0.05, longest_pause_seconds=0.1),
        )
        # Short attempts, so that a process that has ended is noticed.
        until = time.monotonic() + START_SECONDS_MAX
        with Client(self.url, settings=patient) as client:
            while self.process.poll() is None and time.monotonic() < until:
                try:
                    client.get_readiness()
                    return
                except MooringError as error:  # not listening yet, or the database is not ready yet
                    if not error.retryable:
                        raise
        raise MooringError(f"it did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the process; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=START_SECONDS_MAX)
        self.process = None
        return code


@contextmanager
def running_mooring(**settings: str) -> Iterator[MooringProcess]:
    """Run a Mooring with these settings; stop and remove it at the end."""
    with _temporary_directory() as directory:
        mooring = MooringProcess(directory, free_port(), environment=settings)
        copy_first_start(directory)
        try:
            mooring.start()
            yield mooring
        finally:
            if mooring.process is not None:
                mooring.stop()


def copy_first_start(directory: Path) -> None:
    """Copy the result of a first start into the directory."""
    if shared is not None:
        _copy(f"{_first_start(shared)}/.", directory)


def _first_start(place: Path) -> Path:
    """What a first start leaves behind: the first of all test workers makes it, the others wait."""
    place.mkdir(exist_ok=True)
    whole, unfinished = place / "begun", place / "unfinished"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            with _temporary_directory() as directory:
                (directory / "data" / "postgres").mkdir(parents=True)
                for each in (directory / "data", directory / "data" / "postgres"):
                    each.chmod(0o711)
                (directory / "data" / "postgres" / "local.conf").write_text(WITHOUT_DURABILITY)
                mooring = MooringProcess(directory, free_port())
                mooring.start()
                mooring.stop()
                (directory / "log").unlink()
                shutil.rmtree(unfinished, ignore_errors=True)
                _copy(directory, unfinished)
            unfinished.rename(whole)
    return whole


def _copy(source: str | Path, target: Path) -> None:
    """Copy with owners and modes; files stay sparse."""
    subprocess.run(["cp", "--archive", "--sparse=always", source, target], check=True)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """A directory with a short path, as sockets need it, that the database's account can enter."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-e2e-"))
    directory.chmod(0o711)  # as root the database runs as another account, which has to pass through
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
