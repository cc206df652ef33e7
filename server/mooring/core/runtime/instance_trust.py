"""Trust in what an instance runs: whether it is lost, and what the policy does about it.

An instance runs the artifacts that it and its members are pinned to. It is trusted as long as each of those digests is
verified in its project now: under the current keys, sources and policy. Otherwise it has a *distrust*, which names the
digests, the reasons and the reaction that the policy asks for.

Every use asks for the trust at that moment; the stored distrust is the last conclusion, for people, events and the
worker that reacts to it (`workers/instance_trust.py`). What would fetch or start the bytes again is refused whatever
the policy says: a restart that stops a program and may not start it again would be worse than none.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final

from mooring.core.catalog.artifact import Visibility
from mooring.core.catalog.artifact_trust import ArtifactTrust, trust_of_digests
from mooring.core.catalog.policy import Layer, PolicyChain, Reaction
from mooring.core.catalog.trust_lifecycle import TrustState
from mooring.core.kernel.decision import Decision, DecisionContext, EventRecord
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.runtime.attachment import Attachment
from mooring.core.runtime.instance import Instance
from mooring.core.runtime.instance_teardown import ACTION
from mooring.core.runtime.instance_transitions import change_instance

NAMED_MAX: Final = 20
"""How many untrusted artifacts are named."""
STARTING_VERBS: Final = frozenset({"add", "reconcile", "repair", "replace", "restart", "update"})
"""What fetches or starts the running version again; it is refused at every level."""
REFUSED_VERBS: Final[Mapping[str, Reaction]] = {
    **dict.fromkeys(STARTING_VERBS, Reaction.NOTIFY),
    "act": Reaction.REFUSE,
    "attach": Reaction.REFUSE,
    "resume": Reaction.DRAIN,
}
"""The verbs that an untrusted instance does not accept, each with the reaction from which on it is refused."""


@dataclass(frozen=True, slots=True)
class UntrustedArtifact:
    """An artifact that an instance runs and that is not trusted now."""

    digest: str
    trust: str
    code: str
    reason: str
    artifact_id: str | None = None
    owner: str | None = None  # who registered it: platform, tenant or project


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why an instance is not trusted, and what the policy does about it."""

    artifacts: tuple[UntrustedArtifact, ...]
    reaction: Reaction
    layer: Layer | None = None  # the layer that asks for the reaction; None: the default

    def refuses(self, verb: str) -> bool:
        needed = REFUSED_VERBS.get(verb)
        return needed is not None and self.reaction >= needed

    def refusal(self, verb: str) -> Refusal:
        """Why the verb is refused, with the code of the first untrusted artifact."""
        first = self.artifacts[0]
        return Refusal(
            Code(first.code),
            f"cannot {verb}: the instance runs artifact {first.digest}, which is {first.trust}: {first.reason}",
            {
                "digest": first.digest,
                "artifact_id": first.artifact_id,
                "trust": first.trust,
                "reason": first.reason,
                "reaction": self.reaction.name.lower(),
                "reasons": [
                    {"code": each.code, "reason": each.reason, "digest": each.digest} for each in self.artifacts
                ],
            },
        )

    def plain(self, since: datetime) -> dict[str, Any]:
        """The stored form."""
        return {
            "since": since.isoformat(),
            "reaction": self.reaction.name.lower(),
            "layer": None if self.layer is None else self.layer.value,
            "artifacts": [asdict(each) for each in self.artifacts],
        }


def distrust_of(plain: Mapping[str, Any] | None) -> Distrust | None:
    """The stored distrust."""
    if plain is None:
        return None
    return Distrust(
        tuple(UntrustedArtifact(**each) for each in plain["artifacts"]),
        Reaction[plain["reaction"].upper()],
        None if plain["layer"] is None else Layer(plain["layer"]),
    )


def assess(digests: Iterable[str], evaluated: Sequence[ArtifactTrust], policy: PolicyChain) -> Distrust | None:
    """The distrust of an instance that runs these digests; None if all of them are trusted.

    `evaluated` are the artifacts that its project sees, each with its trust there.
    """
    found = trust_of_digests(evaluated)
    untrusted = [each for digest in sorted(set(digests)) if (each := _untrusted(digest, found.get(digest))) is not None]
    if not untrusted:
        return None
    worst = sorted(untrusted, key=lambda each: each.trust != TrustState.REVOKED)
    return Distrust(tuple(worst[:NAMED_MAX]), *policy.reaction)


def change_distrust(
    context: DecisionContext, instance: Instance, found: Distrust | None, attached: Iterable[Attachment] = ()
) -> Decision[Instance] | None:
    """Store the conclusion if it changed, with an event for the project and for those that are attached to the
    instance; None if it is stored already.
    """
    stored = instance.distrust
    if distrust_of(stored) == found:
        return None
    since = context.now if stored is None else datetime.fromisoformat(stored["since"])
    plain = None if found is None else found.plain(since)
    lost = found is not None
    event = EventType.INSTANCE_TRUST_LOST if lost else EventType.INSTANCE_TRUST_RESTORED
    decision = change_instance(instance, ACTION, event, distrust=plain)
    data = {**decision.events[0].data, **(plain or {"since": context.now.isoformat()})}
    reason = "everything that it runs is trusted again" if found is None else found.artifacts[0].reason
    return replace(
        decision,
        events=(replace(decision.events[0], data=data), *(_attached_event(each, plain) for each in attached)),
        audits=tuple(replace(each, reason=reason, before={"distrust": stored}) for each in decision.audits),
    )


def _attached_event(attachment: Attachment, plain: Mapping[str, Any] | None) -> EventRecord:
    """The event of an attached project: what it may know of another project's instance, so no digest."""
    data: dict[str, Any] = {"owning_project_id": attachment.owning_project_id}
    if plain is not None:
        codes = sorted({each["code"] for each in plain["artifacts"]})
        data |= {"since": plain["since"], "reaction": plain["reaction"], "codes": codes}
    return EventRecord(
        EventType.ATTACHMENT_TRUST_RESTORED if plain is None else EventType.ATTACHMENT_TRUST_LOST,
        "attachment",
        attachment.id,
        attachment.tenant_id,
        attachment.project_id,
        data=data,
        app_slug=attachment.app_slug,
        app_instance_id=attachment.instance_id,
    )


def _untrusted(digest: str, found: ArtifactTrust | None) -> UntrustedArtifact | None:
    if found is None:
        reason = "the project sees no registered artifact with this digest"
        return UntrustedArtifact(digest, TrustState.UNVERIFIED.value, Code.ARTIFACT_UNVERIFIED.value, reason)
    artifact, trust = found
    if trust.is_verified:
        return None
    first = trust.doubts[0]
    owner = Visibility(artifact.visibility).value
    return UntrustedArtifact(digest, trust.state.value, first.code.value, first.reason, artifact.id, owner)
