"""The list of all background workers."""

from mooring.commands.services import Services
from mooring.workers.allocation_reconciler import AllocationReconciler
from mooring.workers.artifact_check import CheckWorker
from mooring.workers.attestation import AttestationWorker
from mooring.workers.audit_chain import AuditChainWorker
from mooring.workers.charge import ChargeWorker
from mooring.workers.instance_reconciler import InstanceReconciler
from mooring.workers.instance_trust import TrustWorker
from mooring.workers.janitor import Janitor
from mooring.workers.loop import Worker
from mooring.workers.nodes import NodeWatch
from mooring.workers.outbox import OutboxRelay
from mooring.workers.spending import SpendingWorker
from mooring.workers.statement import StatementWorker
from mooring.workers.tasks import TaskReaper


def all_workers(services: Services) -> tuple[Worker, ...]:
    return (
        OutboxRelay(services),
        CheckWorker(services),
        Janitor(services),
        AllocationReconciler(services),
        InstanceReconciler(services),
        TrustWorker(services),
        NodeWatch(services),
        AttestationWorker(services),
        TaskReaper(services),
        AuditChainWorker(services),
        ChargeWorker(services),
        StatementWorker(services),
        SpendingWorker(services),
    )
