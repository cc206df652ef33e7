"""Which workers there are."""

from mooring.commands.work import Services
from mooring.workers.loop import Worker


def roster(services: Services) -> tuple[Worker, ...]:
    """All workers of a platform."""
    return ()
