"""The smoke check: complete, unchanged, unpackable, for a known platform, with something to start."""

import gzip
import io
import tarfile
import tracemalloc
from dataclasses import replace

import msgspec
import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_layer import (
    ExpansionLimits,
    FileTree,
    LayerInspector,
    LayerMalformed,
    Packing,
    packing_of,
)
from mooring.gateways.registry.image_manifest import BlobDescriptor, digest_of
from mooring.gateways.registry.image_smoke import SmokeLimits, SmokeOutcome, SmokeResult, smoke
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.registry.simulated_registry import SimulatedRegistry
from mooring.gateways.registry.source_stream import ReceivedBody, Sink
from server.tests.support.images import (
    PROGRAM,
    About,
    ArchivedFile,
    SampleArtifact,
    SampleLayer,
    archive,
    image,
    index,
    layer,
    payload,
    push,
)
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio
REPOSITORY = "team/app"


def registry_with(*artifacts: SampleArtifact) -> SimulatedRegistry:
    registry = SimulatedRegistry()
    for artifact in artifacts:
        for part in (*artifact.parts, artifact):
            for content in part.blobs.values():
                registry.put_blob(REPOSITORY, content)
            registry.put_manifest(REPOSITORY, part.manifest.raw)
    return registry


async def tried(artifact: SampleArtifact, limits: SmokeLimits | None = None) -> SmokeResult:
    return await smoke(registry_with(artifact), REPOSITORY, artifact.digest, limits=limits)


def failures(result: SmokeResult) -> list[tuple[str, Code | None]]:
    return [(each.name, each.code) for each in result.checks if each.outcome is SmokeOutcome.FAILED]


@pytest.mark.real_part("registry")
async def test_an_image_in_a_real_registry_passes_and_every_layer_was_read(
    pusher: RegistryPusher, repository: str
) -> None:
    made = image([layer(archive({"bin/program": PROGRAM})), layer(archive({"data": b"d" * 500_000}))])
    digest = await push(pusher, repository, made)
    sizes: list[int] = []

    async def progress(size: int) -> None:
        sizes.append(size)

    result = await smoke(pusher.client, repository, digest, progress=progress)

    assert result.passed
    assert result.refusal() is None
    assert (result.platforms, result.layers) == (("linux/amd64",), 2)
    assert result.size_bytes == sum(each.size for each in made.manifest.layers) == sizes[-1]
    assert [each.name for each in result.checks] == ["manifest", "config", "platform", "layers", "entry_point"]


@pytest.mark.real_part("registry")
async def test_an_index_passes_when_each_of_its_images_does(pusher: RegistryPusher, repository: str) -> None:
    both = {f"linux/{each}": image(about=About(architecture=each)) for each in ("amd64", "arm64")}
    digest = await push(pusher, repository, index(both))

    result = await smoke(pusher.client, repository, digest)

    assert result.passed
    assert result.platforms == ("linux/amd64", "linux/arm64")


async def test_one_bad_image_of_an_index_fails_it() -> None:
    bad = image(about=About(os="windows"))
    result = await tried(index({"linux/amd64": image(), "windows/amd64": bad}))

    assert failures(result) == [("platform", None)]
    refusal = result.refusal()
    assert refusal is not None
    assert refusal.code is Code.SMOKE_FAILED


async def test_a_payload_is_fetched_and_hashed_and_nothing_else() -> None:
    result = await tried(payload({"weights": b"w" * 100_000, "script": b"s"}))

    assert result.passed
    assert result.layers == 2
    assert result.size_bytes == 100_000 + 1 + 2
    assert {each.name for each in result.checks} == {"manifest", "layers"}


@pytest.mark.parametrize("part", ["manifest", "config", "layers"])
@pytest.mark.parametrize("fault", ["spoiled", "missing"])
async def test_what_was_tampered_with_or_is_missing_fails_with_its_own_code(part: str, fault: str) -> None:
    made = image()
    registry = registry_with(made)
    config = made.manifest.config
    assert config is not None
    digest = {"manifest": made.digest, "config": config.digest, "layers": made.manifest.layers[0].digest}[part]
    if fault == "missing":
        registry.remove(REPOSITORY, digest)
    else:
        registry.spoil(REPOSITORY, digest, b"x" * len(made.blobs.get(digest, made.manifest.raw)))

    result = await smoke(registry, REPOSITORY, made.digest)

    mismatch = Code.LAYER_MISMATCH if part == "layers" else Code.DIGEST_MISMATCH
    code = Code.ARTIFACT_NOT_FOUND_AT_SOURCE if fault == "missing" else mismatch
    assert failures(result) == [(part, code)]
    refusal = result.refusal()
    assert refusal is not None
    assert refusal.code is code


