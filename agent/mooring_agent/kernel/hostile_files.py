"""Opening files that somebody hostile may have put there: below a sandbox's root, a volume, or a log directory.

Every component of the path is looked up without following a link, an open never waits (a FIFO would), and only a
regular file is accepted. Modes and owners are changed by descriptor alone: a path may mean another file by then.
Standard library only.
"""

import contextlib
import errno
import os
import stat

from mooring_agent.kernel import syscalls

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


def open_regular(directory: int, path: str, flags: int = READ, mode: int = 0) -> int:
    """Open a regular file below a directory; raises `OSError` if it is a link, or anything else."""
    file = syscalls.open_below(directory, path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, mode)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return file


def open_directory(path: str | os.PathLike[str]) -> int:
    """Open a directory of our own, by a path whose last component may not be a link."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def set_mode(descriptor: int, mode: int) -> None:
    """Change the mode of what a descriptor refers to, also of one that was opened only as a path."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)


def make_private(directory: str | os.PathLike[str]) -> None:
    """Let only its owner enter a directory of our own."""
    place = open_directory(directory)
    try:
        os.fchmod(place, 0o700)
    finally:
        os.close(place)


def link_read_only(source: str | os.PathLike[str], directory: int, name: str) -> None:
    """Hard-link a file of our own into a hostile directory, readable by everybody, in place of what is there.

    The mode is set on our own file before it appears there.
    """
    file = os.open(source, READ | os.O_CLOEXEC)
    try:
        os.fchmod(file, 0o444)
        temporary = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        os.link(source, temporary, dst_dir_fd=directory, follow_symlinks=False)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(file)
