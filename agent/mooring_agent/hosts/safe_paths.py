"""Files below a directory that somebody else may change at the same time.

A path is parsed first and refused if anything about it is unusual. Then it is walked one directory at a time from the
root's descriptor, never through a link: a link that a tenant plants between two steps is refused, not followed. A file
is written under a temporary name and then renamed: a rename replaces a link, a pipe or a hard link and never writes
into it.
"""

import contextlib
import errno
import os
import secrets
import stat
import unicodedata
from typing import Final, NamedTuple

from mooring_agent.hosts.contract import HostFailure
from mooring_agent.kernel import hostile_files

PATH_MAX_BYTES: Final = 1024
PART_MAX_BYTES: Final = 255
DEPTH_MAX: Final = 32
FILE_MAX_BYTES: Final = 16 * 1_048_576
FILES_MAX: Final = 1000
MODE_MAX: Final = 0o777

PathParts = tuple[str, ...]


class FileOwner(NamedTuple):
    """Numbers of the machine's; -1 leaves a file to the user who wrote it."""

    uid: int
    gid: int


KEEP_OWNER: Final = FileOwner(-1, -1)

_ODD_CATEGORIES: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY: Final = ".mooring-"


def parse_path(path: str) -> PathParts:
    """The components of a path below the root; refused if it is not plain."""
    parts = tuple(path.removeprefix("/").split("/"))
    if "\ufffd" in path or any(unicodedata.category(letter) in _ODD_CATEGORIES for letter in path):
        raise HostFailure("path_refused", "the path contains invisible or unassigned characters")
    if not unicodedata.is_normalized("NFC", path):
        raise HostFailure("path_refused", "the path is not in Unicode normalization form C")
    if any(part in ("", ".", "..") or part.startswith(_TEMPORARY) for part in parts):
        raise HostFailure("path_refused", "the path contains an empty, '.', '..' or reserved component")
    long = len(path.encode()) > PATH_MAX_BYTES or any(len(part.encode()) > PART_MAX_BYTES for part in parts)
    if long or len(parts) > DEPTH_MAX:
        raise HostFailure("path_refused", "the path is too long or too deep")
    return parts


def check_file(content: bytes, mode: int) -> None:
    """Refuse a file that is too large, or whose mode would give it somebody else's rights."""
    if len(content) > FILE_MAX_BYTES:
        raise HostFailure("too_large", f"a file may have at most {FILE_MAX_BYTES} bytes")
    if not 0 <= mode <= MODE_MAX:
        raise HostFailure("permission_denied", "a mode must be 0 to 0777: no set-user, set-group or sticky bit")


def missing_directories(root: int, parts: PathParts) -> list[PathParts]:
    """The missing directories above this path, topmost first."""
    current = os.dup(root)
    try:
        for depth, part in enumerate(parts[:-1], start=1):
            try:
                child = _descend(current, part)
            except FileNotFoundError:
                return [parts[:length] for length in range(depth, len(parts))]
            os.close(current)
            current = child
        return []
    finally:
        os.close(current)


