"""Use case for the platform's workload adapter: setting its key, also in the accounts that have the old one."""

from mooring.commands.kernel.apply import apply_once
from mooring.commands.kernel.work import Answered, Work
from mooring.core.catalog.operator_account import OperatorKeys, rekey_operator
from mooring.core.catalog.workload_adapter import WorkloadAdapter, set_workload_key
from mooring.storage.catalog import workload_adapter as workload_adapters
from mooring.storage.identity import service_account as accounts
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.page_window import PageWindow

BATCH = 200
"""How many operator accounts are read at a time."""


async def set_key(work: Work[WorkloadAdapter], public_key: bytes | None) -> Answered:
    """Set the key. Accounts that have a former key get the new one instead; no other account gets it.

    The row is changed first, so that entitlements agreed in the meantime use the new key. A request that is repeated
    after a crash continues with the remaining accounts.
    """

    async def load() -> WorkloadAdapter | None:
        return await workload_adapters.find(work.database)

    answered = await work.execute(load, lambda current: set_workload_key(work.context, current, public_key))
    after = ""
    while True:
        now = await load()
        if now is None or now.public_key != public_key:
            return answered  # another request has set another key since, and updates the accounts itself
        old = now.keys_before
        listed = await accounts.operators_with(work.database, old, PageWindow(after, BATCH))
        for account, keys in listed:
            decision = rekey_operator(work.context, OperatorKeys(account, keys), public_key, old)
            if decision.writes:
                await apply_once(work.services, PLATFORM, work.context, decision, origin=work.origin)
        if len(listed) < BATCH:
            return answered
        after = listed[-1][0].id
