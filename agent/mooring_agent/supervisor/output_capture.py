"""The captured standard output of one run, up to the requested size.

It is a file beside the run's log, so that a later reader, even another agent than the one that started the run, reads
the same. Its name says whether it is complete: the file is renamed as soon as something is left out, because of the
limit or a full disk.
"""

import contextlib
import os
from typing import Final

from mooring_agent.kernel import hostile_files

OUTPUT_MAX_BYTES: Final = 65_536
_WHOLE: Final = "stdout"
_CUT: Final = "stdout.cut"


class OutputCapture:
    """Keeps the beginning of what is written to it; takes over the descriptor of the directory."""

    def __init__(self, directory: int, limit_bytes: int) -> None:
        self._directory = directory
        self._room = limit_bytes
        self._file = hostile_files.open_regular(directory, _WHOLE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, data: bytes) -> None:
        """Append as much as fits; the program is never blocked by it."""
        if self._file < 0:
            return
        kept = data[: self._room]
        try:
            written = os.write(self._file, kept) if kept else 0
        except OSError:
            written = 0
        self._room -= written
        if written < len(data):
            with contextlib.suppress(OSError):  # a disk that is too full even for a name must not end the supervisor
                os.rename(_WHOLE, _CUT, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            os.close(self._directory)
            self._file = -1


def read_capture(path: str) -> tuple[bytes, bool] | None:
    """The capture in a run's directory, and whether it was truncated; none if no capture was requested."""
    try:
        directory = hostile_files.open_directory(path)
    except FileNotFoundError:
        return None
    try:
        for name, cut in ((_WHOLE, False), (_CUT, True)):
            try:
                file = hostile_files.open_regular(directory, name)
            except FileNotFoundError:
                continue
            with os.fdopen(file, "rb") as stream:
                return stream.read(OUTPUT_MAX_BYTES), cut
    finally:
        os.close(directory)
    return None
