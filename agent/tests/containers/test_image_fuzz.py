"""Fuzzing what the agent reads of an image: whatever a registry sends, the answer is a failure with a code.

The property tests are part of the gate with few examples. `make soak` runs them with many, and the byte fuzzer for a
minute from a printed seed.
"""

import asyncio
import gzip
import io
import json
import random
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from mooring_agent.containers.images import ImageStore
from mooring_agent.containers.layer_size import SizeLimits, measure
from mooring_agent.hosts.contract import HostFailure
from tools import soak

MIB = 1 << 20
SOAK_SECONDS = 60.0
ROUNDS = 100
CODES = {"digest_mismatch", "image_pull_failed", "no_progress", "not_found", "refused", "too_large"}
few = settings(max_examples=2_000 if soak.is_soak() else 30, deadline=None)
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
FORMS = (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=150)
entries = st.lists(st.tuples(names, st.sampled_from(KINDS), st.binary(max_size=600)), max_size=6)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
blobs = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.text(max_size=9) | plain,
        "digest": st.sampled_from(["sha256:" + "0" * 64, "../../etc/passwd", ""]) | plain,
        "size": st.integers(-(1 << 70), 1 << 70) | plain,
        "platform": plain,
    },
)
manifests = st.fixed_dictionaries(
    {},
    optional={
        "mediaType": st.sampled_from(
            ["application/vnd.oci.image.manifest.v1+json", "application/vnd.oci.image.index.v1+json"]
        )
        | plain,
        "config": blobs | plain,
        "layers": st.lists(blobs, max_size=3) | plain,
        "manifests": st.lists(blobs, max_size=3) | plain,
    },
)


def measured(layer: bytes) -> int | str:
    """The number of entries of a layer, or the code that it fails with."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "layer"
        path.write_bytes(layer)
        try:
            return measure([path], SizeLimits.of_disk(8 * MIB, 10_000)).entries
        except HostFailure as failure:
            return failure.code


def pulled(registry: SimulatedRegistry) -> str:
    """The code that pulling an image fails with; it must leave nothing outside of the agent's own directory."""
    with TemporaryDirectory() as outside:
        inside = Path(outside) / "agent"
        podman = SimulatedPodman(inside / "containers", registry.digest)
        images = ImageStore(BlobCache(inside / "cache"), podman, SmallDisk(inside, left=8 * MIB))
        try:
            asyncio.run(images.ensure(registry.repository(), registry.digest, lambda *progress: None))
            code = ""
        except HostFailure as failure:
            code = failure.code
        assert [each.name for each in Path(outside).iterdir()] == ["agent"]
        return code


@few
@given(entries, st.sampled_from(FORMS), st.booleans())
def test_an_archive_is_counted_as_an_independent_reader_counts_it(listed: list[Any], form: int, packed: bool) -> None:
    made = [Packed(file_entry(name, kind), data if kind == tarfile.REGTYPE else b"") for name, kind, data in listed]
    archive = tar_of(made, form)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        expected = len(tar.getmembers())
    soak.played()
    assert measured(gzip_of(archive) if packed else archive) == expected


@few
@given(st.binary(max_size=2_000))
def test_any_bytes_are_a_layer_or_a_failure(layer: bytes) -> None:
    for each in (layer, gzip.compress(layer), b"\x1f\x8b" + layer):
        soak.played()
        found = measured(each)
        assert isinstance(found, int) or found in CODES


@few
@given(manifests.map(lambda value: json.dumps(value).encode()) | st.binary(min_size=1, max_size=300))
def test_any_manifest_is_an_image_or_a_failure(manifest: bytes) -> None:
    soak.played()
    assert pulled(SimulatedRegistry([], manifest=manifest)) in CODES


@pytest.mark.parametrize(
    "nested", [b"[" * 100_000, b'{"platform":' * 50_000, b'{"config":{"platform":' + b"[" * 50_000]
)
def test_a_manifest_that_is_nested_without_end_is_a_failure(nested: bytes) -> None:
    assert pulled(SimulatedRegistry([], manifest=nested)) == "image_pull_failed"


def test_changed_bytes_of_an_image_end_in_a_failure_or_in_a_bounded_image() -> None:
    """The byte fuzzer: a valid image with a few bytes changed, doubled, cut or swapped."""
    drawn = random.Random(soak.seed())
    archive = tar_of(
        [
            Packed(file_entry("bin", tarfile.DIRTYPE), b""),
            Packed(file_entry("bin/" + "long" * 40), b"program" * 100),
            Packed(file_entry("link", tarfile.SYMTYPE), b""),
        ]
    )
    pax = tar_of([Packed(file_entry("ä" * 90), b"x" * 700)], tarfile.PAX_FORMAT)
    corpus = [archive, pax, gzip_of(archive), gzip_of(pax), gzip_of(archive) + gzip_of(pax)]
    manifest = SimulatedRegistry([gzip_of(archive)]).manifest
    until = time.monotonic() + SOAK_SECONDS
    rounds = 0
    while rounds < ROUNDS or (soak.is_soak() and time.monotonic() < until):
        rounds += 1
        soak.played()
        changed = _changed(drawn.choice(corpus), drawn)
        found = measured(changed)
        assert isinstance(found, int) or found in CODES, (soak.seed(), rounds)
        found = measured(gzip_of(changed))
        assert isinstance(found, int) or found in CODES, (soak.seed(), rounds)
        if rounds % 10 == 0:
            registry = SimulatedRegistry([gzip_of(archive)], manifest=_changed(manifest, drawn))
            assert pulled(registry) in {"", *CODES}, (soak.seed(), rounds)


def _changed(data: bytes, drawn: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(drawn.randint(1, 6)):
        at = drawn.randrange(len(made))
        how: Any = drawn.randrange(5)
        if how == 0:
            made[at] = drawn.randrange(256)
        elif how == 1:
            made[at] ^= 1 << drawn.randrange(8)
        elif how == 2:
            del made[at : at + drawn.randint(1, 600)]
        elif how == 3:
            made[at:at] = made[drawn.randrange(len(made)) :][: drawn.randint(1, 600)]
        else:
            made[at : at + 12] = drawn.choice([b"\xff" * 12, b"77777777777\0", bytes(12), b"\x80" + b"\xff" * 11])
        if not made:
            return b"\0"
    return bytes(made)
