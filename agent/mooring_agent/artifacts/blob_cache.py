"""The content-addressed cache: files named by their digest, hashed while they are downloaded.

A download goes to a partial file and is moved into place when its digest matches, so what is in place is always
complete. An interrupted download continues where it stopped; the bytes that exist are hashed again first. The size is
bounded, also by what the disk has without its reserve: when space is needed, the least recently used entries are
evicted, never those in use.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from mooring_agent.artifacts.disk_room import DiskRoom
from mooring_agent.atomic_files import sync_directory
from mooring_agent.hosts.contract import HostFailure

CHUNK: Final = 1_048_576
PROGRESS_BYTES: Final = 4 * 1_048_576
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")

ProgressCallback = Callable[[str, int, int | None, str], None]


class BlobSource(Protocol):
    def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the bytes from this offset on; raises `HostFailure` when the source cannot deliver them."""


class BlobCache:
    def __init__(self, directory: Path, limit_bytes: int = 1 << 40, room: DiskRoom | None = None) -> None:
        self._blobs = directory / "blobs" / "sha256"
        self._partial = directory / "partial"
        self._limit = limit_bytes
        self._room = room or DiskRoom(directory)
        self._used: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        for place in (self._blobs, self._partial):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a digest is stored, or would be."""
        return self._blobs / _hex(digest)

    def has(self, digest: str) -> bool:
        """Whether the complete blob is here."""
        return self.path(digest).exists()

    @contextmanager
    def using(self, digest: str) -> Iterator[Path]:
        """Keep a blob from being evicted while it is in use."""
        name = _hex(digest)
        self._used[name] = self._used.get(name, 0) + 1
        try:
            yield self._blobs / name
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]

    async def fetch(
        self,
        digest: str,
        size: int | None,
        source: BlobSource,
        report_progress: ProgressCallback,
        no_progress_seconds: float = 60.0,
    ) -> bool:
        """Download the blob unless it is here; returns whether it was. Concurrent calls download once."""
        async with self._exclusively(digest):
            place = self.path(digest)
            if place.exists():
                os.utime(place)
                return True
            self._make_room(size or 0)
            partial = self._partial / _hex(digest)
            await self._download(
                digest, size, source, report_progress=report_progress, no_progress_seconds=no_progress_seconds
            )
            os.replace(partial, place)
            sync_directory(self._blobs)
            return False

    def evict(self, wanted_bytes: int) -> int:
        """Evict the least recently used entries until this much fits; returns how many bytes were freed."""
        entries = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._blobs.iterdir())
        used_bytes = sum(size for _, size, _ in entries)
        limit = min(self._limit, used_bytes + self._room.bytes_left())
        freed = 0
        for _, size, path in entries:
            if used_bytes + wanted_bytes <= limit:
                break
            if path.name in self._used:
                continue
            path.unlink()
            used_bytes -= size
            freed += size
        return freed

    def _make_room(self, wanted: int) -> None:
        if wanted > self._limit:
            raise HostFailure("too_large", f"{wanted} bytes do not fit into a cache of {self._limit}")
        self.evict(wanted)
        free = self._room.bytes_left()
        if wanted > free:
            raise HostFailure(
                "too_large",
                f"{wanted} bytes are needed and {max(free, 0)} may be used on this machine's disk, "
                f"which keeps {self._room.reserve_bytes} in reserve",
            )

    async def _download(
        self,
        digest: str,
        size: int | None,
        source: BlobSource,
        *,
        report_progress: ProgressCallback,
        no_progress_seconds: float,
    ) -> None:
        partial = self._partial / _hex(digest)
        digest_so_far, offset = await asyncio.to_thread(_hash_existing, partial)
        if size is not None and offset > size:
            partial.unlink()
            digest_so_far, offset = hashlib.sha256(), 0
        if offset and f"sha256:{digest_so_far.hexdigest()}" == digest:
            return  # interrupted after its last byte, before it was moved into place
        reported = offset
        with partial.open("ab") as file:
            stream = source.read(offset)
            while size is None or offset < size:
                try:
                    async with asyncio.timeout(no_progress_seconds):
                        chunk = await anext(stream, b"")
                except TimeoutError as error:
                    raise HostFailure(
                        "no_progress", f"no data for {no_progress_seconds:.0f} s after byte {offset}"
                    ) from error
                if not chunk:
                    break
                offset += len(chunk)
                if offset > (self._limit if size is None else size):
                    file.truncate(0)
                    raise HostFailure("too_large", f"the source sent more than {size or self._limit} bytes")
                digest_so_far.update(chunk)
                file.write(chunk)
                if offset - reported >= PROGRESS_BYTES:
                    reported = offset
                    report_progress("fetch", offset, size, "bytes")
                    self._require_room(file)
            file.flush()
            os.fsync(file.fileno())
        report_progress("fetch", offset, size, "bytes")
        if size is not None and offset < size:
            raise HostFailure("no_progress", f"the source ended after {offset} of {size} bytes")
        if f"sha256:{digest_so_far.hexdigest()}" != digest:
            partial.unlink()
            raise HostFailure(
                "digest_mismatch", f"the source delivered sha256:{digest_so_far.hexdigest()}, not {digest}"
            )

    def _require_room(self, file: BinaryIO) -> None:
        """Stop a download that uses up the reserve: its size may be unknown, and others fill the same disk."""
        if self._room.bytes_left() < 0:
            file.truncate(0)
            raise HostFailure("too_large", "this machine's disk has no room for the rest of the download")

    @asynccontextmanager
    async def _exclusively(self, digest: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(digest, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._locks.pop(digest, None)


def _hash_existing(path: Path) -> tuple["hashlib._Hash", int]:
    digest_so_far, length = hashlib.sha256(), 0
    if path.exists():
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest_so_far.update(chunk)
                length += len(chunk)
    return digest_so_far, length


def _hex(digest: str) -> str:
    """The file name of a digest. The digest may come from a tenant's manifest, so it must not be a path."""
    if not _DIGEST.fullmatch(digest):
        raise HostFailure("refused", f"{digest[:80]!r} is not a sha256 digest")
    return digest.removeprefix("sha256:")
