"""The account that PostgreSQL runs as, how its programs are started, and how running ones are recognized.

PostgreSQL refuses to run as root, so a supervisor that is root uses an existing account: the owner of the data if there
is data, otherwise `postgres`, otherwise `nobody`. For an ordinary user the server runs as that user.

A running server is recognized by its `cluster_name`, which is in the command line of the postmaster and in the process
titles of all its children, together with the owner of the process. That needs no permission to trace processes (which
root in a container often lacks), is not fooled by a reused process id, and finds the orphans that a killed postmaster
leaves behind.
"""

import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mooring.embedded.errors import EmbeddedPostgresError, StartFailed

LAUNCHER = Path(__file__).with_name("launcher.py")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "LC_ALL": "C", "TZ": "UTC"}
"""The whole environment of a PostgreSQL program: the caller's PGDATA, PGPORT or LD_LIBRARY_PATH must not reach it."""
UNPRIVILEGED_ACCOUNTS = ("postgres", "nobody")


@dataclass(frozen=True)
class SystemAccount:
    """An operating system account that owns the data and runs the server."""

    name: str
    uid: int
    gid: int

    @property
    def is_own(self) -> bool:
        """Whether the supervisor itself runs as this account, so that no file changes its owner."""
        return self.uid == os.geteuid()


def own_account() -> SystemAccount:
    """The account of this process; peer authentication needs its name, not only its uid."""
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedPostgresError(
            f"uid {uid} has no account name on this machine, which the embedded database needs to know its user; "
            "add one to /etc/passwd, or set MOORING_DATABASE_URL to a server of your own"
        ) from None
    return SystemAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)


def account_for(cluster: Path) -> SystemAccount:
    """The account to run the server of this cluster as."""
    own = own_account()
    if own.uid != 0:
        return own
    if cluster.exists() and (owner := cluster.stat().st_uid) != 0:
        try:
            entry = pwd.getpwuid(owner)
        except KeyError:
            raise EmbeddedPostgresError(
                f"{cluster} belongs to uid {owner}, which has no account on this machine"
            ) from None
        return SystemAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)
    for name in UNPRIVILEGED_ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return SystemAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and this machine has neither an account 'postgres' nor 'nobody'"
    )


@dataclass(frozen=True)
class ProgramLaunch:
    """One PostgreSQL program to start: its account, its directory, and the signal it gets when its supervisor dies."""

    account: SystemAccount
    directory: Path
    program: Path
    arguments: Sequence[str]
    death_signal: signal.Signals = signal.SIGTERM

    def command(self) -> list[str]:
        numbers = (self.account.uid, self.account.gid, os.getpid(), int(self.death_signal))
        interpreter = [sys.executable, "-I", "-S", str(LAUNCHER)]
        return [*interpreter, *map(str, numbers), str(self.directory), str(self.program), *self.arguments]

    def run(self, *, timeout_seconds: float, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end and return its output."""
        try:
            return subprocess.run(
                self.command(),
                input=stdin,
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_seconds,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise StartFailed(f"{self.program} did not finish within {timeout_seconds:.0f} s") from None

    def spawn(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start it in its own session, so that a Ctrl-C for the supervisor does not reach it."""
        return subprocess.Popen(
            self.command(),
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def running_pids(cluster_name: str, account: SystemAccount) -> list[int]:
    """The ids of all processes of this cluster: the postmaster, its children, and orphans of an old one."""
    title = f"postgres: {cluster_name}:".encode()
    argument = f"cluster_name={cluster_name}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid != account.uid:
                continue
            command = Path(entry.path, "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if command.startswith(title) or argument in command.split(b"\0"):
            found.append(int(entry.name))
    return found


def wait_until_gone(cluster_name: str, account: SystemAccount, *, timeout_seconds: float) -> list[int]:
    """Wait for every process of the cluster to end; returns those that are left after the time-out."""
    deadline = time.monotonic() + timeout_seconds
    while (remaining := running_pids(cluster_name, account)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return remaining


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each; processes that have ended meanwhile are ignored."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
