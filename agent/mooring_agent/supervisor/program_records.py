"""The records of an owner's programs, in one small file that outlives every process.

A start is recorded before it happens, so that after a crash at any point a key is never started twice. The file is
replaced atomically and not flushed: it must outlive processes, and a machine that loses power loses all of them. It
never contains arguments, environments or secrets.
"""

import contextlib
import fcntl
import json
import os
import time
from typing import Any, Final

from mooring_agent.kernel import hostile_files

PROGRAMS_MAX: Final = 2000
_FILE: Final = "programs.json"
_POLL_SECONDS: Final = 0.02
_NEW: Final = "programs.json.new"

Entry = dict[str, Any]


def load(directory: int) -> dict[str, Entry]:
    """The programs of an owner whose processes are all gone; what was running counts as lost."""
    try:
        file = hostile_files.open_regular(directory, _FILE)
    except FileNotFoundError:
        return {}
    with os.fdopen(file, encoding="utf-8") as stream:
        entries: dict[str, Entry] = json.load(stream)
    for entry in entries.values():
        if entry["state"] in ("starting", "running", "backing_off"):
            entry |= {"state": "ended" if entry["kind"] == "run" else "failed", "reason": "lost", "pid": None}
    return entries


def save(directory: int, entries: dict[str, Entry]) -> None:
    file = hostile_files.open_regular(directory, _NEW, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        json.dump(entries, stream, separators=(",", ":"))
    os.rename(_NEW, _FILE, src_dir_fd=directory, dst_dir_fd=directory)


def open_directory(parent: int, name: str) -> int:
    """Open a directory below another, created if missing, readable only by us."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def lock(directory: int, seconds: float) -> None:
    """Become the only process that keeps records here, waiting for one that is just ending."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)


def directory_of(label: str) -> str:
    """The name of an owner's directory: of the allocation itself, or of a label within it."""
    return f"label-{label}" if label else "allocation"
