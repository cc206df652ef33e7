"""A whole Mooring for tests that span its parts: `mooring up`, as a person starts it, on a database of its own.

It is started, stopped and started again by its own command, and everything else goes through its public API. What the
very first start makes, the cluster, the schema and the first admin, is made once in a run of the tests and copied:
each test has its own all the same. How a first start goes is shown by test_up.py and test_demo.py.
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
HASTY = "fsync = off\nfull_page_writes = off\nsynchronous_commit = off\n"
"""Whatever is killed here, the machine goes on: nothing has to survive a loss of power."""
GENEROUS = {
    "MOORING_RATE_LIMIT_PER_SECOND": "10000",
    "MOORING_RATE_LIMIT_BURST": "10000",
    "MOORING_SIGN_IN_LIMIT_PER_MINUTE": "10000",
    "MOORING_DATABASE_CONNECT_TIMEOUT_SECONDS": "60",
    "MOORING_CHECK_WAIT_SECONDS": "60",
}
shared: Path | None = None
"""What all workers of one run of the tests share, a place that pytest clears; without it every start is a first one."""


@dataclass
class Mooring:
    """A Mooring in a directory, at one address over all its starts."""

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
        """Start it and wait until it is ready."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        own = {
            "MOORING_FIRST_ADMIN_CODE_FILE": str(self.directory / "code"),
            "MOORING_RELAY_LISTEN_PORT": str(self.relay_port),
            **GENEROUS,
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
        # In slices, so that a process that has ended is not waited for.
        until = time.monotonic() + START_SECONDS_MAX
        with Client(self.url, settings=patient) as client:
            while self.process.poll() is None and time.monotonic() < until:
                try:
                    client.get_readiness()
                    return
                except MooringError as error:  # nobody listens yet, or the database does not answer yet
                    if not error.retryable:
                        raise
        raise MooringError(f"it did not start: {(self.directory / 'log').read_text()[-2000:]}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=START_SECONDS_MAX)
        self.process = None
        return code


@contextmanager
def running(**settings: str) -> Iterator[Mooring]:
    """A Mooring of the test's own, with these settings, removed at the end."""
    with _place() as directory:
        mooring = Mooring(directory, free_port(), environment=settings)
        copy_begun(directory)
        try:
            mooring.start()
            yield mooring
        finally:
            if mooring.process is not None:
                mooring.stop()


def copy_begun(directory: Path) -> None:
    """Let it not be the first start there."""
    if shared is not None:
        _copy(f"{_begun(shared)}/.", directory)


def _begun(place: Path) -> Path:
    """What a first start leaves behind: the first of all test workers makes it, the others wait."""
    place.mkdir(exist_ok=True)
    whole, unfinished = place / "begun", place / "unfinished"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            with _place() as directory:
                (directory / "data" / "postgres").mkdir(parents=True)
                for each in (directory / "data", directory / "data" / "postgres"):
                    each.chmod(0o711)
                (directory / "data" / "postgres" / "local.conf").write_text(HASTY)
                mooring = Mooring(directory, free_port())
                mooring.start()
                mooring.stop()
                (directory / "log").unlink()
                shutil.rmtree(unfinished, ignore_errors=True)
                _copy(directory, unfinished)
            unfinished.rename(whole)
    return whole


def _copy(source: str | Path, target: Path) -> None:
    """With owners and modes; the empty parts of files take no room."""
    subprocess.run(["cp", "--archive", "--sparse=always", source, target], check=True)


@contextmanager
def _place() -> Iterator[Path]:
    """A directory that is short, as sockets need it, and open for the database's account."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-e2e-"))
    directory.chmod(0o711)  # as root the database runs as another account, which has to pass through
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
