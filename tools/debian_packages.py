"""Installs Debian packages that a part of the project needs, without letting any daemon run because of it.

Only as root, and only after saying which. A package that brings a daemon would start and enable it: a
policy-rc.d that refuses every start stands while apt works and is removed again, also after a failure or an
interruption; what was newly enabled for the next boot is disabled. A policy-rc.d that somebody else put there
is not touched; if it would allow a start, nothing is installed.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

POLICY = Path("/usr/sbin/policy-rc.d")
MARK = "# put here by mooring's set-up while it installs packages"
REFUSE_STARTS = f"#!/bin/sh\n{MARK}\nexit 101\n"
START_REFUSED = 101
ENABLED_PATTERNS = ("systemd/system/*.wants/*", "systemd/system/*.requires/*", "rc[2-5].d/S*")
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class PackagesMissing(Exception):
    """Packages are needed and are not installed; the message says what to do."""


def missing(names: Sequence[str]) -> list[str]:
    """Those of the packages that are not installed."""
    query = ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *names]
    answer = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    installed = {line.split()[0] for line in answer.splitlines() if line.endswith(" installed")}
    return [name for name in names if name not in installed]


@contextmanager
def no_daemon_starts(policy: Path = POLICY) -> Iterator[None]:
    """Have starts of daemons refused for a while, whatever happens meanwhile."""
    if policy.exists() and MARK in policy.read_text(encoding="utf-8", errors="replace"):
        policy.unlink()  # ours, left by a set-up that was killed
    if policy.exists():
        if subprocess.run([policy, "anything", "start"], capture_output=True, check=False).returncode != START_REFUSED:
            raise PackagesMissing(f"{policy} is somebody else's and allows daemons to start; nothing was installed")
        yield
        return
    previous = {number: signal.signal(number, _leave) for number in ENDING_SIGNALS}
    try:
        with open(os.open(policy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o755), "w", encoding="utf-8") as file:
            file.write(REFUSE_STARTS)
        yield
    finally:
        policy.unlink(missing_ok=True)
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exit that passes through every `finally`."""
    sys.exit(128 + number)


@contextmanager
def nothing_is_enabled(etc: Path = Path("/etc")) -> Iterator[None]:
    """Remove the links that would start a newly installed daemon at the next boot."""
    before = set(_enabled(etc))
    try:
        yield
    finally:
        for link in _enabled(etc):
            if link not in before:
                print(f"not enabled: {link.name}", file=sys.stderr)
                link.unlink()


def _enabled(etc: Path) -> Iterator[Path]:
    for pattern in ENABLED_PATTERNS:
        yield from (path for path in etc.glob(pattern) if path.is_symlink())


def install(names: Sequence[str]) -> None:
    """Have these packages; raises PackagesMissing where they cannot be installed."""
    wanted = missing(names) if shutil.which("dpkg-query") else list(names)
    if not wanted:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise PackagesMissing(
            f"these Debian packages are needed, ask root for them: apt-get install {' '.join(wanted)}"
        )
    print(f"installing Debian packages: {' '.join(wanted)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with no_daemon_starts(), nothing_is_enabled():
        for command in (
            ["apt-get", "update", "--quiet=2"],
            ["apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", *wanted],
        ):
            if subprocess.run(command, env=environment, check=False).returncode != 0:
                raise PackagesMissing(f"`{' '.join(command)}` failed")


def main() -> int:
    try:
        install(sys.argv[1:])
    except PackagesMissing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
