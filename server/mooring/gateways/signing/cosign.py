"""Verification of an artifact's signatures in a registry, as cosign makes them with a key pair.

Both forms are searched: the tag `sha256-<hex>.sig`, and bundles among the referrers of the digest. A registry may have
anything there, so sizes and counts are limited, and an entry that is malformed, missing or signed by an unknown key
fails alone: it is ignored and does not invalidate a good signature. Only when the registry does not answer is there no
verdict, and the refusal says so; silence is never taken for "no signature".

`cosign_claims` checks what a signature says.
"""

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final

import msgspec

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_manifest import BlobDescriptor, ImageManifest
from mooring.gateways.registry.registry_client import Registry
from mooring.gateways.signing.cosign_claims import (
    DSSE_PAYLOAD_TYPE,
    PAYLOAD_BYTES_MAX,
    EntryRefused,
    SignatureEvidence,
    SignatureForm,
    SignatureRefusalReason,
    SignedPayload,
    SignedSubject,
    examine,
)
from mooring.gateways.signing.cosign_keys import TrustedKey

SIMPLE_SIGNING_MEDIA_TYPE: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION: Final = "dev.cosignproject.cosign/signature"
BUNDLE_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNATURES_MAX: Final = 32  # in the tag form
REFERRERS_MAX: Final = 64  # of any kind, because the kind is known only after fetching
BUNDLE_BYTES_MAX: Final = 262_144
ENVELOPE_SIGNATURES_MAX: Final = 8
SHOWN_MAX: Final = 16
CONTENT_CODES: Final = frozenset(
    {
        Code.ARTIFACT_NOT_FOUND_AT_SOURCE,
        Code.DIGEST_MISMATCH,
        Code.SOURCE_ENDLESS,
        Code.SOURCE_MALFORMED,
        Code.SOURCE_TOO_LARGE,
    }
)
"""Refusals that concern one entry; any other refusal concerns the registry as a whole."""


@dataclass(frozen=True, slots=True)
class FailedEntry:
    """A signature that is not valid, and why."""

    form: SignatureForm
    where: str  # the digest of the inspected entry
    reason: SignatureRefusalReason
    detail: str


@dataclass(frozen=True, slots=True)
class CosignVerdict:
    """All signatures that were found for a digest, valid and invalid ones."""

    subject: SignedSubject
    evidence: tuple[SignatureEvidence, ...]
    failures: tuple[FailedEntry, ...]

    @property
    def is_signed(self) -> bool:
        """Whether a trusted key signed this digest for this repository."""
        return bool(self.evidence)

    def refusal(self) -> Refusal | None:
        """The refusal for policies that require a signature; None when there is a valid one."""
        if self.evidence:
            return None
        reasons = {failure.reason for failure in self.failures}
        code = next((code for among, code in _CODES if reasons & among), Code.SIGNATURE_MISSING)
        shown = [
            {"form": each.form, "where": each.where, "reason": each.reason, "detail": each.detail}
            for each in self.failures[:SHOWN_MAX]
        ]
        return Refusal(
            code,
            f"{self.subject.names[0]}@{self.subject.digest} has no valid signature ({len(self.failures)} invalid)",
            {"digest": self.subject.digest, "failures": shown},
        )


_CODES: Final = (
    (
        frozenset(
            {
                SignatureRefusalReason.OTHER_REPOSITORY,
                SignatureRefusalReason.OTHER_DIGEST,
                SignatureRefusalReason.NO_REPOSITORY,
            }
        ),
        Code.SIGNATURE_REPLAYED,
    ),
    (frozenset({SignatureRefusalReason.UNKNOWN_KEY}), Code.SIGNATURE_KEY_UNKNOWN),
    (frozenset(SignatureRefusalReason), Code.SIGNATURE_INVALID),
)
"""The worst first: a misused signature of a trusted key matters more than a signature of an unknown key."""


