"""Commands on service accounts and their keys."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.service_account import (
    ServiceAccount,
    ServiceAccountKey,
    ServiceAccountSpec,
    ServiceAccountTrigger,
    add_key,
    create_service_account,
    move_service_account,
    revoke_key,
    update_service_account,
)
from mooring.core.kernel.decision import Decision
from mooring.core.kernel.permissions import Place
from mooring.storage.identity import project as projects
from mooring.storage.identity import service_account as accounts


async def create(work: Work[ServiceAccount], place: Place, spec: ServiceAccountSpec) -> Answered:
    """Make a service account in a project."""
    project_id = str(place.project_id)
    home = replace(place, tenant_id=work.acting.tenant_id)

    async def load() -> int:
        require(await projects.find(work.database, work.acting, project_id), "project")
        return await accounts.count(work.database, work.acting, project_id)

    return await work.execute(
        load, lambda there: create_service_account(work.context, work.authority, home, spec, there)
    )


async def update(
    work: Work[ServiceAccount],
    ids: tuple[str, str],
    actions: tuple[str, ...] | None,
    description: str | None,
    revision_seen: int | None,
) -> Answered:
    """Change a service account's list or description; what is not given stays. `ids`: project and account."""

    def decide(account: ServiceAccount) -> Decision[ServiceAccount]:
        wish = ServiceAccountSpec(
            account.name,
            account.description if description is None else description,
            tuple(account.actions) if actions is None else actions,
        )
        return update_service_account(work.context, work.authority, account, wish, revision_seen)

    return await work.execute(lambda: _load(work, ids), decide)


async def move(work: Work[ServiceAccount], ids: tuple[str, str], trigger: ServiceAccountTrigger) -> Answered:
    """Disable, enable or delete a service account."""
    return await work.execute(lambda: _load(work, ids), lambda seen: move_service_account(work.context, seen, trigger))


async def create_key(
    work: Work[ServiceAccountKey], ids: tuple[str, str], public_key: bytes, expires_at: datetime | None
) -> Answered:
    """Add a public key."""

    async def load() -> tuple[ServiceAccount, int]:
        account = await _load(work, ids)
        keys = await accounts.keys(work.database, work.acting, account.id)
        return account, sum(1 for key in keys if key.revoked_at is None)

    return await work.execute(
        load, lambda seen: add_key(work.context, *seen, public_key, expires_at, giver=work.authority)
    )


async def revoke(work: Work[ServiceAccountKey], ids: tuple[str, str], key_id: str) -> Answered:
    """Revoke a key, and with it the tokens that were made with it."""

    async def load() -> tuple[ServiceAccount, ServiceAccountKey]:
        account = await _load(work, ids)
        return account, require(await accounts.key(work.database, work.acting, account.id, key_id), "key")

    return await work.execute(load, lambda seen: revoke_key(work.context, *seen))


async def _load(work: Work[Any], ids: tuple[str, str]) -> ServiceAccount:
    return require(await accounts.find(work.database, work.acting, *ids), "service account")
