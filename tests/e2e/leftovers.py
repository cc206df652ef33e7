"""Finds processes, mounts and loop devices that a test left on the machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support.waiting import until_sync

Seen = TypeVar("Seen")
SECONDS_MAX = 240.0


def eventually(look: Callable[[], Seen], is_so: Callable[[Seen], object], said: Callable[[], str] = str) -> Seen:
    """Poll until the condition holds; a timeout prints the last value and the logs."""
    seen: list[Seen] = []

    def holds() -> object:
        seen[:] = [look()]
        return is_so(seen[0])

    until_sync(holds, SECONDS_MAX, what=lambda: f"{seen[0]}\n{said()}\n")
    return seen[0]


def wait_for_no_leftovers(directory: Path) -> None:
    """Wait until nothing is left: orphaned processes take a moment to end by themselves."""
    eventually(lambda: leftovers_of(directory), lambda left: left == [])


def leftovers_of(directory: Path) -> list[str]:
    """Processes that were started with, work in, or have mounted something below this directory."""
    needles = [os.fsencode(directory), *loop_devices_of(directory)]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            seen = [(process / "cmdline").read_bytes(), (process / "mountinfo").read_bytes()]
            seen.append(os.fsencode(os.readlink(process / "cwd")))
        except OSError:
            continue  # it has ended meanwhile, or belongs to another account
        if any(needle in each for needle in needles for each in seen):
            found.append(f"{process.name} {seen[0].decode(errors='replace')}")
    return found


def loop_devices_of(directory: Path) -> list[bytes]:
    """The devices, as mounts name them, whose content is a file below this directory."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            if str(directory) in backing.read_text():
                found.append(f" /dev/{backing.parent.parent.name} ".encode())
        except OSError:
            continue  # it was removed meanwhile
    return found
