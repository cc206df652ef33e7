"""A log of denials that collapses nothing, for tests that look at the row of every request."""

from mooring.commands.live.denial_log import DenialLog
from mooring.commands.services import Services
from mooring.core.kernel.decision import AuditRecord, DecisionContext
from mooring.storage.kernel.database import Database
from mooring.storage.kernel.unit_of_work import Origin, record_refusal


class EveryDenial(DenialLog):
    async def record(
        self, database: Database, context: DecisionContext, audited: AuditRecord, outcome: str, origin: Origin
    ) -> None:
        await record_refusal(database, context, audited, outcome, origin)


def record_every_denial(services: Services) -> None:
    object.__setattr__(services, "denials", EveryDenial())
