"""System calls that Python 3.11 lacks: namespaces, mounts, capabilities, keyrings, seccomp, bounded path look-up.

Only the standard library is used, because a sandbox's init runs without anything else. Every function raises `OSError`
with the name of the call, so that errors say what the machine refused.
"""

import ctypes
import errno
import os
import struct
from typing import Final

from mooring_agent.kernel import proc

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16384
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
MS_SHARED: Final = 1 << 20
MNT_DETACH: Final = 2

PR_SET_DUMPABLE: Final = 4
PR_SET_NAME: Final = 15
PR_CAPBSET_READ: Final = 23
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
PR_SET_SECCOMP: Final = 22
PR_SET_SECUREBITS: Final = 28
SECBIT_NO_SETUID_FIXUP: Final = 4
SECCOMP_MODE_FILTER: Final = 2
KEYCTL_JOIN_SESSION_KEYRING: Final = 1

RESOLVE_NO_MAGICLINKS: Final = 0x02
RESOLVE_NO_SYMLINKS: Final = 0x04
RESOLVE_IN_ROOT: Final = 0x10

# Calls without a wrapper in the C library, by architecture.
_NUMBERS: Final = {
    "x86_64": {"pivot_root": 155, "capset": 126, "keyctl": 250},
    "aarch64": {"pivot_root": 41, "capset": 91, "keyctl": 219},
}

_CLOSE_RANGE: Final = 436  # the same number on every architecture, like the next
_OPENAT2: Final = 437
_CLOSE_RANGE_CLOEXEC: Final = 4

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, call: str, subject: str = "") -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}", subject or None)
    return result


def _number(call: str) -> int:
    machine = os.uname().machine
    if machine not in _NUMBERS:
        raise OSError(errno.ENOSYS, f"{call}: unknown system call numbers for {machine}")
    return _NUMBERS[machine][call]


def unshare(flags: int) -> None:
    """Move this process to new namespaces; a new pid namespace applies to its children."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Join a namespace; only the calling thread does."""
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system, or change a mount."""
    _check(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode() or None,
            ctypes.c_ulong(flags),
            data.encode() or None,
        ),
        "mount",
        target,
    )


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(flags)), "umount", target)


def bind(source: str, target: str, flags: int = 0, recursive: bool = False) -> None:
    """Bind-mount a directory or file, with flags of its own such as read-only."""
    mount(source, target, "", MS_BIND | (MS_REC if recursive else 0))
    if flags:
        mount("none", target, "", MS_BIND | MS_REMOUNT | flags)


def pivot_root(new: str, old: str) -> None:
    """Replace the root of this mount namespace."""
    call = ctypes.c_long(_number("pivot_root"))
    _check(_libc.syscall(call, os.fsencode(new), os.fsencode(old)), "pivot_root", new)


def sethostname(name: str) -> None:
    """Set the host name of this uts namespace."""
    raw = name.encode()
    _check(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "sethostname")


def prctl(option: int, *arguments: int) -> int:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def last_capability() -> int:
    """The highest capability that this kernel supports."""
    for number in range(63, -1, -1):
        try:
            prctl(PR_CAPBSET_READ, number)
        except OSError:
            continue
        return number
    raise OSError(errno.ENOSYS, "prctl: this kernel has no capability bounding set")


def set_capabilities(mask: int) -> None:
    """Set the effective and permitted capabilities; none are inheritable."""
    header = struct.pack("=Ii", 0x20080522, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    call = ctypes.c_long(_number("capset"))
    _check(_libc.syscall(call, ctypes.create_string_buffer(header), ctypes.create_string_buffer(data)), "capset")


def new_session_keyring() -> None:
    """Leave the inherited session keyring, if the kernel has keyrings."""
    call = ctypes.c_long(_number("keyctl"))
    if _libc.syscall(call, ctypes.c_int(KEYCTL_JOIN_SESSION_KEYRING), None) < 0 and ctypes.get_errno() != errno.ENOSYS:
        _check(-1, "keyctl")


def open_below(directory: int, path: str, flags: int, mode: int = 0, follow: bool = False) -> int:
    """Open a path below a directory and never outside it; symbolic links are refused unless `follow` is set."""
    resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | (0 if follow else RESOLVE_NO_SYMLINKS)
    how = ctypes.create_string_buffer(struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve))
    result = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(directory), os.fsencode(path), how, ctypes.c_size_t(24)
    )
    return _check(result, "openat2", path)


def install_filter(program: bytes) -> None:
    """Install a classic BPF program as the seccomp filter of this process and of all that it starts."""
    length = len(program) // 8
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", length, ctypes.addressof(buffer)))
    _check(
        _libc.prctl(
            ctypes.c_int(PR_SET_SECCOMP),
            ctypes.c_ulong(SECCOMP_MODE_FILTER),
            ctypes.c_void_p(ctypes.addressof(header)),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        ),
        "seccomp",
    )


def hide_from_tracing() -> None:
    """Forbid everybody without CAP_SYS_PTRACE to trace this process or use its descriptors."""
    prctl(PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the subreaper: every descendant whose parent ends becomes a child of this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """Let no program that this process executes gain privileges by its file's mode bits."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities(numbers: tuple[int, ...]) -> None:
    """Drop these capabilities from the bounding set: no program executed from here has them."""
    for number in numbers:
        prctl(PR_CAPBSET_DROP, number)
    if numbers:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def close_at_exec(first: int) -> None:
    """Close all descriptors from this one on at the next exec."""
    last, flags = ctypes.c_uint(2**32 - 1), ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(_libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(first), last, flags), "close_range")


def take_title(title: str) -> None:
    """Show this as the command line, and nothing of the machine's paths or environment.

    The kernel shows the memory in which arguments and environment were passed, so they are overwritten in place.
    """
    arguments, arguments_end, environment, environment_end = proc.own_memory_layout()
    if 0 < environment < environment_end:
        ctypes.memset(environment, 0, environment_end - environment)
    if 0 < arguments < arguments_end:
        room = arguments_end - arguments
        raw = title.encode()[: room - 1]
        ctypes.memset(arguments, 0, room)
        ctypes.memmove(arguments, raw, len(raw))
    name = ctypes.create_string_buffer(title.partition(" ")[0].encode()[:15])
    _check(_libc.prctl(ctypes.c_int(PR_SET_NAME), name, 0, 0, 0), "prctl name")
