"""Use cases for memberships: granting and withdrawing roles."""

from dataclasses import replace

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.membership import Membership, create_membership, delete_membership
from mooring.core.kernel.permissions import Place, Role
from mooring.storage.identity import membership as memberships
from mooring.storage.identity import project as projects
from mooring.storage.identity import user as users


def home(work: Work[Membership], place: Place) -> Place:
    """The place with its tenant added, because the URL of a project does not name the tenant."""
    return replace(place, tenant_id=work.acting.tenant_id)


async def create(work: Work[Membership], place: Place, user_id: str, role: Role) -> Answered:
    async def load() -> None:
        require(await users.find(work.database, work.acting, user_id), "user")
        if place.project_id is not None:
            require(await projects.find(work.database, work.acting, place.project_id), "project")

    return await work.execute(load, lambda _: create_membership(work.context, work.authority, place, user_id, role))


async def delete(work: Work[Membership], place: Place, membership_id: str) -> Answered:
    async def load() -> tuple[Membership, int]:
        membership = require(
            await memberships.find(work.database, work.acting, place.project_id, membership_id), "membership"
        )
        return membership, await memberships.others(work.database, work.acting, membership)

    return await work.execute(load, lambda loaded: delete_membership(work.context, work.authority, *loaded))
