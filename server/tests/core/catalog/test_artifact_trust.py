"""Trust follows from the evidence at the moment of use: state in, conclusion out."""

from datetime import timedelta
from typing import Any

import pytest

from mooring.core.catalog.artifact_trust import (
    CODE_OF_FAULT,
    Evidence,
    EvidenceKind,
    SignatureFault,
    SignerKey,
    Trust,
    derive_trust,
    record_trust,
    revoke_artifact,
    trust_step,
)
from mooring.core.catalog.policy import Layer, LayerRules, NameRules, PolicyChain, PolicyRules, SignatureRules
from mooring.core.catalog.trust_lifecycle import TRUST, TrustState, TrustTrigger
from mooring.core.kernel.decision import StateChange
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.lifecycle import IllegalTransition
from server.tests.support.catalog_rows import REASON, REPOSITORY, artifact
from server.tests.support.decision_context import NOW, OTHER_TENANT, TENANT, context
from server.tests.support.manifests import digest
from tests.support.rows import every_row

ARTIFACT = artifact("b")
OPEN = PolicyChain(())
SIGNED = PolicyChain([LayerRules(Layer.GLOBAL, PolicyRules(signatures=SignatureRules.IMAGES))])
PLATFORM_KEY = SignerKey(id="key_1", tenant_id=None, fingerprint="f1")
TENANT_KEY = SignerKey(id="key_2", tenant_id=TENANT, fingerprint="f2")
FOREIGN_KEY = SignerKey(id="key_3", tenant_id=OTHER_TENANT, fingerprint="f3")
KEYS = (PLATFORM_KEY, TENANT_KEY, FOREIGN_KEY)


def seen(**changes: Any) -> Evidence:
    given: dict[str, Any] = {
        "id": "evd_1",
        "artifact_id": ARTIFACT.id,
        "kind": EvidenceKind.PRESENCE,
        "digest": ARTIFACT.digest,
        "observed_at": NOW,
        "size_bytes": ARTIFACT.size_bytes,
        **changes,
    }
    return Evidence(**given)


def signed(**changes: Any) -> Evidence:
    given: dict[str, Any] = {
        "id": "evd_2",
        "artifact_id": ARTIFACT.id,
        "kind": EvidenceKind.SIGNATURE,
        "digest": ARTIFACT.digest,
        "observed_at": NOW,
        "repository": REPOSITORY,
        "key_fingerprint": "f1",
        **changes,
    }
    return Evidence(**given)


def faulty(fault: SignatureFault) -> Evidence:
    return signed(fault=fault, key_fingerprint=None)


def codes(trust: Trust) -> list[Code]:
    return [doubt.code for doubt in trust.doubts]


# The minimum


def test_bytes_that_were_seen_at_an_allowed_source_are_verified() -> None:
    trust = derive_trust(ARTIFACT, [seen()], (), OPEN)

    assert (trust.state, trust.doubts, trust.evidence_ids) == (TrustState.VERIFIED, (), ("evd_1",))
    assert trust.is_verified
    assert trust.refusal(ARTIFACT) is None


@every_row(
    ("evidence", "state", "code"),
    [
        ([], TrustState.UNVERIFIED, Code.ARTIFACT_UNVERIFIED),
        ([seen(artifact_id="art_other")], TrustState.UNVERIFIED, Code.ARTIFACT_UNVERIFIED),
        ([seen(present=False)], TrustState.UNVERIFIED, Code.ARTIFACT_NOT_FOUND_AT_SOURCE),
        ([seen(digest=digest("0"))], TrustState.REJECTED, Code.DIGEST_MISMATCH),
        ([seen(size_bytes=1)], TrustState.REJECTED, Code.DIGEST_MISMATCH),
    ],
)
def test_bytes_that_were_not_seen_are_not_verified(evidence: list[Evidence], state: TrustState, code: Code) -> None:
    trust = derive_trust(ARTIFACT, evidence, (), OPEN)

    assert (trust.state, codes(trust)) == (state, [code])
    refusal = trust.refusal(ARTIFACT)
    assert refusal is not None
    assert (refusal.code, refusal.details["trust"]) == (code, state.value)


def test_the_last_look_at_the_source_decides() -> None:
    before, after = NOW - timedelta(hours=1), NOW + timedelta(hours=1)
    gone, back = seen(id="evd_8", present=False, observed_at=after), seen(id="evd_9", observed_at=before)

    assert codes(derive_trust(ARTIFACT, [gone, seen()], (), OPEN)) == [Code.ARTIFACT_NOT_FOUND_AT_SOURCE]
    assert codes(derive_trust(ARTIFACT, [seen(), gone, back], (), OPEN)) == [Code.ARTIFACT_NOT_FOUND_AT_SOURCE]
    assert derive_trust(ARTIFACT, [seen(present=False, observed_at=before), seen(id="evd_7")], (), OPEN).is_verified


