"""Which workers there are."""

from mooring.commands.work import Services
from mooring.workers.artifact_check import CheckReader
from mooring.workers.instances import Instances
from mooring.workers.janitor import Janitor
from mooring.workers.loop import Worker
from mooring.workers.nodes import NodeWatch
from mooring.workers.outbox import OutboxRelay
from mooring.workers.runtime import Runtime
from mooring.workers.tasks import TaskWatch


def roster(services: Services) -> tuple[Worker, ...]:
    """All workers of a platform."""
    return (
        OutboxRelay(services),
        CheckReader(services),
        Janitor(services),
        Runtime(services),
        Instances(services),
        NodeWatch(services),
        TaskWatch(services),
    )
