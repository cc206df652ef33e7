"""Following a timeline: entries come from the database, and the hub says when it is worth asking.

The ring of the hub holds events and no audit rows, so that a follower reads the merged timeline itself: at once when
something happened in its project, and every few seconds for what leaves an audit row alone, such as a denial.
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

LOOK_SECONDS: Final = 2.0
"""How long something without an event may take to be shown."""
AUDIT_ACTION: Final = "audit.read"


def story(
    request: RequestContext, wanted: tuple[str | None, str | None], *, audit: bool
) -> timelines.TimelineSelection:
    """What this caller may see of it: audit rows only where he may read those; `wanted` is instance and correlation."""
    if request.place.scope is not Scope.PROJECT or request.place.project_id is None:
        raise ValueError("a timeline is of a project")
    shown = audit and request.caller.authority.access(AUDIT_ACTION, request.place) is AccessDecision.ALLOWED
    return timelines.TimelineSelection(request.place.project_id, *wanted, audit=shown)


async def read(
    request: RequestContext, wanted: timelines.TimelineSelection, place: StreamPosition, limit: int
) -> tuple[list[TimelineRow], StreamPosition]:
    """The next entries after a place, and the place up to which that is all there is."""
    head = request.services.hub.head  # seen before the read: whatever is settled up to here, the read shows
    found = await timelines.read(request.services.database, request.acting, wanted, place, limit)
    if len(found) == limit:
        return found, found[-1].position
    return found, max(head, found[-1].position) if found else max(head, place)


@dataclass(slots=True)
class TimelineSource:
    """A timeline that is followed."""

    call: RequestContext
    wanted: timelines.TimelineSelection
    _seen: StreamPosition = field(default=BEGINNING)
    _looked_at: float = field(default=float("-inf"))

    async def read(self, place: StreamPosition) -> tuple[list[StreamItem], StreamPosition]:
        """The next entries, if there may be any."""
        hub, now = self.call.services.hub, time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            # Whatever happened in the project may be of the story: which one is, only the database knows.
            happened, _ = await hub.read(
                EventSelection(self.call.acting.tenant_id, self.wanted.project_id), self._seen, 1
            )
            if not happened:
                return [], place
        self._seen, self._looked_at = hub.head, now
        found, place = await read(self.call, self.wanted, place, BATCH)
        return [
            StreamItem(entry.position.cursor(), entry.type, encode_json(entry_view(entry))) for entry in found
        ], place

    async def wait(self, place: StreamPosition, seconds: float) -> None:
        """Wait for an event of anybody's."""
        await self.call.services.hub.wait(self._seen, min(seconds, LOOK_SECONDS))
