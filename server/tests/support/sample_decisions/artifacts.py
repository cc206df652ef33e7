"""How each function that decides about artifacts is driven once, or once for each shape of what it decides."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from mooring.core.catalog import (
    artifact,
    artifact_check,
    artifact_evidence,
    artifact_hold,
    artifact_promotion,
    artifact_source,
    artifact_trust,
    signer_key,
)
from mooring.core.catalog.artifact_location import ArtifactSource
from mooring.core.catalog.artifact_promotion import ArtifactFacts, CheckResult, Hold, PromotionRequest
from mooring.core.catalog.artifact_trust import Evidence, Trust
from mooring.core.catalog.promotion_lifecycle import PROMOTION
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Decision, DecisionContext
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.ids import Prefix
from server.tests.support.lifecycle_rows import context

WHY: Final = "because the tests say so"
NOW: Final = context()
PLACE: Final = {"tenant_id": NOW.mint(Prefix.TENANT), "project_id": NOW.mint(Prefix.PROJECT)}
DIGEST: Final = f"sha256:{'a' * 64}"
REQUESTED: Final = artifact.ArtifactSpec(artifact.ArtifactKind.OCI, "oci://registry.example/team/app", DIGEST, 1)
VERIFIED: Final = Trust(TrustState.VERIFIED)
HOLD: Final = Hold(DIGEST, "instance", NOW.mint(Prefix.INSTANCE))


def an_artifact() -> artifact.Artifact:
    return artifact.register_artifact(NOW, REQUESTED, **PLACE).result


def a_source() -> ArtifactSource:
    return artifact_source.create_source(
        NOW, PLACE["tenant_id"], artifact_source.ArtifactSourceSpec("any", "oci://any.example/*"), 0
    ).result


def a_key() -> artifact_trust.SignerKey:
    return signer_key.add_key(NOW, PLACE["tenant_id"], signer_key.SignerKeySpec("any", "ed25519", "pem", "f"), 0).result


def a_look() -> Evidence:
    return artifact_evidence.presence(NOW, an_artifact(), DIGEST, 1)


def _every_move(now: DecisionContext) -> Iterator[Decision[Any]]:
    facts = ArtifactFacts(checks=[CheckResult("smoke", DIGEST, True)])
    for edge in PROMOTION.edges:
        stands = replace(an_artifact(), promotion=edge.source.value, deprecated_at=now.now)
        because = WHY if edge.trigger == "deprecate" else None
        requested = PromotionRequest(edge.trigger, WHY, no_successor_because=because)
        moved = replace(facts, grace_period=now.now - now.now)
        yield artifact_promotion.move_artifact(now, stands, requested, moved)


def _evidence(now: DecisionContext) -> Iterator[Decision[Any]]:
    found = artifact_evidence.FoundSignature(evidence=a_look())
    yield artifact_evidence.add_evidence(now, an_artifact(), [found], VERIFIED)
    yield artifact_evidence.add_evidence(now, an_artifact(), [found, found], Trust(TrustState.UNVERIFIED))


def a_check(status: str) -> artifact_check.ArtifactCheck:
    name = artifact_check.CheckName.CONTENT
    accepted = artifact_check.accept_check(NOW, an_artifact(), name, action="artifact.verify").result
    return replace(accepted, status=status)


def _ends(now: DecisionContext) -> Iterator[Decision[Any]]:
    for failure in (None, Refusal(Code.DIGEST_MISMATCH, "it is something else", {"found": DIGEST})):
        yield artifact_check.end_check(now, a_check("running"), artifact_check.CheckOutcome("read", 1, failure))


def _measured(now: DecisionContext) -> Iterator[Decision[Any]]:
    unread = replace(an_artifact(), size_bytes=0)
    found = artifact_evidence.FoundSignature(evidence=a_look())
    for trust in (VERIFIED, Trust(TrustState.UNVERIFIED)):
        made = artifact_evidence.add_evidence(now, unread, [found], trust)
        yield artifact_evidence.measured(made, unread, 1)


DRIVEN_ARTIFACTS: Final[dict[str, Callable[[DecisionContext], Decision[Any] | Iterator[Decision[Any]]]]] = {
    "artifact.register_artifact": lambda now: artifact.register_artifact(now, REQUESTED, **PLACE),
    "artifact_check.accept_check": lambda now: artifact_check.accept_check(
        now, an_artifact(), artifact_check.CheckName.SMOKE, action="artifact.promote"
    ),
    "artifact_check.cancel_check": lambda now: artifact_check.cancel_check(now, a_check("running"), WHY),
    "artifact_check.end_check": _ends,
    "artifact_check.hand_back_check": lambda now: artifact_check.hand_back_check(now, a_check("running")),
    "artifact_check.lose_check": lambda now: artifact_check.lose_check(now, a_check("running")),
    "artifact_check.start_check": lambda now: artifact_check.start_check(now, a_check("accepted"), now.now),
    "artifact_evidence.add_evidence": _evidence,
    "artifact_evidence.measured": _measured,
    "artifact_evidence.add_presence": lambda now: artifact_evidence.add_presence(
        artifact.register_artifact(now, REQUESTED, **PLACE), a_look()
    ),
    "artifact_hold.drop_holds": lambda now: artifact_hold.drop_holds(
        now, artifact_hold.take_holds(now, [HOLD], **PLACE).result
    ),
    "artifact_hold.take_holds": lambda now: artifact_hold.take_holds(now, [HOLD], **PLACE),
    "artifact_promotion.move_artifact": _every_move,
    "artifact_source.create_source": lambda now: artifact_source.create_source(
        now, None, artifact_source.ArtifactSourceSpec("any", "oci://any.example/*", True), 0
    ),
    "artifact_source.delete_source": lambda now: artifact_source.delete_source(now, a_source()),
    "artifact_trust.record_trust": lambda now: artifact_trust.record_trust(now, an_artifact(), VERIFIED),
    "artifact_trust.revoke_artifact": lambda now: artifact_trust.revoke_artifact(now, an_artifact(), WHY),
    "signer_key.add_key": lambda now: signer_key.add_key(
        now, None, signer_key.SignerKeySpec("any", "ed25519", "pem", "f"), 0
    ),
    "signer_key.remove_key": lambda now: signer_key.remove_key(now, a_key()),
}
"""By module and function."""
