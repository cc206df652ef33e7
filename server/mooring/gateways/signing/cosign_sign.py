"""Signing of an artifact in a registry, so that cosign and the module `cosign` of this package can verify it.

It is for publishers without the tool, for the demo and for tests. Both forms state the repository. The lists that a
signature is added to (the layers of the `.sig` manifest, the index of the fallback tag) are read and written back. Two
signers at the same time may lose one entry, so signing ends with a check for its own entry and repeats if it is
missing.
"""

import base64
from dataclasses import dataclass
from typing import Final

import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_manifest import (
    EMPTY_CONFIG,
    OCI_CONFIG,
    OCI_EMPTY,
    OCI_MANIFEST,
    BlobDescriptor,
    ImageManifest,
)
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.signing.cosign import (
    BUNDLE_MEDIA_TYPE,
    SIGNATURE_ANNOTATION,
    SIMPLE_SIGNING_MEDIA_TYPE,
    signature_tag,
)
from mooring.gateways.signing.cosign_claims import (
    DSSE_PAYLOAD_TYPE,
    PREDICATE_TYPE,
    REPOSITORY_ANNOTATION,
    SIMPLE_SIGNING_TYPE,
    STATEMENT_TYPE,
    pre_authentication_encoding,
)
from mooring.gateways.signing.cosign_keys import SigningKey

ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class PushedSignature:
    """A signature that was pushed to a registry."""

    manifest: ImageManifest
    payload: bytes
    signature: bytes


def simple_signing_payload(name: str, digest: str) -> bytes:
    """The payload of the tag form."""
    return msgspec.json.encode(
        {
            "critical": {
                "identity": {"docker-reference": name},
                "image": {"docker-manifest-digest": digest},
                "type": SIMPLE_SIGNING_TYPE,
            },
            "optional": None,
        }
    )


def statement_payload(name: str, digest: str) -> bytes:
    """The payload of the bundle form."""
    algorithm, _, encoded = digest.partition(":")
    subject = {"digest": {algorithm: encoded}, "annotations": {REPOSITORY_ANNOTATION: name}}
    return msgspec.json.encode(
        {"_type": STATEMENT_TYPE, "subject": [subject], "predicateType": PREDICATE_TYPE, "predicate": {}}
    )


def bundle_bytes(key: SigningKey, payload: bytes) -> tuple[bytes, bytes]:
    """A bundle over a payload, and the signature in it."""
    signature = key.sign(pre_authentication_encoding(payload))
    fingerprint = bytes.fromhex(key.trusted("").fingerprint.partition(":")[2])
    document = {
        "mediaType": BUNDLE_MEDIA_TYPE,
        "verificationMaterial": {"publicKey": {"hint": _text(fingerprint)}},
        "dsseEnvelope": {
            "payload": _text(payload),
            "payloadType": DSSE_PAYLOAD_TYPE,
            "signatures": [{"sig": _text(signature)}],
        },
    }
    return msgspec.json.encode(document), signature


async def sign_as_tag(
    pusher: RegistryPusher, repository: str, digest: str, key: SigningKey, name: str | None = None
) -> PushedSignature:
    """Add a signature under the `.sig` tag; `name` is the repository under the name that verifiers use."""
    payload = simple_signing_payload(name or pusher.client.names(repository)[0], digest)
    signature = key.sign(payload)
    pushed = await pusher.blob(repository, payload, SIMPLE_SIGNING_MEDIA_TYPE)
    layer = msgspec.structs.replace(pushed, annotations={SIGNATURE_ANNOTATION: _text(signature)})
    for _ in range(ATTEMPTS):
        layers = [*await _listed(pusher, repository, digest), layer]
        config = await pusher.blob(repository, _config(layers), OCI_CONFIG)
        document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers}
        made = await pusher.manifest(repository, document, tag=signature_tag(digest))
        if layer in await _listed(pusher, repository, digest):
            return PushedSignature(made, payload, signature)
    raise _crowded(repository, digest)


async def sign_as_bundle(
    pusher: RegistryPusher, repository: str, digest: str, key: SigningKey, name: str | None = None
) -> PushedSignature:
    """Add a bundle that refers to the digest; `name` is the repository under the name that verifiers use."""
    artifact = await pusher.client.manifest(repository, digest)
    payload = statement_payload(name or pusher.client.names(repository)[0], digest)
    raw, signature = bundle_bytes(key, payload)
    document = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": BUNDLE_MEDIA_TYPE,
        "config": await pusher.blob(repository, EMPTY_CONFIG, OCI_EMPTY),
        "layers": [await pusher.blob(repository, raw, BUNDLE_MEDIA_TYPE)],
        "subject": msgspec.structs.replace(artifact.descriptor, artifact_type=None),
        "annotations": {
            "dev.sigstore.bundle.content": "dsse-envelope",
            "dev.sigstore.bundle.predicateType": PREDICATE_TYPE,
        },
    }
    for _ in range(ATTEMPTS):
        made = await pusher.manifest(repository, document)
        if any(each.digest == made.digest for each in await pusher.client.referrers(repository, digest)):
            return PushedSignature(made, payload, signature)
    raise _crowded(repository, digest)


async def _listed(pusher: RegistryPusher, repository: str, digest: str) -> list[BlobDescriptor]:
    """The existing signatures."""
    try:
        return list((await pusher.client.resolve_tag(repository, signature_tag(digest))).layers)
    except Refusal as refusal:
        if refusal.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
            return []
        raise


def _config(layers: list[BlobDescriptor]) -> bytes:
    return msgspec.json.encode(
        {
            "architecture": "",
            "os": "",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in layers]},
        }
    )


def _crowded(repository: str, digest: str) -> Refusal:
    return Refusal(
        Code.CONFLICT, f"other signers kept changing the signatures of {digest} in {repository}", {"digest": digest}
    )


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
