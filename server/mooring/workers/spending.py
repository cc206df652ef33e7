"""The worker of budgets and balances: fires thresholds, and ends what is not paid for."""

from typing import Final

from mooring.commands.money.spending_watch import watch_all
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType

HINTS: Final = frozenset(
    {
        EventType.BUDGET_CHANGED,
        EventType.PREPAID_CHANGED,
        EventType.PAYMENT_BOOKED,
        EventType.BUDGET_CROSSED,
        EventType.BALANCE_DEPLETED,
    }
)


class SpendingWorker:
    """Compares what was spent with budgets and balances, every half minute; several may run side by side."""

    name = "spending"
    poll_interval_seconds = 30.0

    def __init__(self, services: Services) -> None:
        self._services = services

    def wants(self, event: Event) -> bool:
        return event.type in HINTS

    async def tick(self) -> float | None:
        return 1.0 if await watch_all(self._services) else None

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
