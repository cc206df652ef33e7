"""Holds: records of what uses a digest, so that it cannot be retired.

A hold is a row that is inserted when something starts to use a digest and removed when it stops. The database ensures
that nobody can hold a retired digest and nobody can retire a held one: both operations take the digest's lock.
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
        """The properties of the hold that promotions need."""
        return Hold(self.digest, self.holder_noun, self.holder_id, self.version_id)


def take_holds(
    context: DecisionContext, holds: Sequence[Hold], *, tenant_id: str, project_id: str
) -> Decision[tuple[ArtifactHold, ...]]:
    """Hold these digests on behalf of a project."""
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
        for hold in sorted(holds, key=lambda each: each.digest)  # one order of locks for all, against deadlocks
    )
    return Decision(
        result=taken,
        writes=tuple(Insert("artifact_hold", asdict(each)) for each in taken),
        audits=tuple(_audited("artifact_hold.take", each) for each in taken),
    )


def drop_holds(context: DecisionContext, holds: Sequence[ArtifactHold]) -> Decision[tuple[ArtifactHold, ...]]:
    return Decision(
        result=tuple(holds),
        writes=tuple(Remove("artifact_hold", each.id, each.revision) for each in holds),
        audits=tuple(_audited("artifact_hold.drop", each) for each in holds),
    )


def _audited(action: str, hold: ArtifactHold) -> AuditRecord:
    data = {"digest": hold.digest, "holder_noun": hold.holder_noun, "holder_id": hold.holder_id}
    return AuditRecord(action, "artifact_hold", hold.id, hold.tenant_id, hold.project_id, after=data)