@dataclass(slots=True)
class _Search:
    """One search through everything that may be a signature of a digest."""

    registry: Registry
    repository: str
    subject: SignedSubject
    keys: Sequence[TrustedKey]
    now: datetime
    evidence: list[SignatureEvidence] = field(default_factory=list)
    failures: list[FailedEntry] = field(default_factory=list)

    def fail(self, form: SignatureForm, where: str, reason: SignatureRefusalReason, detail: str) -> None:
        self.failures.append(FailedEntry(form, where, reason, detail))

    def unreadable(self, form: SignatureForm, where: str, refusal: Refusal) -> None:
        """Record a refusal that concerns one entry; raise one that concerns the registry."""
        if refusal.code not in CONTENT_CODES:
            raise refusal
        self.fail(form, where, SignatureRefusalReason.UNREADABLE, refusal.detail)

    def check_signature(self, signed: SignedPayload, where: str) -> None:
        try:
            self.evidence.append(examine(signed, self.keys, self.subject, self.now))
        except EntryRefused as refused:
            self.fail(signed.form, where, refused.reason, refused.detail)

    async def tag_form(self) -> None:
        if not self.subject.digest.startswith("sha256:"):
            return  # longer digests do not fit into a tag, so the tag form has none
        tag = signature_tag(self.subject.digest)
        try:
            manifest = await self.registry.resolve_tag(self.repository, tag)
        except Refusal as refusal:
            if refusal.code is not Code.ARTIFACT_NOT_FOUND_AT_SOURCE:
                self.unreadable(SignatureForm.TAG, tag, refusal)
            return
        for layer in manifest.layers[:SIGNATURES_MAX]:
            await self._tag_entry(manifest, layer)
        if len(manifest.layers) > SIGNATURES_MAX:
            self.fail(
                SignatureForm.TAG,
                manifest.digest,
                SignatureRefusalReason.TOO_MANY,
                f"only {SIGNATURES_MAX} signatures are checked",
            )

    async def _tag_entry(self, manifest: ImageManifest, layer: BlobDescriptor) -> None:
        try:
            if layer.media_type != SIMPLE_SIGNING_MEDIA_TYPE:
                raise EntryRefused(SignatureRefusalReason.WRONG_TYPE, f"an entry of the type {layer.media_type[:80]}")
            signature = decoded(layer.annotation(SIGNATURE_ANNOTATION) or "")
            if layer.size > PAYLOAD_BYTES_MAX:
                raise EntryRefused(
                    SignatureRefusalReason.TOO_LARGE, f"the payload is larger than {PAYLOAD_BYTES_MAX} bytes"
                )
            payload = await self.registry.blob_bytes(self.repository, layer, PAYLOAD_BYTES_MAX)
        except EntryRefused as refused:
            self.fail(SignatureForm.TAG, layer.digest, refused.reason, refused.detail)
        except Refusal as refusal:
            self.unreadable(SignatureForm.TAG, layer.digest, refusal)
        else:
            self.check_signature(SignedPayload(SignatureForm.TAG, payload, (signature,), manifest.digest), layer.digest)

    async def bundle_form(self) -> None:
        try:
            listed = await self.registry.referrers(self.repository, self.subject.digest)
        except Refusal as refusal:
            self.unreadable(SignatureForm.BUNDLE, self.subject.digest, refusal)
            return
        for each in listed[:REFERRERS_MAX]:
            try:
                manifest = await self.registry.manifest(self.repository, each.digest)
                if manifest.artifact_type == BUNDLE_MEDIA_TYPE:  # the list may claim another type
                    signed = await self._bundle(manifest)
                    self.check_signature(signed, manifest.digest)
            except EntryRefused as refused:
                self.fail(SignatureForm.BUNDLE, each.digest, refused.reason, refused.detail)
            except Refusal as refusal:
                self.unreadable(SignatureForm.BUNDLE, each.digest, refusal)
        if len(listed) > REFERRERS_MAX:
            self.fail(
                SignatureForm.BUNDLE,
                self.subject.digest,
                SignatureRefusalReason.TOO_MANY,
                f"only {REFERRERS_MAX} referrers are checked",
            )

    async def _bundle(self, manifest: ImageManifest) -> SignedPayload:
        if manifest.subject is None or manifest.subject.digest != self.subject.digest:
            raise EntryRefused(SignatureRefusalReason.OTHER_DIGEST, "it refers to another digest")
        if len(manifest.layers) != 1 or manifest.layers[0].media_type != BUNDLE_MEDIA_TYPE:
            raise EntryRefused(SignatureRefusalReason.MALFORMED, "a bundle must have exactly one layer")
        layer = manifest.layers[0]
        if layer.size > BUNDLE_BYTES_MAX:
            raise EntryRefused(SignatureRefusalReason.TOO_LARGE, f"the bundle is larger than {BUNDLE_BYTES_MAX} bytes")
        return read_bundle(await self.registry.blob_bytes(self.repository, layer, BUNDLE_BYTES_MAX), manifest.digest)


async def verify(
    registry: Registry, repository: str, digest: str, keys: Sequence[TrustedKey], *, now: datetime
) -> CosignVerdict:
    """Find and check all signatures of a digest in its repository."""
    await registry.manifest(repository, digest)
    search = _Search(registry, repository, SignedSubject(digest, registry.names(repository)), keys, now)
    await search.tag_form()
    await search.bundle_form()
    return CosignVerdict(search.subject, tuple(search.evidence), tuple(search.failures))


def still_counts(evidence: SignatureEvidence, keys: Sequence[TrustedKey], subject: SignedSubject) -> bool:
    """Whether stored evidence is valid with the current keys; nothing is fetched."""
    try:
        examine(evidence.signed(), keys, subject, evidence.verified_at)
    except EntryRefused:
        return False
    return True


def signature_tag(digest: str) -> str:
    """The tag under which cosign keeps the signatures of a digest in the tag form."""
    return f"{digest.replace(':', '-', 1)}.sig"


class _EnvelopeSignature(msgspec.Struct):
    sig: str


class _Envelope(msgspec.Struct, rename="camel"):
    payload: str
    payload_type: str
    signatures: Annotated[list[_EnvelopeSignature], msgspec.Meta(min_length=1, max_length=ENVELOPE_SIGNATURES_MAX)]


class _Bundle(msgspec.Struct, rename="camel"):
    media_type: str
    dsse_envelope: _Envelope


def read_bundle(raw: bytes, found_in: str) -> SignedPayload:
    """The payload and the signatures of a bundle; everything else in it (hints, log entries) is ignored."""
    try:
        bundle = msgspec.json.decode(raw, type=_Bundle)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EntryRefused(SignatureRefusalReason.MALFORMED, f"not a bundle: {error}") from error
    envelope = bundle.dsse_envelope
    if bundle.media_type != BUNDLE_MEDIA_TYPE or envelope.payload_type != DSSE_PAYLOAD_TYPE:
        raise EntryRefused(SignatureRefusalReason.WRONG_TYPE, f"an envelope of the type {envelope.payload_type[:80]}")
    signatures = tuple(decoded(each.sig) for each in envelope.signatures)
    return SignedPayload(SignatureForm.BUNDLE, decoded(envelope.payload), signatures, found_in)


def decoded(text: str) -> bytes:
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise EntryRefused(SignatureRefusalReason.MALFORMED, "a part of it is not base64") from error
    if not content:
        raise EntryRefused(SignatureRefusalReason.MALFORMED, "a part of it is empty")
    return content
