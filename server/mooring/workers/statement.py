"""The worker that opens the statement of a month with its first charge, and closes it when the month is charged."""

from mooring.commands.money.statement import close_due, open_missing
from mooring.commands.services import Services
from mooring.core.kernel.event import Event
from mooring.core.kernel.event_types import EventType


class StatementWorker:
    """Opens and closes statements; several may run, and one of them wins each step."""

    name = "statement"
    poll_interval_seconds = 60.0

    def __init__(self, services: Services) -> None:
        self._services = services

    def wants(self, event: Event) -> bool:
        return event.type == EventType.STATEMENT_CLOSING  # by hand; otherwise a month ends by the clock

    async def tick(self) -> float | None:
        await open_missing(self._services)
        await close_due(self._services)
        return None

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
