"""Use cases of tenants."""

from datetime import timedelta
from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.tenant import CreatedTenant, Tenant, create_tenant, update_tenant
from mooring.core.identity.user import ONE_TIME_LIFETIME, OneTime, UserSpec
from mooring.gateways.passwords import digest
from mooring.storage.identity import tenant as tenants


def one_time(work: Work[Any], code: str, lifetime: timedelta = ONE_TIME_LIFETIME) -> OneTime:
    """The hash and the expiry of a one-time code, which is all that is stored."""
    return OneTime(digest(code), work.context.now + lifetime)


async def create(work: Work[CreatedTenant], slug: str, display_name: str, first_admin: UserSpec, code: str) -> Answered:
    """Create a tenant; `code` is the one-time sign-in code of its first admin."""

    async def load() -> None:
        return None

    return await work.execute(
        load, lambda _: create_tenant(work.context, slug, display_name, first_admin, one_time(work, code))
    )


async def update(work: Work[Tenant], tenant_id: str, display_name: str, revision_seen: int | None) -> Answered:
    async def load() -> Tenant:
        return require(await tenants.find(work.database, work.acting, tenant_id), "tenant")

    return await work.execute(load, lambda tenant: update_tenant(work.context, tenant, display_name, revision_seen))
