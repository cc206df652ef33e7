"""What a signature claims, and whether it applies to this artifact. It needs no network, so it can be checked any time.

The order is fixed. First the signature is verified over the raw bytes with the currently trusted keys; only bytes that
a trusted key signed are parsed. Then type, digest and repository are compared exactly. The repository matters because a
signature is stored next to the artifact and can be copied with it: without the comparison, a signature for one
repository would be valid in every other one.

There are two forms. In the tag form the payload is a "simple signing" document, whose `docker-reference` is the
repository. In the bundle form it is an in-toto statement in a DSSE envelope. cosign does not write the repository into
it by itself, so the signer must state it, as the subject's name or by `cosign sign -a docker-reference=<repository>`.

`SignatureEvidence` contains the complete payload and signature. To check later whether an artifact is trusted, call
`examine` again with the keys of that moment: nothing has to be fetched, and a removed key takes effect immediately.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec

from mooring.gateways.signing.cosign_keys import TrustedKey, signer_of

SIMPLE_SIGNING_TYPE: Final = "cosign container image signature"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://sigstore.dev/cosign/sign/v1"
DSSE_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
REPOSITORY_ANNOTATION: Final = "docker-reference"
PAYLOAD_BYTES_MAX: Final = 65_536
SIGNATURE_BYTES_MAX: Final = 1_024
SUBJECTS_MAX: Final = 64
T = TypeVar("T")


class SignatureForm(StrEnum):
    """Where a signature was found, which determines the format of its payload."""

    TAG = "tag"
    BUNDLE = "bundle"


class SignatureRefusalReason(StrEnum):
    """Why a signature is not valid."""

    MALFORMED = "malformed"
    NO_REPOSITORY = "no_repository"
    OTHER_DIGEST = "other_digest"
    OTHER_REPOSITORY = "other_repository"
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    UNKNOWN_KEY = "unknown_key"
    UNREADABLE = "unreadable"
    WRONG_TYPE = "wrong_type"


class EntryRefused(Exception):
    """One signature is not valid; others may be."""

    def __init__(self, reason: SignatureRefusalReason, detail: str) -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(f"{reason}: {detail}")


@dataclass(frozen=True, slots=True)
class SignedSubject:
    """What a signature must cover: the digest and the repository."""

    digest: str
    names: tuple[str, ...]  # the repository as signers write it: `host:port/team/app`


@dataclass(frozen=True, slots=True)
class SignedPayload:
    """A payload and its signatures, not verified yet."""

    form: SignatureForm
    payload: bytes
    signatures: tuple[bytes, ...]
    found_in: str  # the digest of the manifest that points to it


@dataclass(frozen=True, slots=True)
class SignatureEvidence:
    """A valid signature, with all that is needed to verify it again."""

    form: SignatureForm
    key_id: str
    key_fingerprint: str
    artifact_digest: str
    repository: str
    payload: bytes
    payload_digest: str
    signature: bytes
    signature_digest: str
    found_in: str
    verified_at: datetime

    def signed(self) -> SignedPayload:
        """The payload and the signature, to verify them again."""
        return SignedPayload(self.form, self.payload, (self.signature,), self.found_in)


@dataclass(frozen=True, slots=True)
class _Claims:
    digest: str
    repositories: tuple[str, ...]


def examine(
    signed: SignedPayload, keys: Sequence[TrustedKey], subject: SignedSubject, now: datetime
) -> SignatureEvidence:
    """The evidence from a valid signature; raises `EntryRefused` for others."""
    if len(signed.payload) > PAYLOAD_BYTES_MAX:
        raise EntryRefused(SignatureRefusalReason.TOO_LARGE, f"the payload is larger than {PAYLOAD_BYTES_MAX} bytes")
    covered = signed.payload if signed.form is SignatureForm.TAG else pre_authentication_encoding(signed.payload)
    for signature in signed.signatures:
        if len(signature) > SIGNATURE_BYTES_MAX:
            raise EntryRefused(
                SignatureRefusalReason.TOO_LARGE, f"a signature is larger than {SIGNATURE_BYTES_MAX} bytes"
            )
        key = signer_of(keys, signature, covered)
        if key is not None:
            break
    else:
        raise EntryRefused(SignatureRefusalReason.UNKNOWN_KEY, "no trusted key made this signature over these bytes")
    read = _simple_signing if signed.form is SignatureForm.TAG else _statement
    claims = read(signed.payload, subject)
    return SignatureEvidence(
        form=signed.form,
        key_id=key.id,
        key_fingerprint=key.fingerprint,
        artifact_digest=subject.digest,
        repository=_bound(claims, subject),
        payload=signed.payload,
        payload_digest=_digest(signed.payload),
        signature=signature,
        signature_digest=_digest(signature),
        found_in=signed.found_in,
        verified_at=now,
    )


def pre_authentication_encoding(payload: bytes, payload_type: str = DSSE_PAYLOAD_TYPE) -> bytes:
    """The bytes that a DSSE signature covers: each part is preceded by its length, so that parts cannot be confused."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _bound(claims: _Claims, subject: SignedSubject) -> str:
    """The signed repository; raises `EntryRefused` unless digest and repository are those of the subject."""
    if claims.digest != subject.digest:
        raise EntryRefused(SignatureRefusalReason.OTHER_DIGEST, f"it is a signature of {claims.digest[:80]}")
    if not claims.repositories:
        raise EntryRefused(
            SignatureRefusalReason.NO_REPOSITORY,
            f"it states no repository; sign with -a {REPOSITORY_ANNOTATION}={subject.names[0]}",
        )
    for name in claims.repositories:
        if name not in subject.names:
            raise EntryRefused(SignatureRefusalReason.OTHER_REPOSITORY, f"it is a signature for {name[:300]}")
    return claims.repositories[0]


