"""What of a test is still on the machine: every test that starts programs of its own asks this at its end."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Seen = TypeVar("Seen")
SECONDS_MAX = 240.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LONGER = 0.05, 1.0, 1.2


def pauses() -> Iterator[float]:
    """How long to wait between one look and the next, for ever: who waits for long looks rarely, since a look costs
    the machine time that what is waited for needs.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(pause * LONGER, LONGEST_PAUSE_SECONDS)


def eventually(look: Callable[[], Seen], is_so: Callable[[Seen], object], said: Callable[[], str] = str) -> Seen:
    """What is looked at once it is so; a failure tells how it stands instead, and what was said meanwhile."""
    until = time.monotonic() + SECONDS_MAX
    pause = pauses()
    while not is_so(seen := look()):
        assert time.monotonic() < until, f"{seen}\n{said()}"
        time.sleep(next(pause))
    return seen


def leaves_no_trace(directory: Path) -> None:
    """Wait until nothing of it is left: what lost its parent takes a moment to end by itself."""
    eventually(lambda: traces_of(directory), lambda left: left == [])


def traces_of(directory: Path) -> list[str]:
    """Processes that were started with, work in, or have mounted something below this directory."""
    needles = [os.fsencode(directory), *disks_of(directory)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            seen = [(process / "cmdline").read_bytes(), (process / "mountinfo").read_bytes()]
            seen.append(os.fsencode(os.readlink(process / "cwd")))
        except OSError:
            continue  # it has ended meanwhile, or is another account's
        if any(needle in each for needle in needles for each in seen):
            found.append(f"{process.name} {seen[0].decode(errors='replace')}")
    return found


def disks_of(directory: Path) -> list[bytes]:
    """The devices, as mounts name them, whose content is a file below this directory."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if str(directory) in backing.read_text():
                found.append(f" /dev/{backing.parent.parent.name} ".encode())
        except OSError:
            continue  # it was taken away meanwhile
    return found
