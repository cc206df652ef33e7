"""Inspection of a layer while it is streamed: it is unpacked, hashed and walked in constant memory.

A layer is a tar archive, usually compressed. A few kilobytes of gzip can unpack to terabytes, and a tar header can
claim a name of gigabytes. So a layer is unpacked in small steps, with a limit on the total and on its ratio to the
compressed size, and a name above a limit ends the walk. Only what the smoke check needs is kept of the archive: the
executable files, by the hash of their paths, and the targets of symbolic links. A layer with an unknown compression is
not inspected, and then nothing is claimed about it.
"""

import hashlib
import posixpath
import zlib
from dataclasses import dataclass
from enum import Enum
from typing import Final

from mooring.core.kernel.errors import Code, Refusal

STEP_BYTES: Final = 262_144
EXPANDED_BYTES_MAX: Final = 128 * 1024**3
RATIO_MAX: Final = 200
RATIO_FREE_BYTES: Final = 64 * 1_048_576  # small content may have any ratio
NAME_BYTES_MAX: Final = 65_536
PAX_BYTES_MAX: Final = 1_048_576
PATHS_MAX: Final = 500_000
LINKS_FOLLOWED_MAX: Final = 40
_BLOCK: Final = 512
_GZIP: Final = 31  # zlib's window bits for gzip
_WITHOUT_CONTENT: Final = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, directories, pipes


class Packing(Enum):
    """How a layer is packed, by its media type."""

    GZIP = "gzip"
    PLAIN = "plain"
    UNKNOWN = "unknown"


def packing_of(media_type: str) -> Packing:
    """How a layer of this media type is packed."""
    if media_type.endswith((".tar+gzip", ".tar.gzip")):
        return Packing.GZIP
    return Packing.PLAIN if media_type.endswith(".tar") else Packing.UNKNOWN


@dataclass(frozen=True, slots=True)
class ExpansionLimits:
    """How much content may expand when it is unpacked."""

    total_bytes: int = EXPANDED_BYTES_MAX
    ratio: int = RATIO_MAX
    free_bytes: int = RATIO_FREE_BYTES

    def exceeded(self, packed: int, expanded: int) -> bool:
        """Whether this many unpacked bytes from this many packed ones are too many."""
        return expanded > self.total_bytes or (expanded > self.free_bytes and expanded > self.ratio * packed)


class LayerMalformed(Exception):
    """The layer does not have the format of its media type."""


class FileTree:
    """What is known about the files of an image, over all of its layers.

    A file that a higher layer removes stays in the tree: for a smoke check, it is better to call a missing file present
    than to call a present one missing.
    """

    def __init__(self, paths_max: int = PATHS_MAX) -> None:
        self._executable: set[int] = set()
        self._links: dict[str, str] = {}
        self._paths_max = paths_max
        self.is_whole = True

    def file(self, name: str, mode: int) -> None:
        """Record a file."""
        if mode & 0o111 and self._has_room():
            self._executable.add(hash(_clean(name)))

    def link(self, name: str, target: str) -> None:
        """Record a symbolic link."""
        if self._has_room():
            self._links[_clean(name)] = target

    def has_executable(self, path: str) -> bool:
        """Whether there is an executable file at this path, after following symbolic links."""
        left = [part for part in path.split("/") if part not in ("", ".")]
        here = "/"
        followed = 0
        while left:
            part = left.pop(0)
            if part == "..":
                here = posixpath.dirname(here)
                continue
            step = posixpath.join(here, part)
            target = self._links.get(step)
            if target is None:
                here = step
                continue
            followed += 1
            if followed > LINKS_FOLLOWED_MAX:
                return False
            here = "/" if target.startswith("/") else here
            left = [each for each in target.split("/") if each not in ("", ".")] + left
        return hash(here) in self._executable

    def _has_room(self) -> bool:
        if len(self._executable) + len(self._links) >= self._paths_max:
            self.is_whole = False
        return self.is_whole


