"""Which processes descend from which, and how to kill all of them."""

import os
import signal
from collections.abc import Collection, Mapping

from mooring_agent.kernel import proc


def descendants(ancestor: int, spare: Collection[int] = ()) -> list[int]:
    """Every living process below this one, except the spared ones and everything below those."""
    table = proc.processes()
    children = _children(table)
    found, pending = [], [ancestor]
    while pending:
        below = [pid for pid in children.pop(pending.pop(), []) if pid not in spare]
        pending += below
        found += [pid for pid in below if not table[pid].ended]
    return found


def subtree(table: Mapping[int, proc.Process], ancestors: Collection[int]) -> set[int]:
    """These processes and all that descend from them, in a process table that was read before."""
    children = _children(table)
    found: set[int] = set()
    pending = [pid for pid in ancestors if pid in table]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, [])
    return found


def is_in_session(pid: int, leader: int) -> bool:
    """Whether the process is in the session that this leader started."""
    try:
        return os.getsid(pid) == leader
    except (ProcessLookupError, PermissionError):
        return False


def send_signal(pids: Collection[int], number: int) -> None:
    """Signal each of them, passing over those that have ended or that this process may not signal."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_below(ancestor: int, spare: Collection[int] = ()) -> list[int]:
    """Kill what is below, repeating while new processes appear; returns what is left after a few rounds.

    Spared processes keep what is below them, including what they start meanwhile.
    """
    left: list[int] = []
    for _ in range(20):
        left = descendants(ancestor, spare)
        if not left:
            break
        send_signal(left, signal.SIGKILL)
    return left


def _children(table: Mapping[int, proc.Process]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    return children
