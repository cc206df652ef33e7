"""Parts of logs: of a service's segments, and of the file that a container's monitor writes.

A part is bounded, begins where the one before it ended, and never crosses a gap: whoever follows a log goes on from
`next_offset` and is told in `truncated_before` when something between is not there any more.

A container's log is one file, whose entries are `<time> <stream> <F or P> <text>`: F ends a line, P does not. Offsets
count that file's own bytes, so that an offset may lie within an entry. When the file is full its monitor puts an empty
one in its place; `log` says which of them an offset counts in.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from typing import Final

from mooring_agent.hosts.contract import LogPart, LogWish
from mooring_agent.supervisor.segmented_log import read_span

ENTRY_MAX: Final = 65_536
"""Longer than any entry that a container's monitor writes at once."""
HEAD: Final = re.compile(rb"[^ \n]{1,64} (?:stdout|stderr) ([FP])(?: |$)")
RAW_RATIO: Final = 8
"""How much of a container's file is read for one byte of text: an entry has about 45 bytes of its own."""


def service_part(path: str, wish: LogWish) -> LogPart | None:
    """A part of a service's log; none where there is no such log."""
    span = read_span(path, wish.offset, wish.max_bytes)
    if span is None:
        return None
    begin, data = span.offset, span.data
    if wish.offset is None:
        kept = last_lines(data, wish.tail_lines, begin > 0)
        begin, data = begin + len(data) - len(kept), kept
        return LogPart(data, begin, begin + len(data), span.size)
    data = whole_characters(data) or data
    dropped = max(0, begin - wish.offset)
    return LogPart(data, begin, begin + len(data), span.size, dropped > 0, dropped or None)


def container_part(path: str, wish: LogWish) -> LogPart | None:
    """A part of a container's log; none where the container has none."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        size, log = os.fstat(file).st_size, _identity(file)
        if wish.offset is None:
            return _container_tail(file, size, log, wish)
        replaced = wish.offset > size or bool(wish.log and log and wish.log != log)
        begin = 0 if replaced else wish.offset
        content, place = b"", begin
        for start, text, end in _entries(file, begin, min(size, begin + RAW_RATIO * wish.max_bytes + ENTRY_MAX)):
            room = wish.max_bytes - len(content)
            if len(text) > room:
                fitting = whole_characters(text[:room]) if content else whole_characters(text[:room]) or text[:room]
                content, place = content + fitting, start + len(fitting)
                break
            content, place = content + text, end
        return LogPart(content, begin, place, size, replaced, None, log)
    finally:
        os.close(file)


def _container_tail(file: int, size: int, log: str, wish: LogWish) -> LogPart:
    begin = max(0, size - RAW_RATIO * wish.max_bytes - ENTRY_MAX)
    entries = list(_entries(file, begin, size))
    content = b"".join(text for _, text, _ in entries)[-wish.max_bytes :]
    whole = sum(len(text) for _, text, _ in entries)
    kept = last_lines(content, wish.tail_lines, begin > 0 or whole > len(content))
    ahead = whole - len(kept)  # how much text of the entries comes before what is told
    place = entries[-1][2] if entries else size
    first = place
    for start, text, end in entries:
        if ahead < len(text):
            first = start + ahead
            break
        ahead -= len(text)
        first = end
    return LogPart(kept, first, place, size, log=log)


def _entries(file: int, begin: int, end: int) -> Iterator[tuple[int, bytes, int]]:
    """The entries from this byte of the file on: where the text lies, the text, and where the next entry begins.

    An entry that is still being written is left for the next time.
    """
    back = max(0, begin - ENTRY_MAX)
    before = os.pread(file, begin - back, back)
    line_begin = back + before.rfind(b"\n") + 1 if b"\n" in before or back == 0 else begin
    raw = os.pread(file, max(0, end - line_begin), line_begin)
    place = 0
    while (stop := raw.find(b"\n", place)) >= 0:
        head = HEAD.match(raw, place, stop)
        start = place if head is None else head.end()
        ends_line = head is None or head.group(1) == b"F"
        text = raw[start:stop] + (b"\n" if ends_line else b"")
        skipped = max(0, begin - line_begin - start)
        if skipped <= len(text):
            yield line_begin + start + skipped, text[skipped:], line_begin + stop + 1
        place = stop + 1


def _identity(file: int) -> str:
    """What tells this file from the one before it: its number, and the time of its first entry."""
    first = os.pread(file, 128, 0).partition(b" ")[0]
    told = f"{os.fstat(file).st_ino} ".encode() + first
    return hashlib.sha256(told).hexdigest()[:16] if first else ""


def last_lines(data: bytes, count: int, is_cut: bool) -> bytes:
    """The last lines; the first one is left out where it was cut in its middle and another one follows."""
    if is_cut:
        _, found, rest = data.partition(b"\n")
        data = rest if found and rest else data
    place = len(data)
    if data.endswith(b"\n"):
        place -= 1
    for _ in range(count):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return data
    return data[place + 1 :]


def whole_characters(data: bytes) -> bytes:
    """Without a character of UTF-8 that is cut off at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 == 0x80:
            continue  # inside of a character
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        return data[:-back] if size > back else data
    return data