async def test_an_unreachable_registry_gives_no_result() -> None:
    class FailingRegistry(SimulatedRegistry):
        async def read_blob(self, repository: str, wanted: BlobDescriptor, sink: Sink | None = None) -> ReceivedBody:
            raise Refusal(Code.SOURCE_TOO_SLOW, "it is slow")

    made = image()
    failing = FailingRegistry()
    for content in made.blobs.values():
        failing.put_blob(REPOSITORY, content)
    failing.put_manifest(REPOSITORY, made.manifest.raw)

    with pytest.raises(Refusal) as refused:
        await smoke(failing, REPOSITORY, made.digest)

    assert refused.value.code is Code.SOURCE_TOO_SLOW


@pytest.mark.parametrize(
    "about",
    [About(os="windows"), About(os=""), About(architecture="riscv64"), About(architecture="")],
)
async def test_an_image_for_another_platform_fails(about: About) -> None:
    assert failures(await tried(image(about=about))) == [("platform", None)]


@pytest.mark.parametrize(
    ("program", "files", "links"),
    [
        ("/bin/program", {"bin/program": PROGRAM}, {}),
        ("/bin/program", {"./bin/program": PROGRAM}, {}),
        ("program", {"usr/local/bin/program": PROGRAM}, {}),
        ("program", {"opt/own/program": PROGRAM}, {}),
        ("./program", {"work/program": PROGRAM}, {}),
        ("/bin/sh", {"usr/bin/dash": PROGRAM}, {"bin": "usr/bin", "usr/bin/sh": "dash"}),
        ("/bin/sh", {"usr/bin/dash": PROGRAM}, {"bin": "/usr/bin", "usr/bin/sh": "../bin/dash"}),
        ("/entry", {"busybox": PROGRAM}, {"entry": "/second", "second": "busybox"}),
        (f"/{'d/' * 120}program", {f"{'d/' * 120}program": PROGRAM}, {}),
    ],
)
@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
async def test_the_program_is_found_where_it_would_be_started(
    program: str, files: dict[str, bytes], links: dict[str, str], form: int
) -> None:
    about = About((program,), further={"Env": ["PATH=/opt/own:/usr/local/bin"], "WorkingDir": "/work"})

    result = await tried(image([layer(archive(files, links, form))], about))

    assert result.passed
    assert result.checks[-1].name == "entry_point"
    assert result.checks[-1].outcome is SmokeOutcome.PASSED


@pytest.mark.parametrize(
    ("words", "files", "links"),
    [
        ((), {"bin/program": PROGRAM}, {}),
        (("",), {"bin/program": PROGRAM}, {}),
        (("/bin/other",), {"bin/program": PROGRAM}, {}),
        (("program",), {"opt/program": PROGRAM}, {}),
        (("/bin/program",), {"bin/program": ArchivedFile(PROGRAM, 0o644)}, {}),
        (("/loop",), {"bin/program": PROGRAM}, {"loop": "round", "round": "loop"}),
        (("/up",), {"bin/program": PROGRAM}, {"up": "../../missing"}),
    ],
)
async def test_an_image_without_a_program_to_start_fails(
    words: tuple[str, ...], files: dict[str, bytes], links: dict[str, str]
) -> None:
    assert failures(await tried(image([layer(archive(files, links))], About(words)))) == [("entry_point", None)]


async def test_the_command_that_is_given_counts_instead_of_the_images_own() -> None:
    made = image(about=About(()))
    registry = registry_with(made)

    assert (await smoke(registry, REPOSITORY, made.digest, command=["/bin/program", "x"])).passed
    assert not (await smoke(registry, REPOSITORY, made.digest, command=["/bin/other"])).passed


async def test_a_layer_that_does_not_unpack_to_what_the_config_says_fails() -> None:
    good = layer(archive({"bin/program": PROGRAM}))
    other = replace(good, packed=gzip.compress(archive({"bin/program": b"evil"}), mtime=0))

    assert failures(await tried(image([other]))) == [("layers", None)]


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(b"no tar" * 200, mtime=0), gzip.compress(archive({"a": b"b"}), mtime=0)[:-9]],
    ids=["no gzip", "no tar", "cut off"],
)
async def test_a_layer_that_is_not_an_archive_fails(packed: bytes) -> None:
    assert failures(await tried(image([SampleLayer(packed, b"")]))) == [("layers", None)]


async def test_a_layer_of_an_unknown_packing_is_hashed_and_nothing_is_claimed_of_it() -> None:
    made = SampleLayer(b"zstandard of a kind", b"", "application/vnd.oci.image.layer.v1.tar+zstd")
    result = await tried(image([made]))

    assert result.passed
    assert result.checks[-1].outcome is SmokeOutcome.UNKNOWN


