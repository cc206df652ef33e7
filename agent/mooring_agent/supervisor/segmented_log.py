"""The output of one program, in files of bounded size that can be read from an offset.

A log is a directory of segments named by the offset at which they begin. The first ones, up to `HEAD_BYTES`, are kept
for ever, so a reader from the start gets an unbroken beginning; of the rest the newest are kept. Where bytes in between
were dropped, a reader gets a line that says so.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mooring_agent.kernel import hostile_files
from mooring_agent.supervisor.log_room import LogRoom

SEGMENT_BYTES: Final = 1_048_576
HEAD_BYTES: Final = 8 * SEGMENT_BYTES
TAIL_SEGMENTS: Final = 4
PIECE_BYTES: Final = 65_536
_NAME_DIGITS: Final = 20


class LogWriter:
    """Writes one log; a second writer of the same directory continues at its end."""

    def __init__(
        self,
        directory: int,
        segment_bytes: int = SEGMENT_BYTES,
        head_bytes: int = HEAD_BYTES,
        room: LogRoom | None = None,
    ) -> None:
        self._directory = directory
        self._room = room
        self._segment_bytes = segment_bytes
        self._head_bytes = head_bytes
        self._segments = sorted(_segments(directory))
        self._file = -1
        self._filled = 0
        self.offset = 0
        self.dropped = 0
        if self._segments:
            last = self._segments[-1]
            self._file = hostile_files.open_regular(directory, _name(last), os.O_WRONLY | os.O_APPEND)
            self._filled = os.fstat(self._file).st_size
            self.offset = last + self._filled

    def write(self, data: bytes) -> None:
        """Append to the log. Without room output is lost, but neither the program nor its supervisor fails."""
        while data:
            try:
                if self._file < 0 or self._filled >= self._segment_bytes:
                    self._next()
                written = self._append(data[: self._segment_bytes - self._filled])
            except OSError:
                self.dropped += len(data)
                return
            self._filled += written
            self.offset += written
            data = data[written:]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        os.close(self._directory)

    def _append(self, data: bytes) -> int:
        if self._room is None:
            return os.write(self._file, data)
        if not self._room.claim(len(data)):
            raise OSError(errno.EDQUOT, "the logs of this owner have reached their limit")
        written = 0
        try:
            written = os.write(self._file, data)
        finally:
            self._room.release(len(data) - written)
        return written

    def _next(self) -> None:
        if self._room is not None and not self._room.has_reserve():
            raise OSError(errno.ENOSPC, "logs must leave the disk's reserve free")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        file = hostile_files.open_regular(self._directory, _name(self.offset), flags, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._filled = file, 0
        self._segments.append(self.offset)
        tail = [start for start in self._segments if start >= self._head_bytes]
        for start in tail[:-TAIL_SEGMENTS]:
            size = os.lstat(_name(start), dir_fd=self._directory).st_size
            os.unlink(_name(start), dir_fd=self._directory)
            self._segments.remove(start)
            if self._room is not None:
                self._room.release(size)


def size_of(directory: int) -> int:
    """How many bytes of a log are kept."""
    return sum(os.lstat(_name(start), dir_fd=directory).st_size for start in _segments(directory))


def remove_segments(directory: int) -> int:
    """Remove everything that is kept of a log that nobody writes; returns how many bytes that were."""
    size = size_of(directory)
    for start in _segments(directory):
        os.unlink(_name(start), dir_fd=directory)
    return size


def read_log(path: str, offset: int) -> Iterator[bytes]:
    """The bytes from this offset to the current end; nothing if there is no such log."""
    try:
        directory = hostile_files.open_directory(path)
    except FileNotFoundError:
        return
    try:
        while (found := _open_at(directory, offset)) is not None:
            start, file = found
            try:
                if start > offset:
                    yield f"\n[{start - offset} bytes were dropped here]\n".encode()
                    offset = start
                while piece := os.pread(file, PIECE_BYTES, offset - start):
                    yield piece
                    offset += len(piece)
            finally:
                os.close(file)
    finally:
        os.close(directory)


@dataclass(frozen=True, slots=True)
class LogSpan:
    """A part of a log without a gap: its offset, its content, and the current size of the whole log."""

    offset: int
    data: bytes
    size: int


def read_span(path: str, offset: int | None, limit_bytes: int) -> LogSpan | None:
    """What follows an offset, up to the next gap; without an offset, the end of the log. None if there is no log.

    If bytes were dropped, the part begins after the requested offset.
    """
    try:
        directory = hostile_files.open_directory(path)
    except FileNotFoundError:
        return None
    try:
        size = _end(directory)
        begin = place = max(0, size - limit_bytes) if offset is None else min(offset, size)
        data = b""
        while len(data) < limit_bytes and (found := _open_at(directory, place)) is not None:
            start, file = found
            try:
                if start > place and data:
                    break
                if start > place:
                    begin = place = start
                piece = os.pread(file, limit_bytes - len(data), place - start)
            finally:
                os.close(file)
            data += piece
            place += len(piece)
        return LogSpan(begin, data, max(size, place))
    finally:
        os.close(directory)


def last_lines(path: str, count: int, limit_bytes: int = PIECE_BYTES) -> tuple[str, ...]:
    """The newest lines, from a bounded number of bytes."""
    try:
        directory = hostile_files.open_directory(path)
    except FileNotFoundError:
        return ()
    try:
        end = _end(directory)
    finally:
        os.close(directory)
    tail = b"".join(read_log(path, max(0, end - limit_bytes)))
    return tuple(tail[-limit_bytes:].decode("utf-8", "replace").splitlines()[-count:])


def _end(directory: int) -> int:
    """The current end of the log."""
    starts = sorted(_segments(directory))
    return sum(starts[-1:] + [os.lstat(_name(start), dir_fd=directory).st_size for start in starts[-1:]])


def _open_at(directory: int, offset: int) -> tuple[int, int] | None:
    """The segment that contains this offset or, if it was dropped, the next one, as (start, open file)."""
    for start in sorted(_segments(directory)):
        try:
            file = hostile_files.open_regular(directory, _name(start))
        except OSError:
            continue  # just dropped, or not a file that the supervisor made
        if offset < start + os.fstat(file).st_size:
            return start, file
        os.close(file)
    return None


def _segments(directory: int) -> list[int]:
    return [int(name) for name in os.listdir(directory) if len(name) == _NAME_DIGITS and name.isdigit()]


def _name(start: int) -> str:
    return f"{start:0{_NAME_DIGITS}d}"