class LayerInspector:
    """Inspects a layer chunk by chunk."""

    def __init__(self, packing: Packing, tree: FileTree, limits: ExpansionLimits | None = None) -> None:
        self._limits = limits or ExpansionLimits()
        self._walk = _TarWalk(tree)
        self._hash = hashlib.sha256()
        self._packed = 0
        self._gzip = zlib.decompressobj(_GZIP) if packing is Packing.GZIP else None
        self.expanded_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Process the next chunk of the packed layer."""
        self._packed += len(chunk)
        if self._gzip is None:
            self._take(chunk)
            return
        left = chunk
        while left:
            if self._gzip.eof:  # another gzip member follows
                self._gzip = zlib.decompressobj(_GZIP)
            try:
                self._take(self._gzip.decompress(left, STEP_BYTES))
            except zlib.error as error:
                raise LayerMalformed(f"it is not gzip: {error}") from error
            left = self._gzip.unused_data if self._gzip.eof else self._gzip.unconsumed_tail

    def finish(self) -> str:
        """The digest of the unpacked layer."""
        while self._gzip is not None and not self._gzip.eof:
            rest = self._gzip.decompress(b"", STEP_BYTES)
            if not rest:
                raise LayerMalformed("the compressed content ends too early")
            self._take(rest)
        return f"sha256:{self._hash.hexdigest()}"

    def _take(self, content: bytes) -> None:
        self.expanded_bytes += len(content)
        if self._limits.exceeded(self._packed, self.expanded_bytes):
            raise Refusal(
                Code.CONTENT_EXPANDS_TOO_FAR,
                f"a layer unpacks to more than {self.expanded_bytes} bytes from {self._packed}",
                {"limit_bytes": self._limits.total_bytes, "ratio_limit": self._limits.ratio},
            )
        self._hash.update(content)
        self._walk.feed(content)


class _TarWalk:
    """Reads the headers of a streamed tar archive and skips the contents."""

    def __init__(self, tree: FileTree) -> None:
        self._tree = tree
        self._header = bytearray()
        self._skip = 0
        self._long = bytearray()
        self._long_left = 0
        self._long_kind = b""
        self._name: str | None = None
        self._target: str | None = None
        self._size: int | None = None
        self._ended = False

    def feed(self, content: bytes) -> None:
        place = 0
        while place < len(content) and not self._ended:
            if self._long_left:
                part = content[place : place + self._long_left]
                self._long += part
                self._long_left -= len(part)
                place += len(part)
                if not self._long_left:
                    self._long_done()
            elif self._skip:
                step = min(self._skip, len(content) - place)
                self._skip -= step
                place += step
            else:
                part = content[place : place + _BLOCK - len(self._header)]
                self._header += part
                place += len(part)
                if len(self._header) == _BLOCK:
                    self._entry(bytes(self._header))
                    self._header.clear()

    def _entry(self, header: bytes) -> None:
        if not header.strip(b"\0"):
            self._ended = True
            return
        stated = _number(header[148:156])
        if stated != sum(header) - sum(header[148:156]) + 8 * 32:
            raise LayerMalformed("it is not a tar archive")
        size, kind = _number(header[124:136]), header[156:157]
        if self._size is not None and kind not in (b"L", b"K", b"x", b"g"):
            size = self._size
        padding = -size % _BLOCK
        if kind in (b"L", b"K", b"x"):
            if size > (PAX_BYTES_MAX if kind == b"x" else NAME_BYTES_MAX):
                raise LayerMalformed("a name in the archive is too long")
            self._long.clear()
            self._long_left, self._long_kind, self._skip = size, kind, padding
            return
        self._skip = 0 if kind in _WITHOUT_CONTENT else size + padding
        if kind in (b"g", b"S"):
            # A global header names no file. A sparse file may have more headers that only its own reader understands,
            # so everything after it is unknown.
            self._ended = kind == b"S"
            self._tree.is_whole = self._tree.is_whole and not self._ended
            return
        self._note(header, kind)
        self._name = self._target = self._size = None

    def _note(self, header: bytes, kind: bytes) -> None:
        name = self._name if self._name is not None else _stated_name(header)
        mode = _number(header[100:108])
        if kind in (b"0", b"\0", b"7", b"1"):
            self._tree.file(name, mode)
        elif kind == b"2":
            target = self._target if self._target is not None else _text(header[157:257])
            self._tree.link(name, target)

    def _long_done(self) -> None:
        content = bytes(self._long)
        self._long.clear()
        if self._long_kind == b"L":
            self._name = _text(content)
        elif self._long_kind == b"K":
            self._target = _text(content)
        else:
            for key, value in _pax(content):
                if key == "path":
                    self._name = value
                elif key == "linkpath":
                    self._target = value
                elif key == "size" and value.isdecimal() and len(value) <= 18:
                    self._size = int(value)


def _stated_name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    name = _text(header[:100])
    return f"{prefix}/{name}" if prefix else name


def _pax(content: bytes) -> list[tuple[str, str]]:
    """The records of a pax header: `length key=value`."""
    records: list[tuple[str, str]] = []
    place = 0
    while place < len(content):
        space = content.find(b" ", place, place + 10)
        length = content[place:space] if space > 0 else b""
        if not length.isdigit() or int(length) <= space - place or place + int(length) > len(content):
            raise LayerMalformed("a header of the archive cannot be read")
        record = content[space + 1 : place + int(length) - 1]
        key, _, value = record.partition(b"=")
        records.append((_text(key), _text(value)))
        place += int(length)
    return records


def _number(field: bytes) -> int:
    if field[:1] == b"\x80":
        number = int.from_bytes(field[1:], "big")
        if number >= 1 << 63:
            raise LayerMalformed("a number in the archive is too large")
        return number
    digits = field.strip(b" \0") or b"0"
    try:
        return int(digits, 8)
    except ValueError as error:
        raise LayerMalformed("it is not a tar archive") from error


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _clean(name: str) -> str:
    return posixpath.normpath(f"/{name.lstrip('/')}")
