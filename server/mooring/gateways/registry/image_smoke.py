"""The smoke check of an artifact: it is complete, matches its digests, and could be started.

Every layer is fetched, hashed and unpacked, and the unpacked digest is compared with the config. The image must name a
supported operating system and architecture, and a program to start that is an executable file in it. For an index,
every platform is checked. The content of other payloads (weights, scripts) is only fetched and hashed. Nothing is
stored, and memory is bounded for any size.

Wrong content makes a check fail with the code of its refusal. When the registry does not answer, the refusal is raised
instead, because it says nothing about the artifact.
"""

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_layer import (
    ExpansionLimits,
    FileTree,
    LayerInspector,
    LayerMalformed,
    Packing,
    packing_of,
)
from mooring.gateways.registry.image_manifest import BlobDescriptor, ImageManifest, Text
from mooring.gateways.registry.registry_client import Registry

CONFIG_BYTES_MAX: Final = 4 * 1_048_576
PLATFORMS_MAX: Final = 32
TOTAL_BYTES_MAX: Final = 256 * 1024**3
PATH_DEFAULT: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OF_CONTENT: Final = frozenset(
    {
        Code.ARTIFACT_NOT_FOUND_AT_SOURCE,
        Code.CONTENT_EXPANDS_TOO_FAR,
        Code.DIGEST_MISMATCH,
        Code.LAYER_MISMATCH,
        Code.SOURCE_ENDLESS,
        Code.SOURCE_MALFORMED,
        Code.SOURCE_TOO_LARGE,
    }
)

Progress = Callable[[int], Awaitable[None]]


class SmokeOutcome(StrEnum):
    """The result of one check."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SmokeCheck:
    """One check, and what it found."""

    name: str  # manifest, config, layers, platform, entry_point
    subject: str  # the digest that was checked
    outcome: SmokeOutcome
    detail: str
    code: Code | None = None


@dataclass(frozen=True, slots=True)
class SmokeLimits:
    """How much may be read, and which platforms are supported."""

    total_bytes: int = TOTAL_BYTES_MAX
    expansion: ExpansionLimits = field(default_factory=ExpansionLimits)
    systems: frozenset[str] = frozenset({"linux"})
    architectures: frozenset[str] = frozenset({"amd64", "arm64"})


@dataclass(frozen=True, slots=True)
class SmokeResult:
    """The results of a smoke check as plain data."""

    digest: str
    platforms: tuple[str, ...]
    layers: int
    size_bytes: int
    checks: tuple[SmokeCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.outcome is not SmokeOutcome.FAILED for check in self.checks)

    def refusal(self) -> Refusal | None:
        """Why the artifact cannot be staged, None if it can; a mismatch of content has its own code."""
        failed = [check for check in self.checks if check.outcome is SmokeOutcome.FAILED]
        if not failed:
            return None
        worst = next((check for check in failed if check.code is not None), failed[0])
        shown = [{"name": each.name, "subject": each.subject, "detail": each.detail} for each in failed]
        return Refusal(
            worst.code or Code.SMOKE_FAILED, f"{worst.name}: {worst.detail}", {"digest": self.digest, "failed": shown}
        )


async def smoke(
    registry: Registry,
    repository: str,
    digest: str,
    *,
    limits: SmokeLimits | None = None,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> SmokeResult:
    """Check an artifact; `command` overrides the image's own, and `progress` gets the number of bytes read."""
    inspection = _Inspection(registry, repository, limits or SmokeLimits(), tuple(command), progress)
    await inspection.artifact(digest)
    return SmokeResult(
        digest,
        tuple(inspection.platforms),
        inspection.layers,
        inspection.size_bytes,
        tuple(inspection.checks),
    )


class _Process(msgspec.Struct):
    entrypoint: list[Text] | None = msgspec.field(default=None, name="Entrypoint")
    command: list[Text] | None = msgspec.field(default=None, name="Cmd")
    environment: list[Annotated[str, msgspec.Meta(max_length=65_536)]] | None = msgspec.field(default=None, name="Env")
    directory: Text | None = msgspec.field(default=None, name="WorkingDir")


class _RootFiles(msgspec.Struct):
    diff_ids: list[Text]


