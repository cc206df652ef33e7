"""Which project belongs to which tenant, cached.

A tenant admin may name any project id and holds their keys in each project of the tenant, so the id must be checked.
Callers with a role in the project itself need no look-up. A project never changes its tenant, so an answer stays valid
until a project is deleted: in this process at once, in another as soon as the event arrives.
"""

from collections import OrderedDict
from typing import Final

from mooring.core.identity.caller import Caller
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, is_id
from mooring.core.kernel.permissions import Place
from mooring.storage.identity import project as projects
from mooring.storage.kernel.database import Acting, Database

ENTRIES_MAX: Final = 50_000


class ProjectTenantCache:
    """Finds the tenant of a project."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._home: OrderedDict[str, str] = OrderedDict()
        self._cleared = 0

    def forget(self, event: Event) -> None:
        """Drop the cache if the event deleted a project."""
        self.forget_after(event.type)

    def forget_after(self, event_type: str) -> None:
        """Drop the cache if events of this type delete a project."""
        if event_type == EventType.PROJECT_DELETED:
            self._home.clear()
            self._cleared += 1

    async def home_of(self, project_id: str, *, deleted_too: bool = False) -> str | None:
        """The tenant of a project, for platform staff, who may name any project."""
        if not is_id(project_id, Prefix.PROJECT):
            return None
        return self._home.get(project_id) or await projects.home_of(self._database, project_id, deleted_too=deleted_too)

    async def is_foreign(self, caller: Caller, place: Place, *, deleted_too: bool = False) -> bool:
        """Whether the place is a project that the caller's tenant does not have.

        With `deleted_too` it is enough that the tenant once had it, so that a repeated deletion gets its response
        again.
        """
        if place.project_id is None or place.project_id in caller.authority.projects:
            return False
        if caller.tenant_id is None:  # platform staff: `home_of` already found the tenant, if there is one
            return place.tenant_id is None
        if not is_id(place.project_id, Prefix.PROJECT):  # may contain what the database does not accept, such as NUL
            return True
        if self._home.get(place.project_id) == caller.tenant_id:
            return False
        acting, cleared = Acting(caller.tenant_id), self._cleared
        if await projects.find(self._database, acting, place.project_id) is None:
            return not (deleted_too and await projects.was_there(self._database, acting, place.project_id))
        if cleared == self._cleared:  # otherwise this was read before a deletion, perhaps of this project
            self._home[place.project_id] = str(caller.tenant_id)
            if len(self._home) > ENTRIES_MAX:
                self._home.popitem(last=False)
        return False
