"""The user that a program runs as, by the sandbox's own /etc/passwd.

The tenant controls these files. They are opened without following a link, only a regular file of bounded size is read,
and lines that do not parse are skipped.
"""

import os
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

FILE_MAX_BYTES: Final = 1_048_576
GROUPS_MAX: Final = 1024
HOME_MAX: Final = 4096
NAME_MAX: Final = 256
_ID_MAX: Final = 2**32 - 2


class UnknownUserError(Exception):
    """The sandbox has no user of this name."""


class SandboxUser(NamedTuple):
    """What a process needs to switch to a user."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


class Accounts(NamedTuple):
    """The lines of the sandbox's /etc/passwd and /etc/group."""

    users: list[str]
    groups: list[str]


def read_accounts(open_file: Callable[[str], int]) -> Accounts:
    """Read both files, which `open_file` opens by their names; one that cannot be read counts as empty."""
    users, groups = (_lines(open_file, name) for name in ("passwd", "group"))
    return Accounts(users, groups)


def find_user(spelled: str, accounts: Accounts) -> SandboxUser:
    """Look up a user by name, by number, or as `uid:gid`; a number need not be in any file."""
    uid, _, gid = spelled.partition(":")
    for fields in (line.split(":") for line in accounts.users):
        if len(fields) >= 6 and (fields[0] == uid or fields[2] == uid) and _is_id(fields[2]) and _is_id(fields[3]):
            number, group = int(fields[2]), int(gid) if _is_id(gid) else int(fields[3])
            groups = _groups_of(fields[0], accounts.groups)
            # A home that no environment could hold is left out; the program starts all the same.
            home = fields[5] if 0 < len(fields[5]) <= HOME_MAX and "\0" not in fields[5] else "/"
            return SandboxUser(
                fields[0].replace("\0", "")[:NAME_MAX], number, group, tuple(sorted({group, *groups})), home
            )
    if _is_id(uid):
        group = int(gid) if _is_id(gid) else int(uid)
        return SandboxUser(uid, int(uid), group, (group,), "/")
    raise UnknownUserError(f"no user {spelled!r} in the sandbox")


def _groups_of(name: str, groups: list[str]) -> list[int]:
    fields = (line.split(":") for line in groups)
    found = [int(each[2]) for each in fields if len(each) >= 4 and _is_id(each[2]) and name in each[3].split(",")]
    return found[:GROUPS_MAX]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _ID_MAX


def _lines(open_file: Callable[[str], int], name: str) -> list[str]:
    try:
        descriptor = open_file(name)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return os.pread(descriptor, FILE_MAX_BYTES, 0).decode("utf-8", "replace").splitlines()
    finally:
        os.close(descriptor)
