"""`mooring up --try` as a process for end-to-end tests, with a home directory of its own."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.leftovers import SECONDS_MAX, leftovers_of
from tests.e2e.ordinary_user import as_user
from tests.e2e.test_up import pump
from tools.ports import free_port


@dataclass
class TrialProcess:
    """A trial in a directory, started as often as a test likes."""

    directory: Path
    port: int = field(default_factory=free_port)
    relay_port: int = field(default_factory=free_port)
    account: str = ""  # an ordinary user; otherwise the one of the test
    command_prefix: tuple[str, ...] = ()  # what runs every command elsewhere, such as in a network namespace
    variables: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[str] | None" = None
    lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)

    @property
    def data(self) -> Path:
        return self.directory / "x"

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOORING_", "XDG_"))}
        own = {"HOME": str(self.directory / "home"), "MOORING_RELAY_LISTEN_PORT": str(self.relay_port)}
        return {**kept, **own, **self.variables}

    def _command(self, *words: str) -> list[str]:
        command = [*self.command_prefix, sys.executable, "-m", "mooring_cli", *words]
        return as_user(self.account, command) if self.account else command

    def start(self, wanted: str, *words: str) -> str:
        """Start it and wait for a line like this; without a terminal the server's log is in its output."""
        self.process = subprocess.Popen(
            self._command("up", "--try", "--data-dir", str(self.data), "--port", str(self.port), *words),
            env=self.environment,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = queue.Queue()
        threading.Thread(target=pump, args=(self.process, self.lines), daemon=True).start()
        said: list[str] = []
        until = time.monotonic() + SECONDS_MAX
        while (line := self.lines.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            said.append(line)
            if re.search(wanted, line):
                return "".join(said)
        raise AssertionError(f"it ended without {wanted!r}: {''.join(said)[-3000:]}")

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(timeout=SECONDS_MAX)
        self.process = None
        return code

    def mooring(self, *words: str, fails: bool = False) -> str:
        """Run a command as the newcomer, and return all of its output."""
        done = subprocess.run(
            self._command(*words),
            env=self.environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr


@contextmanager
def trial_directory(account: str = "", command_prefix: tuple[str, ...] = ()) -> Iterator[TrialProcess]:
    """A trial in a directory with a short path, as sockets need it, that the database's account can enter."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-try-"))
    directory.chmod(0o711)
    (directory / "home").mkdir()
    if account:
        shutil.chown(directory, account)
        shutil.chown(directory / "home", account)
    trial = TrialProcess(directory, account=account, command_prefix=command_prefix)
    try:
        yield trial
    finally:
        if trial.process is not None:
            trial.end(signal.SIGTERM)
        if trial.data.exists():
            trial.mooring("try", "remove", "--data-dir", str(trial.data), "--yes")
        assert leftovers_of(directory) == []
        shutil.rmtree(directory)
