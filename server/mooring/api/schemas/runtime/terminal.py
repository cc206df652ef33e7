"""Views of the terminals that a caller has open."""

from typing import Annotated

from msgspec import Meta

from mooring.api.schemas.kernel.fields import Shown, Time
from mooring.core.runtime.visit import Visit


class TerminalView(Shown):
    """A terminal that can be resumed."""

    id: str
    project_id: str
    allocation_id: str
    owner: str
    instance_id: str | None
    argv: list[str]
    user: str
    opened_at: Time
    viewed: Annotated[
        bool | None,
        Meta(description="Whether a window shows it now; null if another process of the platform holds it."),
    ]


def terminal_view(visit: Visit, *, viewed: bool | None) -> TerminalView:
    return TerminalView(
        id=visit.id,
        project_id=visit.project_id,
        allocation_id=visit.allocation_id,
        owner=visit.owner,
        instance_id=visit.instance_id,
        argv=visit.argv or [],
        user=visit.run_as or "",
        opened_at=visit.opened_at or visit.created_at,
        viewed=viewed,
    )
