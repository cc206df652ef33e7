"""Trust: what the stored evidence says about an artifact's bytes.

Trust is derived anew from the evidence on each use; the table says which conclusions may follow which. It
is one of an artifact's two dimensions, beside promotion: an active artifact may be revoked, and a draft may
be verified.
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
    about="What the stored evidence says about an artifact's bytes. Trust is derived anew on each use.",
    states=TrustState,
    triggers=TrustTrigger,
    initial=S.UNVERIFIED,
    meaning={
        S.UNVERIFIED: "no evidence was accepted and none was found false",
        S.VERIFIED: "the stored evidence proves the digest under the policy in force",
        S.REJECTED: "the evidence that was given is false, or the policy does not accept it",
        S.REVOKED: "withdrawn for ever, whatever the evidence says",
    },
    edges=(
        Transition(S.UNVERIFIED, T.VERIFY, S.VERIFIED, Who.WORKER, "Accepted evidence covers the digest."),
        Transition(S.UNVERIFIED, T.REJECT, S.REJECTED, Who.WORKER, "What was given as evidence does not hold."),
        Transition(S.UNVERIFIED, T.REVOKE, S.REVOKED, Who.ADMIN, "Its bytes are bad, and nobody had proved them."),
        Transition(S.VERIFIED, T.REJECT, S.REJECTED, Who.WORKER, "The evidence was found false, or too weak."),
        Transition(
            S.VERIFIED,
            T.LOSE_EVIDENCE,
            S.UNVERIFIED,
            Who.WORKER,
            "A key was removed, so what it signed is no longer proof.",
        ),
        Transition(S.VERIFIED, T.REVOKE, S.REVOKED, Who.ADMIN, "Its bytes are bad, whatever was signed."),
        Transition(S.REJECTED, T.VERIFY, S.VERIFIED, Who.WORKER, "Better evidence covers the digest."),
        Transition(S.REJECTED, T.REVOKE, S.REVOKED, Who.ADMIN, "No later evidence shall bring it back."),
    ),
    requires={
        S.REJECTED: frozenset({"rejection_reason"}),
        S.REVOKED: frozenset({"revoked_at", "revocation_reason"}),
    },
)
