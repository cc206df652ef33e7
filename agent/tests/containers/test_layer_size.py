"""Attacks by an image: what a layer would take on the disk is known before podman unpacks it."""

import gzip
import io
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.tests.support.layers import (
    Packed,
    SimulatedPodman,
    SimulatedRegistry,
    SmallDisk,
    file_entry,
    gzip_of,
    tar_of,
)
from mooring_agent.artifacts.blob_cache import BlobCache
from mooring_agent.artifacts.fetch_history import DIGESTS_MAX, FetchHistory
from mooring_agent.containers.images import CONFIG_BYTES_MAX, ImageStore
from mooring_agent.containers.layer_size import DEPTH_MAX, RECORD_BYTES_MAX, SizeLimits, measure
from mooring_agent.hosts.contract import HostFailure
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio
MIB = 1 << 20


def ignore_progress(stage: str, done: int, total: int | None, unit: str) -> None:
    """Ignore progress."""


def bomb() -> bytes:
    return gzip_of(tar_of([Packed(file_entry("zeros"), bytes(16 * MIB))]))


def bomb_in_parts() -> bytes:
    """A gzip file of several members: only one after another they are too much."""
    whole = tar_of([Packed(file_entry("zeros"), bytes(16 * MIB))])
    return b"".join(gzip_of(whole[at : at + MIB]) for at in range(0, len(whole), MIB))


def trailing_zeros() -> bytes:
    return gzip_of(tar_of([]) + bytes(16 * MIB))


def many_files() -> bytes:
    return gzip_of(tar_of(Packed(file_entry(f"f{index}"), b"") for index in range(3_000)))


def tiny_files() -> bytes:
    """Each takes a block of the disk, though it has one byte."""
    return gzip_of(tar_of(Packed(file_entry(f"f{index}"), b"x") for index in range(2_000)))


def deep_directories() -> bytes:
    return gzip_of(tar_of([Packed(file_entry("d/" * (DEPTH_MAX + 1) + "f"), b"")]))


def deep_directories_in_pax() -> bytes:
    return gzip_of(tar_of([Packed(file_entry("d/" * (DEPTH_MAX + 1) + "f"), b"")], tarfile.PAX_FORMAT))


def sparse() -> bytes:
    header = bytearray(file_entry("holes").tobuf(tarfile.GNU_FORMAT))
    header[156:157], header[483:495] = b"S", b"00777777777\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    return gzip_of(bytes(header) + bytes(1_024))


def sparse_in_pax() -> bytes:
    entry = file_entry("holes")
    entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 40)}
    return gzip_of(tar_of([Packed(entry, b"")], tarfile.PAX_FORMAT))


def size_in_pax() -> bytes:
    entry = file_entry("large")
    entry.pax_headers = {"size": str(1 << 40)}
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry)
    return gzip_of(made.getvalue())


def long_record() -> bytes:
    header = tarfile.TarInfo("././@PaxHeader")
    header.type, header.size = b"x", RECORD_BYTES_MAX + 1
    return gzip_of(header.tobuf(tarfile.USTAR_FORMAT) + bytes(2 * MIB))


def binary_size() -> bytes:
    entry = file_entry("large")
    entry.size = 1 << 60
    return gzip_of(entry.tobuf(tarfile.GNU_FORMAT))


@every_row(
    "layer",
    [
        bomb, bomb_in_parts, trailing_zeros, many_files, tiny_files, deep_directories, deep_directories_in_pax, sparse,
        sparse_in_pax, size_in_pax, long_record, binary_size,
    ],
)  # fmt: skip
async def test_an_image_that_does_not_fit_is_refused_before_it_is_unpacked(
    tmp_path: Path, layer: Callable[[], bytes]
) -> None:
    registry = SimulatedRegistry([layer()])
    podman = SimulatedPodman(tmp_path / layer.__name__, registry.digest)
    images = ImageStore(BlobCache(tmp_path / "cache"), podman, SmallDisk(tmp_path, left=6 * MIB, files=2_500))
    with pytest.raises(HostFailure) as failed:
        await images.ensure(registry.repository(), registry.digest, ignore_progress)
    assert failed.value.code == "too_large", failed.value
    assert not podman.pulled, "podman never saw it"


