"""The machine's clock, put forward by as much as a test says, so that nothing has to be waited for."""

from datetime import datetime, timedelta

from mooring.gateways.clock import SystemClock


class ShiftedClock(SystemClock):
    """Lives in the future."""

    def __init__(self, by: timedelta = timedelta(0)) -> None:
        super().__init__()
        self.by = by

    def now(self) -> datetime:
        return super().now() + self.by
