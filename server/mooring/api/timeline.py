"""Following a timeline: entries come from the database, and the hub says when to read.

The hub's ring holds events but no audit rows. So a follower reads the merged timeline itself: at once when something
happened in its project, and every few seconds for entries that are only audit rows, such as denials.
"""

import time
from dataclasses import dataclass, field
from typing import Final

from mooring.api.request_context import RequestContext, encode_json
from mooring.api.schemas.records.timeline import entry_view
from mooring.api.stream import BATCH, StreamItem
from mooring.core.kernel.event import BEGINNING, StreamPosition
from mooring.core.kernel.permissions import AccessDecision, Scope
from mooring.core.records.timeline import TimelineRow
from mooring.storage.kernel.event import EventSelection
from mooring.storage.records import timeline as timelines

POLL_SECONDS: Final = 2.0
"""How long an entry without an event may take to appear."""
AUDIT_ACTION: Final = "audit.read"


def timeline_selection(
    request: RequestContext, *, app_instance_id: str | None, correlation_id: str | None, audit: bool
) -> timelines.TimelineSelection:
    """What this caller may see of an instance's or a correlation's timeline; audit rows only if they may read those."""
    if request.place.scope is not Scope.PROJECT or request.place.project_id is None:
        raise ValueError("a timeline belongs to a project")
    shown = audit and request.caller.authority.access(AUDIT_ACTION, request.place) is AccessDecision.ALLOWED
    return timelines.TimelineSelection(request.place.project_id, app_instance_id, correlation_id, audit=shown)


async def read(
    request: RequestContext, wanted: timelines.TimelineSelection, place: StreamPosition, limit: int
) -> tuple[list[TimelineRow], StreamPosition]:
    """The next entries after a position, and the position up to which this is everything."""
    head = request.services.hub.head  # taken before the read, which therefore includes everything up to here
    found = await timelines.read(request.services.database, request.acting, wanted, place, limit)
    if len(found) == limit:
        return found, found[-1].position
    return found, max(head, found[-1].position) if found else max(head, place)


@dataclass(slots=True)
class TimelineSource:
    """A timeline that a caller follows."""

    call: RequestContext
    wanted: timelines.TimelineSelection
    _seen: StreamPosition = field(default=BEGINNING)
    _read_at: float = field(default=float("-inf"))

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        """The next entries, if there may be any."""
        hub, now = self.call.services.hub, time.monotonic()
        if now - self._read_at < POLL_SECONDS:
            # Any event of the project may belong to the timeline; only the database knows.
            happened, _ = await hub.read(
                EventSelection(self.call.acting.tenant_id, self.wanted.project_id), self._seen, 1
            )
            if not happened:
                return [], place
        self._seen, self._read_at = hub.head, now
        found, place = await read(self.call, self.wanted, place, BATCH)
        return [
            StreamItem(entry.position.cursor(), entry.type, encode_json(entry_view(entry))) for entry in found
        ], place

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait for any event, also of other projects."""
        await self.call.services.hub.wait(self._seen, min(seconds, POLL_SECONDS))
