"""The lifecycle of trust: what the stored evidence says about an artifact's bytes.

Trust is derived from the evidence on each use; the table says which conclusion may follow which. It is one of an
artifact's two states and independent of promotion: an active artifact may be revoked, and a draft may be verified.
"""

from enum import StrEnum

from mooring.core.kernel.lifecycle import Lifecycle, Transition, Who


class TrustState(StrEnum):
    UNVERIFIED = "unverified"
    VERIFIED = "verified"
    REJECTED = "rejected"
    REVOKED = "revoked"


class TrustTrigger(StrEnum):
    VERIFY = "verify"
    REJECT = "reject"
    LOSE_EVIDENCE = "lose_evidence"
    REVOKE = "revoke"


S, T = TrustState, TrustTrigger

TRUST = Lifecycle(
    name="trust",
    about="What the stored evidence says about an artifact's bytes. Trust is derived again on each use, and what runs "
    "an artifact that lost it is treated as the policy says.",
    states=TrustState,
    triggers=TrustTrigger,
    initial=S.UNVERIFIED,
    meaning={
        S.UNVERIFIED: "no evidence is accepted, and none is false",
        S.VERIFIED: "the stored evidence proves the digest under the current policy",
        S.REJECTED: "the evidence is false, or the policy does not accept it",
        S.REVOKED: "permanently withdrawn, whatever the evidence says",
    },
    edges=(
        Transition(S.UNVERIFIED, T.VERIFY, S.VERIFIED, Who.WORKER, "Accepted evidence covers the digest."),
        Transition(S.UNVERIFIED, T.REJECT, S.REJECTED, Who.WORKER, "The evidence is false."),
        Transition(S.UNVERIFIED, T.REVOKE, S.REVOKED, Who.ADMIN, "Its bytes are bad, and it was never verified."),
        Transition(S.VERIFIED, T.REJECT, S.REJECTED, Who.WORKER, "The evidence proved to be false, or too weak."),
        Transition(
            S.VERIFIED,
            T.LOSE_EVIDENCE,
            S.UNVERIFIED,
            Who.WORKER,
            "A key was removed, so its signatures no longer prove anything.",
        ),
        Transition(S.VERIFIED, T.REVOKE, S.REVOKED, Who.ADMIN, "Its bytes are bad, although it was verified."),
        Transition(S.REJECTED, T.VERIFY, S.VERIFIED, Who.WORKER, "Better evidence covers the digest."),
        Transition(
            S.REJECTED,
            T.REVOKE,
            S.REVOKED,
            Who.ADMIN,
            "An admin excludes it permanently, even if better evidence appears.",
        ),
    ),
    requires={
        S.REJECTED: frozenset({"rejection_reason"}),
        S.REVOKED: frozenset({"revoked_at", "revocation_reason"}),
    },
)
