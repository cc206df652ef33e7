"""The worker that charges closed hours, and looks at the last ones again."""

from typing import Final

from mooring.commands.money.charge import charge_late, charge_next
from mooring.commands.services import Services
from mooring.core.kernel.event import Event

HOURS_AT_ONCE: Final = 24


class ChargeWorker:
    """Books what hours cost; several may run, and one of them wins each posting."""

    name = "charge"
    poll_interval_seconds = 60.0

    def __init__(self, services: Services) -> None:
        self._services = services

    def wants(self, event: Event) -> bool:
        return False  # an hour ends by the clock

    async def tick(self) -> float | None:
        for _ in range(HOURS_AT_ONCE):
            if not await charge_next(self._services):
                await charge_late(self._services)
                return None
        return 0.0

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""
