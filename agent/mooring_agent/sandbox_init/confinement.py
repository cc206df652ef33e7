"""The privileges of root in a sandbox: few capabilities, no new privileges, and a list of allowed system calls.

The same applies with and without a user namespace. A sandbox's init confines itself before it starts anything, so no
process in a sandbox, not even its pid 1, ever has a capability over the machine, mounts or namespaces. It keeps what
ordinary daemons need to change owners and users and to bind low ports. Dropped on purpose, besides the obvious ones:
NET_ADMIN and NET_RAW (the network is set up from outside; `ping` works without), DAC_READ_SEARCH (opens files by
handle, beyond any root), SYS_TIME, SYSLOG, BPF, PERFMON, SYS_NICE and SYS_RESOURCE (they affect the machine's other
users).
"""

import errno
import os
import struct
from collections.abc import Collection, Iterator
from typing import Final

from mooring_agent.kernel import syscalls
from mooring_agent.sandbox_init import system_calls

KEPT: Final = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
    "AUDIT_WRITE": 29,
    "SETFCAP": 31,
}

_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE: Final = (56, 220)
_SOCKET: Final = (41, 198)
# Local, IPv4, IPv6, netlink and packet sockets (which need a capability). Other families, such as the hypervisor's,
# ignore namespaces and would bypass the sandbox's network.
SOCKET_FAMILIES: Final = (1, 2, 10, 16, 17)
_UNSHARE: Final = (272, 97)
_PERSONALITY: Final = (135, 92)
PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)
"""Plain Linux, with what `setarch` and debuggers ask for; the others switch on old system calls."""
# By a lease, the owner of a file makes others wait for 45 seconds when they open or execute it. The root of a bounded
# sandbox owns what it sees of the machine, such as /usr/bin.
_FCNTL: Final = (72, 25)
_F_SETLEASE: Final = 1024
_IOCTL: Final = (16, 29)
TERMINAL_REQUESTS: Final = (0x5412, 0x541C, 0x541D, 0x5423)
"""Requests to a terminal: type into it (TIOCSTI), control the machine's consoles (TIOCLINUX, TIOCCONS), and have
another part of the kernel read it (TIOCSETD, which loads modules that few have reviewed)."""
_CLONE3: Final = 435
_X32: Final = 0x40000000
_NEW_NAMESPACES: Final = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
)

_LOAD, _EQUAL, _ABOVE, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_CALL_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24


def filter_program(machine: str) -> bytes | None:
    """The seccomp program for this architecture; none if its system call numbers are unknown."""
    if machine not in _MACHINES:
        return None
    column, architecture = _MACHINES[machine]

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    refuse, absent = _REFUSE | errno.EPERM, _REFUSE | errno.ENOSYS
    parts = [
        instruction(_LOAD, _ARCHITECTURE),
        instruction(_EQUAL, architecture, 1, 0),
        instruction(_RETURN, absent),
        instruction(_LOAD, _CALL_NUMBER),
        # The x32 system call table of x86_64 would bypass the list.
        instruction(_AT_LEAST, _X32, 0, 1),
        instruction(_RETURN, absent),
        # Its flags are in memory, where no filter sees them; the C library falls back to clone.
        instruction(_EQUAL, _CLONE3, 0, 1),
        instruction(_RETURN, absent),
    ]
    for number in (_CLONE[column], _UNSHARE[column]):
        parts += [
            instruction(_EQUAL, number, 0, 4),
            instruction(_LOAD, _FIRST_ARGUMENT),
            instruction(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
            instruction(_RETURN, refuse),
            instruction(_RETURN, _ALLOW),
        ]
    for call, refused_values in ((_FCNTL[column], (_F_SETLEASE,)), (_IOCTL[column], TERMINAL_REQUESTS)):
        values = [instruction(_EQUAL, value, len(refused_values) - index) for index, value in enumerate(refused_values)]
        parts += [
            instruction(_EQUAL, call, 0, len(values) + 3),
            instruction(_LOAD, _SECOND_ARGUMENT),
            *values,
            instruction(_RETURN, _ALLOW),
            instruction(_RETURN, refuse),
        ]
    for call, allowed, otherwise in (
        (_SOCKET[column], SOCKET_FAMILIES, _REFUSE | errno.EAFNOSUPPORT),
        (_PERSONALITY[column], PERSONALITIES, refuse),
    ):
        values = [instruction(_EQUAL, value, len(allowed) - index) for index, value in enumerate(allowed)]
        parts += [
            instruction(_EQUAL, call, 0, len(values) + 3),
            instruction(_LOAD, _FIRST_ARGUMENT),
            *values,
            instruction(_RETURN, otherwise),
            instruction(_RETURN, _ALLOW),
        ]
    # The kernel works out once which numbers always lead to "allow", so these comparisons cost nothing per call.
    for first, last in _ranges([each[column] for each in system_calls.ALLOWED.values()]):
        parts += [
            instruction(_AT_LEAST, first, 0, 2),
            instruction(_ABOVE, last, 1, 0),
            instruction(_RETURN, _ALLOW),
        ]
    refused = (numbers[column] for numbers in system_calls.REFUSED.values())
    for number in (each for each in refused if each is not None):
        parts += [instruction(_EQUAL, number, 0, 1), instruction(_RETURN, refuse)]
    parts.append(instruction(_RETURN, absent))
    return b"".join(parts)


def _ranges(numbers: list[int | None]) -> Iterator[tuple[int, int]]:
    """The runs of consecutive numbers, as (first, last)."""
    ordered = sorted(number for number in numbers if number is not None)
    ends = [number for number in ordered if number + 1 not in ordered]
    begins = [number for number in ordered if number - 1 not in ordered]
    yield from zip(begins, ends, strict=True)


def kept_mask(names: Collection[str] = tuple(KEPT)) -> int:
    """These capabilities as the kernel counts them."""
    return sum(1 << KEPT[name] for name in names)


def confine(kept: Collection[str] = tuple(KEPT)) -> None:
    """Drop, for this process and all that it starts, every capability but these, and filter its system calls."""
    mask = kept_mask(kept)
    for number in range(syscalls.last_capability() + 1):
        if not mask & 1 << number:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(mask)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    program = filter_program(os.uname().machine)
    if program is not None:
        syscalls.install_filter(program)
