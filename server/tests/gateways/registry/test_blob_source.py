"""Blobs from where they lie: addresses that are put together, bounds, and files that cannot be escaped from."""

import asyncio
import hashlib
import os
import tracemalloc
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from mooring.core.kernel.address import Reach
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.blob_source import (
    BlobPlace,
    BlobSource,
    BlobSourceSettings,
    FilePlace,
    HttpsPlace,
    HuggingFacePlace,
    S3Place,
    read_place,
)
from mooring.gateways.registry.image_manifest import digest_of
from mooring.gateways.registry.source_stream import SourceTimeouts
from server.tests.gateways.registry.conftest import BRIEF
from server.tests.support.registry_adversary import (
    Adversary,
    adversary,
    announces,
    breaks_after,
    endless,
    in_turn,
    serve,
    status,
)

pytestmark = pytest.mark.anyio
CONTENT = bytes(range(256)) * 1_000
DIGEST = digest_of(CONTENT)
COMMIT = "a" * 40


def source(dialer: EgressClient, **settings: Any) -> BlobSource:
    return BlobSource(BlobSourceSettings(**{"patience": BRIEF, **settings}), dialer)


async def code_of(work: Any) -> Code:
    with pytest.raises(Refusal) as refused:
        await work
    return refused.value.code


async def test_a_blob_is_hashed_on_its_way_and_compared(hostile: Adversary, dialer: EgressClient) -> None:
    hostile.routes["/w.bin"] = serve(CONTENT)
    place = HttpsPlace(f"{hostile.url}/w.bin?signed=secret")
    taken = bytearray()

    async def sink(chunk: bytes) -> None:
        taken.extend(chunk)

    received = await source(dialer).read(place, sink, digest=DIGEST, size_bytes=len(CONTENT))

    assert (received.digest, received.size_bytes, bytes(taken)) == (DIGEST, len(CONTENT), CONTENT)
    assert (await source(dialer).read(place)).digest == DIGEST
    assert await source(dialer).size(place) == len(CONTENT)
    assert await code_of(source(dialer).read(place, digest=f"sha256:{'0' * 64}")) is Code.DIGEST_MISMATCH
    assert await code_of(source(dialer).read(place, digest=DIGEST, size_bytes=7)) is Code.DIGEST_MISMATCH


async def test_sha512_is_taken_as_well(hostile: Adversary, dialer: EgressClient) -> None:

    hostile.routes["/w"] = serve(CONTENT)
    digest = f"sha512:{hashlib.sha512(CONTENT).hexdigest()}"

    assert (await source(dialer).read(HttpsPlace(f"{hostile.url}/w"), digest=digest)).digest == digest


async def test_what_is_missing_forbidden_too_large_or_endless_has_its_own_code(
    hostile: Adversary, dialer: EgressClient
) -> None:
    hostile.routes["/forbidden"] = status(403)
    hostile.routes["/vast"] = announces(10 * 1024**3)
    hostile.routes["/endless"] = endless
    limit = 32 * 1_048_576
    bounded = source(dialer, limit_bytes=limit)
    expected = {
        "missing": Code.ARTIFACT_NOT_FOUND_AT_SOURCE,
        "forbidden": Code.REGISTRY_AUTH_REFUSED,
        "vast": Code.SOURCE_TOO_LARGE,
        "endless": Code.SOURCE_ENDLESS,
    }

    await code_of(
        bounded.read(HttpsPlace(f"{hostile.url}/missing"))
    )  # what is imported at the first use is not measured
    tracemalloc.start()
    found = {name: await code_of(bounded.read(HttpsPlace(f"{hostile.url}/{name}"), digest=DIGEST)) for name in expected}
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == expected
    assert most < limit / 2, "it is streamed, not kept"


async def test_the_signature_in_an_address_is_in_no_message(hostile: Adversary, dialer: EgressClient) -> None:
    place = HttpsPlace(f"{hostile.url}/missing?X-Amz-Signature=secret")

    with pytest.raises(Refusal) as refused:
        await source(dialer).read(place)

    assert "secret" not in f"{refused.value} {refused.value.details} {place!r}"