def test_a_source_that_is_denied_rejects_whatever_was_seen() -> None:
    denied = PolicyChain([LayerRules(Layer.TENANT, PolicyRules(sources=NameRules(deny=("oci://registry.example/*",))))])
    trust = derive_trust(ARTIFACT, [seen()], (), denied)

    assert (trust.state, codes(trust)) == (TrustState.REJECTED, [Code.SOURCE_DENIED])
    assert "tenant policy" in trust.doubts[0].reason
    refusal = trust.refusal(ARTIFACT)
    assert refusal is not None
    assert (refusal.details["layer"], refusal.details["subject"]) == ("tenant", "source")
    unlisted = derive_trust(ARTIFACT, [seen()], (), OPEN, source_allowed=False)
    assert (unlisted.state, codes(unlisted)) == (TrustState.REJECTED, [Code.SOURCE_DENIED])


# Signatures


@every_row("key", ["f1", "f2"])
def test_a_trusted_keys_signature_of_this_digest_for_this_repository_counts(key: str) -> None:
    trust = derive_trust(ARTIFACT, [seen(), signed(key_fingerprint=key)], KEYS, SIGNED)

    assert trust.is_verified
    assert trust.evidence_ids == ("evd_1", "evd_2")


def test_a_repository_may_be_known_under_further_names() -> None:
    alias = signed(repository="mirror.example/team/app")

    assert not derive_trust(ARTIFACT, [seen(), alias], KEYS, SIGNED).is_verified
    assert derive_trust(ARTIFACT, [seen(), alias], KEYS, SIGNED, known_as=["mirror.example/team/app"]).is_verified


@every_row(
    ("signatures", "state", "code"),
    [
        ([], TrustState.UNVERIFIED, Code.SIGNATURE_MISSING),
        ([signed(artifact_id="art_other")], TrustState.UNVERIFIED, Code.SIGNATURE_MISSING),
        ([signed(key_fingerprint="f9")], TrustState.UNVERIFIED, Code.SIGNATURE_KEY_UNKNOWN),
        ([signed(key_fingerprint="f3")], TrustState.UNVERIFIED, Code.SIGNATURE_KEY_UNKNOWN),
        ([signed(key_fingerprint=None)], TrustState.REJECTED, Code.SIGNATURE_INVALID),
        ([signed(digest=digest("0"))], TrustState.REJECTED, Code.SIGNATURE_REPLAYED),
        ([signed(repository="registry.example/other/app")], TrustState.REJECTED, Code.SIGNATURE_REPLAYED),
        ([signed(repository=None)], TrustState.REJECTED, Code.SIGNATURE_REPLAYED),
        (
            [faulty(SignatureFault.MALFORMED), signed(key_fingerprint="f9")],
            TrustState.UNVERIFIED,
            Code.SIGNATURE_KEY_UNKNOWN,
        ),
        ([signed(key_fingerprint="f9"), signed(digest=digest("0"))], TrustState.REJECTED, Code.SIGNATURE_REPLAYED),
        *[([faulty(fault)], None, code) for fault, code in CODE_OF_FAULT.items()],
    ],
)  # fmt: skip
def test_another_signature_does_not_count_and_the_reason_is_named(
    signatures: list[Evidence], state: TrustState | None, code: Code
) -> None:
    trust = derive_trust(ARTIFACT, [seen(), *signatures], KEYS, SIGNED)

    assert codes(trust) == [code]
    assert not trust.is_verified
    assert state is None or trust.state is state


def test_a_good_signature_counts_among_bad_ones() -> None:
    bad = [faulty(fault) for fault in SignatureFault] + [signed(key_fingerprint="f9"), signed(digest=digest("0"))]

    assert derive_trust(ARTIFACT, [*bad, signed(id="evd_3"), seen()], KEYS, SIGNED).is_verified


def test_removing_a_key_takes_effect_at_once_and_adding_it_again_too() -> None:
    evidence = [seen(), signed()]
    removed = SignerKey(id="key_1", tenant_id=None, fingerprint="f1", removed_at=NOW)

    assert derive_trust(ARTIFACT, evidence, [PLATFORM_KEY], SIGNED).is_verified
    lost = derive_trust(ARTIFACT, evidence, [removed], SIGNED)
    assert (lost.state, codes(lost)) == (TrustState.UNVERIFIED, [Code.SIGNATURE_KEY_UNKNOWN])
    assert derive_trust(ARTIFACT, evidence, [removed, PLATFORM_KEY], SIGNED).is_verified


def test_a_tenants_key_does_not_vouch_for_the_platform() -> None:
    ours = artifact("b", id=ARTIFACT.id, tenant_id=None, visibility="platform")

    assert codes(derive_trust(ours, [seen(), signed(key_fingerprint="f2")], KEYS, SIGNED)) == [
        Code.SIGNATURE_KEY_UNKNOWN
    ]
    assert derive_trust(ours, [seen(), signed()], KEYS, SIGNED).is_verified


def test_where_no_signature_is_required_a_false_one_does_no_harm() -> None:
    assert derive_trust(ARTIFACT, [seen(), faulty(SignatureFault.MALFORMED)], (), OPEN).is_verified


