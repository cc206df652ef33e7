"""Reading parts of logs: of a service's segments, and of the file that a container's monitor writes.

A part is bounded, begins where the previous one ended, and never crosses a gap: a reader continues from `next_offset`
and learns from `truncated_before` that something in between no longer exists.

A container's log is one file with entries `<time> <stream> <F or P> <text>`: F ends a line, P does not. Offsets count
bytes of that file, so an offset may lie within an entry. When the file is full, the monitor replaces it by an empty
one; `log` identifies the file that an offset counts in.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Final

from mooring_agent.hosts.contract import LogPart, LogRequest
from mooring_agent.kernel import hostile_files
from mooring_agent.supervisor.segmented_log import read_span

ENTRY_MAX: Final = 65_536
"""Longer than any entry that a container's monitor writes."""
HEAD: Final = re.compile(rb"[^ \n]{1,64} (?:stdout|stderr) ([FP])(?: |$)")
RAW_RATIO: Final = 8
"""How much of a container's file is read for one byte of text: an entry has about 45 bytes of overhead."""


def read_service_log(path: str, request: LogRequest) -> LogPart | None:
    """A part of a service's log; none if there is no such log."""
    span = read_span(path, request.offset, request.max_bytes)
    if span is None:
        return None
    start_offset, data = span.offset, span.data
    if request.offset is None:
        tail = last_lines(data, request.tail_lines, start_offset > 0)
        start_offset, data = start_offset + len(data) - len(tail), tail
        return LogPart(data, start_offset, start_offset + len(data), span.size)
    data = trim_partial_character(data) or data
    dropped = max(0, start_offset - request.offset)
    return LogPart(data, start_offset, start_offset + len(data), span.size, dropped > 0, dropped or None)


def read_container_log(path: str, request: LogRequest) -> LogPart | None:
    """A part of a container's log; none if there is no such log."""
    try:
        directory = hostile_files.open_directory(os.path.dirname(path))
    except FileNotFoundError:
        return None
    try:
        file = hostile_files.open_regular(directory, os.path.basename(path))
    except FileNotFoundError:
        return None
    finally:
        os.close(directory)
    try:
        size, log = os.fstat(file).st_size, _identity(file)
        if request.offset is None:
            return _container_tail(file, size, log, request)
        replaced = request.offset > size or bool(request.log and log and request.log != log)
        start_offset = 0 if replaced else request.offset
        content, position = b"", start_offset
        for start, text, end in _entries(
            file, start_offset, min(size, start_offset + RAW_RATIO * request.max_bytes + ENTRY_MAX)
        ):
            room = request.max_bytes - len(content)
            if len(text) > room:
                fitting = (
                    trim_partial_character(text[:room])
                    if content
                    else trim_partial_character(text[:room]) or text[:room]
                )
                content, position = content + fitting, start + len(fitting)
                break
            content, position = content + text, end
        return LogPart(content, start_offset, position, size, replaced, None, log)
    finally:
        os.close(file)


def _container_tail(file: int, size: int, log: str, request: LogRequest) -> LogPart:
    start_offset = max(0, size - RAW_RATIO * request.max_bytes - ENTRY_MAX)
    entries = list(_entries(file, start_offset, size))
    content = b"".join(text for _, text, _ in entries)[-request.max_bytes :]
    whole = sum(len(text) for _, text, _ in entries)
    tail = last_lines(content, request.tail_lines, start_offset > 0 or whole > len(content))
    ahead = whole - len(tail)  # how much text of the entries comes before the returned tail
    position = entries[-1][2] if entries else size
    first = position
    for start, text, end in entries:
        if ahead < len(text):
            first = start + ahead
            break
        ahead -= len(text)
        first = end
    return LogPart(tail, first, position, size, log=log)


def _entries(file: int, start_offset: int, end: int) -> Iterator[tuple[int, bytes, int]]:
    """The entries from this byte of the file on, as (offset of the text, text, offset of the next entry).

    An entry that is still being written is left for the next read.
    """
    back = max(0, start_offset - ENTRY_MAX)
    before = os.pread(file, start_offset - back, back)
    line_begin = back + before.rfind(b"\n") + 1 if b"\n" in before or back == 0 else start_offset
    raw = os.pread(file, max(0, end - line_begin), line_begin)
    position = 0
    while (stop := raw.find(b"\n", position)) >= 0:
        header = HEAD.match(raw, position, stop)
        start = position if header is None else header.end()
        ends_line = header is None or header.group(1) == b"F"
        text = raw[start:stop] + (b"\n" if ends_line else b"")
        skipped = max(0, start_offset - line_begin - start)
        if skipped <= len(text):
            yield line_begin + start + skipped, text[skipped:], line_begin + stop + 1
        position = stop + 1


def _identity(file: int) -> str:
    """Identifies this file among its successors: its inode and the time of its first entry."""
    first = os.pread(file, 128, 0).partition(b" ")[0]
    identity = f"{os.fstat(file).st_ino} ".encode() + first
    return hashlib.sha256(identity).hexdigest()[:16] if first else ""


def last_lines(data: bytes, count: int, is_cut: bool) -> bytes:
    """The last lines; a first line that was cut is left out if another one follows."""
    if is_cut:
        _, found, rest = data.partition(b"\n")
        data = rest if found and rest else data
    position = len(data)
    if data.endswith(b"\n"):
        position -= 1
    for _ in range(count):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return data
    return data[position + 1 :]


def trim_partial_character(data: bytes) -> bytes:
    """The bytes without a UTF-8 character that is cut off at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue  # inside a character
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return data[:-back] if size > back else data
    return data