async def test_a_broken_transfer_is_taken_up_only_when_there_is_a_digest_to_hold_it_to(
    hostile: Adversary, dialer: EgressClient
) -> None:
    place = HttpsPlace(f"{hostile.url}/w")

    hostile.routes["/w"] = in_turn(breaks_after(CONTENT, 100_000), serve(CONTENT))
    assert (await source(dialer).read(place, digest=DIGEST)).size_bytes == len(CONTENT)

    hostile.routes["/w"] = in_turn(breaks_after(CONTENT, 100_000), serve(CONTENT))
    assert await code_of(source(dialer).read(place)) is Code.SOURCE_UNREACHABLE


async def test_a_redirect_goes_only_where_the_platform_allows(hostile: Adversary, dialer: EgressClient) -> None:
    async with adversary() as store:
        store.routes["/kept"] = serve(CONTENT)
        hostile.routes["/w"] = status(302, location=f"{store.url}/kept")
        place = HttpsPlace(f"{hostile.url}/w")

        assert await code_of(source(dialer).read(place, digest=DIGEST)) is Code.REDIRECT_REFUSED
        assert store.asked == []
        allowed = source(dialer, redirect_hosts=frozenset({store.authority}))
        assert (await allowed.read(place, digest=DIGEST)).digest == DIGEST


async def test_a_redirect_into_a_private_network_is_refused_although_its_host_is_allowed(
    hostile: Adversary,
) -> None:

    only_second = EgressClient(Reach(allowed=(ip_network("127.0.0.2/32"),), own_allowed=True))
    try:
        async with adversary("127.0.0.2") as public:
            public.routes["/w"] = status(302, location=f"{hostile.url}/inside")
            reading = source(only_second, redirect_hosts=frozenset({hostile.authority}))
            place = HttpsPlace(f"http://127.0.0.2:{public.port}/w")
            assert await code_of(reading.read(place)) is Code.ADDRESS_REFUSED
    finally:
        await only_second.close()
    assert hostile.asked == []


@pytest.mark.parametrize(
    "address", ["https://127.0.0.1/x", "https://[::1]/x", "https://169.254.169.254/latest", "https://10.0.0.1/x"]
)
async def test_a_tenants_address_reaches_no_private_network(address: str) -> None:
    outbound = EgressClient(Reach())
    try:
        assert await code_of(source(outbound).read(HttpsPlace(address))) is Code.ADDRESS_REFUSED
    finally:
        await outbound.close()


async def test_buckets_and_repositories_become_addresses(hostile: Adversary, dialer: EgressClient) -> None:
    made = source(dialer, s3_endpoint=hostile.url, huggingface_endpoint=f"{hostile.url}/")

    assert made.address(S3Place("my-bucket", "a b/ü?#.bin")) == f"{hostile.url}/my-bucket/a%20b/%C3%BC%3F%23.bin"
    assert (
        made.address(HuggingFacePlace("owner/model", COMMIT, "sub/w.safetensors"))
        == f"{hostile.url}/owner/model/resolve/{COMMIT}/sub/w.safetensors"
    )
    dataset = HuggingFacePlace("owner/set", COMMIT, "d.parquet", "dataset")
    assert made.address(dataset) == f"{hostile.url}/datasets/owner/set/resolve/{COMMIT}/d.parquet"
    hostile.routes["/my-bucket/key"] = serve(CONTENT)
    assert (await made.read(S3Place("my-bucket", "key"), digest=DIGEST)).digest == DIGEST


@pytest.mark.parametrize(
    "place",
    [
        S3Place("My_Bucket", "k"),
        S3Place("a", "k"),
        S3Place("bucket", "../other/k"),
        S3Place("bucket", ""),
        S3Place("bucket", "a//b"),
        S3Place("bucket", "a\r\nb"),
        S3Place("bucket", "a\udcffb"),
        HuggingFacePlace("owner/model", "main", "w"),
        HuggingFacePlace("../x", COMMIT, "w"),
        HuggingFacePlace("owner/model", COMMIT, "../../w"),
        HuggingFacePlace("owner/model", COMMIT, "w", "other"),
        HttpsPlace("ftp://example.org/x"),
        HttpsPlace("https://user:password@example.org/x"),
    ],
)
async def test_a_malformed_place_is_refused(dialer: EgressClient, place: BlobPlace) -> None:
    made = source(dialer, s3_endpoint="https://s3.example.org", huggingface_endpoint="https://hub.example.org")

    assert await code_of(made.read(place)) is Code.VALIDATION_FAILED


