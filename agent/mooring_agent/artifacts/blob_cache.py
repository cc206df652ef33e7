"""The content-addressed cache: bytes that were hashed on their way in, by their digest.

A download goes into a file of its own and is moved into place when its digest is right; what is in place is
therefore always whole. A download that was cut off goes on where it ended: the bytes that are there are hashed again
first. Sizes are bounded; when room is needed the entries that were used longest ago go, never those in use.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from mooring_agent.atomic_files import sync_directory
from mooring_agent.hosts.contract import HostFailure

CHUNK: Final = 1_048_576
TELL_BYTES: Final = 4 * 1_048_576
_DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")

Tell = Callable[[str, int, int | None, str], None]


class Source(Protocol):
    """Where the bytes of one digest come from."""

    def read(self, offset: int) -> AsyncIterator[bytes]:
        """The bytes from this offset on; raises `HostFailure` when they cannot be had."""


class Cache:
    """The cache of one agent."""

    def __init__(self, directory: Path, limit_bytes: int = 1 << 40) -> None:
        self._blobs = directory / "blobs" / "sha256"
        self._partial = directory / "partial"
        self._limit = limit_bytes
        self._used: dict[str, int] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        for place in (self._blobs, self._partial):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, digest: str) -> Path:
        """Where a digest lies, or would."""
        return self._blobs / _hex(digest)

    def has(self, digest: str) -> bool:
        """Whether it is here, whole."""
        return self.path(digest).exists()

    @contextmanager
    def using(self, digest: str) -> Iterator[Path]:
        """Keep it from being evicted meanwhile."""
        name = _hex(digest)
        self._used[name] = self._used.get(name, 0) + 1
        try:
            yield self._blobs / name
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]

    async def fetch(
        self, digest: str, size: int | None, source: Source, tell: Tell, no_progress_seconds: float = 60.0
    ) -> bool:
        """Have the digest here; whether it was here already. Two that want it at once fetch it once."""
        async with self._alone(digest):
            place = self.path(digest)
            if place.exists():
                os.utime(place)
                return True
            self._make_room(size or 0)
            partial = self._partial / _hex(digest)
            await self._download(digest, size, source, (tell, no_progress_seconds))
            os.replace(partial, place)
            sync_directory(self._blobs)
            return False

    def evict(self, wanted_bytes: int) -> int:
        """Drop what was used longest ago until so much is free within the limit; how many bytes went."""
        entries = sorted((path.stat().st_mtime, path.stat().st_size, path) for path in self._blobs.iterdir())
        held = sum(size for _, size, _ in entries)
        gone = 0
        for _, size, path in entries:
            if held + wanted_bytes <= self._limit:
                break
            if path.name in self._used:
                continue
            path.unlink()
            held -= size
            gone += size
        return gone

    def _make_room(self, wanted: int) -> None:
        if wanted > self._limit:
            raise HostFailure("too_large", f"{wanted} bytes do not fit into a cache of {self._limit}")
        self.evict(wanted)
        free = os.statvfs(self._blobs).f_bavail * os.statvfs(self._blobs).f_frsize
        if wanted > free:
            raise HostFailure("too_large", f"{wanted} bytes are wanted and {free} are free on this machine's disk")

    async def _download(self, digest: str, size: int | None, source: Source, manner: tuple[Tell, float]) -> None:
        tell, patience = manner
        partial = self._partial / _hex(digest)
        seen, offset = await asyncio.to_thread(_hashed, partial)
        if size is not None and offset > size:
            partial.unlink()
            seen, offset = hashlib.sha256(), 0
        if offset and f"sha256:{seen.hexdigest()}" == digest:
            return  # it was cut off between its last byte and its place
        told = offset
        with partial.open("ab") as file:
            stream = source.read(offset)
            while size is None or offset < size:
                try:
                    async with asyncio.timeout(patience):
                        part = await anext(stream, b"")
                except TimeoutError as error:
                    raise HostFailure("no_progress", f"no byte came for {patience:.0f} s after {offset}") from error
                if not part:
                    break
                offset += len(part)
                if offset > (self._limit if size is None else size):
                    file.truncate(0)
                    raise HostFailure("too_large", f"the source sends more than {size or self._limit} bytes")
                seen.update(part)
                file.write(part)
                if offset - told >= TELL_BYTES:
                    told = offset
                    tell("fetch", offset, size, "bytes")
            file.flush()
            os.fsync(file.fileno())
        tell("fetch", offset, size, "bytes")
        if size is not None and offset < size:
            raise HostFailure("no_progress", f"the source ended after {offset} of {size} bytes")
        if f"sha256:{seen.hexdigest()}" != digest:
            partial.unlink()
            raise HostFailure("digest_mismatch", f"the source's bytes are sha256:{seen.hexdigest()}, not {digest}")

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(digest, asyncio.Lock())
        async with lock:
            yield
        if not lock.locked():
            self._locks.pop(digest, None)


def _hashed(path: Path) -> tuple["hashlib._Hash", int]:
    seen, length = hashlib.sha256(), 0
    if path.exists():
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                seen.update(part)
                length += len(part)
    return seen, length


def _hex(digest: str) -> str:
    """What becomes a file's name: a manifest is the tenant's, and a digest in it could be a path."""
    if not _DIGEST.fullmatch(digest):
        raise HostFailure("refused", f"{digest[:80]!r} is no sha256 digest")
    return digest.removeprefix("sha256:")
