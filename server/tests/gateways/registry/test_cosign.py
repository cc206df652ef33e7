"""Signatures that are made and checked here, in a real registry, and every way in which one does not count."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.registry.image_manifest import EMPTY_CONFIG, OCI_CONFIG, OCI_EMPTY, OCI_MANIFEST, BlobDescriptor
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.registry.simulated_registry import SimulatedRegistry
from mooring.gateways.signing import cosign_sign
from mooring.gateways.signing.cosign import (
    BUNDLE_MEDIA_TYPE,
    REFERRERS_MAX,
    SIGNATURE_ANNOTATION,
    SIGNATURES_MAX,
    SIMPLE_SIGNING_MEDIA_TYPE,
    CosignVerdict,
    signature_tag,
    still_counts,
    verify,
)
from mooring.gateways.signing.cosign_claims import (
    PAYLOAD_BYTES_MAX,
    SignatureForm,
    SignatureRefusalReason,
    SignedSubject,
)
from mooring.gateways.signing.cosign_keys import (
    SigningKey,
    TrustedKey,
    new_signing_key,
    read_signing_key,
    read_trusted_key,
)
from mooring.gateways.signing.cosign_sign import (
    bundle_bytes,
    sign_as_bundle,
    sign_as_tag,
    simple_signing_payload,
    statement_payload,
)
from server.tests.support.images import About, image, index, push

pytestmark = pytest.mark.anyio
real = pytest.mark.real_part("registry")

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SIGNERS = {SignatureForm.TAG: sign_as_tag, SignatureForm.BUNDLE: sign_as_bundle}
REPOSITORY = "team/app"


def trusted(*keys: SigningKey) -> list[TrustedKey]:
    return [key.trusted(f"key_{number}") for number, key in enumerate(keys)]


@real
@pytest.mark.parametrize("form", SignatureForm)
@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ed25519"])
async def test_a_signature_by_a_trusted_key_is_evidence(
    pusher: RegistryPusher, repository: str, form: SignatureForm, algorithm: str
) -> None:
    key = new_signing_key(algorithm)
    digest = await push(pusher, repository, image())
    made = await SIGNERS[form](pusher, repository, digest, key)

    verdict = await verify(pusher.client, repository, digest, trusted(new_signing_key(), key), now=NOW)

    assert verdict.is_signed
    assert verdict.refusal() is None
    assert verdict.failures == ()
    (evidence,) = verdict.evidence
    assert (evidence.form, evidence.key_id, evidence.verified_at) == (form, "key_1", NOW)
    assert evidence.key_fingerprint == key.trusted("x").fingerprint
    assert (evidence.payload, evidence.signature, evidence.found_in) == (
        made.payload,
        made.signature,
        made.manifest.digest,
    )
    assert evidence.repository == f"{pusher.client.host}/{repository}"
    assert evidence.artifact_digest == digest


@real
async def test_an_index_is_signed_as_a_whole_and_both_forms_stand_beside_each_other(
    pusher: RegistryPusher, repository: str
) -> None:
    one, other = new_signing_key(), new_signing_key("ed25519")
    digest = await push(pusher, repository, index({"linux/amd64": image(about=About(further={"Labels": {"x": "y"}}))}))
    for key in (one, other):
        for signer in SIGNERS.values():
            await signer(pusher, repository, digest, key)

    verdict = await verify(pusher.client, repository, digest, trusted(one, other), now=NOW)

    assert sorted((each.form, each.key_id) for each in verdict.evidence) == sorted(
        (form, key_id) for form in SignatureForm for key_id in ("key_0", "key_1")
    )


@real
async def test_without_a_signature_the_refusal_says_that_there_is_none(pusher: RegistryPusher, repository: str) -> None:
    digest = await push(pusher, repository, image())

    refusal = (await verify(pusher.client, repository, digest, trusted(new_signing_key()), now=NOW)).refusal()

    assert refusal is not None
    assert refusal.code is Code.SIGNATURE_MISSING


@real
@pytest.mark.parametrize("form", SignatureForm)
async def test_a_signature_by_a_key_that_is_not_trusted_does_not_count(
    pusher: RegistryPusher, repository: str, form: SignatureForm
) -> None:
    digest = await push(pusher, repository, image())
    await SIGNERS[form](pusher, repository, digest, new_signing_key())

    verdict = await verify(pusher.client, repository, digest, trusted(new_signing_key()), now=NOW)

    assert [each.reason for each in verdict.failures] == [SignatureRefusalReason.UNKNOWN_KEY]
    assert code_of(verdict) is Code.SIGNATURE_KEY_UNKNOWN


@real
@pytest.mark.parametrize("form", SignatureForm)
async def test_a_signature_that_was_copied_from_another_repository_does_not_count(
    pusher: RegistryPusher, repository: str, form: SignatureForm
) -> None:
    key = new_signing_key()
    digest = await push(pusher, repository, image())
    theirs = f"{pusher.client.host}/somebody/else"
    await SIGNERS[form](pusher, repository, digest, key, theirs)

    verdict = await verify(pusher.client, repository, digest, trusted(key), now=NOW)

    assert [each.reason for each in verdict.failures] == [SignatureRefusalReason.OTHER_REPOSITORY]
    assert code_of(verdict) is Code.SIGNATURE_REPLAYED


@real
async def test_a_signature_of_a_digest_that_is_not_there_is_not_looked_for(
    pusher: RegistryPusher, repository: str
) -> None:
    with pytest.raises(Refusal) as refused:
        await verify(pusher.client, repository, f"sha256:{'0' * 64}", trusted(new_signing_key()), now=NOW)

    assert refused.value.code is Code.ARTIFACT_NOT_FOUND_AT_SOURCE


def code_of(verdict: CosignVerdict) -> Code:
    refusal = verdict.refusal()
    assert refusal is not None
    assert not verdict.is_signed
    return refusal.code


class Signed:
    """An image in a registry in memory, and what is put beside it."""

    def __init__(self) -> None:
        self.registry = SimulatedRegistry()
        self.key = new_signing_key()
        made = image()
        for content in made.blobs.values():
            self.registry.put_blob(REPOSITORY, content)
        self.artifact = self.registry.put_manifest(REPOSITORY, made.manifest.raw)
        self.digest = made.digest
        self.name = self.registry.names(REPOSITORY)[0]
        self.layers: list[BlobDescriptor] = []

    def tag_entry(self, payload: bytes, signature: bytes | str | None = None, **changed: Any) -> BlobDescriptor:
        """Add an entry to the tag form."""
        made = self.key.sign(payload) if signature is None else signature
        text = made if isinstance(made, str) else cosign_sign._text(made)
        descriptor = self.registry.put_blob(REPOSITORY, payload, SIMPLE_SIGNING_MEDIA_TYPE)
        entry = msgspec.structs.replace(descriptor, annotations={SIGNATURE_ANNOTATION: text}, **changed)
        self.layers.append(entry)
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self.registry.put_blob(REPOSITORY, EMPTY_CONFIG, OCI_CONFIG),
            "layers": self.layers,
        }
        self.registry.put_manifest(REPOSITORY, msgspec.json.encode(document), [signature_tag(self.digest)])
        return entry

    def bundle(self, raw: bytes, **changed: Any) -> str:
        """Add a bundle."""
        document = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": BUNDLE_MEDIA_TYPE,
            "config": self.registry.put_blob(REPOSITORY, EMPTY_CONFIG, OCI_EMPTY),
            "layers": [self.registry.put_blob(REPOSITORY, raw, BUNDLE_MEDIA_TYPE)],
            "subject": self.artifact.descriptor,
            **changed,
        }
        return self.registry.put_manifest(REPOSITORY, msgspec.json.encode(document)).digest

    def good_payload(self) -> bytes:
        return simple_signing_payload(self.name, self.digest)

    async def verdict(self) -> CosignVerdict:
        return await verify(self.registry, REPOSITORY, self.digest, trusted(self.key), now=NOW)

    async def reasons(self) -> list[SignatureRefusalReason]:
        return [each.reason for each in (await self.verdict()).failures]


def changed_payload(payload: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = msgspec.json.decode(payload)
    change(document)
    return msgspec.json.encode(document)


OTHER = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda d: d["critical"]["image"].update({"docker-manifest-digest": OTHER}),
            SignatureRefusalReason.OTHER_DIGEST,
        ),
        (
            lambda d: d["critical"]["identity"].update({"docker-reference": "x/y"}),
            SignatureRefusalReason.OTHER_REPOSITORY,
        ),
        (lambda d: d["critical"]["identity"].update({"docker-reference": ""}), SignatureRefusalReason.NO_REPOSITORY),
        (lambda d: d["critical"].update({"type": "atomic container signature"}), SignatureRefusalReason.WRONG_TYPE),
        (lambda d: d["critical"].pop("identity"), SignatureRefusalReason.MALFORMED),
        (lambda d: d.pop("critical"), SignatureRefusalReason.MALFORMED),
    ],
)
async def test_what_a_trusted_key_signed_must_say_this_digest_and_this_repository(
    change: Callable[[dict[str, Any]], object], reason: SignatureRefusalReason
) -> None:
    signed = Signed()
    signed.tag_entry(changed_payload(signed.good_payload(), change))

    assert await signed.reasons() == [reason]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["subject"][0].update({"digest": {"sha256": "1" * 64}}), SignatureRefusalReason.OTHER_DIGEST),
        (lambda d: d["subject"][0].update({"digest": {}}), SignatureRefusalReason.OTHER_DIGEST),
        (
            lambda d: d["subject"][0].update({"annotations": {"docker-reference": "x/y"}}),
            SignatureRefusalReason.OTHER_REPOSITORY,
        ),
        (lambda d: d["subject"][0].update({"name": "x/y"}), SignatureRefusalReason.OTHER_REPOSITORY),
        (lambda d: d["subject"][0].pop("annotations"), SignatureRefusalReason.NO_REPOSITORY),
        (lambda d: d["subject"][0].update({"annotations": {"docker-reference": 1}}), SignatureRefusalReason.MALFORMED),
        (lambda d: d.update({"predicateType": "https://slsa.dev/provenance/v1"}), SignatureRefusalReason.WRONG_TYPE),
        (lambda d: d.update({"_type": "https://in-toto.io/Statement/v0.1"}), SignatureRefusalReason.WRONG_TYPE),
        (lambda d: d.update({"subject": []}), SignatureRefusalReason.MALFORMED),
    ],
)
async def test_a_statement_must_be_about_this_digest_and_this_repository(
    change: Callable[[dict[str, Any]], object], reason: SignatureRefusalReason
) -> None:
    signed = Signed()
    payload = changed_payload(statement_payload(signed.name, signed.digest), change)
    signed.bundle(bundle_bytes(signed.key, payload)[0])

    assert await signed.reasons() == [reason]


async def test_a_statement_may_say_the_repository_as_its_subjects_name() -> None:
    signed = Signed()
    payload = changed_payload(
        statement_payload(signed.name, signed.digest),
        lambda d: d["subject"][0].update({"name": signed.name, "annotations": {}}),
    )
    signed.bundle(bundle_bytes(signed.key, payload)[0])

    assert (await signed.verdict()).is_signed


async def test_a_payload_that_was_changed_after_signing_does_not_count() -> None:
    signed = Signed()
    signature = signed.key.sign(signed.good_payload())
    signed.tag_entry(signed.good_payload() + b" ", signature)

    assert await signed.reasons() == [SignatureRefusalReason.UNKNOWN_KEY]


async def test_a_signature_of_the_bare_payload_does_not_count_for_the_envelope() -> None:
    signed = Signed()
    raw, signature = bundle_bytes(signed.key, statement_payload(signed.name, signed.digest))
    bare = cosign_sign._text(signed.key.sign(statement_payload(signed.name, signed.digest)))
    signed.bundle(raw.replace(cosign_sign._text(signature).encode(), bare.encode()))

    assert await signed.reasons() == [SignatureRefusalReason.UNKNOWN_KEY]


async def test_each_broken_entry_fails_alone_and_a_good_one_counts() -> None:
    signed = Signed()
    good = signed.good_payload()
    signed.tag_entry(good, "no base64!")
    signed.tag_entry(good, "")
    signed.tag_entry(good, media_type="text/plain")
    signed.tag_entry(b"not json")
    signed.tag_entry(b"[" * 50_000)
    signed.tag_entry(b"x" * (PAYLOAD_BYTES_MAX + 1))
    signed.tag_entry(good, b"s" * 2_000)
    missing = signed.tag_entry(good + b"\n")
    signed.registry.remove(REPOSITORY, missing.digest)
    spoiled = signed.tag_entry(good + b"\n\n")
    signed.registry.spoil(REPOSITORY, spoiled.digest, b"x" * spoiled.size)
    signed.tag_entry(good)

    verdict = await signed.verdict()

    assert [each.reason for each in verdict.failures] == [
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.WRONG_TYPE,
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.TOO_LARGE,
        SignatureRefusalReason.TOO_LARGE,
        SignatureRefusalReason.UNREADABLE,
        SignatureRefusalReason.UNREADABLE,
    ]
    assert [each.form for each in verdict.evidence] == [SignatureForm.TAG]


async def test_each_broken_bundle_fails_alone_and_a_good_one_counts() -> None:
    signed = Signed()
    raw, _ = bundle_bytes(signed.key, statement_payload(signed.name, signed.digest))
    signed.bundle(b"not json")
    signed.bundle(b'{"a":' * 50_000)
    signed.bundle(raw.replace(b"application/vnd.in-toto+json", b"text/plain"))
    signed.bundle(raw.replace(b'"signatures":[', b'"signatures":[],"x":['))
    signed.bundle(raw + b" " * 300_000)
    signed.bundle(raw, layers=[])
    signed.bundle(raw, artifactType="application/vnd.example.sbom")  # no signature, so nothing is wrong with it
    signed.bundle(raw)

    verdict = await signed.verdict()

    assert [each.reason for each in verdict.failures] == [
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.WRONG_TYPE,
        SignatureRefusalReason.MALFORMED,
        SignatureRefusalReason.TOO_LARGE,
        SignatureRefusalReason.MALFORMED,
    ]
    assert [each.form for each in verdict.evidence] == [SignatureForm.BUNDLE]


async def test_a_bundle_that_is_listed_for_a_digest_must_itself_refer_to_it() -> None:
    signed = Signed()
    raw, _ = bundle_bytes(signed.key, statement_payload(signed.name, signed.digest))
    other = BlobDescriptor(media_type=OCI_MANIFEST, digest=OTHER, size=7)
    listed = [signed.bundle(raw, subject=other), signed.bundle(raw, subject=None)]

    class Careless(SimulatedRegistry):
        async def referrers(self, repository: str, digest: str) -> tuple[BlobDescriptor, ...]:
            return tuple(BlobDescriptor(media_type=OCI_MANIFEST, digest=each, size=7) for each in listed)

    careless = Careless()
    careless.__dict__.update(signed.registry.__dict__)
    verdict = await verify(careless, REPOSITORY, signed.digest, trusted(signed.key), now=NOW)

    assert [each.reason for each in verdict.failures] == [
        SignatureRefusalReason.OTHER_DIGEST,
        SignatureRefusalReason.OTHER_DIGEST,
    ]
    assert not verdict.is_signed


async def test_only_a_bounded_number_of_entries_is_examined() -> None:
    signed = Signed()
    for number in range(SIGNATURES_MAX):
        signed.tag_entry(b"%d" % number, b"x")
    signed.tag_entry(signed.good_payload())
    for number in range(REFERRERS_MAX + 1):
        signed.bundle(b"%d" % number)

    verdict = await signed.verdict()

    assert not verdict.is_signed
    assert len(verdict.failures) == SIGNATURES_MAX + 1 + REFERRERS_MAX + 1
    assert [each.form for each in verdict.failures if each.reason is SignatureRefusalReason.TOO_MANY] == [
        SignatureForm.TAG,
        SignatureForm.BUNDLE,
    ]


async def test_an_unreachable_registry_gives_no_verdict() -> None:
    signed = Signed()

    class FailingCosign(SimulatedRegistry):
        async def referrers(self, repository: str, digest: str) -> tuple[BlobDescriptor, ...]:
            raise Refusal(Code.SOURCE_UNREACHABLE, "it is gone")

    failing = FailingCosign()
    failing.put_manifest(REPOSITORY, signed.artifact.raw)

    with pytest.raises(Refusal) as refused:
        await verify(failing, REPOSITORY, signed.digest, trusted(signed.key), now=NOW)

    assert refused.value.code is Code.SOURCE_UNREACHABLE


async def test_evidence_counts_only_as_long_as_its_key_is_trusted_and_only_for_its_subject() -> None:
    signed = Signed()
    signed.tag_entry(signed.good_payload())
    signed.bundle(bundle_bytes(signed.key, statement_payload(signed.name, signed.digest))[0])
    subject = SignedSubject(signed.digest, (signed.name,))

    for evidence in (await signed.verdict()).evidence:
        assert still_counts(evidence, trusted(signed.key), subject)
        assert not still_counts(evidence, [], subject)
        assert not still_counts(evidence, trusted(new_signing_key()), subject)
        assert not still_counts(evidence, trusted(signed.key), SignedSubject(OTHER, (signed.name,)))
        assert not still_counts(evidence, trusted(signed.key), SignedSubject(signed.digest, ("x/y",)))


def test_keys_are_read_in_pem_form_and_only_of_two_kinds() -> None:
    for algorithm in ("ecdsa-p256", "ed25519"):
        key = new_signing_key(algorithm)
        public = key.trusted("k")
        assert read_trusted_key(public.pem, "k") == public
        assert read_signing_key(key.private_pem).trusted("k").fingerprint == public.fingerprint
        assert public.algorithm == algorithm
        assert "PRIVATE" not in repr(key)
    p384 = ec.generate_private_key(ec.SECP384R1()).public_key()
    other_curve = p384.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    for wrong in ("", "x" * 10_000, "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "ä", other_curve):
        with pytest.raises(Refusal) as refused:
            read_trusted_key(wrong, "k")
        assert refused.value.code is Code.VALIDATION_FAILED
