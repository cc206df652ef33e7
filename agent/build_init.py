"""Builds `mooring-init`, the one program of the agent's that runs inside sandboxes, from its C source.

`make set-up` and the wheel's build call this. It needs a C compiler with a static C library; Debian's packages for that
are `gcc` and `libc6-dev`. Standard library only.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent / "mooring_agent" / "sandbox_init"
PROGRAM = DIRECTORY / "mooring-init"
SOURCES = tuple(sorted(DIRECTORY.glob("*.c")))
HEADERS = tuple(sorted(DIRECTORY.glob("*.h")))
FLAGS = (
    "-std=gnu11",
    "-Os",
    "-static-pie",
    "-fPIE",
    "-fstack-protector-strong",
    "-D_FORTIFY_SOURCE=2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,-z,relro,-z,now,-z,noexecstack",
    "-s",
)


class CannotBuild(Exception):
    """There is no compiler, or it failed; the message says what to do."""


def is_current() -> bool:
    """Whether the program is there and newer than its sources."""
    newest = max(each.stat().st_mtime_ns for each in (*SOURCES, *HEADERS, Path(__file__)))
    return PROGRAM.exists() and PROGRAM.stat().st_mtime_ns >= newest


def build() -> Path:
    """Build the program unless it is current; it is moved into place when complete."""
    if is_current():
        return PROGRAM
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        raise CannotBuild("there is no C compiler: apt-get install gcc libc6-dev")
    with tempfile.TemporaryDirectory(dir=DIRECTORY, prefix=".build-") as directory:
        made = Path(directory) / PROGRAM.name
        command = [compiler, *FLAGS, "-o", str(made), *map(str, SOURCES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBuild(f"{' '.join(command)} failed (is libc6-dev installed?):\n{done.stderr[-4000:]}")
        made.replace(PROGRAM)
    return PROGRAM


if __name__ == "__main__":
    try:
        build()
    except CannotBuild as problem:
        sys.exit(f"mooring-init cannot be built: {problem}")
