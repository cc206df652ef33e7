"""The command that books a payment or a credit."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.money.payment import Payment, PaymentSpec, book_payment
from mooring.storage.identity import tenant as tenants


async def create(work: Work[Payment], tenant_id: str, spec: PaymentSpec) -> Answered:
    async def load() -> None:
        require(await tenants.find(work.database, work.acting, tenant_id), "tenant")

    return await work.execute(load, lambda _: book_payment(work.context, tenant_id, spec))
