"""The few calls of the kernel that Python 3.11 does not have, for a process that may be pid 1."""

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWPID: Final = 0x20000000

MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_RDONLY: Final = 1
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_SLAVE: Final = 1 << 19

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

_CLOSE_RANGE: Final = 436  # the same number on every kind of machine
_CLOSE_RANGE_CLOEXEC: Final = 4

_libc: Final = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def hide_from_tracing() -> None:
    """Nobody without CAP_SYS_PTRACE over our beginnings may look into this process or use its descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Every descendant whose parent ends becomes a child of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No program that this process becomes gains anything by its file's bits."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(numbers: tuple[int, ...]) -> None:
    """What this process becomes by exec never holds these capabilities."""
    for number in numbers:
        _prctl(_PR_CAPBSET_DROP, number)
    if numbers:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def close_at_exec(first: int) -> None:
    """No descriptor from this one on is handed to the program that this process becomes."""
    last, flags = ctypes.c_uint(2**32 - 1), ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(_libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), last, flags), "close_range")


def last_capability() -> int:
    """The highest capability that this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; a new pid namespace is that of the children."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount a file system, or change a mount."""
    names = os.fsencode(source), os.fsencode(target)
    _check(_libc.mount(*names, kind.encode() or None, ctypes.c_ulong(flags), None), f"mount {target}")


def take_title(title: str) -> None:
    """Show this as the command line, and nothing of the machine's paths or environment.

    The kernel shows the memory in which the arguments and the environment were handed over, so they are written over in
    place.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    # arg_start to env_end are the fields 48 to 51 of proc(5); the split begins at field 3.
    arguments, arguments_end, environment, environment_end = (int(fields[number - 3]) for number in range(48, 52))
    if 0 < environment < environment_end:
        ctypes.memset(environment, 0, environment_end - environment)
    if 0 < arguments < arguments_end:
        room = arguments_end - arguments
        raw = title.encode()[: room - 1]
        ctypes.memset(arguments, 0, room)
        ctypes.memmove(arguments, raw, len(raw))
    name = ctypes.create_string_buffer(b"mooring-init")
    _check(_libc.prctl(ctypes.c_int(_PR_SET_NAME), name, 0, 0, 0), "prctl name")
