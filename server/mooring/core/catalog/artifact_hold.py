"""Holds: what still uses a digest, so that it is not retired.

A hold is a row of its own, taken when something begins to use a digest and dropped when it ends. That it is never
taken on a retired digest, and that nothing held is retired, is kept by the database: both wait for the digest's lock.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from mooring.core.catalog.artifact_promotion import Hold
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, Insert, Remove
from mooring.core.kernel.ids import Prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactHold:
    """One holder's use of one digest."""

    id: str
    tenant_id: str
    project_id: str
    digest: str
    holder_noun: str
    holder_id: str
    version_id: str | None
    revision: int
    created_at: datetime

    @property
    def hold(self) -> Hold:
        """The hold, as far as promotions are concerned."""
        return Hold(self.digest, self.holder_noun, self.holder_id, self.version_id)


def take_holds(
    context: DecisionContext, place: tuple[str, str], holds: Sequence[Hold]
) -> Decision[tuple[ArtifactHold, ...]]:
    """Hold these digests for somebody in a place (tenant and project)."""
    tenant_id, project_id = place
    taken = tuple(
        ArtifactHold(
            id=context.mint(Prefix.ARTIFACT_HOLD),
            tenant_id=tenant_id,
            project_id=project_id,
            digest=hold.digest,
            holder_noun=hold.holder_noun,
            holder_id=hold.holder_id,
            version_id=hold.version_id,
            revision=0,
            created_at=context.now,
        )
        for hold in sorted(holds, key=lambda each: each.digest)  # the locks of several digests in one order
    )
    return Decision(
        result=taken,
        writes=tuple(Insert("artifact_hold", asdict(each)) for each in taken),
        audits=tuple(_audited("artifact_hold.take", each) for each in taken),
    )


def drop_holds(context: DecisionContext, holds: Sequence[ArtifactHold]) -> Decision[tuple[ArtifactHold, ...]]:
    """Let go of these."""
    return Decision(
        result=tuple(holds),
        writes=tuple(Remove("artifact_hold", each.id, each.revision) for each in holds),
        audits=tuple(_audited("artifact_hold.drop", each) for each in holds),
    )


def _audited(action: str, hold: ArtifactHold) -> AuditRecord:
    told = {"digest": hold.digest, "holder_noun": hold.holder_noun, "holder_id": hold.holder_id}
    return AuditRecord(action, "artifact_hold", hold.id, hold.tenant_id, hold.project_id, after=told)
