"""The disk limit of a sandbox: a sparse file with a file system in it.

Everything a sandbox writes outside memory goes there. A tenant who fills it gets "no space left", and the agent and
other sandboxes are not affected. The file grows with what is written, never beyond its limit, and shrinks when files
are deleted. It is mounted only in the sandbox's own mount namespace, by the program that spawns the sandbox: the
machine's namespace has no mount, and the loop device ends with the sandbox.

The file system has no journal: after a crash of the machine a sandbox is not recovered, but removed. Limits are not
reserved: together they may exceed the machine's disk.
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
    """The path of a program, or empty."""
    return shutil.which(name, path=_PATH) or ""


@cache
def unavailable_reason() -> str:
    """Why this machine cannot give sandboxes a disk of their own; empty if it can, which is tried once."""
    if missing := [name for name in ("mkfs.ext4", "mount", "cp", "unshare") if not find_program(name)]:
        return f"missing programs: {', '.join(missing)}"
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
    return "" if done.returncode == 0 else f"this machine cannot mount a file: {_last(done.stderr)}"


def create(image: Path, size: int) -> None:
    """Create an empty disk, replacing an existing one."""
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
    """The limit, in the facts of a sandbox."""
    return f"a disk of its own of {size} bytes"


def _run(words: list[str]) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": _PATH, "LC_ALL": "C"}
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise HostFailure("timed_out", f"{words[0]} took more than {SECONDS:.0f} s") from error


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:200] if lines else "it gave no reason"
