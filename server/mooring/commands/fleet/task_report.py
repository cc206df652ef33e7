"""Handles the reports of agents: each report on its own, in the order of arrival.

A report names a task and the fence of its claim; a report under an old fence changes nothing. The core decides how a
task ended, and that is applied with its event, its audit row and its receipt in one statement. The signature of a
receipt is verified before its content is read, and a receipt that does not fit the node's chain is refused and audited.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from mooring.commands.kernel.apply import EveryRaceLost, apply_with_retry
from mooring.commands.live.log_watch import LogWatch
from mooring.commands.services import Services
from mooring.core.fleet.node import finish_sweep
from mooring.core.fleet.receipt import (
    RECEIPT_CONTEXT,
    Receipt,
    ReceiptFault,
    ReceiptRefused,
    SignedReceipt,
    check_place,
    check_subject,
    read_body,
    receipt_of,
)
from mooring.core.fleet.task import Task
from mooring.core.fleet.task_report import (
    ACCEPTED,
    STRAYS_MAX,
    MalformedReport,
    Report,
    ReportCode,
    TaskLogReport,
    TaskProgressReport,
    TaskRejected,
    TaskReportVerdict,
    TaskResultReport,
    TaskStrayReport,
    counted,
    fit_chunk,
    refused,
    why_no_result,
    why_not_held,
    why_too_large,
)
from mooring.core.fleet.task_transitions import ENDS_THE_TASK, add_receipt, finish, refuse
from mooring.core.kernel.decision import AuditRecord, Decision, DecisionContext
from mooring.gateways.signing.signatures import verifies
from mooring.storage.fleet import node as nodes
from mooring.storage.fleet import receipt as receipts
from mooring.storage.fleet import task_report as reports
from mooring.storage.fleet.task_claim import FencedTask
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin, record_refusal

LOG_ATTEMPTS_MAX: Final = 8
ACTION: Final = "agent.report"

log = logging.getLogger("mooring.reports")


@dataclass(slots=True)
class TaskReportHandler:
    """Handles the reports of one node; `tasks` are those that the reports name, as they were last read."""

    services: Services
    logs: LogWatch
    context: DecisionContext
    origin: Origin
    tasks: dict[str, Task]

    @property
    def node_id(self) -> str:
        return self.context.actor.id

    async def take(self, report: Report) -> TaskReportVerdict:
        if isinstance(report, MalformedReport):
            return refused(ReportCode.VALIDATION_FAILED, report.detail)
        if isinstance(report, TaskStrayReport):
            return await self._stray(report)
        if isinstance(report, TaskRejected):
            return await self._rejected(report)
        task = self.tasks.get(report.task_id)
        if task is None:
            return refused(ReportCode.NOT_FOUND, "this node has no such task")
        if isinstance(report, TaskResultReport):
            return await self._result(task, report)
        if task.is_over or task.node_id != self.node_id or why_not_held(task, report.fence) is not None:
            return refused(ReportCode.LEASE_LOST, "the task is over, or held under another fence")
        if isinstance(report, TaskLogReport):
            return await self._log(task, report)
        return await self._progress(report)

    # Bookkeeping -----------------------------------------------------------------------------------------------------

    async def _progress(self, report: TaskProgressReport) -> TaskReportVerdict:
        held = FencedTask(report.task_id, report.fence)
        if not await reports.progress(self.services.database, held, report.progress, self._lease()):
            return refused(ReportCode.LEASE_LOST, "the lease was lost meanwhile")
        return ACCEPTED

    async def _log(self, task: Task, report: TaskLogReport) -> TaskReportVerdict:
        for _ in range(LOG_ATTEMPTS_MAX):
            fit = fit_chunk(task.log_bytes, report, self.services.settings.task_log_limit_bytes)
            if isinstance(fit, TaskReportVerdict):
                return fit
            if not fit.chunk and not fit.truncated:
                return ACCEPTED  # the platform has all of it already
            held = FencedTask(report.task_id, report.fence)
            if await reports.append(self.services.database, held, fit, self._lease(), self.context.now):
                self.logs.grew(task.id)
                await self._reload(task.id)
                full = refused(ReportCode.LOG_FULL, "the log is full; no more of the output is stored")
                return full if fit.truncated else ACCEPTED
            task = await self._reload(task.id)
            if task.is_over or why_not_held(task, report.fence) is not None:
                break
        return refused(ReportCode.LEASE_LOST, "the lease was lost meanwhile")

    def _lease(self) -> Any:
        return self.context.now + timedelta(seconds=self.services.settings.task_lease_seconds)

    async def _reload(self, task_id: str) -> Task:
        self.tasks |= await reports.of_node(self.services.database, self.node_id, [task_id])
        return self.tasks[task_id]

    # Results ---------------------------------------------------------------------------------------------------------

    async def _result(self, task: Task, report: TaskResultReport) -> TaskReportVerdict:
        size = len(msgspec.json.encode(counted(report.ended.result)))
        wrong = why_no_result(task, report) or why_too_large(size)
        if wrong is not None:
            return wrong
        lost: TaskReportVerdict | None = None

        async def decide(task: Task) -> Decision[Any] | None:
            nonlocal lost
            lost = why_not_held(task, report.fence)
            if lost is not None and report.receipt is None:
                return None
            return await self._end(task, report, held=lost is None)

        try:
            await self._change_task(task.id, decide)
        except ReceiptRefused as fault:
            await self._audit_refusal(task, f"{fault.fault}: {fault.detail}")
            return refused(ReportCode(fault.fault.value), fault.detail)
        except EveryRaceLost:
            return refused(ReportCode.CONFLICT, "others kept changing the task; report it again")
        return lost or ACCEPTED

    async def _end(self, task: Task, report: TaskResultReport, *, held: bool) -> Decision[Any] | None:
        """End the task if the fence still holds it; store the receipt in any case.

        A receipt has its place in the node's chain. If it were refused with the lost lease, and the task never offered
        again, everything that the node signs later would follow a link that is missing.
        """
        earlier = await receipts.of_task(self.services.database, PLATFORM, task.id) if report.receipt else None
        if report.receipt is not None and earlier is not None and earlier.body != report.receipt.body:
            raise ReceiptRefused(ReceiptFault.FORK, "the task has another receipt already")
        late = not held or task.is_over or task.node_id != self.node_id
        receipt = None
        if report.receipt is not None and earlier is None:
            receipt = await self._receipt(task, report.receipt, late=late)
        if not late:
            return finish(self.context, task, report.ended, receipt)
        if receipt is not None:
            return add_receipt(self.context, task, receipt)
        return None  # a repeat, or the task was given up: it changes nothing

    async def _receipt(self, task: Task, signed: SignedReceipt, *, late: bool) -> Receipt:
        """The receipt, once its signature, form, subject and place in the chain are verified."""
        database = self.services.database
        node = await nodes.find(database, task.node_id)
        if node is None or not verifies(node.signing_key, signed.signature, RECEIPT_CONTEXT + signed.body):
            raise ReceiptRefused(ReceiptFault.SIGNATURE, f"the key of node {task.node_id} did not sign it")
        document = read_body(signed.body)
        check_subject(document, task)
        check_place(document, await receipts.last_link(database, task.node_id))
        return receipt_of(self.context, task, document, signed, late=late)

    async def _change_task(self, task_id: str, decide: Callable[[Task], Awaitable[Decision[Any] | None]]) -> None:
        """Apply what `decide` makes of the task; after a lost race it gets the task as it is then."""
        read_before = True

        async def load_and_decide() -> Decision[Any] | None:
            nonlocal read_before
            task = self.tasks[task_id] if read_before else await self._reload(task_id)
            read_before = False
            return await decide(task)

        decision = await self._apply(load_and_decide)
        if decision is not None:
            self.logs.grew(task_id)
            if isinstance(decision.result, Task):
                self.tasks[task_id] = decision.result

    async def _apply(self, decide: Callable[[], Awaitable[Decision[Any] | None]]) -> Decision[Any] | None:
        return await apply_with_retry(self.services, PLATFORM, self.context, decide, origin=self.origin)

    # Refusals and strays ---------------------------------------------------------------------------------------------

    async def _rejected(self, report: TaskRejected) -> TaskReportVerdict:
        """Audit that an agent did not take a task; where no agent ever can, the task fails."""
        task = None if report.task_id is None else self.tasks.get(report.task_id)
        await self._audit_refusal(task, f"{report.reason}: {report.detail}")
        if task is None or task.node_id != self.node_id or report.reason not in ENDS_THE_TASK:
            return ACCEPTED

        async def decide(task: Task) -> Decision[Any] | None:
            if task.is_over or task.first_claimed_at is None or why_not_held(task, task.fence) is not None:
                return None
            return refuse(self.context, task, report.reason, report.detail)

        try:
            await self._change_task(task.id, decide)
        except EveryRaceLost:
            return refused(ReportCode.CONFLICT, "others kept changing the task; report it again")
        return ACCEPTED

    async def _stray(self, report: TaskStrayReport) -> TaskReportVerdict:
        """The node's sweep is over: record the stray resources that it found in the audit trail."""
        if report.what:
            log.warning(
                "node %s found %d stray resources in its sweep; recording them in the audit trail",
                self.node_id,
                len(report.what),
            )
            strays = {"stray": [dict(each) for each in report.what[:STRAYS_MAX]]}
            audited = AuditRecord(ACTION, "node", self.node_id, None, after=strays)
            await record_refusal(self.services.database, self.context, audited, "done", self.origin)

        async def decide() -> Decision[Any] | None:
            node = await nodes.find(self.services.database, self.node_id)
            return None if node is None or not node.sweep_due else finish_sweep(self.context, node)

        try:
            await self._apply(decide)
        except EveryRaceLost:
            return refused(ReportCode.CONFLICT, "others kept changing the node; report it again")
        return ACCEPTED

    async def _audit_refusal(self, task: Task | None, reason: str) -> None:
        suppressed = self.services.refusals.take(self.node_id)
        if suppressed is None:
            return
        if suppressed:
            reason = f"{reason[:900]} (and {suppressed} more of this node since the last one)"
        tenant_id = None if task is None else task.tenant_id
        project_id = None if task is None else task.project_id
        subject = None if task is None else task.id
        audited = AuditRecord(
            ACTION,
            "task",
            subject,
            tenant_id,
            project_id,
            reason=reason[:1000],
            app_instance_id=None if task is None else task.instance_id,
            under=None if task is None else (task.correlation_id, task.trace_id),
        )
        await record_refusal(self.services.database, self.context, audited, "refused", self.origin)


async def take_reports(
    services: Services, logs: LogWatch, received: Sequence[Report], *, context: DecisionContext, origin: Origin
) -> list[TaskReportVerdict]:
    """Handle a node's reports; the verdicts are in the order of the reports."""
    named = {
        each.task_id
        for each in received
        if not isinstance(each, TaskStrayReport | MalformedReport) and each.task_id is not None
    }
    tasks = await reports.of_node(services.database, context.actor.id, sorted(named)) if named else {}
    handler = TaskReportHandler(services, logs, context, origin, tasks)
    return [await handler.take(each) for each in received]
