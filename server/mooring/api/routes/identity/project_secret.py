"""Endpoints for the secrets of projects: stored, listed, rotated and deleted; their values are never shown."""

from mooring.api.page import Page, PageQuery, page, page_window
from mooring.api.request_context import RequestContext
from mooring.api.route import RouteSpec, route_in
from mooring.api.schemas.identity.project_secret import (
    CreateSecret,
    DeleteSecretQuery,
    RotateSecret,
    SecretView,
    secret_view,
)
from mooring.api.wait import WaitQuery, waited
from mooring.commands.identity import project_secret as commands
from mooring.commands.identity.project_secret import SecretRef
from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.project_secret import ProjectSecret
from mooring.core.kernel.errors import Code
from mooring.core.kernel.permissions import Scope
from mooring.storage.identity import project_secret as project_secrets
from mooring.storage.identity.project_secret import SecretInUse

PLACES = (Scope.PROJECT,)
PATH = "/secrets"
ONE = PATH + "/{secret_id}"


def _ref(request: RequestContext, secret_id: str) -> SecretRef:
    return SecretRef(str(request.place.project_id), secret_id)


def _view(request: RequestContext, found: SecretInUse) -> SecretView:
    return secret_view(request.caller.authority, found.secret, found.instances)


async def _find(request: RequestContext, secret_id: str) -> SecretInUse:
    ref = _ref(request, secret_id)
    found = await project_secrets.find(request.services.database, request.acting, ref.project_id, ref.secret_id)
    return require(found, "secret")


@route_in(PLACES, "GET", PATH, RouteSpec("secret", "list", "project_secret.read", answer=Page[SecretView]))
async def list_secrets(request: RequestContext, query: PageQuery) -> Page[SecretView]:
    """List a project's secrets, without their values."""
    project_id, window = str(request.place.project_id), page_window(query, "project_secret")
    rows = await project_secrets.page(request.services.database, request.acting, project_id, window)
    return page(rows, query, "project_secret", lambda row: _view(request, row))


@route_in(
    PLACES,
    "POST",
    PATH,
    RouteSpec(
        "secret", "create", "project_secret.create", 201, SecretView, errors=(Code.LIMIT_REACHED, Code.NAME_TAKEN)
    ),
)
async def create_secret(request: RequestContext, body: CreateSecret) -> Answered:
    """Store a secret in a project.

    Its value is sealed at once and never shown again. A launch names it (`secrets`), and the app's programs have it as
    a variable of their environment.
    """
    work: Work[ProjectSecret] = request.work(lambda made: secret_view(request.caller.authority, made, 0))
    project_id = str(request.place.project_id)
    return await commands.create(work, project_id, body.name, value=body.value, description=body.description)


@route_in(PLACES, "GET", ONE, RouteSpec("secret", "get", "project_secret.read", answer=SecretView))
async def get_secret(request: RequestContext, secret_id: str, query: WaitQuery) -> SecretView:
    """Read a secret, without its value."""

    async def read() -> SecretView:
        return _view(request, await _find(request, secret_id))

    return await waited(request, query, secret_id, read)


@route_in(PLACES, "POST", ONE + "/rotate", RouteSpec("secret", "rotate", "project_secret.rotate", answer=SecretView))
async def rotate_secret(request: RequestContext, secret_id: str, body: RotateSecret) -> Answered:
    """Replace the value of a secret.

    What starts later gets the new value; what runs keeps the old one until it is restarted. The old value is deleted.
    """
    instances = (await _find(request, secret_id)).instances
    work: Work[ProjectSecret] = request.work(lambda made: secret_view(request.caller.authority, made, instances))
    return await commands.rotate(work, _ref(request, secret_id), body.value)


@route_in(
    PLACES,
    "DELETE",
    ONE,
    RouteSpec("secret", "delete", "project_secret.delete", 204, errors=(Code.SECRET_IN_USE,)),
)
async def delete_secret(request: RequestContext, secret_id: str, query: DeleteSecretQuery) -> Answered:
    """Delete a secret with its value; refused while instances use it, unless `force` is given."""
    return await commands.delete(request.work(lambda _: None), _ref(request, secret_id), force=query.force)