class _Config(msgspec.Struct):
    os: Text
    architecture: Text
    rootfs: _RootFiles
    config: _Process | None = None
    variant: Text = ""


@dataclass(slots=True)
class _Inspection:
    """One running smoke check."""

    registry: Registry
    repository: str
    limits: SmokeLimits
    command: tuple[str, ...]
    progress: Progress | None
    platforms: list[str] = field(default_factory=list)
    layers: int = 0
    size_bytes: int = 0
    checks: list[SmokeCheck] = field(default_factory=list)

    def note(self, name: str, subject: str, outcome: SmokeOutcome, detail: str, code: Code | None = None) -> None:
        self.checks.append(SmokeCheck(name, subject, outcome, detail, code))

    def refused(self, name: str, subject: str, refusal: Refusal) -> None:
        """Record a failure that is caused by the content; raise any other refusal, because it is not a result."""
        if refusal.code not in OF_CONTENT:
            raise refusal
        self.note(name, subject, SmokeOutcome.FAILED, refusal.detail, refusal.code)

    async def artifact(self, digest: str) -> None:
        manifest = await self._manifest(digest)
        if manifest is None:
            return
        if not manifest.is_index:
            await self._content(manifest)
            return
        images = [each for each in manifest.manifests if each.platform is None or each.platform.os != "unknown"]
        if not 1 <= len(images) <= PLATFORMS_MAX:
            self.note("manifest", digest, SmokeOutcome.FAILED, f"an index must have 1 to {PLATFORMS_MAX} images")
            return
        for each in images:
            image = await self._manifest(each.digest)
            if image is not None and image.is_index:
                self.note("manifest", each.digest, SmokeOutcome.FAILED, "an index inside of an index")
            elif image is not None:
                await self._content(image)

    async def _manifest(self, digest: str) -> ImageManifest | None:
        try:
            manifest = await self.registry.manifest(self.repository, digest)
        except Refusal as refusal:
            self.refused("manifest", digest, refusal)
            return None
        self.note("manifest", digest, SmokeOutcome.PASSED, manifest.media_type)
        return manifest

    async def _content(self, manifest: ImageManifest) -> None:
        announced = sum(layer.size for layer in manifest.layers)
        if self.size_bytes + announced > self.limits.total_bytes:
            self.note(
                "layers",
                manifest.digest,
                SmokeOutcome.FAILED,
                f"the layers have {announced} bytes, and the limit is {self.limits.total_bytes}",
                Code.SOURCE_TOO_LARGE,
            )
            return
        if not manifest.is_image:
            await self._payload(manifest)
            return
        config = await self._config(manifest)
        if config is None:
            return
        self._platform(manifest, config)
        tree = FileTree()
        if await self._unpacked(manifest, config, tree):
            self._entry_point(manifest, config, tree)

    async def _payload(self, manifest: ImageManifest) -> None:
        """Of a payload that is not an image, only the content can be checked."""
        contents = (*manifest.layers, manifest.config) if manifest.config is not None else manifest.layers
        for content in contents:
            try:
                await self.registry.read_blob(self.repository, content, self._counted(None))
            except Refusal as refusal:
                self.refused("layers", content.digest, _of_layer(refusal))
                return
        self.layers += len(manifest.layers)
        self.note("layers", manifest.digest, SmokeOutcome.PASSED, f"{len(manifest.layers)} files fetched and hashed")

    async def _config(self, manifest: ImageManifest) -> _Config | None:
        config = manifest.config
        if config is None:
            raise AssertionError("unreachable: an image has a config")
        try:
            raw = await self.registry.blob_bytes(self.repository, config, CONFIG_BYTES_MAX)
            read = msgspec.json.decode(raw, type=_Config)
        except Refusal as refusal:
            self.refused("config", config.digest, refusal)
            return None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            self.note("config", config.digest, SmokeOutcome.FAILED, f"it cannot be read: {error}")
            return None
        self.note("config", config.digest, SmokeOutcome.PASSED, f"{len(read.rootfs.diff_ids)} layers")
        return read

    def _platform(self, manifest: ImageManifest, config: _Config) -> None:
        name = "/".join(part for part in (config.os, config.architecture, config.variant) if part)
        if config.os in self.limits.systems and config.architecture in self.limits.architectures:
            self.platforms.append(name)
            self.note("platform", manifest.digest, SmokeOutcome.PASSED, name)
        else:
            self.note("platform", manifest.digest, SmokeOutcome.FAILED, f"it is for {name or 'no platform'}")

    async def _unpacked(self, manifest: ImageManifest, config: _Config, tree: FileTree) -> bool:
        if len(config.rootfs.diff_ids) != len(manifest.layers):
            self.note("layers", manifest.digest, SmokeOutcome.FAILED, "the config names another number of layers")
            return False
        for layer, unpacked_digest in zip(manifest.layers, config.rootfs.diff_ids, strict=True):
            try:
                found = await self._layer(layer, tree)
            except Refusal as refusal:
                self.refused("layers", layer.digest, _of_layer(refusal))
                return False
            except LayerMalformed as error:
                self.note("layers", layer.digest, SmokeOutcome.FAILED, str(error))
                return False
            if found is not None and found != unpacked_digest:
                self.note(
                    "layers",
                    layer.digest,
                    SmokeOutcome.FAILED,
                    f"it unpacks to {found}, the config says {unpacked_digest}",
                )
                return False
        self.layers += len(manifest.layers)
        self.note("layers", manifest.digest, SmokeOutcome.PASSED, f"{len(manifest.layers)} layers fetched and hashed")
        return True

    async def _layer(self, layer: BlobDescriptor, tree: FileTree) -> str | None:
        """The digest of the unpacked layer; None when it could not be unpacked."""
        packing = packing_of(layer.media_type)
        if packing is Packing.UNKNOWN:
            tree.is_whole = False
            await self.registry.read_blob(self.repository, layer, self._counted(None))
            return None
        inspector = LayerInspector(packing, tree, self.limits.expansion)
        malformed: list[LayerMalformed] = []
        await self.registry.read_blob(self.repository, layer, self._counted(inspector, malformed))
        if malformed:
            raise malformed[0]
        return inspector.finish()

    def _counted(
        self, inspector: LayerInspector | None, malformed: list[LayerMalformed] | None = None
    ) -> Callable[[bytes], Awaitable[None]]:
        """A sink that counts, and unpacks until an error; it still reads all bytes, because the hash needs them."""

        async def take(chunk: bytes) -> None:
            self.size_bytes += len(chunk)
            if inspector is not None and not malformed:
                # A small chunk may unpack to a large one, and this must not block the event loop.
                try:
                    await asyncio.to_thread(inspector.feed, chunk)
                except LayerMalformed as error:
                    if malformed is None:
                        raise
                    malformed.append(error)
            if self.progress is not None:
                await self.progress(self.size_bytes)

        return take

    def _entry_point(self, manifest: ImageManifest, config: _Config, tree: FileTree) -> None:
        process = config.config or _Process()
        words = self.command or (*(process.entrypoint or ()), *(process.command or ()))
        if not words or not words[0]:
            self.note("entry_point", manifest.digest, SmokeOutcome.FAILED, "it does not name a program to start")
            return
        if any(tree.has_executable(path) for path in _places(words[0], process)):
            self.note("entry_point", manifest.digest, SmokeOutcome.PASSED, words[0])
        elif tree.is_whole:
            self.note(
                "entry_point", manifest.digest, SmokeOutcome.FAILED, f"{words[0]} is not an executable file in it"
            )
        else:
            self.note("entry_point", manifest.digest, SmokeOutcome.UNKNOWN, f"{words[0]}: not every layer was unpacked")


def _of_layer(refusal: Refusal) -> Refusal:
    """A wrong layer has its own code, because the manifest itself matches its digest."""
    if refusal.code is not Code.DIGEST_MISMATCH:
        return refusal
    return Refusal(Code.LAYER_MISMATCH, refusal.detail, refusal.details)


def _places(program: str, process: _Process) -> list[str]:
    """The paths where a program is searched when it is started."""
    if "/" in program:
        return [posixpath.join(process.directory or "/", program)]
    stated = [each.partition("=")[2] for each in process.environment or () if each.startswith("PATH=")]
    return [posixpath.join(place, program) for place in (stated or [PATH_DEFAULT])[-1].split(":") if place]
