"""Measuring what an image's layers will take on the disk, before podman unpacks them as root.

A layer is a compressed tar archive that a tenant's image brought along. A few megabytes can unpack to a disk full of
zeros, to millions of empty files, or, as a sparse file, to more than any disk has. So the archive is read once, as a
stream, and only its headers are looked at: nothing is written, and the memory needed does not depend on what is inside.

Layers compressed with zstd cannot be measured here; while podman unpacks any layer, `images` watches the disk.
"""

import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mooring_agent.hosts.contract import HostFailure

CHUNK: Final = 262_144
BLOCK: Final = 512
CLUSTER: Final = 4_096
ENTRIES_MAX: Final = 2_000_000
DEPTH_MAX: Final = 256
PATH_BYTES_MAX: Final = 4_096
RECORD_BYTES_MAX: Final = 1_048_576
"""The longest extended header, which has to be kept in memory."""
SECONDS_MAX: Final = 120.0
"""As long as podman may take: what cannot be read in that time cannot be unpacked in it either."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL, _SPARSE = b"L", b"K", b"x", b"g", b"S"
_WITHOUT_DATA: Final = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})


@dataclass(slots=True)
class ImageSize:
    """What the layers of an image take on the disk, as far as they were read."""

    bytes: int = 0
    entries: int = 0


@dataclass(slots=True)
class SizeLimits:
    """What the layers of one image may take together."""

    bytes: int
    entries: int
    deadline: float

    @classmethod
    def of_disk(cls, bytes_left: int, files_left: int) -> "SizeLimits":
        return cls(max(bytes_left, 0), max(0, min(files_left, ENTRIES_MAX)), time.monotonic() + SECONDS_MAX)


def add_layer(path: Path, size: ImageSize, limits: SizeLimits) -> None:
    """Add what a layer takes; raises `HostFailure` as soon as a limit is exceeded."""
    with path.open("rb") as file:
        begin = file.read(len(_ZSTD))
        file.seek(0)
        if begin.startswith(_ZSTD):
            size.bytes += path.stat().st_size
            _check(size, limits)
            return
        raw = iter(lambda: file.read(CHUNK), b"")
        chunks = _inflated(raw) if begin.startswith(_GZIP) else raw
        _TarReader(_Stream(chunks, size, limits), size, limits).read()


def _inflated(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The contents of a gzip file, which may have several members one after another."""
    inflater = zlib.decompressobj(wbits=31)
    try:
        for chunk in chunks:
            waiting, is_full = chunk, False
            while waiting or is_full:  # a full piece may have a rest that needs no more input
                piece = inflater.decompress(waiting, CHUNK)
                yield piece
                waiting, is_full = inflater.unconsumed_tail, len(piece) == CHUNK
                if inflater.eof:
                    waiting, is_full = inflater.unused_data, False
                    inflater = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise HostFailure("image_pull_failed", f"a layer is not a gzip file: {error}") from error


