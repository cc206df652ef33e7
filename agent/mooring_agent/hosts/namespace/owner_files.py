"""Files written into a sandbox for an owner, and removed with it."""

import errno
import os
import stat
from collections.abc import Sequence

from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import FileSpec, HostFailure, Owner, Peer
from mooring_agent.hosts.namespace import init_process, root_filesystem
from mooring_agent.hosts.namespace.sandbox_records import (
    UIDS,
    InitProcess,
    SandboxRecord,
    SandboxStore,
    sandbox_owner,
)
from mooring_agent.kernel import syscalls
from mooring_agent.supervisor.users import SandboxUser, UnknownUserError, find_user, read_accounts

TOTAL_MAX_BYTES = 64 * 1_048_576


def open_root(init: InitProcess) -> int:
    """Open the sandbox's root through its own mounts, so that what is read-only there is read-only for us too."""
    return os.open(f"/proc/{init.pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def write(store: SandboxStore, record: SandboxRecord, owner: Owner, files: Sequence[FileSpec]) -> int:
    """Write all files, or refuse before the first one if any is not acceptable; returns how many."""
    if len(files) > safe_paths.FILES_MAX or sum(len(each.content) for each in files) > TOTAL_MAX_BYTES:
        raise HostFailure("too_large", f"at most {safe_paths.FILES_MAX} files and {TOTAL_MAX_BYTES} bytes at once")
    paths = [safe_paths.parse_path(each.path) for each in files]
    for each in files:
        safe_paths.check_file(each.content, each.mode)
    init = init_process.find_living(store, sandbox_owner(owner.allocation_id))
    if init is None:
        raise HostFailure("not_found", f"the sandbox of {owner.allocation_id} is not running")
    root = open_root(init)
    try:
        users = {each.user: _user(root, each.user) for each in files}
        for each, parts in zip(files, paths, strict=True):
            made = safe_paths.missing_directories(root, parts)
            store.add_files(owner, ["/" + "/".join(path) for path in (*made, parts)])
            user, first_uid = users[each.user], record.first_uid or 0
            file_owner = safe_paths.FileOwner(first_uid + user.uid, first_uid + user.gid)
            _write_one(root, each, parts, file_owner)
            for path in (*made, parts) if each.directory else made:
                _give_directory(root, "/".join(path), file_owner)
    finally:
        os.close(root)
    return len(files)


def _write_one(root: int, file: FileSpec, parts: safe_paths.PathParts, owner: safe_paths.FileOwner) -> None:
    try:
        if file.directory:
            safe_paths.make_directory(root, parts, file.mode)
        else:
            safe_paths.write_file(root, parts, file.content, file.mode, owner)
    except OSError as problem:
        # For example below /usr, /proc or /sys, which belong to the machine.
        code = "capacity" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else "permission_denied"
        raise HostFailure(code, f"{file.path}: {problem.strerror}") from problem


def _user(root: int, name: str) -> SandboxUser:
    """Look up a user in the sandbox's own accounts, which its tenant may change."""
    try:
        directory = syscalls.open_below(root, "etc", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as problem:
        raise HostFailure("path_refused", "the sandbox's /etc is not a directory") from problem
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        user = find_user(name, read_accounts(lambda file: syscalls.open_below(directory, file, flags)))
    except UnknownUserError as problem:
        raise HostFailure("not_found", str(problem)) from problem
    finally:
        os.close(directory)
    if user.uid >= UIDS or user.gid >= UIDS:
        raise HostFailure("permission_denied", f"the user {name} is outside the sandbox's uid range")
    return user


def _give_directory(root: int, path: str, owner: safe_paths.FileOwner) -> None:
    """Give a directory that was just made to its user. What was put in its place can only be another directory of the
    sandbox's: those have no second name elsewhere."""
    try:
        directory = syscalls.open_below(root, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as problem:
        raise HostFailure("path_refused", f"/{path} was replaced while it was written") from problem
    try:
        os.fchown(directory, owner.uid, owner.gid)
    finally:
        os.close(directory)


def remaining(store: SandboxStore, owner: Owner) -> tuple[list[str], int]:
    """Which of an owner's files still exist, and how many were checked; those that others use by now do not count."""
    names = store.load_files(owner)
    init = init_process.find_living(store, sandbox_owner(owner.allocation_id))
    if init is None or not names:
        return [], len(names)
    others = _of_others(store, owner)
    root = open_root(init)
    try:
        own = [name for name in names if not _is_used(name, others)]
        return [name for name in own if safe_paths.exists(root, safe_paths.parse_path(name))], len(names)
    finally:
        os.close(root)


def remove(store: SandboxStore, owner: Owner) -> None:
    """Remove an owner's files; a directory that others use by now stays."""
    names = store.load_files(owner)
    init = init_process.find_living(store, sandbox_owner(owner.allocation_id))
    if init is None or not names:
        return
    others = _of_others(store, owner)
    root = open_root(init)
    try:
        # Deepest first, so that directories are empty when their turn comes.
        for name in sorted(names, key=lambda each: each.count("/"), reverse=True):
            parts = safe_paths.parse_path(name)
            if not _is_used(name, others):
                safe_paths.remove(root, parts)
    finally:
        os.close(root)


def _of_others(store: SandboxStore, owner: Owner) -> set[str]:
    """Paths that were written for other owners."""
    owners = [each for each in store.owners(owner.allocation_id) if each != owner]
    return {name for each in owners for name in store.load_files(each)}


def _is_used(name: str, others: set[str]) -> bool:
    return any(other == name or other.startswith(f"{name}/") for other in others)


def write_hosts(record: SandboxRecord, init: InitProcess, peers: Sequence[Peer]) -> None:
    """Rewrite /etc/hosts in place, so that everybody who has it open or mounted sees the new names."""
    root = open_root(init)
    try:
        descriptor = syscalls.open_below(root, "etc/hosts", os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as problem:
        os.close(root)
        raise HostFailure("path_refused", "the sandbox's /etc/hosts is not a regular file") from problem
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > 1 << 20:
            raise HostFailure("path_refused", "the sandbox's /etc/hosts is not a regular file, or too long")
        current = os.pread(descriptor, 1 << 20, 0).decode(errors="replace")
        text = root_filesystem.hosts_file(current, record.spec, peers).encode()
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))
    finally:
        os.close(descriptor)
        os.close(root)