def write_file(root: int, parts: PathParts, content: bytes, mode: int, owner: FileOwner = KEEP_OWNER) -> None:
    """Write a file atomically, creating the directories above it.

    It has its owner and mode before it has its name: what is there a moment later may be somebody else's file.
    """
    parent = _open_parent(root, parts)
    temporary = _TEMPORARY + secrets.token_hex(8)
    try:
        _check_replaceable(parent, parts[-1])
        file = os.open(temporary, _NEW_FILE, 0o600, dir_fd=parent)
        try:
            with os.fdopen(file, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fchown(file, owner.uid, owner.gid)
                os.fchmod(file, mode)
            os.rename(temporary, parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        except OSError as error:
            os.unlink(temporary, dir_fd=parent)
            raise _host_failure(error) from error
    finally:
        os.close(parent)


def make_directory(root: int, parts: PathParts, mode: int) -> None:
    """Create a directory, or set the mode of an existing one."""
    parent = _open_parent(root, parts)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(parts[-1], mode, dir_fd=parent)
        handle = _descend(parent, parts[-1])
        try:
            os.fchmod(handle, mode)
        finally:
            os.close(handle)
    except OSError as error:
        raise _host_failure(error) from error
    finally:
        os.close(parent)


def exists(root: int, parts: PathParts) -> bool:
    """Whether anything exists at this path; links are not followed."""
    try:
        parent = _walk(root, parts[:-1])
    except (FileNotFoundError, HostFailure):
        return False
    try:
        os.lstat(parts[-1], dir_fd=parent)
    except FileNotFoundError:
        return False
    finally:
        os.close(parent)
    return True


def remove(root: int, parts: PathParts) -> int:
    """Remove what is there, a directory with its contents; returns how many entries were removed."""
    try:
        parent = _walk(root, parts[:-1])
    except (FileNotFoundError, HostFailure):
        return 0
    try:
        return remove_entry(parent, parts[-1])
    finally:
        os.close(parent)


def remove_empty(root: int, parts: PathParts) -> bool:
    """Remove a directory if it is empty; returns whether it was removed."""
    try:
        parent = _walk(root, parts[:-1])
    except (FileNotFoundError, HostFailure):
        return False
    try:
        os.rmdir(parts[-1], dir_fd=parent)
    except OSError:
        return False
    finally:
        os.close(parent)
    return True


def remove_entry(parent: int, name: str) -> int:
    """Remove one entry of a directory and everything below it, with a bounded number of descriptors however deep it is.

    A directory found inside a directory is moved up beside it and removed later.
    """
    removed, pending = 0, [name]
    while pending:
        current = pending.pop()
        try:
            status = os.lstat(current, dir_fd=parent)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(current, dir_fd=parent)
        else:
            handle = _open_for_removal(parent, current)
            try:
                for entry in os.listdir(handle):
                    if stat.S_ISDIR(os.lstat(entry, dir_fd=handle).st_mode):
                        pending.append(_move_up(handle, entry, parent))
                    else:
                        os.unlink(entry, dir_fd=handle)
                        removed += 1
            finally:
                os.close(handle)
            os.rmdir(current, dir_fd=parent)
        removed += 1
    return removed


def _move_up(handle: int, entry: str, parent: int) -> str:
    os.close(_open_for_removal(handle, entry))
    moved_name = _TEMPORARY + secrets.token_hex(8)
    os.rename(entry, moved_name, src_dir_fd=handle, dst_dir_fd=parent)
    return moved_name


def _open_for_removal(parent: int, name: str) -> int:
    """Open a directory whose mode may deny us access."""
    handle = os.open(name, _PLACE, dir_fd=parent)
    try:
        hostile_files.set_mode(handle, 0o700)
        return os.open(".", _DIRECTORY, dir_fd=handle)
    finally:
        os.close(handle)


def _check_replaceable(parent: int, name: str) -> None:
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise HostFailure("path_refused", f"{name} exists and is not a regular file")


def _open_parent(root: int, parts: PathParts) -> int:
    """Open the directory above, creating what is missing."""
    current = os.dup(root)
    try:
        for part in parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            child = _descend(current, part)
            os.close(current)
            current = child
    except OSError as error:
        os.close(current)
        raise _host_failure(error) from error
    except HostFailure:
        os.close(current)
        raise
    return current


def _walk(root: int, parts: PathParts) -> int:
    current = os.dup(root)
    try:
        for part in parts:
            child = _descend(current, part)
            os.close(current)
            current = child
    except (OSError, HostFailure):
        os.close(current)
        raise
    return current


def _descend(current: int, part: str) -> int:
    """Open a directory one level down; a link is not followed."""
    try:
        return os.open(part, _DIRECTORY, dir_fd=current)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise HostFailure("path_refused", f"{part} is not a directory, or is a link") from None
        raise


def _host_failure(error: OSError) -> HostFailure:
    codes = {errno.EACCES: "permission_denied", errno.EPERM: "permission_denied", errno.EROFS: "permission_denied"}
    codes |= {errno.ENOSPC: "capacity", errno.EDQUOT: "capacity", errno.EISDIR: "path_refused"}
    return HostFailure(codes.get(error.errno or 0, "host_error"), error.strerror or str(error))
