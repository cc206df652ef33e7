"""The client against Debian's docker-registry."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.image_manifest import OCI_EMPTY, OCI_MANIFEST, digest_of
from mooring.gateways.registry.registry_auth import RegistryPassword
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from server.tests.gateways.registry.conftest import BRIEF
from server.tests.support.images import About, describe, image, index, payload, push
from server.tests.support.registry_process import RunningRegistry, running_registry

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("registry")]


async def test_what_was_pushed_is_read_back_byte_for_byte(pusher: RegistryPusher, repository: str) -> None:
    made = image()
    digest = await push(pusher, repository, made)

    read = await pusher.client.manifest(repository, digest)

    assert read.raw == made.manifest.raw
    assert read.is_image
    for descriptor in (*read.layers, *([read.config] if read.config else [])):
        assert await pusher.client.blob_bytes(repository, descriptor) == made.blobs[descriptor.digest]


async def test_an_index_leads_to_the_image_of_each_platform(pusher: RegistryPusher, repository: str) -> None:
    both = {f"linux/{each}": image(about=About(architecture=each)) for each in ("amd64", "arm64")}
    digest = await push(pusher, repository, index(both))

    read = await pusher.client.manifest(repository, digest)

    assert read.is_index
    assert {each.platform.architecture: each.digest for each in read.manifests if each.platform} == {
        name.partition("/")[2]: part.digest for name, part in both.items()
    }
    assert (await pusher.client.manifest(repository, read.manifests[1].digest)).is_image


async def test_a_payload_that_is_not_an_image_keeps_its_files(pusher: RegistryPusher, repository: str) -> None:
    digest = await push(pusher, repository, payload({"weights.bin": b"w" * 1000, "run.sh": b"echo"}))

    read = await pusher.client.manifest(repository, digest)

    assert not read.is_image
    assert [layer.annotation("org.opencontainers.image.title") for layer in read.layers] == ["weights.bin", "run.sh"]


async def test_a_blob_goes_up_in_one_piece_in_several_or_as_a_stream(pusher: RegistryPusher, repository: str) -> None:
    whole, pieces, streamed = b"a" * 70_000, b"b" * 70_000, b"c" * 70_000

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(streamed), 10_000):
            yield streamed[start : start + 10_000]

    await pusher.blob(repository, whole)
    await pusher.chunked(repository, pieces, chunk_bytes=16_384)
    await pusher.stream(repository, parts(), describe(streamed, "application/octet-stream"))

    for content in (whole, pieces, streamed):
        assert await pusher.client.blob_size(repository, digest_of(content)) == len(content)
        assert await pusher.client.blob_bytes(repository, describe(content, "x")) == content


async def test_a_stream_that_is_not_what_its_digest_says_is_refused_by_the_registry(
    pusher: RegistryPusher, repository: str
) -> None:
    async def other() -> AsyncIterator[bytes]:
        yield b"other"

    with pytest.raises(Refusal) as refused:
        await pusher.stream(repository, other(), describe(b"thing", "x"))

    assert refused.value.code is Code.DIGEST_MISMATCH


async def test_a_digest_that_does_not_exist_is_not_found(pusher: RegistryPusher, repository: str) -> None:
    await push(pusher, repository, image())
    missing = f"sha256:{'0' * 64}"

    with pytest.raises(Refusal) as manifest:
        await pusher.client.manifest(repository, missing)
    with pytest.raises(Refusal) as blob:
        await pusher.client.read_blob(repository, describe(b"never pushed", "x"))

    assert manifest.value.code is blob.value.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE
    assert not await pusher.client.has_manifest(repository, missing)
    assert await pusher.client.blob_size(repository, missing) is None


@pytest.mark.parametrize("part", ["manifest", "layer", "config"])
async def test_content_that_was_changed_in_the_registrys_store_is_refused(
    pusher: RegistryPusher, open_registry: RunningRegistry, repository: str, part: str
) -> None:
    made = image(about=About(further={"Labels": {"of": repository}}))
    digest = await push(pusher, repository, made)
    config = made.manifest.config
    assert config is not None
    spoiled = {"manifest": digest, "layer": made.manifest.layers[0].digest, "config": config.digest}[part]

    async def read_all() -> None:
        manifest = await pusher.client.manifest(repository, digest)
        await pusher.client.read_blob(repository, manifest.layers[0])
        await pusher.client.read_blob(repository, config)

    file = open_registry.file_of(spoiled)
    content = file.read_bytes()
    changed = content.replace(b"config.v1", b"konfig.v1") if part == "manifest" else content[::-1]
    assert changed != content
    file.write_bytes(changed)
    try:
        with pytest.raises(Refusal) as refused:
            await read_all()
    finally:
        file.write_bytes(content)

    assert refused.value.code is Code.DIGEST_MISMATCH


async def test_a_tag_that_moved_is_noticed(pusher: RegistryPusher, repository: str) -> None:
    first = await push(pusher, repository, image(), tag="stable")
    assert (await pusher.client.confirm_tag(repository, "stable", first)).digest == first

    second = await push(pusher, repository, image(about=About(further={"Labels": {"n": "2"}})), tag="stable")
    with pytest.raises(Refusal) as refused:
        await pusher.client.confirm_tag(repository, "stable", first)

    assert refused.value.code is Code.TAG_MOVED
    assert refused.value.details["found"] == second
    assert (await pusher.client.manifest(repository, first)).digest == first  # the digest names what it named


async def test_what_refers_to_a_digest_is_found_by_the_fallback_tag(pusher: RegistryPusher, repository: str) -> None:
    made = image()
    digest = await push(pusher, repository, made)
    assert await pusher.client.referrers(repository, digest) == ()

    pushed = []
    for number in range(2):
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": "application/vnd.example.note",
            "config": await pusher.blob(repository, b"{}", OCI_EMPTY),
            "layers": [await pusher.blob(repository, b"note %d" % number, "text/plain")],
            "subject": made.manifest.descriptor,
        }
        pushed.append((await pusher.manifest(repository, document)).digest)
        await pusher.manifest(repository, document)  # a second time it is listed already

    assert [each.digest for each in await pusher.client.referrers(repository, digest)] == pushed


async def test_a_password_is_taken_and_a_wrong_or_missing_one_is_refused(
    tmp_path: Path, dialer: EgressClient, repository: str
) -> None:
    # bcrypt is the only form that the registry takes; this is of the password below
    entry = "pusher:$2y$05$abcdefghijklmnopqrstuu2sM.EEHj4jPcCa5rwqJGg1PNBllkZXy\n"
    (tmp_path / "htpasswd").write_text(entry)
    auth = {"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}

    def client(password: str | None) -> RegistryClient:
        credentials = None if password is None else RegistryPassword("pusher", password)
        return RegistryClient(RegistryPlace(started.url, credentials=credentials, patience=BRIEF), dialer)

    with running_registry(tmp_path, auth) as started:
        digest = await push(RegistryPusher(client("a password")), repository, image())
        assert (await client("a password").manifest(repository, digest)).digest == digest
        for wrong in ("another", None):
            with pytest.raises(Refusal) as refused:
                await client(wrong).manifest(repository, digest)
            assert refused.value.code is Code.REGISTRY_AUTH_REFUSED
            assert "another" not in str(refused.value)
