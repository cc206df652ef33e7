"""Manifests, indexes and descriptors of a registry: parsed strictly and with limits, from bytes that were hashed.

The digest of a manifest covers its exact bytes, so these are kept together with the parsed form. Supported are the
image manifest and the image index of OCI and their two Docker forms; Docker's schema 1 has no config and is not
supported. A document that could be read as both kinds (with layers and manifests) is refused, and so is one whose own
media type differs from that of the answer: another program could interpret it as the other kind.

Names, tags and digests become parts of URLs, so they are validated here first.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from mooring.core.kernel.validation import invalid

OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
OCI_LAYER_GZIP: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
OCI_EMPTY: Final = "application/vnd.oci.empty.v1+json"
DOCKER_MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST: Final = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG: Final = "application/vnd.docker.container.image.v1+json"
MANIFEST_TYPES: Final = (OCI_MANIFEST, DOCKER_MANIFEST)
INDEX_TYPES: Final = (OCI_INDEX, DOCKER_LIST)
CONFIG_TYPES: Final = (OCI_CONFIG, DOCKER_CONFIG)
ACCEPTED: Final = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))
EMPTY_CONFIG: Final = b"{}"

MANIFEST_BYTES_MAX: Final = 4 * 1_048_576
ENTRIES_MAX: Final = 1_024
SIZE_BYTES_MAX: Final = 2**53
REPOSITORY_LENGTH_MAX: Final = 255

_WORD: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_WORD}(?:/{_WORD})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
DIGEST_PATTERN: Final = r"^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$"
_DIGEST: Final = re.compile(DIGEST_PATTERN)

Digest = Annotated[str, msgspec.Meta(pattern=DIGEST_PATTERN)]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]
Annotations = Annotated[dict[Text, Annotated[str, msgspec.Meta(max_length=65_536)]], msgspec.Meta(max_length=256)]


class ManifestMalformed(Exception):
    """The document is not a supported manifest; the message says why."""


class ImagePlatform(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an image runs on."""

    os: Text = ""
    architecture: Text = ""
    variant: Text = ""


class BlobDescriptor(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pointer to content: its kind, digest and size."""

    media_type: Text
    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0, le=SIZE_BYTES_MAX)]
    artifact_type: Text | None = None
    annotations: Annotations | None = None
    platform: ImagePlatform | None = None

    def annotation(self, name: str) -> str | None:
        """One annotation, if it is there."""
        return None if self.annotations is None else self.annotations.get(name)


Descriptors = Annotated[list[BlobDescriptor], msgspec.Meta(max_length=ENTRIES_MAX)]


class _Document(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of both kinds; other fields of a document are ignored."""

    schema_version: int
    media_type: Text | None = None
    artifact_type: Text | None = None
    config: BlobDescriptor | None = None
    layers: Descriptors | None = None
    manifests: Descriptors | None = None
    subject: BlobDescriptor | None = None
    annotations: Annotations | None = None


@dataclass(frozen=True, slots=True)
class ImageManifest:
    """An image, an index, or another artifact, with the exact bytes that its digest covers."""

    digest: str
    raw: bytes
    media_type: str
    artifact_type: str | None
    config: BlobDescriptor | None
    layers: tuple[BlobDescriptor, ...]
    manifests: tuple[BlobDescriptor, ...]
    subject: BlobDescriptor | None

    @property
    def is_index(self) -> bool:
        """Whether it lists other manifests."""
        return self.media_type in INDEX_TYPES

    @property
    def is_image(self) -> bool:
        """Whether it can run: its config is that of an image."""
        return self.config is not None and self.config.media_type in CONFIG_TYPES

    @property
    def descriptor(self) -> BlobDescriptor:
        """The pointer to this manifest."""
        return BlobDescriptor(
            media_type=self.media_type, digest=self.digest, size=len(self.raw), artifact_type=self.artifact_type
        )


_DECODER: Final = msgspec.json.Decoder(_Document)


def read_manifest(raw: bytes, content_type: str | None = None, digest: str | None = None) -> ImageManifest:
    """Parse a manifest; a given digest was already checked by the caller."""
    try:
        document = _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ManifestMalformed(f"not a manifest: {error}") from error
    announced = (content_type or "").partition(";")[0].strip().lower()
    known = announced if announced in (*MANIFEST_TYPES, *INDEX_TYPES) else None
    media_type = document.media_type or known or (OCI_MANIFEST if document.manifests is None else OCI_INDEX)
    if document.schema_version != 2 or media_type not in (*MANIFEST_TYPES, *INDEX_TYPES):
        raise ManifestMalformed(f"a manifest of an unsupported kind ({media_type})")
    if known is not None and known != media_type:
        raise ManifestMalformed(f"a manifest that calls itself {media_type} and is sent as {known}")
    is_index = media_type in INDEX_TYPES
    if is_index and (document.manifests is None or document.layers is not None or document.config is not None):
        raise ManifestMalformed("an index without manifests, or with additional layers")
    if not is_index and (document.config is None or document.layers is None or document.manifests is not None):
        raise ManifestMalformed("an image manifest without config or layers, or with additional manifests")
    return ImageManifest(
        digest=digest or digest_of(raw),
        raw=raw,
        media_type=media_type,
        artifact_type=document.artifact_type,
        config=document.config,
        layers=tuple(document.layers or ()),
        manifests=tuple(document.manifests or ()),
        subject=document.subject,
    )


def digest_of(content: bytes) -> str:
    """The digest that names these bytes."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def is_digest(text: str) -> bool:
    """Whether a text is a digest in its canonical form."""
    return _DIGEST.fullmatch(text) is not None


def repository_name(text: str, path: str = "repository") -> str:
    """Validate the name of a repository, and return it."""
    if len(text) > REPOSITORY_LENGTH_MAX or not _REPOSITORY.fullmatch(text):
        raise invalid(path, "a repository's name such as team/app: lower-case letters, digits, and . _ - between them")
    return text


def tag_name(text: str, path: str = "tag") -> str:
    """Validate a tag, and return it."""
    if not _TAG.fullmatch(text):
        raise invalid(path, "a tag of at most 128 letters, digits and . _ -")
    return text


def digest_name(text: str, path: str = "digest") -> str:
    """Validate a digest in its canonical form, and return it."""
    if not is_digest(text):
        raise invalid(path, "a digest such as sha256: and 64 lower-case hexadecimal digits")
    return text


def fallback_tag(digest: str) -> str:
    """The tag under which a registry without the referrers API stores the referrers of a digest."""
    algorithm, _, encoded = digest_name(digest).partition(":")
    return f"{algorithm}-{encoded[:64]}"