class _Stream:
    """The bytes of a layer in order; everything that passes counts, also what no entry owns."""

    def __init__(self, chunks: Iterator[bytes], size: ImageSize, limits: SizeLimits) -> None:
        self._chunks = chunks
        self._size = size
        self._limits = limits
        self._buffer = b""
        self._at = 0  # moved on instead of cutting the buffer for each of many small entries
        self._passed = 0

    def take(self, count: int) -> bytes:
        """The next bytes; fewer at the end of the layer."""
        while len(self._buffer) - self._at < count and self._fill():
            pass
        taken = self._buffer[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def skip(self, count: int) -> None:
        while count > 0:
            dropped = min(count, len(self._buffer) - self._at)
            self._at, count = self._at + dropped, count - dropped
            if count and not self._fill():
                return

    def drain(self) -> None:
        """Read what follows the archive's end: podman reads it too."""
        self._at = len(self._buffer)
        while self._fill():
            self._at = len(self._buffer)

    def _fill(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self._passed += len(chunk)
        if time.monotonic() > self._limits.deadline:
            raise HostFailure("too_large", f"the image's layers cannot be read within {SECONDS_MAX:.0f} s")
        if self._passed > self._limits.bytes:
            raise _too_many_bytes(self._limits)
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0
        return True


@dataclass(slots=True)
class _TarReader:
    stream: _Stream
    size: ImageSize
    limits: SizeLimits
    path: bytes = b""  # from an extended header, for the entry behind it
    stored: int | None = None
    expanded: int | None = None

    def read(self) -> None:
        while len(header := self.stream.take(BLOCK)) == BLOCK and header.strip(b"\0"):
            self._entry(header)
        self.stream.drain()

    def _entry(self, header: bytes) -> None:
        kind, stored = header[156:157], _number(header[124:136])
        if kind in (_LONG_NAME, _LONG_LINK, _EXTENDED, _GLOBAL):
            record = self._record(stored)
            if kind == _LONG_NAME:
                self.path = record.rstrip(b"\0")
            elif kind == _EXTENDED:
                self._extend(record)
            return
        stored = stored if self.stored is None else self.stored
        taken = _number(header[483:495]) if kind == _SPARSE else stored
        taken = max(taken, self.expanded or 0)
        if kind == _SPARSE:
            self._skip_sparse_map(header)
        self._count(self.path or _path(header), 0 if kind in _WITHOUT_DATA else taken)
        self.stream.skip(0 if kind in _WITHOUT_DATA else _rounded(stored, BLOCK))
        self.path, self.stored, self.expanded = b"", None, None

    def _record(self, length: int) -> bytes:
        if length > RECORD_BYTES_MAX:
            raise HostFailure("too_large", f"a layer has an extended header of {length} bytes")
        record = self.stream.take(length)
        self.stream.skip(_rounded(length, BLOCK) - length)
        return record

    def _extend(self, record: bytes) -> None:
        """Read the records that say something about size or name: `<length> <keyword>=<value>\\n`."""
        at = 0
        while at < len(record):
            digits, _, _ = record[at : at + 20].partition(b" ")
            if not digits.isdigit() or not 0 < int(digits) <= len(record) - at:
                return
            keyword, _, value = record[at + len(digits) + 1 : at + int(digits) - 1].partition(b"=")
            if keyword == b"path":
                self.path = value
            elif keyword == b"size":
                self.stored = _decimal(value)
            elif keyword in (b"GNU.sparse.size", b"GNU.sparse.realsize"):
                self.expanded = _decimal(value)
            at += int(digits)

    def _skip_sparse_map(self, header: bytes) -> None:
        more = header[482:483] not in (b"", b"\0")
        while more:
            extension = self.stream.take(BLOCK)
            more = extension[504:505] not in (b"", b"\0")

    def _count(self, path: bytes, length: int) -> None:
        if len(path) > PATH_BYTES_MAX or path.strip(b"/").count(b"/") >= DEPTH_MAX:
            raise HostFailure("too_large", f"a layer has directories that are more than {DEPTH_MAX} deep")
        self.size.entries += 1
        self.size.bytes += _rounded(length, CLUSTER)
        _check(self.size, self.limits)


def _check(size: ImageSize, limits: SizeLimits) -> None:
    if size.bytes > limits.bytes:
        raise _too_many_bytes(limits)
    if size.entries > limits.entries:
        raise HostFailure("too_large", f"the image has more than {limits.entries} files, which do not fit on this disk")


def _too_many_bytes(limits: SizeLimits) -> HostFailure:
    return HostFailure(
        "too_large", f"the image unpacks to more than {limits.bytes} bytes, which do not fit on this disk"
    )


def _number(text: bytes) -> int:
    """A number of a header: octal digits, or binary when the first bit is set."""
    if text[:1] and text[0] & 0x80:
        value = int.from_bytes(text, "big") & ((1 << (8 * len(text) - 1)) - 1)
        return _bounded(value)
    digits = text.strip(b"\0 ")
    if any(each not in b"01234567" for each in digits):
        raise HostFailure("image_pull_failed", "a layer is not a tar archive")
    return _bounded(int(digits or b"0", 8))


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise HostFailure("image_pull_failed", "a layer is not a tar archive: a size is not a number")
    return _bounded(int(text))


def _bounded(value: int) -> int:
    if value >= 1 << 63:
        raise HostFailure("too_large", "a layer has a file that is larger than any disk")
    return value


def _path(header: bytes) -> bytes:
    name, prefix = header[:100].split(b"\0", 1)[0], header[345:500].split(b"\0", 1)[0]
    return prefix + b"/" + name if prefix and header[257:262] == b"ustar" else name


def _rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit


def measure(layers: list[Path], limits: SizeLimits) -> ImageSize:
    """What the layers of an image take together; raises `HostFailure` when that is too much."""
    size = ImageSize()
    for path in layers:
        add_layer(path, size, limits)
    return size
