"""Use cases for service accounts and their keys."""

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
    project_id = str(place.project_id)
    home = replace(place, tenant_id=work.acting.tenant_id)

    async def load() -> int:
        require(await projects.find(work.database, work.acting, project_id), "project")
        return await accounts.count(work.database, work.acting, project_id)

    return await work.execute(
        load, lambda account_count: create_service_account(work.context, work.authority, home, spec, account_count)
    )


async def update(
    work: Work[ServiceAccount],
    project_id: str,
    account_id: str,
    *,
    actions: tuple[str, ...] | None,
    description: str | None,
    revision_seen: int | None,
) -> Answered:
    """Change a service account's list of actions or its description; None leaves it as it is."""

    def decide(account: ServiceAccount) -> Decision[ServiceAccount]:
        spec = ServiceAccountSpec(
            account.name,
            account.description if description is None else description,
            tuple(account.actions) if actions is None else actions,
        )
        return update_service_account(work.context, work.authority, account, spec, revision_seen)

    return await work.execute(lambda: _load(work, project_id, account_id), decide)


async def move(
    work: Work[ServiceAccount], project_id: str, account_id: str, trigger: ServiceAccountTrigger
) -> Answered:
    return await work.execute(
        lambda: _load(work, project_id, account_id),
        lambda account: move_service_account(work.context, account, trigger),
    )


async def create_key(
    work: Work[ServiceAccountKey], project_id: str, account_id: str, public_key: bytes, expires_at: datetime | None
) -> Answered:
    async def load() -> tuple[ServiceAccount, int]:
        account = await _load(work, project_id, account_id)
        keys = await accounts.keys(work.database, work.acting, account.id)
        return account, sum(1 for key in keys if key.revoked_at is None)

    return await work.execute(
        load, lambda loaded: add_key(work.context, *loaded, public_key, expires_at, giver=work.authority)
    )


async def revoke(work: Work[ServiceAccountKey], project_id: str, account_id: str, key_id: str) -> Answered:
    """Revoke a key, and with it the tokens that were issued with it."""

    async def load() -> tuple[ServiceAccount, ServiceAccountKey]:
        account = await _load(work, project_id, account_id)
        return account, require(await accounts.key(work.database, work.acting, account.id, key_id), "key")

    return await work.execute(load, lambda loaded: revoke_key(work.context, *loaded))


async def _load(work: Work[Any], project_id: str, account_id: str) -> ServiceAccount:
    return require(await accounts.find(work.database, work.acting, project_id, account_id), "service account")
