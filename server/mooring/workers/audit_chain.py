"""The worker of the audit trail's hash chains: links and signs the rows of the last seconds.

It reads behind the oldest open transaction, in the order of the stream, so that no row can appear in front of one that
is chained already. A row is chained some two seconds after its commit, later only while a transaction is open or no
worker runs.
"""

from typing import Final

from mooring.commands.records.audit_chain import chain_next
from mooring.commands.services import Services
from mooring.core.kernel.event import Event

STEP_ROWS: Final = 250
"""Rows that are read and hashed at a time: requests wait for the event loop meanwhile, some milliseconds at most."""
STEPS_MAX: Final = 80


class AuditChainWorker:
    """Extends the chains; several may run, and one of them wins each step."""

    name = "audit_chain"
    poll_interval_seconds = 2.0

    def __init__(self, services: Services) -> None:
        self._services = services

    def wants(self, event: Event) -> bool:
        return False  # refused requests make audit rows and no events, so the worker polls

    async def tick(self) -> float | None:
        """Chain what is there, in a bounded number of steps."""
        for _ in range(STEPS_MAX):
            if await chain_next(self._services, STEP_ROWS) < STEP_ROWS:
                return None
        return 0.0

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