async def test_what_is_not_configured_is_not_offered(dialer: EgressClient) -> None:
    for place in (S3Place("bucket", "k"), HuggingFacePlace("o/m", COMMIT, "w"), FilePlace("w")):
        assert await code_of(source(dialer).read(place)) is Code.VALIDATION_FAILED


def test_places_are_read_from_their_addresses() -> None:
    assert read_place("https://example.org/w") == HttpsPlace("https://example.org/w")
    assert read_place("s3://bucket/a/b") == S3Place("bucket", "a/b")
    assert read_place(f"hf://owner/model@{COMMIT}/a/b") == HuggingFacePlace("owner/model", COMMIT, "a/b")
    assert read_place(f"hf://datasets/o/s@{COMMIT}/f") == HuggingFacePlace("o/s", COMMIT, "f", "dataset")
    assert read_place("file:weights/model.bin") == FilePlace("weights/model.bin")
    for wrong in ("http://example.org/w", "ssh://x/y", "", "weights"):
        with pytest.raises(Refusal):
            read_place(wrong)


async def test_a_file_below_the_directory_is_read_and_compared(tmp_path: Path, dialer: EgressClient) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(CONTENT)
    made = source(dialer, file_directory=str(tmp_path))
    place = FilePlace("sub/w.bin")
    taken = bytearray()

    async def sink(chunk: bytes) -> None:
        taken.extend(chunk)

    assert (await made.read(place, sink, digest=DIGEST, size_bytes=len(CONTENT))).digest == DIGEST
    assert bytes(taken) == CONTENT
    assert await made.size(place) == len(CONTENT)
    assert await code_of(made.read(place, digest=f"sha256:{'0' * 64}")) is Code.DIGEST_MISMATCH
    assert await code_of(made.read(FilePlace("sub/x"))) is Code.ARTIFACT_NOT_FOUND_AT_SOURCE
    small = source(dialer, file_directory=str(tmp_path), limit_bytes=10)
    assert await code_of(small.read(place)) is Code.SOURCE_TOO_LARGE


def _link_to_file(root: Path) -> str:
    (root / "open" / "link").symlink_to(root / "secret")
    return "link"


def _link_in_the_way(root: Path) -> str:
    (root / "open" / "way").symlink_to(root)
    return "way/secret"


def _pipe(root: Path) -> str:
    os.mkfifo(root / "open" / "pipe")
    return "pipe"


def _directory(root: Path) -> str:
    (root / "open" / "directory").mkdir()
    return "directory"


def _file_in_the_way(root: Path) -> str:
    (root / "open" / "plain").write_bytes(b"")
    return "plain/secret"


@pytest.mark.parametrize(
    "path",
    [
        _link_to_file, _link_in_the_way, _pipe, _directory, _file_in_the_way,
        lambda _: "../secret", lambda root: f"{root}/secret", lambda _: "", lambda _: ".", lambda _: "a//b",
        lambda _: "a/./b", lambda _: "a\0b", lambda _: "a\udcff", lambda _: "x" * 2_000, lambda _: "/etc/passwd",
    ],
)  # fmt: skip
async def test_no_path_leads_out_of_the_directory(
    tmp_path: Path, dialer: EgressClient, path: Callable[[Path], str]
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "secret").write_bytes(b"not to be read")
    made = source(dialer, file_directory=str(tmp_path / "open"))

    assert await code_of(made.read(FilePlace(path(tmp_path)))) is Code.SOURCE_PATH_REFUSED


def opened_below(directory: Path) -> list[str]:
    """The names of the files there that this process has open."""
    opened = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return [os.path.basename(each) for each in opened if os.path.dirname(each) == str(directory)]


async def test_reading_a_file_ends_with_its_time_and_leaves_nothing_open(tmp_path: Path, dialer: EgressClient) -> None:
    (tmp_path / "w").write_bytes(CONTENT)
    made = source(dialer, file_directory=str(tmp_path), patience=SourceTimeouts(total_seconds=0.05))

    async def stuck(_: bytes) -> None:
        await asyncio.Event().wait()

    assert await code_of(made.read(FilePlace("w"), stuck)) is Code.SOURCE_TOO_SLOW
    assert "w" not in opened_below(tmp_path)