async def test_an_ordinary_image_is_taken_in_every_format(tmp_path: Path) -> None:
    entries = [
        Packed(file_entry("bin", tarfile.DIRTYPE), b""),
        Packed(file_entry("bin/" + "y" * 60 + "/" + "x" * 90), b"program" * 1_000),
    ]
    plain = [tar_of(entries, form) for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)]
    registry = SimulatedRegistry([*plain, *(gzip_of(each) for each in plain)])
    podman = SimulatedPodman(tmp_path / "containers", registry.digest)
    images = ImageStore(BlobCache(tmp_path / "cache"), podman, SmallDisk(tmp_path, left=MIB))
    image = await images.ensure(registry.repository(), registry.digest, ignore_progress)
    assert (image.digest, podman.pulled) == (registry.digest, True)
    assert not podman.temporary.exists(), "nothing of podman's own copies is left"


async def test_podman_is_stopped_when_a_layer_takes_more_than_was_measured(tmp_path: Path) -> None:
    """A layer in zstd cannot be measured; the disk is watched while it is unpacked."""

    class FillingDisk(SmallDisk):
        def bytes_left(self) -> int:
            return -1 if podman.pulled else MIB

    registry = SimulatedRegistry([b"\x28\xb5\x2f\xfd" + bytes(100)])
    podman = SimulatedPodman(tmp_path / "containers", registry.digest, never_ends=True)
    images = ImageStore(BlobCache(tmp_path / "cache"), podman, FillingDisk(tmp_path))
    with pytest.raises(HostFailure) as failed:
        await images.ensure(registry.repository(), registry.digest, ignore_progress)
    assert (failed.value.code, podman.stopped) == ("too_large", True)


async def test_a_config_of_any_size_is_not_fetched(tmp_path: Path) -> None:
    registry = SimulatedRegistry([tar_of([])], config=bytes(CONFIG_BYTES_MAX + 1))
    cache, podman = BlobCache(tmp_path / "cache"), SimulatedPodman(tmp_path / "containers", registry.digest)
    with pytest.raises(HostFailure) as failed:
        await ImageStore(cache, podman).ensure(registry.repository(), registry.digest, ignore_progress)
    assert failed.value.code == "too_large"
    assert not any(cache.has(each) for each in registry.blobs)


async def test_the_cache_leaves_the_reserve_free_and_evicts_for_it(tmp_path: Path) -> None:
    old = SimulatedRegistry([b"a" * 3_000])
    first = BlobCache(tmp_path / "cache", room=SmallDisk(tmp_path, left=MIB))
    digest = next(each for each, data in old.blobs.items() if len(data) == 3_000)
    assert not await first.fetch(digest, 3_000, old.repository().blob(digest), ignore_progress)
    crowded = BlobCache(tmp_path / "cache", room=SmallDisk(tmp_path, left=1_000))
    new = SimulatedRegistry([b"b" * 2_000])
    wanted = next(each for each, data in new.blobs.items() if len(data) == 2_000)
    with pytest.raises(HostFailure) as failed:
        await crowded.fetch(wanted, 2_000, new.repository().blob(wanted), ignore_progress)
    assert failed.value.code == "too_large"
    assert not crowded.has(digest), "the old entry had to make room"


def test_a_million_entries_are_read_in_a_stream(tmp_path: Path) -> None:
    """Cutting the buffer for each entry would copy it a thousand times: the time per entry stays the same."""
    header = file_entry("f").tobuf(tarfile.GNU_FORMAT)

    def seconds_for(entries: int) -> float:
        path = tmp_path / str(entries)
        path.write_bytes(header * entries)
        begun = time.process_time()
        size = measure([path], SizeLimits.of_disk(1 << 40, 1 << 40))
        assert size.entries == entries
        return time.process_time() - begun

    assert seconds_for(40_000) < 40 * max(seconds_for(4_000), 0.001)


def test_a_history_is_of_one_allocation_and_bounded() -> None:
    history = FetchHistory()
    history.add("alc_1", "sha256:1")
    assert history.has("alc_1", "sha256:1")
    assert not history.has("alc_2", "sha256:1"), "what a neighbour fetched is not shown"
    history.add("alc_1", *(f"sha256:x{index}" for index in range(DIGESTS_MAX)))
    assert not history.has("alc_1", "sha256:1")
    history.keep_only({"alc_2"})
    assert not history.has("alc_1", "sha256:x1")


def test_gzip_is_read_to_its_last_byte(tmp_path: Path) -> None:
    """Pieces that are exactly full must not hide the rest of a member."""
    whole = tar_of([Packed(file_entry(f"f{index}"), bytes([index]) * 70_000) for index in range(40)])
    for name, data in {"one": gzip.compress(whole), "two": gzip_of(whole[:262_144]) + gzip_of(whole[262_144:])}.items():
        (tmp_path / name).write_bytes(data)
        assert measure([tmp_path / name], SizeLimits.of_disk(1 << 40, 1 << 40)).entries == 40
