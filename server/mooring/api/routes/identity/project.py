"""Endpoints for projects: create, rename, and delete an empty one."""

from functools import partial

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route
from mooring.api.schemas.identity.tenancy import CreateProject, ProjectView, Rename, project_view
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import project as commands
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered
from mooring.core.identity.project import Project
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import project as projects


@route("GET", "/projects", Scope.SELF, RouteSpec("project", "list", "self.read", answer=Page[ProjectView]))
async def list_projects(request: RequestContext, query: PageQuery) -> Page[ProjectView]:
    """List the projects that the caller may read: a tenant's admins see all, others see those they belong to."""
    authority, database = request.caller.authority, request.services.database
    window = page_window(query, "project")
    rows: list[Project] = []
    if "project.read" in authority.tenant:
        rows = await projects.page(database, request.acting, window)
    elif request.caller.tenant_id is not None:
        readable = [project for project, keys in authority.projects.items() if "project.read" in keys]
        rows = await projects.page_of(database, request.acting, readable, window)
    return page(rows, query, "project", lambda row: project_view(authority, row))


@route(
    "POST",
    "/tenants/{tenant_id}/projects",
    Scope.TENANT,
    RouteSpec("project", "create", "project.create", 201, ProjectView, errors=(Code.NAME_TAKEN,)),
)
async def create_project(request: RequestContext, body: CreateProject) -> Answered:
    """Create a project in a tenant."""
    work = request.work(partial(project_view, request.caller.authority))
    return await commands.create(work, str(request.place.tenant_id), body.slug, body.display_name)


@route(
    "GET",
    "/projects/{project_id}",
    Scope.PROJECT,
    RouteSpec("project", "get", "project.read", answer=ProjectView),
)
async def get_project(request: RequestContext, query: WaitQuery) -> ProjectView:
    """Read a project."""
    project_id = str(request.place.project_id)

    async def read() -> ProjectView:
        row = require(await projects.find(request.services.database, request.acting, project_id), "project")
        return project_view(request.caller.authority, row)

    return await waited(request, query, project_id, read)


@route(
    "PATCH",
    "/projects/{project_id}",
    Scope.PROJECT,
    RouteSpec("project", "update", "project.update", answer=ProjectView, errors=(Code.REVISION_CONFLICT,)),
)
async def update_project(request: RequestContext, body: Rename) -> Answered:
    """Change a project's display name."""
    work = request.work(partial(project_view, request.caller.authority))
    return await commands.update(work, str(request.place.project_id), body.display_name, body.revision)


@route(
    "DELETE",
    "/projects/{project_id}",
    Scope.PROJECT,
    RouteSpec("project", "delete", "project.delete", 204, errors=(Code.NOT_EMPTY,)),
)
async def delete_project(request: RequestContext) -> Answered:
    """Delete an empty project."""
    return await commands.delete(request.work(lambda _: None), str(request.place.project_id))
