"""The cache holds what a digest promises, resumes interrupted downloads, and never evicts what is in use."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.artifacts.http_sources import HttpSource
from mooring_agent.hosts.contract import HostFailure
from tests.support.waiting import turns

pytestmark = pytest.mark.anyio
CONTENT = bytes(range(256)) * 4_096
PART = 65_536


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def ignore_progress(stage: str, done: int, total: int | None, unit: str) -> None:
    """Ignore progress."""


@dataclass
class InterruptedSource:
    """A source that sends its content, the first time only up to `cut`, and records the requested offsets."""

    content: bytes = CONTENT
    cut: int | None = None
    stalls: bool = False
    asked: list[int] = field(default_factory=list)
    gate: asyncio.Event | None = None

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        self.asked.append(offset)
        if self.gate is not None:
            await self.gate.wait()
        end, self.cut = self.cut or len(self.content), None
        for start in range(offset, end, PART):
            yield self.content[start : min(start + PART, end)]
        if self.stalls:
            await asyncio.Event().wait()
        if end < len(self.content):
            raise HostFailure("image_pull_failed", "the line was cut")


async def failure_of(
    cache: BlobCache, source: InterruptedSource, size: int | None = len(CONTENT), patience: float = 60.0
) -> str:
    """The code that fetching the content fails with."""
    with pytest.raises(HostFailure) as failed:
        await cache.fetch(digest_of(CONTENT), size, source, ignore_progress, patience)
    assert not cache.has(digest_of(CONTENT))
    return failed.value.code


async def test_a_fetch_that_was_cut_off_goes_on_where_it_ended(tmp_path: Path) -> None:
    source = InterruptedSource(cut=300_000)
    assert await failure_of(BlobCache(tmp_path), source) == "image_pull_failed"
    # Another cache on the same directory: the agent was killed in between.
    cache = BlobCache(tmp_path)
    assert await cache.fetch(digest_of(CONTENT), len(CONTENT), source, ignore_progress) is False
    assert source.asked == [0, 300_000]
    assert cache.path(digest_of(CONTENT)).read_bytes() == CONTENT
    assert await cache.fetch(digest_of(CONTENT), len(CONTENT), source, ignore_progress) is True
    assert len(source.asked) == 2


async def test_a_download_that_was_complete_is_not_repeated(tmp_path: Path) -> None:
    source, cache = InterruptedSource(), BlobCache(tmp_path)
    (tmp_path / "partial" / digest_of(CONTENT)[7:]).write_bytes(CONTENT)
    assert await cache.fetch(digest_of(CONTENT), None, source, ignore_progress) is False
    assert (source.asked, cache.has(digest_of(CONTENT))) == ([], True)


@pytest.mark.parametrize("ranges", [True, False])
async def test_over_http_it_goes_on_whether_the_server_knows_ranges_or_not(tmp_path: Path, ranges: bool) -> None:
    cache = BlobCache(tmp_path)
    (tmp_path / "partial" / digest_of(CONTENT)[7:]).write_bytes(CONTENT[:700_000])
    async with serving(CONTENT, ranges) as (url, asked), httpx.AsyncClient(timeout=180) as http:
        await cache.fetch(digest_of(CONTENT), len(CONTENT), HttpSource(http, url, private=True), ignore_progress)
    assert asked == ["bytes=700000-"]
    assert cache.path(digest_of(CONTENT)).read_bytes() == CONTENT


@asynccontextmanager
async def serving(content: bytes, ranges: bool) -> AsyncIterator[tuple[str, list[str]]]:
    """A server of one page, and the ranges that were requested."""
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        said = next(line.partition(": ")[2] for line in head.splitlines() if line.startswith("range: "))
        asked.append(said)
        first = int(said.removeprefix("bytes=").rstrip("-")) if ranges else 0
        status = "206 Partial Content" if ranges else "200 OK"
        length = len(content) - first
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode())
        writer.write(content[first:])
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/blob", asked


async def test_other_bytes_than_the_digest_says_are_thrown_away(tmp_path: Path) -> None:
    cache, spoiled = BlobCache(tmp_path), bytearray(CONTENT)
    spoiled[5_000] ^= 1
    assert await failure_of(cache, InterruptedSource(bytes(spoiled))) == "digest_mismatch"
    assert list((tmp_path / "partial").iterdir()) == []
    await cache.fetch(digest_of(CONTENT), len(CONTENT), InterruptedSource(), ignore_progress)
    assert cache.has(digest_of(CONTENT))


async def test_a_source_that_falls_silent_is_given_up_and_what_came_is_kept(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path)
    assert await failure_of(cache, InterruptedSource(cut=200_000, stalls=True), patience=0.2) == "no_progress"
    assert (tmp_path / "partial" / digest_of(CONTENT)[7:]).stat().st_size == 200_000
    assert await failure_of(cache, InterruptedSource(CONTENT[:500_000])) == "no_progress"


async def test_what_is_too_large_is_refused_before_and_while_it_comes(tmp_path: Path) -> None:
    small = BlobCache(tmp_path, limit_bytes=1_000)
    before = InterruptedSource()
    assert await failure_of(small, before) == "too_large"
    assert before.asked == []
    assert await failure_of(small, InterruptedSource(), size=None) == "too_large"
    assert await failure_of(BlobCache(tmp_path), InterruptedSource(), size=1_000) == "too_large"


async def test_eviction_takes_what_was_used_longest_ago_and_never_what_is_in_use(tmp_path: Path) -> None:
    cache = BlobCache(tmp_path, limit_bytes=3_000)
    contents = [bytes([number]) * 1_000 for number in range(4)]
    for age, content in enumerate(contents[:3]):
        await cache.fetch(digest_of(content), 1_000, InterruptedSource(content), ignore_progress)
        os.utime(cache.path(digest_of(content)), (age, age))
    with cache.using(digest_of(contents[0])):
        await cache.fetch(digest_of(contents[3]), 1_000, InterruptedSource(contents[3]), ignore_progress)
        assert [cache.has(digest_of(each)) for each in contents] == [True, False, True, True]
    assert cache.evict(3_000) == 3_000
    assert not any(cache.has(digest_of(each)) for each in contents)


async def test_two_that_want_the_same_at_once_fetch_it_once(tmp_path: Path) -> None:
    cache, source = BlobCache(tmp_path), InterruptedSource(gate=asyncio.Event())
    both = [asyncio.create_task(cache.fetch(digest_of(CONTENT), None, source, ignore_progress)) for _ in range(2)]
    await turns()
    assert source.gate is not None
    source.gate.set()
    assert sorted(await asyncio.gather(*both)) == [False, True]
    assert source.asked == [0]


@pytest.mark.parametrize("digest", ["sha256:../../etc/passwd", "sha512:" + "0" * 64, "sha256:" + "G" * 64, "", "x"])
async def test_an_invalid_digest_never_becomes_a_path(tmp_path: Path, digest: str) -> None:
    with pytest.raises(HostFailure, match="refused"):
        await BlobCache(tmp_path).fetch(digest, None, InterruptedSource(), ignore_progress)