class _Image(msgspec.Struct, rename="kebab"):
    docker_manifest_digest: str


class _Identity(msgspec.Struct, rename="kebab"):
    docker_reference: str


class _Critical(msgspec.Struct):
    image: _Image
    identity: _Identity
    type: str


class _SimpleSigning(msgspec.Struct):
    critical: _Critical


def _simple_signing(payload: bytes, subject: SignedSubject) -> _Claims:
    critical = _decoded(payload, _SimpleSigning).critical
    if critical.type != SIMPLE_SIGNING_TYPE:
        raise EntryRefused(SignatureRefusalReason.WRONG_TYPE, f"it is of the type {critical.type[:80]}")
    reference = critical.identity.docker_reference
    return _Claims(critical.image.docker_manifest_digest, (reference,) if reference else ())


class _StatementSubject(msgspec.Struct):
    digest: dict[str, str]
    name: str = ""
    annotations: dict[str, msgspec.Raw] | None = None


class _Statement(msgspec.Struct):
    type: str = msgspec.field(name="_type")
    predicate_type: str = msgspec.field(name="predicateType")
    subject: Annotated[list[_StatementSubject], msgspec.Meta(min_length=1, max_length=SUBJECTS_MAX)]


def _statement(payload: bytes, subject: SignedSubject) -> _Claims:
    statement = _decoded(payload, _Statement)
    if statement.type != STATEMENT_TYPE or statement.predicate_type != PREDICATE_TYPE:
        raise EntryRefused(
            SignatureRefusalReason.WRONG_TYPE, f"it is a statement of the type {statement.predicate_type[:80]}"
        )
    algorithm, _, encoded = subject.digest.partition(":")
    meant = [each for each in statement.subject if each.digest.get(algorithm) == encoded]
    if not meant:
        found = next(iter(statement.subject[0].digest.items()), ("no", "digest"))
        return _Claims(":".join(found), ())
    stated: list[str] = []
    for each in meant:
        annotation = (each.annotations or {}).get(REPOSITORY_ANNOTATION)
        named = "" if annotation is None else _decoded(bytes(annotation), str)
        stated += [name for name in (named, each.name) if name]
    return _Claims(subject.digest, tuple(stated))


def _decoded(payload: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EntryRefused(SignatureRefusalReason.MALFORMED, f"the signed content cannot be parsed: {error}") from error


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
