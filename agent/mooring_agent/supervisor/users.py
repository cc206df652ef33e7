"""The user that a program runs as, by the sandbox's own /etc/passwd.

The files are read here and not by the C library, which would load libraries of the sandbox into its init. The tenant
controls their content, so only a regular file of bounded size is read, and lines that do not parse are skipped.
"""

import os
import stat
from typing import Final, NamedTuple

FILE_MAX_BYTES: Final = 1_048_576
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


def find_user(spelled: str, directory: str = "/etc") -> SandboxUser:
    """Look up a user by name, by number, or as `uid:gid`; a number need not be in any file."""
    uid, _, gid = spelled.partition(":")
    accounts = [line.split(":") for line in _lines(f"{directory}/passwd")]
    for fields in accounts:
        if len(fields) >= 6 and (fields[0] == uid or fields[2] == uid) and _is_id(fields[2]) and _is_id(fields[3]):
            number, group = int(fields[2]), int(gid) if _is_id(gid) else int(fields[3])
            groups = _groups_of(fields[0], directory)
            return SandboxUser(fields[0], number, group, tuple(sorted({group, *groups})), fields[5] or "/")
    if _is_id(uid):
        group = int(gid) if _is_id(gid) else int(uid)
        return SandboxUser(uid, int(uid), group, (group,), "/")
    raise UnknownUserError(f"no user {spelled!r} in the sandbox")


def _groups_of(name: str, directory: str) -> list[int]:
    fields = (line.split(":") for line in _lines(f"{directory}/group"))
    return [int(each[2]) for each in fields if len(each) >= 4 and _is_id(each[2]) and name in each[3].split(",")]


def _is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _ID_MAX


def _lines(path: str) -> list[str]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        return os.pread(descriptor, FILE_MAX_BYTES, 0).decode("utf-8", "replace").splitlines()
    finally:
        os.close(descriptor)
