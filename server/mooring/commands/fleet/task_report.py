"""Takes what agents report: each report on its own, in the order in which it came.

A report names a task and the fence of its claim. What is told under an old fence changes nothing. How a task ended is
decided by the core and applied with its event, its audit row and its receipt in one statement; the signature of a
receipt is checked before a word of it is believed, and what does not fit the node's chain is refused and audited.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from mooring.commands.live.log_watch import LogWatch
from mooring.commands.services import Services
from mooring.core.fleet.node import finish_sweep
from mooring.core.fleet.receipt import (
    RECEIPT_CONTEXT,
    Receipt,
    ReceiptFault,
    ReceiptRefused,
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
from mooring.storage.kernel.database import PLATFORM
from mooring.storage.kernel.unit_of_work import Origin, StaleWrite, apply, record_refusal

ATTEMPTS_MAX: Final = 8
ACTION: Final = "agent.report"

log = logging.getLogger("mooring.reports")


@dataclass(slots=True)
class TaskReportHandler:
    """Where one node's reports are taken."""

    services: Services
    logs: LogWatch
    context: DecisionContext
    origin: Origin
    tasks: dict[str, Task]

    @property
    def node_id(self) -> str:
        """The node that reports."""
        return self.context.actor.id

    async def take(self, report: Report) -> TaskReportVerdict:
        """One report."""
        if isinstance(report, MalformedReport):
            return refused(ReportCode.VALIDATION_FAILED, report.detail)
        if isinstance(report, TaskStrayReport):
            return await self._stray(report)
        if isinstance(report, TaskRejected):
            return await self._turned(report)
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
        held = (report.task_id, report.fence)
        if not await reports.progress(self.services.database, held, report.progress, self._lease()):
            return refused(ReportCode.LEASE_LOST, "the lease was lost meanwhile")
        return ACCEPTED

    async def _log(self, task: Task, report: TaskLogReport) -> TaskReportVerdict:
        for _ in range(ATTEMPTS_MAX):
            fit = fit_chunk(task.log_bytes, report, self.services.settings.task_log_limit_bytes)
            if isinstance(fit, TaskReportVerdict):
                return fit
            if not fit.chunk and not fit.truncated:
                return ACCEPTED  # all of it was told before
            held = (report.task_id, report.fence)
            if await reports.append(self.services.database, held, fit, self._lease(), self.context.now):
                self.logs.grew(task.id)
                await self._reload(task.id)
                full = refused(ReportCode.LOG_FULL, "no more of the output is kept")
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
        for _ in range(ATTEMPTS_MAX):
            lost = why_not_held(task, report.fence)
            if lost is not None and report.receipt is None:
                return lost
            try:
                return await self._end(task, report, lost)
            except StaleWrite:
                task = await self._reload(task.id)
            except ReceiptRefused as fault:
                await self._audit_refusal(task, f"{fault.fault}: {fault.detail}")
                return refused(ReportCode(fault.fault.value), fault.detail)
        return refused(ReportCode.CONFLICT, "others kept changing the task: tell it again")

    async def _end(self, task: Task, report: TaskResultReport, lost: TaskReportVerdict | None) -> TaskReportVerdict:
        """End the task, where the fence holds it; a receipt is kept in any case.

        What a node signed has its place in the node's chain: were it turned away with the lease, and the task never
        offered again, everything that the node signs later would follow on something that is missing.
        """
        earlier = await receipts.of_task(self.services.database, PLATFORM, task.id) if report.receipt else None
        if report.receipt is not None and earlier is not None and earlier.body != report.receipt[0]:
            raise ReceiptRefused(ReceiptFault.FORK, "the task has another receipt already")
        late = lost is not None or task.is_over or task.node_id != self.node_id
        receipt = None
        if report.receipt is not None and earlier is None:
            receipt = await self._receipt(task, report.receipt, late=late)
        if not late:
            decision: Decision[Any] = finish(self.context, task, report.ended, receipt)
        elif receipt is not None:
            decision = add_receipt(self.context, task, receipt)
        else:
            return lost or ACCEPTED  # it was told before, or the task was given up: nothing is changed by it
        await self._apply(decision)
        self.logs.grew(task.id)
        if not late:
            self.tasks[task.id] = decision.result
        return lost or ACCEPTED

    async def _receipt(self, task: Task, signed: tuple[bytes, bytes], *, late: bool) -> Receipt:
        """The receipt, once signature, form, subject and place in the chain are right."""
        database = self.services.database
        body, signature = signed
        node = await nodes.find(database, task.node_id)
        if node is None or not verifies(node.signing_key, signature, RECEIPT_CONTEXT + body):
            raise ReceiptRefused(ReceiptFault.SIGNATURE, f"the key of node {task.node_id} did not sign it")
        document = read_body(body)
        check_subject(document, task)
        check_place(document, await receipts.last_link(database, task.node_id))
        return receipt_of(self.context, task, document, signed, late=late)

    async def _apply(self, decision: Decision[Any]) -> None:
        await apply(self.services.database, PLATFORM, self.context, decision, origin=self.origin)
        self.services.hub.notify(event.type for event in decision.events)

    # Refusals and strays ---------------------------------------------------------------------------------------------

    async def _turned(self, report: TaskRejected) -> TaskReportVerdict:
        """What an agent did not take is audited; where it never can, the task has failed."""
        task = None if report.task_id is None else self.tasks.get(report.task_id)
        await self._audit_refusal(task, f"{report.reason}: {report.detail}")
        if task is None or task.node_id != self.node_id or report.reason not in ENDS_THE_TASK:
            return ACCEPTED
        for _ in range(ATTEMPTS_MAX):
            if task.is_over or task.first_claimed_at is None or why_not_held(task, task.fence) is not None:
                return ACCEPTED
            try:
                decision = refuse(self.context, task, report.reason, report.detail)
                await self._apply(decision)
                self.tasks[task.id] = decision.result
                return ACCEPTED
            except StaleWrite:
                task = await self._reload(task.id)
        return refused(ReportCode.CONFLICT, "others kept changing the task: tell it again")

    async def _stray(self, report: TaskStrayReport) -> TaskReportVerdict:
        """The sweep of the node is over; what it found that nobody knew of stands in the audit trail."""
        if report.what:
            log.warning("node %s found %d things that nobody knew of", self.node_id, len(report.what))
            told = {"stray": [dict(each) for each in report.what[:STRAYS_MAX]]}
            audited = AuditRecord(ACTION, "node", self.node_id, None, after=told)
            await record_refusal(self.services.database, self.context, audited, "done", self.origin)
        for _ in range(ATTEMPTS_MAX):
            node = await nodes.find(self.services.database, self.node_id)
            if node is None or not node.sweep_due:
                return ACCEPTED
            try:
                await self._apply(finish_sweep(self.context, node))
                return ACCEPTED
            except StaleWrite:
                continue
        return refused(ReportCode.CONFLICT, "others kept changing the node: tell it again")

    async def _audit_refusal(self, task: Task | None, reason: str) -> None:
        unwritten = self.services.refusals.take(self.node_id)
        if unwritten is None:
            return
        if unwritten:
            reason = f"{reason[:900]} (and {unwritten} more of this node since the last one)"
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
    services: Services, logs: LogWatch, who: tuple[DecisionContext, Origin], told: Sequence[Report]
) -> list[TaskReportVerdict]:
    """Take a node's reports; the answers stand in their order."""
    context, origin = who
    named = {
        each.task_id
        for each in told
        if not isinstance(each, TaskStrayReport | MalformedReport) and each.task_id is not None
    }
    tasks = await reports.of_node(services.database, context.actor.id, sorted(named)) if named else {}
    desk = TaskReportHandler(services, logs, context, origin, tasks)
    return [await desk.take(each) for each in told]
