"""Which workers there are."""

from mooring.commands.services import Services
from mooring.workers.allocation_reconciler import Runtime
from mooring.workers.artifact_check import CheckReader
from mooring.workers.instance_reconciler import Instances
from mooring.workers.janitor import Janitor
from mooring.workers.loop import Worker
from mooring.workers.nodes import NodeWatch
from mooring.workers.outbox import OutboxRelay
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
