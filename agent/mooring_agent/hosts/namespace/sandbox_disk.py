"""What bounds a sandbox's files: a disk of its own, which is a sparse file with a file system in it.

Everything that a sandbox writes outside of memory goes there, so whoever fills it fills his own and nobody else's: he
is told that there is no space left, and the agent and the other sandboxes go on. The file is as large as what was
written, never larger than its bound, and what is removed in it is given back. It is mounted only in the sandbox's own
view, by the program that makes the sandbox: the machine's view has no mount, and the loop device ends with the view.

It has no journal: after a crash of the machine a sandbox does not stand again, and is removed.
Bounds are not reserved: all together may be more than the machine's disk has.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import HostFailure

DISK_BYTES: Final = 32 << 30
DISK_BYTES_MIN: Final = 16 << 20
OPTIONS: Final = "loop,nodev,nosuid,noatime,discard,noinit_itable"
SECONDS: Final = 60.0
_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin:/sbin:/bin"
_TRIED_BYTES: Final = 4 << 20


def find_program(name: str) -> str:
    """Where a program is; empty where it is not there."""
    return shutil.which(name, path=_PATH) or ""


@cache
def unavailable_reason() -> str:
    """Why this machine can give no sandbox a disk of its own; empty if it can, which is tried once."""
    if missing := [name for name in ("mkfs.ext4", "mount", "cp", "unshare") if not find_program(name)]:
        return f"{' and '.join(missing)} cannot be found"
    if not os.path.exists("/dev/loop-control"):
        return "this machine has no loop devices"
    with tempfile.TemporaryDirectory(prefix="mooring-disk-") as directory:
        try:
            create(Path(directory, "disk"), _TRIED_BYTES)
        except HostFailure as failure:
            return str(failure)
        target = Path(directory, "there")
        target.mkdir()
        words = [
            find_program("unshare"),
            "--mount",
            find_program("mount"),
            "-o",
            OPTIONS,
            f"{directory}/disk",
            str(target),
        ]
        done = _run(words)
    return "" if done.returncode == 0 else f"this machine mounts no files: {_last(done.stderr)}"


def create(image: Path, size: int) -> None:
    """Make it anew, empty."""
    image.unlink(missing_ok=True)
    descriptor = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(descriptor, size)
    finally:
        os.close(descriptor)
    words = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard", str(image)]
    done = _run([find_program("mkfs.ext4"), *words])
    if done.returncode != 0:
        image.unlink(missing_ok=True)
        raise HostFailure("host_error", f"mkfs.ext4: {_last(done.stderr)}")


def describe(size: int) -> str:
    """The bound, as the facts of a sandbox say it."""
    return f"a disk of its own of {size} bytes"


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": _PATH, "LC_ALL": "C"}
    try:
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
            env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise HostFailure("timed_out", f"{words[0]} took more than {SECONDS:.0f} s") from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it did not say why"
