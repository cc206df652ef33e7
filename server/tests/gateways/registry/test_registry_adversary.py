"""The client against a registry that lies, dawdles, never ends, and sends its readers elsewhere."""

import asyncio
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mooring.core.kernel.address import Reach
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.image_manifest import OCI_INDEX, OCI_MANIFEST, digest_of
from mooring.gateways.registry.registry_auth import RegistryPassword, read_challenges
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.registry.source_stream import SourceTimeouts
from server.tests.gateways.registry.conftest import BRIEF
from server.tests.support.images import describe, image
from server.tests.support.registry_adversary import (
    Adversary,
    Asked,
    Handler,
    adversary,
    announces,
    breaks_after,
    drips,
    endless,
    head,
    in_turn,
    serve,
    silent,
    stalls_after,
    status,
)
from tests.support.waiting import linger

pytestmark = pytest.mark.anyio

REPOSITORY = "team/app"
TEN_GIGABYTES = 10 * 1024**3
MEMORY_BYTES_MAX = 8 * 1_048_576
HASTY = replace(BRIEF, answer_seconds=0.2, window_seconds=0.2, attempts=1)
CONTENT = bytes(range(256)) * 2_000
BLOB = describe(CONTENT, "application/octet-stream")
BLOB_PATH = f"/v2/{REPOSITORY}/blobs/{BLOB.digest}"


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Fail when what runs inside takes more than a little memory at any time."""
    tracemalloc.start()
    try:
        yield
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MEMORY_BYTES_MAX


def client_of(hostile: Adversary, dialer: EgressClient, **changed: Any) -> RegistryClient:
    return RegistryClient(RegistryPlace(hostile.url, **{"patience": BRIEF, **changed}), dialer)


async def code_of(work: Awaitable[object]) -> Code:
    with pytest.raises(Refusal) as refused:
        await work
    return refused.value.code


async def test_a_changed_layer_config_or_manifest_is_a_mismatch(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    made = image()
    hostile.put(REPOSITORY, made)
    layer = made.manifest.layers[0]
    hostile.routes[f"/v2/{REPOSITORY}/blobs/{layer.digest}"] = serve(b"x" * layer.size)
    hostile.routes[f"/v2/{REPOSITORY}/manifests/{made.digest}"] = serve(made.manifest.raw + b" ", OCI_MANIFEST)

    assert await code_of(hostile_client.read_blob(REPOSITORY, layer)) is Code.DIGEST_MISMATCH
    assert await code_of(hostile_client.manifest(REPOSITORY, made.digest)) is Code.DIGEST_MISMATCH


async def test_a_body_of_another_size_than_the_descriptors_is_refused_before_it_is_read(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    hostile.routes[BLOB_PATH] = serve(CONTENT + b"more")
    taken: list[bytes] = []

    async def sink(chunk: bytes) -> None:
        taken.append(chunk)

    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB, sink)) is Code.DIGEST_MISMATCH
    assert not taken


async def test_ten_gigabytes_are_refused_unread(hostile: Adversary, dialer: EgressClient) -> None:
    client = client_of(hostile, dialer, blob_limit_bytes=64 * 1_048_576)
    vast = describe(b"x", "x")
    vast = msgspec.structs.replace(vast, size=TEN_GIGABYTES)
    path = f"/v2/{REPOSITORY}/manifests/{BLOB.digest}"
    hostile.routes[path] = hostile.routes[f"/v2/{REPOSITORY}/manifests/latest"] = announces(TEN_GIGABYTES)
    hostile.routes[f"/v2/{REPOSITORY}/referrers/{BLOB.digest}"] = announces(TEN_GIGABYTES)

    with bounded_memory():
        described = await code_of(client.read_blob(REPOSITORY, vast))
        announced = [
            await code_of(client.manifest(REPOSITORY, BLOB.digest)),
            await code_of(client.resolve_tag(REPOSITORY, "latest")),
            await code_of(client.referrers(REPOSITORY, BLOB.digest)),
        ]

    assert {described, *announced} == {Code.SOURCE_TOO_LARGE}
    assert (
        hostile.times(f"/v2/{REPOSITORY}/blobs/{vast.digest}") == 0
    )  # what is too large by its descriptor is not asked for


async def test_an_answer_without_end_is_cut_off_at_its_size(hostile: Adversary, dialer: EgressClient) -> None:
    client = client_of(hostile, dialer)
    large = msgspec.structs.replace(BLOB, size=32 * 1_048_576)
    hostile.routes[BLOB_PATH] = endless
    hostile.routes[f"/v2/{REPOSITORY}/manifests/{BLOB.digest}"] = endless
    hostile.routes[f"/v2/{REPOSITORY}/manifests/latest"] = endless

    with bounded_memory():
        assert await code_of(client.read_blob(REPOSITORY, large)) is Code.SOURCE_ENDLESS
    assert await code_of(client.manifest(REPOSITORY, BLOB.digest)) is Code.SOURCE_ENDLESS
    assert await code_of(client.resolve_tag(REPOSITORY, "latest")) is Code.SOURCE_ENDLESS


async def test_a_large_blob_passes_through_little_memory(hostile: Adversary, hostile_client: RegistryClient) -> None:
    size = 48 * 1_048_576
    zeros = digest_of(bytes(size))
    hostile.routes[f"/v2/{REPOSITORY}/blobs/{zeros}"] = announces(size)
    seen = 0

    async def sink(chunk: bytes) -> None:
        nonlocal seen
        seen += len(chunk)

    with bounded_memory():
        received = await hostile_client.read_blob(
            REPOSITORY, msgspec.structs.replace(BLOB, digest=zeros, size=size), sink
        )

    assert (received.digest, received.size_bytes, seen) == (zeros, size, size)


async def test_a_registry_that_says_nothing_or_stops_in_the_middle_is_too_slow(
    hostile: Adversary, dialer: EgressClient
) -> None:
    client = client_of(hostile, dialer, patience=HASTY)
    hostile.routes[BLOB_PATH] = stalls_after(CONTENT, 1_000)
    hostile.routes[f"/v2/{REPOSITORY}/manifests/{BLOB.digest}"] = silent

    assert await code_of(client.manifest(REPOSITORY, BLOB.digest)) is Code.SOURCE_TOO_SLOW
    assert await code_of(client.read_blob(REPOSITORY, BLOB)) is Code.SOURCE_TOO_SLOW


async def test_a_byte_now_and_then_is_too_slow_although_something_always_comes(
    hostile: Adversary, dialer: EgressClient
) -> None:
    client = client_of(hostile, dialer, patience=HASTY)
    hostile.routes[BLOB_PATH] = drips(BLOB.size, lambda: linger(0.01))
    headers = f"/v2/{REPOSITORY}/manifests/{BLOB.digest}"

    async def slow_headers(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 X\r\n")
        while True:
            writer.write(b"x: y\r\n")
            await writer.drain()
            await linger(0.01)

    hostile.routes[headers] = slow_headers

    heard = client_of(hostile, dialer, patience=replace(HASTY, answer_seconds=30.0))  # its head comes, however late
    with pytest.raises(Refusal, match=r"source_too_slow: .* less than 65536 bytes in 0.2 s"):
        await heard.read_blob(REPOSITORY, BLOB)
    with pytest.raises(Refusal, match=r"source_too_slow: .* no answer within 0.2 s"):
        await client.manifest(REPOSITORY, BLOB.digest)


async def test_the_whole_has_a_time_limit_however_steadily_it_comes(hostile: Adversary, dialer: EgressClient) -> None:
    patience = SourceTimeouts(total_seconds=0.3, window_bytes=1, attempts=1)
    hostile.routes[BLOB_PATH] = drips(BLOB.size, lambda: linger(0.01))

    assert (
        await code_of(client_of(hostile, dialer, patience=patience).read_blob(REPOSITORY, BLOB)) is Code.SOURCE_TOO_SLOW
    )


async def test_a_transfer_that_breaks_off_is_taken_up_where_it_stopped(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    hostile.routes[BLOB_PATH] = in_turn(
        breaks_after(CONTENT, 100_000), breaks_after(CONTENT, 100_000), breaks_after(CONTENT, len(CONTENT))
    )
    taken = bytearray()

    async def sink(chunk: bytes) -> None:
        taken.extend(chunk)

    await hostile_client.read_blob(REPOSITORY, BLOB, sink)

    assert bytes(taken) == CONTENT
    assert [each.headers.get("range") for each in hostile.asked] == [None, "bytes=100000-", "bytes=200000-"]


async def test_without_ranges_everything_comes_again_and_the_sink_gets_each_byte_once(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    hostile.routes[BLOB_PATH] = in_turn(breaks_after(CONTENT, 100_000), serve(CONTENT, ranges=False))

    assert await hostile_client.blob_bytes(REPOSITORY, BLOB) == CONTENT


async def test_content_that_changes_between_two_attempts_is_a_mismatch(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    hostile.routes[BLOB_PATH] = in_turn(breaks_after(CONTENT, 100_000), serve(bytes(len(CONTENT))))

    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB)) is Code.DIGEST_MISMATCH


async def test_a_part_that_was_not_asked_for_is_malformed(hostile: Adversary, hostile_client: RegistryClient) -> None:
    async def other_part(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(206, content_length=3, content_range=f"bytes 5-7/{len(CONTENT)}") + b"abc")

    hostile.routes[BLOB_PATH] = in_turn(breaks_after(CONTENT, 100_000), other_part)

    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB)) is Code.SOURCE_MALFORMED


async def test_tries_are_counted_and_a_failing_registry_is_unreachable(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    hostile.routes[BLOB_PATH] = status(503)
    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB)) is Code.SOURCE_UNREACHABLE
    assert hostile.times(BLOB_PATH) == BRIEF.attempts

    hostile.routes[BLOB_PATH] = in_turn(status(503), status(429, retry_after=0), serve(CONTENT))
    assert await hostile_client.blob_bytes(REPOSITORY, BLOB) == CONTENT


async def test_nobody_there_is_unreachable(dialer: EgressClient) -> None:
    client = RegistryClient(RegistryPlace("http://127.0.0.1:9", patience=BRIEF), dialer)

    assert await code_of(client.manifest(REPOSITORY, BLOB.digest)) is Code.SOURCE_UNREACHABLE


@pytest.mark.parametrize("name", ["blob", "manifest"])
async def test_a_redirect_to_another_host_is_refused_and_nothing_is_asked_there(
    hostile: Adversary, dialer: EgressClient, name: str
) -> None:
    async with adversary() as other:
        path = BLOB_PATH if name == "blob" else f"/v2/{REPOSITORY}/manifests/{BLOB.digest}"
        hostile.routes[path] = status(307, location=f"{other.url}/elsewhere")
        client = client_of(hostile, dialer)
        work = client.read_blob(REPOSITORY, BLOB) if name == "blob" else client.manifest(REPOSITORY, BLOB.digest)

        assert await code_of(work) is Code.REDIRECT_REFUSED
        assert other.asked == []


async def test_an_allowed_redirect_is_followed_without_the_credentials(
    hostile: Adversary, dialer: EgressClient
) -> None:
    async with adversary() as store:
        store.routes["/kept"] = serve(CONTENT)

        async def guarded(asked: Asked, writer: asyncio.StreamWriter) -> None:
            if "authorization" not in asked.headers:
                writer.write(head(401, content_length=0, www_authenticate='Basic realm="x"'))
            else:
                writer.write(head(307, content_length=0, location=f"{store.url}/kept?signed=1"))

        hostile.routes[BLOB_PATH] = guarded
        client = client_of(
            hostile,
            dialer,
            credentials=RegistryPassword("reader", "secret"),
            redirect_hosts=frozenset({store.authority}),
        )

        assert await client.blob_bytes(REPOSITORY, BLOB) == CONTENT
        assert [("authorization" in each.headers) for each in hostile.asked] == [False, True]
        assert [("authorization" in each.headers) for each in store.asked] == [False]


async def test_a_redirect_that_goes_round_in_a_circle_ends(hostile: Adversary, hostile_client: RegistryClient) -> None:
    hostile.routes[BLOB_PATH] = status(302, location=BLOB_PATH)

    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB)) is Code.REDIRECT_REFUSED
    assert hostile.times(BLOB_PATH) == 4


async def test_an_allowed_host_that_is_a_private_address_is_not_dialled_for_a_tenant(
    hostile: Adversary,
) -> None:
    outbound = EgressClient(Reach())
    try:
        tenants = RegistryClient(RegistryPlace(f"https://{hostile.authority}", patience=BRIEF), outbound)
        assert await code_of(tenants.manifest(REPOSITORY, BLOB.digest)) is Code.ADDRESS_REFUSED
    finally:
        await outbound.close()
    assert hostile.asked == []


async def test_a_token_service_on_another_host_never_sees_the_password(
    hostile: Adversary, dialer: EgressClient
) -> None:
    async with adversary() as thief:
        thief.routes["/token"] = serve(b'{"token":"x"}')
        challenge = f'Bearer realm="{thief.url}/token",service="x",scope="repository:{REPOSITORY}:pull"'
        hostile.routes[BLOB_PATH] = status(401, www_authenticate=challenge)
        client = client_of(hostile, dialer, credentials=RegistryPassword("reader", "secret"))

        assert await code_of(client.read_blob(REPOSITORY, BLOB)) is Code.REGISTRY_AUTH_REFUSED
        assert thief.asked == []


async def test_a_token_service_that_redirects_is_not_followed(hostile: Adversary, dialer: EgressClient) -> None:
    async with adversary() as thief:
        hostile.routes[BLOB_PATH] = status(401, www_authenticate=f'Bearer realm="{hostile.url}/token"')
        hostile.routes["/token"] = status(302, location=f"{thief.url}/token")
        client = client_of(hostile, dialer, credentials=RegistryPassword("reader", "secret"))

        assert await code_of(client.read_blob(REPOSITORY, BLOB)) is Code.REDIRECT_REFUSED
        assert thief.asked == []


async def test_the_scope_that_is_asked_for_is_ours_and_not_the_registrys(
    hostile: Adversary, dialer: EgressClient
) -> None:
    async def guarded(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers.get("authorization") == "Bearer given":
            await serve(CONTENT)(asked, writer)
        else:
            challenge = f'Bearer realm="{hostile.url}/token",service="s",scope="repository:victim/app:pull,push,delete"'
            writer.write(head(401, content_length=0, www_authenticate=challenge))

    hostile.routes[BLOB_PATH] = guarded
    hostile.routes["/token"] = serve(b'{"access_token":"given","expires_in":300}')

    assert await client_of(hostile, dialer).blob_bytes(REPOSITORY, BLOB) == CONTENT
    asked = next(each.path for each in hostile.asked if each.path.startswith("/token"))
    assert asked == "/token?service=s&scope=repository%3Ateam%2Fapp%3Apull"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        (serve(b"not json"), Code.SOURCE_MALFORMED),
        (serve(b'{"token":"a\\r\\nx: y"}'), Code.SOURCE_MALFORMED),
        (serve(b"[" * 60_000), Code.SOURCE_MALFORMED),
        (status(403), Code.REGISTRY_AUTH_REFUSED),
        (announces(TEN_GIGABYTES), Code.SOURCE_TOO_LARGE),
        (endless, Code.SOURCE_ENDLESS),
    ],
    ids=["text", "header injection", "deep", "forbidden", "ten gigabytes", "endless"],
)
async def test_a_token_service_that_misbehaves_is_refused(
    hostile: Adversary, hostile_client: RegistryClient, token: Handler, code: Code
) -> None:
    hostile.routes[BLOB_PATH] = status(401, www_authenticate=f'Bearer realm="{hostile.url}/token"')
    hostile.routes["/token"] = token

    assert await code_of(hostile_client.read_blob(REPOSITORY, BLOB)) is code


async def test_a_compressed_answer_is_not_unpacked(hostile: Adversary, hostile_client: RegistryClient) -> None:
    bomb = gzip.compress(bytes(24 * 1_048_576))
    raw = describe(bomb, "x")

    async def encoded(asked: Asked, writer: asyncio.StreamWriter) -> None:
        assert asked.headers["accept-encoding"] == "identity"
        writer.write(head(200, content_length=len(bomb), content_encoding="gzip") + bomb)

    hostile.routes[f"/v2/{REPOSITORY}/blobs/{raw.digest}"] = encoded
    hostile.routes[f"/v2/{REPOSITORY}/manifests/latest"] = encoded

    with bounded_memory():
        assert await hostile_client.blob_bytes(REPOSITORY, raw) == bomb
        assert await code_of(hostile_client.resolve_tag(REPOSITORY, "latest")) is Code.SOURCE_MALFORMED


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no json",
        b'{"schemaVersion":1}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [], "layers": []}),
        msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "manifests": []}),
        msgspec.json.encode({"schemaVersion": 2, "mediaType": "text/html", "manifests": []}),
        msgspec.json.encode(
            {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [{"mediaType": "x", "digest": "x", "size": 1}]}
        ),
        msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [BLOB] * 1_025}),
    ],
    ids=["empty", "text", "schema 1", "deep list", "deep map", "both", "neither", "other type", "digest", "too many"],
)
async def test_a_document_that_is_not_a_manifest_is_malformed(
    hostile: Adversary, hostile_client: RegistryClient, document: bytes
) -> None:
    hostile.routes[f"/v2/{REPOSITORY}/manifests/{digest_of(document)}"] = serve(document)

    assert await code_of(hostile_client.manifest(REPOSITORY, digest_of(document))) is Code.SOURCE_MALFORMED


async def test_a_manifest_that_is_sent_as_another_kind_is_malformed(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    raw = image().manifest.raw
    hostile.routes[f"/v2/{REPOSITORY}/manifests/{digest_of(raw)}"] = serve(raw, OCI_INDEX)

    assert await code_of(hostile_client.manifest(REPOSITORY, digest_of(raw))) is Code.SOURCE_MALFORMED


async def test_a_tag_whose_stated_digest_is_not_that_of_the_bytes_is_a_mismatch(
    hostile: Adversary, hostile_client: RegistryClient
) -> None:
    raw = image().manifest.raw

    async def lying(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, content_length=len(raw), docker_content_digest=BLOB.digest) + raw)

    hostile.routes[f"/v2/{REPOSITORY}/manifests/latest"] = lying

    assert await code_of(hostile_client.resolve_tag(REPOSITORY, "latest")) is Code.DIGEST_MISMATCH


async def test_referrers_come_in_pages_of_the_registrys_own(hostile: Adversary, hostile_client: RegistryClient) -> None:
    page = msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [BLOB]})
    path = f"/v2/{REPOSITORY}/referrers/{BLOB.digest}"

    def linked(to: str) -> Handler:
        async def handler(asked: Asked, writer: asyncio.StreamWriter) -> None:
            further = {"link": f'<{to}>; rel="next"'} if to else {}
            writer.write(head(200, content_type=OCI_INDEX, content_length=len(page), **further) + page)

        return handler

    hostile.routes[path] = linked("/next")
    hostile.routes["/next"] = linked("")
    assert len(await hostile_client.referrers(REPOSITORY, BLOB.digest)) == 2

    hostile.routes["/next"] = linked("/next")
    assert len(await hostile_client.referrers(REPOSITORY, BLOB.digest)) == 8

    hostile.routes["/next"] = linked("http://127.0.0.2:9/next")
    assert await code_of(hostile_client.referrers(REPOSITORY, BLOB.digest)) is Code.SOURCE_MALFORMED


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.manifest("../up", BLOB.digest),
        lambda client: client.manifest("Upper/case", BLOB.digest),
        lambda client: client.manifest(REPOSITORY, "latest"),
        lambda client: client.manifest(REPOSITORY, f"sha256:{'A' * 64}"),
        lambda client: client.resolve_tag(REPOSITORY, "a/../b"),
        lambda client: client.resolve_tag(REPOSITORY, ""),
        lambda client: client.referrers(REPOSITORY, "sha256:short"),
    ],
)
async def test_invalid_names_never_become_an_address(
    hostile: Adversary, hostile_client: RegistryClient, call: Callable[[RegistryClient], Awaitable[object]]
) -> None:
    assert await code_of(call(hostile_client)) is Code.VALIDATION_FAILED
    assert hostile.asked == []


async def test_an_upload_stays_with_the_registry(hostile: Adversary, hostile_client: RegistryClient) -> None:
    async with adversary() as thief:
        hostile.routes[f"/v2/{REPOSITORY}/blobs/uploads/"] = status(202, location=f"{thief.url}/upload")

        assert await code_of(RegistryPusher(hostile_client).blob(REPOSITORY, CONTENT)) is Code.REDIRECT_REFUSED
        assert thief.asked == []


def test_challenges_are_read_as_far_as_they_can_be() -> None:
    read = read_challenges('Basic realm="a, \\"b\\"", Bearer realm="https://x/t",service=y , scope="r:a:pull,push"')

    assert [each.scheme for each in read] == ["basic", "bearer"]
    assert read[0].parameters == {"realm": 'a, "b"'}
    assert read[1].parameters == {"realm": "https://x/t", "service": "y", "scope": "r:a:pull,push"}
    assert read_challenges('"') == []
    assert read_challenges("") == []