async def test_a_gzip_bomb_is_refused_with_its_own_code_in_little_memory() -> None:
    bomb = SampleLayer(gzip.compress(bytes(72 * 1_048_576), compresslevel=6, mtime=0), b"")
    made = image([bomb])
    registry = registry_with(made)

    tracemalloc.start()
    result = await smoke(registry, REPOSITORY, made.digest)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert failures(result) == [("layers", Code.CONTENT_EXPANDS_TOO_FAR)]
    assert most < 4 * 1_048_576


async def test_what_unpacks_to_more_than_the_limit_is_refused_however_well_it_packs() -> None:
    limits = SmokeLimits(expansion=ExpansionLimits(total_bytes=100_000))
    made = image([layer(archive({"bin/program": bytes(range(256)) * 1_000}))])

    assert failures(await tried(made, limits=limits)) == [("layers", Code.CONTENT_EXPANDS_TOO_FAR)]


async def test_layers_that_are_too_large_by_their_descriptors_are_not_fetched() -> None:
    result = await tried(image(), limits=SmokeLimits(total_bytes=10))

    assert failures(result) == [("layers", Code.SOURCE_TOO_LARGE)]
    assert result.size_bytes == 0


async def test_a_config_that_cannot_be_read_fails() -> None:
    made = image()
    for config in (b"no json", b"[" * 100_000, b"{}"):
        document = msgspec.json.decode(made.manifest.raw)
        document["config"].update({"digest": digest_of(config), "size": len(config)})
        registry = registry_with(made)
        registry.put_blob(REPOSITORY, config)
        manifest = registry.put_manifest(REPOSITORY, msgspec.json.encode(document))

        assert failures(await smoke(registry, REPOSITORY, manifest.digest)) == [("config", None)]


@every_row("step", [1, 7, 512, 100_000])
def test_an_archive_is_understood_in_whatever_pieces_it_comes(step: int) -> None:
    names = {f"{'long/' * 60}{number}": PROGRAM for number in range(3)} | {"bin/ümlaut": PROGRAM, "empty": b""}
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        content = archive(names, {"link": "bin/ümlaut", "far": "long/" * 60 + "1"}, form)
        for packing, packed in ((Packing.PLAIN, content), (Packing.GZIP, gzip.compress(content))):
            tree = FileTree()
            inspector = LayerInspector(packing, tree)
            for start in range(0, len(packed), step):
                inspector.feed(packed[start : start + step])

            assert inspector.finish() == digest_of(content)
            assert all(tree.has_executable(f"/{name}") for name in (*names, "link", "far"))
            assert not tree.has_executable("/other")


def test_several_gzip_members_are_one_layer() -> None:
    content = archive({"bin/program": PROGRAM * 1_000})
    packed = gzip.compress(content[:5_000]) + gzip.compress(content[5_000:])
    tree = FileTree()
    inspector = LayerInspector(Packing.GZIP, tree)
    inspector.feed(packed)

    assert inspector.finish() == digest_of(content)
    assert tree.has_executable("/bin/program")


def test_a_name_of_megabytes_ends_the_walk() -> None:
    for kind, size in ((b"L", 100_000), (b"K", 100_000), (b"x", 2_000_000)):
        entry = tarfile.TarInfo("name")
        entry.type, entry.size = kind, size
        header = entry.tobuf(tarfile.GNU_FORMAT)
        with pytest.raises(LayerMalformed, match="too long"):
            LayerInspector(Packing.PLAIN, FileTree()).feed(header)


def test_a_full_tree_knows_that_it_is_incomplete() -> None:
    tree = FileTree(paths_max=2)
    for number in range(3):
        tree.file(f"bin/{number}", 0o755)

    assert not tree.is_whole
    assert tree.has_executable("/bin/1")
    assert not tree.has_executable("/bin/2")


def test_files_of_several_gigabytes_are_skipped_by_the_size_that_their_header_says() -> None:
    entry = tarfile.TarInfo("large")
    entry.size = 9 * 1024**3
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        tree = FileTree()
        inspector = LayerInspector(Packing.PLAIN, tree)
        inspector.feed(entry.tobuf(form))
        inspector.feed(b"\xff" * 1_000)  # content, not a header: nothing is read into it

        assert tree.is_whole


def test_the_media_type_says_how_a_layer_is_packed() -> None:
    assert packing_of("application/vnd.docker.image.rootfs.diff.tar.gzip") is Packing.GZIP
    assert packing_of("application/vnd.oci.image.layer.v1.tar") is Packing.PLAIN
    assert packing_of("application/vnd.oci.image.layer.v1.tar+zstd") is Packing.UNKNOWN


def test_a_sparse_file_ends_what_is_known() -> None:
    entry = tarfile.TarInfo("sparse")
    entry.type = tarfile.GNUTYPE_SPARSE
    tree = FileTree()
    LayerInspector(Packing.PLAIN, tree).feed(entry.tobuf(tarfile.GNU_FORMAT) + io.BytesIO(b"?" * 4_096).read())

    assert not tree.is_whole
