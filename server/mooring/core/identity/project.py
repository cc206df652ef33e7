"""Projects: the parts of a tenant that contain its allocations, instances and service accounts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from mooring.core.identity.tenant import require_revision
from mooring.core.kernel import validation
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext, EventRecord, Insert, Update
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix


@dataclass(frozen=True, slots=True)
class Project:
    """A part of a tenant with its own members, service accounts, allocations and instances."""

    id: str
    tenant_id: str
    slug: str
    display_name: str
    revision: int
    created_at: datetime
    deleted_at: datetime | None


@dataclass(frozen=True, slots=True)
class ProjectContents:
    """How many resources a project still contains, by noun; a project must be empty before it is deleted."""

    counts: tuple[tuple[str, int], ...]


def create_project(context: DecisionContext, tenant_id: str, slug: str, display_name: str) -> Decision[Project]:
    project = Project(
        id=context.mint(Prefix.PROJECT),
        tenant_id=tenant_id,
        slug=validation.slug(slug),
        display_name=validation.display_name(display_name),
        revision=0,
        created_at=context.now,
        deleted_at=None,
    )
    named = {"slug": project.slug, "display_name": project.display_name}
    return Decision(
        result=project,
        writes=(Insert("project", asdict(project)),),
        events=(EventRecord(EventType.PROJECT_CREATED, "project", project.id, tenant_id, project.id, data=named),),
        audits=(AuditRecord("project.create", "project", project.id, tenant_id, project.id, after=named),),
    )


def update_project(
    context: DecisionContext, project: Project, display_name: str, revision_seen: int | None
) -> Decision[Project]:
    """Change the display name. The slug and the id never change, because scripts refer to them."""
    require_revision(project.revision, revision_seen)
    name = validation.display_name(display_name)
    named = {"display_name": name}
    return Decision(
        result=replace(project, display_name=name, revision=project.revision + 1),
        writes=(Update("project", project.id, project.revision, named),),
        events=(_happened(EventType.PROJECT_UPDATED, project, named),),
        audits=(
            AuditRecord(
                "project.update",
                "project",
                project.id,
                project.tenant_id,
                project.id,
                before={"display_name": project.display_name},
                after=named,
            ),
        ),
    )


def delete_project(context: DecisionContext, project: Project, contents: ProjectContents) -> Decision[Project]:
    """Delete an empty project; its row stays as a tombstone, and its slug can be used again."""
    held = {noun: count for noun, count in contents.counts if count}
    if held:
        listed = ", ".join(f"{count} {noun}" for noun, count in sorted(held.items()))
        raise Refusal(Code.NOT_EMPTY, f"the project still holds {listed}", {"held": held})
    return Decision(
        result=replace(project, deleted_at=context.now, revision=project.revision + 1),
        writes=(Update("project", project.id, project.revision, {"deleted_at": context.now}),),
        events=(_happened(EventType.PROJECT_DELETED, project, {"slug": project.slug}),),
        audits=(
            AuditRecord(
                "project.delete",
                "project",
                project.id,
                project.tenant_id,
                project.id,
                before={"slug": project.slug},
            ),
        ),
    )


def _happened(type_: EventType, project: Project, data: Mapping[str, object]) -> EventRecord:
    return EventRecord(type_, "project", project.id, project.tenant_id, project.id, data=data)
