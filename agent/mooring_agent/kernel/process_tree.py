"""Which processes descend from which, as /proc shows it, and how to end them."""

import os
import signal
from collections.abc import Collection


def descendants(ancestor: int, spare: Collection[int] = ()) -> list[int]:
    """Every living process below this one, but for these and all below them; one that has ended and only waits to be
    reaped is not living.
    """
    children: dict[int, list[int]] = {}
    ended = set()
    for pid in processes():
        seen = _parent(pid)
        if seen is not None:
            parent, state = seen
            children.setdefault(parent, []).append(pid)
            if state in "ZX":
                ended.add(pid)
    found, pending = [], [ancestor]
    while pending:
        below = [pid for pid in children.pop(pending.pop(), []) if pid not in spare]
        pending += below
        found += [pid for pid in below if pid not in ended]
    return found


def processes() -> list[int]:
    """Every process that /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_marker(pid: int, marker: str) -> bool:
    """Whether the process was started with this `NAME=value` in its environment, as far as we may see it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marker.encode() in file.read(262_144).split(b"\0")
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return False


def is_in_session(pid: int, leader: int) -> bool:
    """Whether the process is in the session that this one leads."""
    try:
        return os.getsid(pid) == leader
    except (ProcessLookupError, PermissionError):
        return False


def send_signal(pids: Collection[int], number: signal.Signals) -> None:
    """To each of them; some may have ended meanwhile, or become somebody whom we may not signal."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_below(ancestor: int, spare: Collection[int] = ()) -> list[int]:
    """Kill what is below, again as long as new ones appear; what could not be ended in a few rounds is returned.

    Those to be spared keep what is below them, also what they start meanwhile.
    """
    left: list[int] = []
    for _ in range(20):
        left = descendants(ancestor, spare)
        if not left:
            break
        send_signal(left, signal.SIGKILL)
    return left


def _parent(pid: int) -> tuple[int, str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[1]), fields[0].decode()
