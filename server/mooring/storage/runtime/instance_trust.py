"""Reads what instances run, as far as trust depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mooring.storage.catalog.artifact_impact import RUN_DIGESTS
from mooring.storage.kernel.database import Acting, Database

_USE: Final = f"i.id, i.tenant_id, i.project_id, e.rules, {RUN_DIGESTS}"
_ENTITLED: Final = "LEFT JOIN entitlement e ON e.project_id = i.project_id AND e.app_id = i.app_id"
USES: Final = f"SELECT {_USE} FROM instance i {_ENTITLED} WHERE i.id = ANY ($1::text[])"


@dataclass(frozen=True, slots=True)
class ArtifactUse:
    """The digests that an instance runs, and the rules of its entitlement, which narrow the project's policy."""

    instance_id: str
    tenant_id: str
    project_id: str
    entitlement_rules: dict[str, Any] | None
    digests: list[str]

    @property
    def place(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id


async def uses(database: Database, acting: Acting, instance_ids: Sequence[str]) -> list[ArtifactUse]:
    """What each of these instances runs."""
    return [ArtifactUse(*row) for row in await database.fetch(acting, USES, list(instance_ids))]
