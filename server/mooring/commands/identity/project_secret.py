"""Commands on the secrets of projects; a value is sealed before anything else happens to it."""

from dataclasses import dataclass
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.project_secret import (
    SEALED_FOR,
    ProjectSecret,
    ProjectSecretSpec,
    SecretUsers,
    check_value,
    create_secret,
    delete_secret,
    rotate_secret,
)
from mooring.core.kernel.ids import Prefix
from mooring.core.kernel.secret import Sealed
from mooring.storage.identity import project as projects
from mooring.storage.identity import project_secret as project_secrets


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A secret by its project and its id, as a URL names it."""

    project_id: str
    secret_id: str


@dataclass(frozen=True, slots=True)
class _SecretContext:
    secret: ProjectSecret
    users: SecretUsers


async def create(work: Work[ProjectSecret], project_id: str, name: str, *, value: str, description: str) -> Answered:
    sealed = _sealed(work, value)
    spec = ProjectSecretSpec(str(work.acting.tenant_id), project_id, name, description, sealed)

    async def load() -> int:
        require(await projects.find(work.database, work.acting, project_id), "project")
        return await project_secrets.count(work.database, work.acting, project_id)

    return await work.execute(load, lambda present: create_secret(work.context, spec, present))


async def rotate(work: Work[ProjectSecret], ref: SecretRef, value: str) -> Answered:
    """Replace the value; tasks that are claimed from now on get the new one."""
    sealed = _sealed(work, value)
    return await work.execute(lambda: _load(work, ref), lambda secret: rotate_secret(work.context, secret, sealed))


async def delete(work: Work[ProjectSecret], ref: SecretRef, *, force: bool) -> Answered:
    async def load() -> _SecretContext:
        secret = await _load(work, ref)
        return _SecretContext(secret, await project_secrets.users(work.database, work.acting, secret))

    return await work.execute(
        load, lambda current: delete_secret(work.context, current.secret, current.users, force=force)
    )


async def _load(work: Work[Any], ref: SecretRef) -> ProjectSecret:
    found = await project_secrets.find(work.database, work.acting, ref.project_id, ref.secret_id)
    return require(found, "secret").secret


def _sealed(work: Work[Any], value: str) -> Sealed:
    return work.services.secrets.seal(
        check_value(value),
        id=work.context.mint(Prefix.SECRET),
        tenant_id=str(work.acting.tenant_id),
        purpose=SEALED_FOR,
    )