def test_images_may_need_a_signature_where_blobs_do_not() -> None:
    blob = artifact("b", id=ARTIFACT.id, kind="blob", location="s3://bucket/key")
    everything = PolicyChain([LayerRules(Layer.PROJECT, PolicyRules(signatures=SignatureRules.EVERYTHING))])

    assert derive_trust(blob, [seen()], (), SIGNED).is_verified
    assert codes(derive_trust(blob, [seen()], (), everything)) == [Code.SIGNATURE_MISSING]


def test_all_doubts_are_named_and_the_worst_decides() -> None:
    denied = PolicyChain(
        [LayerRules(Layer.GLOBAL, PolicyRules(sources=NameRules(allow=()), signatures=SignatureRules.IMAGES))]
    )
    trust = derive_trust(ARTIFACT, [], (), denied)

    assert codes(trust) == [Code.SOURCE_DENIED, Code.SIGNATURE_MISSING, Code.ARTIFACT_UNVERIFIED]
    assert trust.state is TrustState.REJECTED


def test_revoked_is_final_whatever_the_evidence_says() -> None:
    revoked = artifact("b", id=ARTIFACT.id, trust="revoked", revocation_reason="a backdoor was found")
    trust = derive_trust(revoked, [seen(), signed()], KEYS, OPEN)

    assert (trust.state, codes(trust)) == (TrustState.REVOKED, [Code.ARTIFACT_REVOKED])
    assert trust.doubts[0].reason == "a backdoor was found"
    assert trust_step(TrustState.REVOKED, Trust(TrustState.VERIFIED)) is None


# Storing the conclusion


@every_row("stored", TrustState)
@every_row("derived", [TrustState.UNVERIFIED, TrustState.VERIFIED, TrustState.REJECTED])
def test_the_stored_state_follows_along_the_table_or_stays(stored: TrustState, derived: TrustState) -> None:
    edge = trust_step(stored, Trust(derived))
    expected = {
        (TrustState.UNVERIFIED, TrustState.VERIFIED): TrustTrigger.VERIFY,
        (TrustState.UNVERIFIED, TrustState.REJECTED): TrustTrigger.REJECT,
        (TrustState.VERIFIED, TrustState.REJECTED): TrustTrigger.REJECT,
        (TrustState.VERIFIED, TrustState.UNVERIFIED): TrustTrigger.LOSE_EVIDENCE,
        (TrustState.REJECTED, TrustState.VERIFIED): TrustTrigger.VERIFY,
    }

    assert (None if edge is None else edge.trigger) == expected.get((stored, derived))


def test_a_changed_conclusion_is_stored_with_its_reason() -> None:
    verified = artifact("b", id=ARTIFACT.id, trust="verified", trust_generation=4)
    decision = record_trust(context(), verified, derive_trust(verified, [seen(digest=digest("0"))], (), OPEN))

    (move,), (event,), (audit,) = decision.writes, decision.events, decision.audits
    assert isinstance(move, StateChange)
    assert (move.machine, move.edge.trigger, move.generation_expected) == (TRUST, TrustTrigger.REJECT, 4)
    assert move.set == {"rejection_reason": f"the source has {digest('0')} instead"}
    assert (decision.result.trust, decision.result.trust_generation) == ("rejected", 5)
    assert event.type is EventType.ARTIFACT_TRUST_CHANGED
    assert (audit.action, audit.before, audit.after) == (
        "artifact.verify",
        {"trust": "verified"},
        {"trust": "rejected"},
    )
    assert audit.reason == move.set["rejection_reason"]


def test_a_conclusion_that_stays_writes_nothing() -> None:
    decision = record_trust(context(), ARTIFACT, derive_trust(ARTIFACT, [], (), OPEN))

    assert (decision.result, decision.writes, decision.events, decision.audits) == (ARTIFACT, (), (), ())


def test_better_evidence_clears_the_reason_of_a_rejection() -> None:
    rejected = artifact("b", id=ARTIFACT.id, trust="rejected", rejection_reason="it was tampered with")
    decision = record_trust(context(), rejected, derive_trust(rejected, [seen()], (), OPEN))

    assert (decision.result.trust, decision.result.rejection_reason) == ("verified", None)


@every_row("stored", [TrustState.UNVERIFIED, TrustState.VERIFIED, TrustState.REJECTED])
def test_an_artifact_is_revoked_from_every_other_state_with_a_reason(stored: TrustState) -> None:
    before = artifact("b", trust=stored.value, rejection_reason="x" if stored is TrustState.REJECTED else None)
    decision = revoke_artifact(context(), before, REASON)

    assert (decision.result.trust, decision.result.revoked_at) == ("revoked", NOW)
    assert decision.result.revocation_reason == decision.audits[0].reason == REASON
    assert decision.audits[0].action == "artifact.revoke"
    (move,) = decision.writes
    assert isinstance(move, StateChange)
    assert set(move.set) == TRUST.requires[TrustState.REVOKED]


def test_revoking_needs_a_reason_and_happens_once() -> None:
    with pytest.raises(Refusal) as refused:
        revoke_artifact(context(), ARTIFACT, "bad")
    assert refused.value.details == {"path": "reason"}
    with pytest.raises(IllegalTransition):
        revoke_artifact(context(), artifact(trust="revoked"), REASON)
