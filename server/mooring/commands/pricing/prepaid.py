"""Commands on the balance of a tenant: let it pay in advance, and read what is left."""

from dataclasses import dataclass

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.commands.services import Services
from mooring.core.pricing.prepaid import Balance, PrepaidAccount, PrepaidSpec, set_prepaid
from mooring.storage.identity import tenant as tenants
from mooring.storage.kernel.database import Acting, RowReader
from mooring.storage.pricing import spending


@dataclass(frozen=True, slots=True)
class BalanceStanding:
    """What a tenant that pays in advance has left; without an account it pays later."""

    tenant_id: str
    account: PrepaidAccount | None
    balance: Balance
    held_micro: int


async def put(work: Work[PrepaidAccount], tenant_id: str, spec: PrepaidSpec, revision_seen: int | None) -> Answered:
    async def load() -> BalanceStanding:
        require(await tenants.find(work.database, work.acting, tenant_id), "tenant")
        return await standing(work.services, work.acting, tenant_id, spec.currency)

    return await work.execute(
        load,
        lambda found: set_prepaid(
            work.context, found.account, found.balance, spec, tenant_id=tenant_id, revision_seen=revision_seen
        ),
    )


async def standing(services: Services, acting: Acting, tenant_id: str, currency: str | None = None) -> BalanceStanding:
    """The balance of a tenant in the currency of its account, or in `currency`."""
    now = services.clock.now()

    async def read(reader: RowReader) -> BalanceStanding:
        account = await spending.account(reader, acting, tenant_id)
        wanted = currency if account is None else account.currency
        if wanted is None:
            return BalanceStanding(tenant_id, None, Balance(), 0)
        figures = await spending.figures(reader, acting, tenant_id, now, ever=True)
        return BalanceStanding(tenant_id, account, figures.balance(wanted), figures.held_micro(None, wanted))

    return await services.database.in_snapshot(acting, read)
