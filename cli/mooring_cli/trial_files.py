"""The files of a trial: the mark that `mooring up --try` made a platform, its credentials, and the lock of its `up`.

They are in one directory that only its owner can enter, each with mode 0600, and are removed with it.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click

LOCK_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What a trial must know after a crash: whom it made, with which passwords, and which contexts are its own."""

    admin_password: str
    user_password: str
    context: str
    node_host: str
    context_before: str | None = None
    made_by: str = "mooring up --try"

    @property
    def admin_context(self) -> str:
        return f"{self.context}-admin"


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The directory of a trial."""

    directory: Path

    @property
    def mark(self) -> Path:
        return self.directory / "trial.json"

    @property
    def code(self) -> Path:
        """The one-time code of the first admin, between the first start and its use."""
        return self.directory / "code"

    @property
    def log(self) -> Path:
        return self.directory / "up.log"

    @property
    def lock(self) -> Path:
        return self.directory / "lock"

    def begin(self, context: str, context_before: str | None, node_host: str) -> TrialRecord:
        """Mark the platform as a trial before it exists; the record of an interrupted start is used again."""
        found = self.read()
        if found is not None:
            return found
        made = TrialRecord(secrets.token_urlsafe(24), secrets.token_urlsafe(24), context, node_host, context_before)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self.mark.with_suffix(".new")
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(made), file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        new.rename(self.mark)
        return made

    def read(self) -> TrialRecord | None:
        """The record; None where `--try` made nothing."""
        try:
            return TrialRecord(**json.loads(self.mark.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise click.ClickException(f"{self.mark} cannot be read: {error}") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the trial's `up`; one that was killed has released it."""
        with open(os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise click.ClickException(f"Mooring is running already (process {file.read().strip()})") from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def holder(self) -> int | None:
        """The process of the running `up`, if there is one."""
        if not self.lock.exists() or is_free(self.lock):
            return None
        with suppress(OSError, ValueError):
            return int(self.lock.read_text(encoding="ascii"))
        return None


def is_free(lock: Path) -> bool:
    """Whether nobody holds the lock in this file."""
    try:
        with lock.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def wait_until_free(*locks: Path) -> bool:
    """Wait for programs of an earlier start that was killed; they end by themselves. False if they do not."""
    until = time.monotonic() + LOCK_SECONDS_MAX
    while not all(map(is_free, locks)):
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_SECONDS)
    return True
