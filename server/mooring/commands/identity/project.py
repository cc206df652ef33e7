"""Use cases for projects: create, rename, and delete an empty one."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.project import Project, ProjectContents, create_project, delete_project, update_project
from mooring.storage.identity import project as projects


async def create(work: Work[Project], tenant_id: str, slug: str, display_name: str) -> Answered:
    async def load() -> None:
        return None

    return await work.execute(load, lambda _: create_project(work.context, tenant_id, slug, display_name))


async def update(work: Work[Project], project_id: str, display_name: str, revision_seen: int | None) -> Answered:
    async def load() -> Project:
        return require(await projects.find(work.database, work.acting, project_id), "project")

    return await work.execute(load, lambda project: update_project(work.context, project, display_name, revision_seen))


async def delete(work: Work[Project], project_id: str) -> Answered:
    async def load() -> tuple[Project, ProjectContents]:
        project = require(await projects.find(work.database, work.acting, project_id), "project")
        return project, await projects.contents(work.database, work.acting, project_id)

    return await work.execute(load, lambda loaded: delete_project(work.context, *loaded))
