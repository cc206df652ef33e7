"""What one run wrote to its standard output, up to the size that was asked for.

It is a file beside the run's log, so that whoever asks later, even another agent than the one that started the run,
reads the same. Its name says whether it is whole: from the moment that something is left out, because it is over the
size or because the disk is full, the file has the other name.
"""

import contextlib
import os
from typing import Final

OUTPUT_MAX_BYTES: Final = 65_536
_WHOLE: Final = "stdout"
_CUT: Final = "stdout.cut"


class OutputCapture:
    """Keeps the beginning of what is written to it; the descriptor of the directory is its own from now on."""

    def __init__(self, directory: int, limit_bytes: int) -> None:
        self._directory = directory
        self._room = limit_bytes
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(_WHOLE, flags, 0o600, dir_fd=directory)

    def write(self, data: bytes) -> None:
        """Add what there is room for; the program is never held up by it."""
        if self._file < 0:
            return
        kept = data[: self._room]
        try:
            written = os.write(self._file, kept) if kept else 0
        except OSError:
            written = 0
        self._room -= written
        if written < len(data):
            with contextlib.suppress(OSError):  # a disk that takes no name either must not end the supervisor
                os.rename(_WHOLE, _CUT, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self.close()

    def close(self) -> None:
        """Nothing more is kept."""
        if self._file >= 0:
            os.close(self._file)
            os.close(self._directory)
            self._file = -1


def read_capture(path: str) -> tuple[bytes, bool] | None:
    """What was kept in a run's directory, and whether something was left out; none where nothing was asked for."""
    for name, cut in ((_WHOLE, False), (_CUT, True)):
        try:
            file = os.open(f"{path}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with os.fdopen(file, "rb") as stream:
            return stream.read(OUTPUT_MAX_BYTES), cut
    return None
