"""Reads the secrets of projects, without their values, and who uses them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mooring.core.identity.project_secret import ProjectSecret, SecretUsers
from mooring.core.kernel.secret import Sealed
from mooring.storage.kernel.database import Acting, Database
from mooring.storage.kernel.page_window import PageWindow

_COLUMNS: Final = ", ".join(f"s.{name}" for name in ProjectSecret.__slots__)
_LIVING: Final = "i.project_id = $1 AND i.status IN ('created', 'starting', 'running') AND i.secrets <> '{}'"
_USED: Final = f"""
LEFT JOIN (SELECT v.value AS name, count(DISTINCT i.id)::int AS instances
             FROM instance i CROSS JOIN LATERAL jsonb_each_text(i.secrets) v WHERE {_LIVING} GROUP BY v.value) used
       ON used.name = s.name"""
FIND: Final = f"""
SELECT {_COLUMNS}, coalesce(used.instances, 0) FROM project_secret s {_USED} WHERE s.project_id = $1 AND s.id = $2"""
LIST: Final = f"""
SELECT {_COLUMNS}, coalesce(used.instances, 0) FROM project_secret s {_USED}
 WHERE s.project_id = $1 AND s.id > $2 ORDER BY s.id LIMIT $3"""
NAMED: Final = f"SELECT {_COLUMNS} FROM project_secret s WHERE s.project_id = $1 AND s.name = ANY ($2::text[])"
COUNT: Final = "SELECT count(*) FROM project_secret s WHERE s.project_id = $1"
USERS: Final = f"""
SELECT DISTINCT 'instance', i.name FROM instance i CROSS JOIN LATERAL jsonb_each_text(i.secrets) v
 WHERE {_LIVING} AND v.value = $2
UNION ALL
SELECT 'source', a.name FROM artifact_source a WHERE a.project_secret_id = $3
 ORDER BY 1, 2"""
IN_TENANT: Final = f"SELECT {_COLUMNS} FROM project_secret s WHERE s.tenant_id = $1 AND s.id = $2"
VALUE: Final = """
SELECT v.id, v.tenant_id, v.purpose, v.master_key_id, v.wrapped_key, v.ciphertext
  FROM project_secret s JOIN secret v ON v.id = s.secret_id WHERE s.tenant_id = $1 AND s.id = $2"""


@dataclass(frozen=True, slots=True)
class SecretInUse:
    """A secret, and how many instances that are not ended name it."""

    secret: ProjectSecret
    instances: int

    @property
    def id(self) -> str:
        return self.secret.id


async def find(database: Database, acting: Acting, project_id: str, secret_id: str) -> SecretInUse | None:
    row = await database.fetchrow(acting, FIND, project_id, secret_id)
    return None if row is None else SecretInUse(ProjectSecret(*tuple(row)[:-1]), row[-1])


async def page(database: Database, acting: Acting, project_id: str, window: PageWindow) -> list[SecretInUse]:
    rows = await database.fetch(acting, LIST, project_id, window.after, window.limit)
    return [SecretInUse(ProjectSecret(*tuple(row)[:-1]), row[-1]) for row in rows]


async def find_named(
    database: Database, acting: Acting, project_id: str, names: Sequence[str]
) -> dict[str, ProjectSecret]:
    """The secrets of a project that have these names, by name."""
    rows = await database.fetch(acting, NAMED, project_id, list(names))
    return {secret.name: secret for secret in (ProjectSecret(*row) for row in rows)}


async def count(database: Database, acting: Acting, project_id: str) -> int:
    return int(await database.fetchval(acting, COUNT, project_id))


async def users(database: Database, acting: Acting, secret: ProjectSecret) -> SecretUsers:
    """What uses the secret: instances that are not ended, by its name, and sources of the tenant."""
    names: dict[str, list[str]] = {"instance": [], "source": []}
    for kind, name in await database.fetch(acting, USERS, secret.project_id, secret.name, secret.id):
        names[kind].append(name)
    return SecretUsers(names["instance"], names["source"])


async def find_in_tenant(database: Database, acting: Acting, secret_id: str) -> ProjectSecret | None:
    """A secret of any project of the tenant."""
    row = await database.fetchrow(acting, IN_TENANT, acting.tenant_id, secret_id)
    return None if row is None else ProjectSecret(*row)


async def value(database: Database, tenant_id: str, secret_id: str) -> Sealed | None:
    """The sealed value of a secret of the tenant."""
    row = await database.fetchrow(Acting(tenant_id), VALUE, tenant_id, secret_id)
    return None if row is None else Sealed(*row)
