"""The privileges of root in a sandbox: few capabilities, no new privileges, and a list of refused system calls.

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
from typing import Final

from mooring_agent.kernel import syscalls

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

# Refused for everybody: (x86_64, aarch64); None if the architecture has no such call.
REFUSED_CALLS: Final[dict[str, tuple[int | None, int | None]]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}

_MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_CLONE: Final = (56, 220)
_SOCKET: Final = (41, 198)
# Local, IPv4, IPv6, netlink and packet sockets (which need a capability). Other families, such as the hypervisor's,
# ignore namespaces and would bypass the sandbox's network.
SOCKET_FAMILIES: Final = (1, 2, 10, 16, 17)
_UNSHARE: Final = (272, 97)
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

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_CALL_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


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
    for numbers in REFUSED_CALLS.values():
        number = numbers[column]
        if number is not None:
            parts += [instruction(_EQUAL, number, 0, 1), instruction(_RETURN, refuse)]
    for number in (_CLONE[column], _UNSHARE[column]):
        parts += [
            instruction(_EQUAL, number, 0, 4),
            instruction(_LOAD, _FIRST_ARGUMENT),
            instruction(_ANY_BIT, _NEW_NAMESPACES, 0, 1),
            instruction(_RETURN, refuse),
            instruction(_RETURN, _ALLOW),
        ]
    families = [
        instruction(_EQUAL, family, len(SOCKET_FAMILIES) - index) for index, family in enumerate(SOCKET_FAMILIES)
    ]
    parts += [
        instruction(_EQUAL, _SOCKET[column], 0, len(families) + 3),
        instruction(_LOAD, _FIRST_ARGUMENT),
        *families,
        instruction(_RETURN, _REFUSE | errno.EAFNOSUPPORT),
        instruction(_RETURN, _ALLOW),
    ]
    parts.append(instruction(_RETURN, _ALLOW))
    return b"".join(parts)


def confine() -> None:
    """Drop, for this process and all that it starts, every privilege that a sandbox does not need."""
    mask = sum(1 << number for number in KEPT.values())
    for number in range(syscalls.last_capability() + 1):
        if not mask & 1 << number:
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
    syscalls.prctl(syscalls.PR_CAP_AMBIENT, syscalls.PR_CAP_AMBIENT_CLEAR_ALL)
    syscalls.set_capabilities(mask)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    program = filter_program(os.uname().machine)
    if program is not None:
        syscalls.install_filter(program)
