"""Use cases for tenants: create one with its first admin, and rename it."""

from typing import Any

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.identity.source_network import limit_sources as decide_sources
from mooring.core.identity.tenant import CreatedTenant, Tenant, create_tenant, update_tenant
from mooring.core.identity.user import OneTime, UserSpec
from mooring.core.kernel.decision import Decision
from mooring.gateways.passwords import digest
from mooring.storage.identity import tenant as tenants


def one_time(work: Work[Any], code: str) -> OneTime:
    """The hash and the expiry of a one-time code, which is all that is stored."""
    return OneTime(digest(code), work.context.now + work.services.settings.one_time_code_lifetime)


async def create(work: Work[CreatedTenant], slug: str, display_name: str, first_admin: UserSpec, code: str) -> Answered:
    """Create a tenant; `code` is the one-time sign-in code of its first admin."""

    async def load() -> None:
        return None

    return await work.execute(
        load, lambda _: create_tenant(work.context, slug, display_name, first_admin, one_time(work, code))
    )


async def limit_sources(
    work: Work[Tenant], tenant_id: str, networks: tuple[str, ...], revision_seen: int | None, *, forced: bool
) -> Answered:
    async def load() -> Tenant:
        return require(await tenants.find(work.database, work.acting, tenant_id), "tenant")

    def decide(tenant: Tenant) -> Decision[Tenant]:
        address = work.origin.remote_address
        return decide_sources(work.context, tenant, networks, revision_seen, caller_address=address, forced=forced)

    return await work.execute(load, decide)


async def update(work: Work[Tenant], tenant_id: str, display_name: str, revision_seen: int | None) -> Answered:
    async def load() -> Tenant:
        return require(await tenants.find(work.database, work.acting, tenant_id), "tenant")

    return await work.execute(load, lambda tenant: update_tenant(work.context, tenant, display_name, revision_seen))
