"""The command that books a correction by hand."""

from mooring.commands.kernel.lookup import require
from mooring.commands.kernel.work import Answered, Work
from mooring.core.money.correction import Correctable, Correction, CorrectionSpec, correct
from mooring.storage.money import correction as corrections


async def create(work: Work[Correction], spec: CorrectionSpec) -> Answered:
    async def load() -> Correctable:
        return require(await corrections.find(work.database, work.acting, spec.transaction_id), "ledger_transaction")

    return await work.execute(load, lambda booked: correct(work.context, spec, booked))
