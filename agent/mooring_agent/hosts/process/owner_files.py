"""Which owner wrote which file of a sandbox, and how files are removed.

The table is saved before a file is written, so that a crash leaves no file without an owner. A directory belongs to the
owner it was first created for, with everything programs put into it; if another owner has files in it, it passes to
that owner.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Final

from mooring_agent.hosts import safe_paths
from mooring_agent.hosts.contract import FileSpec, HostFailure
from mooring_agent.hosts.process.sandbox_directory import SandboxDirectory, replace_json

OWNED_MAX: Final = 20_000


class OwnedFiles:
    """The files of one sandbox."""

    def __init__(self, sandbox: SandboxDirectory) -> None:
        self._sandbox = sandbox
        self._table = sandbox.directory / "files.json"

    def write(self, label: str, files: Sequence[FileSpec]) -> int:
        """Write all files, or refuse before the first one if any is not allowed; returns how many."""
        if len(files) > safe_paths.FILES_MAX:
            raise HostFailure("too_large", f"at most {safe_paths.FILES_MAX} files can be written at once")
        wanted = [(safe_paths.parse_path(_plain(each)), each) for each in files]
        for _, file in wanted:
            safe_paths.check_file(file.content, file.mode)
        with self._open_root() as root:
            owners = self._read()
            for parts, file in wanted:
                self._claim(root, owners, label=label, parts=parts, file=file)
            if len(owners) > OWNED_MAX:
                raise HostFailure("capacity", f"a sandbox can have at most {OWNED_MAX} files written by tasks")
            replace_json(self._table, owners)
            for parts, file in wanted:
                if file.directory:
                    safe_paths.make_directory(root, parts, file.mode)
                else:
                    safe_paths.write_file(root, parts, file.content, file.mode)
        return len(wanted)

    def of(self, label: str) -> tuple[str, ...]:
        """The existing paths that belong to this owner only."""
        with self._open_root() as root:
            owners = self._read()
            heirs = _heirs(owners, label)
            mine = sorted(path for path, owner in owners.items() if owner == label and path not in heirs)
            return tuple(path for path in mine if safe_paths.exists(root, _parts(path)))

    def remove(self, label: str) -> int:
        """Remove an owner's files, and its directories unless another owner has files in them; returns how many
        entries.
        """
        removed = 0
        with self._open_root() as root:
            owners = self._read()
            heirs = _heirs(owners, label)
            mine = sorted((path for path, owner in owners.items() if owner == label), key=len, reverse=True)
            for path in mine:
                if path in heirs:
                    owners[path] = heirs[path]
                else:
                    removed += safe_paths.remove(root, _parts(path))
                    del owners[path]
            replace_json(self._table, owners)
        return removed

    def _claim(
        self, root: int, owners: dict[str, str], *, label: str, parts: safe_paths.PathParts, file: FileSpec
    ) -> None:
        """Enter one file and the directories that it needs into the table."""
        path = "/".join(parts)
        holder = owners.get(path, label)
        if holder != label and not file.directory:
            raise HostFailure("path_refused", f"{file.path} belongs to another owner of the sandbox")
        for above in safe_paths.missing_directories(root, parts):
            owners.setdefault("/".join(above), label)
        if not (file.directory and safe_paths.exists(root, parts)):
            owners.setdefault(path, label)

    def _read(self) -> dict[str, str]:
        try:
            owners: dict[str, str] = json.loads(self._table.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return owners

    @contextmanager
    def _open_root(self) -> Iterator[int]:
        try:
            root = os.open(self._sandbox.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise HostFailure("not_found", "the sandbox has no root directory") from None
        try:
            yield root
        finally:
            os.close(root)


def _heirs(owners: dict[str, str], label: str) -> dict[str, str]:
    """The directories that contain files of other owners, and whose."""
    others = [(path, owner) for path, owner in owners.items() if owner != label]
    return {above: owner for path, owner in others for above in accumulate(_parts(path)[:-1], "{}/{}".format)}


def _plain(file: FileSpec) -> str:
    """The path without the trailing slash that a directory may have."""
    return file.path.removesuffix("/") if file.directory else file.path


def _parts(path: str) -> safe_paths.PathParts:
    return tuple(path.split("/"))
