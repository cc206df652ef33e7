"""Reports to the platform what happened, in order, until it is accepted.

Results come from the journal and stay there until they are accepted, however long the platform is away. Output is sent
from the offset that was accepted last, and only the latest progress is sent, so nothing accumulates. A result is sent
after the output of its task. Output is read in turns of the allocations, and a batch has room for some of it only: a
program that writes without end delays nobody else's results.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring_agent.control_plane.messages import ReportVerdict, TaskFailure, TaskResult, encode
from mooring_agent.control_plane.platform_client import PlatformClient, Rejected, Unreachable
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.tasks.executor import Executor, TrackedTask
from mooring_agent.tasks.journal import Journal, JournalEntry

BATCH_MAX: Final = 100
BATCH_BYTES: Final = 700_000
"""The platform accepts requests of up to 1 MiB."""
CHUNK_BYTES: Final = 131_072
LOG_MAX_BYTES: Final = 8 * 1_048_576
CHUNKS_MAX: Final = 16
"""How many parts of outputs one batch has, so that results never wait behind all of them."""
STREAM_SECONDS: Final = 0.5
READ_GAP_SECONDS: Final = 0.25
"""The least time between two reads of a running program's output, however often something else is reported."""
COALESCE_SECONDS: Final = 0.1
"""How long a success waits for its owner's next result, if that task is running: the caller waits for both anyway."""
RETRY_SECONDS: Final = 2.0
RETRYABLE_CODES: Final = frozenset(("conflict", "receipt_gap"))
"""Verdicts that ask to send again: a concurrent write, or an earlier receipt that must come first."""
REFUSALS_MAX: Final = 1_000

_NO_TASK: Final = ""  # key of reports that belong to no task

log = logging.getLogger("mooring.agent")


@dataclass(frozen=True, slots=True)
class PendingReport:
    """A report to send, and what to do with its verdict."""

    message: dict[str, Any]
    on_verdict: Callable[[ReportVerdict], None]


@dataclass(slots=True)
class OutputStream:
    """How much of a task's output the platform has."""

    owner: Owner
    fence: int
    offset: int = 0
    ended: bool = False
    is_whole: bool = False  # the rest of it is in the current batch
    is_read: bool = False  # the last read reached its end
    read_at: float = float("-inf")


@dataclass(slots=True)
class Reporter:
    """Sends everything that this agent reports."""

    client: PlatformClient
    executor: Executor
    journal: Journal
    host: Host
    now: Callable[[], float]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _refusals: list[dict[str, Any]] = field(default_factory=list)
    _outputs: dict[str, OutputStream] = field(default_factory=dict)
    _reported_progress: dict[str, tuple[str, int]] = field(default_factory=dict)
    _retry_after: dict[str, float] = field(default_factory=dict)  # results to send again, not before this time
    _hold_until: dict[str, float] = field(default_factory=dict)  # results that wait to be sent together with others
    _has_more_output: bool = False  # a finished task has more output, to be sent at once
    _has_postponed: bool = False  # the batch had no room for some of the output
    _was_answered: bool = True  # the platform responded to the last request

    def report_refusal(self, reason: str, detail: str, task_id: str | None) -> None:
        """A task was not trusted or not accepted; the platform writes it into its audit trail."""
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append({"kind": "refused", "task_id": task_id, "reason": reason, "detail": detail[:500]})
        self.wake.set()

    def report_strays(self, strays: list[Mapping[str, Any]]) -> None:
        """Report what a sweep found that the platform does not know."""
        self._refusals.append({"kind": "stray", "what": strays[:BATCH_MAX]})
        self.wake.set()

    async def run(self) -> None:
        """Send batches whenever there is something to report."""
        backoff = ReconnectBackoff()
        self._resume_outputs()
        while True:
            self.wake.clear()
            try:
                more = await self.flush()
                if self._was_answered:
                    backoff.reset()
            except (Unreachable, Rejected) as error:
                log.warning("cannot report to the platform: %s; retrying", error)
                await backoff.wait()
                continue
            if more:
                continue
            try:
                async with asyncio.timeout(self._idle_seconds()):
                    await self.wake.wait()
            except TimeoutError:
                continue

    def _idle_seconds(self) -> float | None:
        """When to look again without being woken."""
        soon = bool(self._retry_after) or any(not output.ended for output in self._outputs.values())
        if not self._hold_until:
            return STREAM_SECONDS if soon else None
        waits = max(0.0, min(self._hold_until.values()) - time.monotonic())
        return min(waits, STREAM_SECONDS) if soon else waits

    async def flush(self) -> bool:
        """Send one batch; returns whether there is more."""
        pressing = [*self._refusal_reports(), *self._progress_reports()]
        logs = await self._log_reports()
        results = self._results()
        if not pressing and not logs and all(self._can_wait(entry) for entry in results):
            return False
        self._hold_until.clear()
        # A result follows the rest of its output, which is among the logs; the other results need not wait for those.
        after_logs = [entry for entry in results if self._is_after_output(entry)]
        before = [entry for entry in results if not self._is_after_output(entry)]
        batch = _fit_request([*pressing, *self._result_reports(before), *logs, *self._result_reports(after_logs)])
        self._has_more_output = self._was_answered = False
        response = await self.client.report([report.message for report in batch])
        if len(response.results) != len(batch):
            raise Unreachable(f"{len(batch)} reports got {len(response.results)} verdicts")
        self._was_answered = True
        for report, verdict in zip(batch, response.results, strict=True):
            report.on_verdict(verdict)
        return (
            self._has_more_output
            or self._has_postponed
            or bool(self._refusal_reports())
            or bool(self._results())
            or len(batch) == BATCH_MAX
        )

    def _resume_outputs(self) -> None:
        """After a start: undelivered results are sent after the rest of their tasks' output."""
        for entry in self.journal.undelivered():
            if entry.result is not None and entry.result.last_lines:
                allocation_id, _, label = entry.owner.partition("/")
                self._outputs.setdefault(entry.task_id, OutputStream(Owner(allocation_id, label), entry.fence))

    def _refusal_reports(self) -> list[PendingReport]:
        def on_verdict(report: dict[str, Any]) -> Callable[[ReportVerdict], None]:
            def on_refusal_verdict(verdict: ReportVerdict) -> None:
                if verdict.code in RETRYABLE_CODES:
                    self._retry_after[_NO_TASK] = self.now() + RETRY_SECONDS
                else:
                    self._refusals.remove(report)

            return on_refusal_verdict

        if self._retry_after.get(_NO_TASK, 0.0) > self.now():
            return []
        self._retry_after.pop(_NO_TASK, None)
        return [PendingReport(report, on_verdict(report)) for report in self._refusals[:BATCH_MAX]]

    def _progress_reports(self) -> list[PendingReport]:
        reports: list[PendingReport] = []
        for task_id, tracked_task in self.executor.tracked.items():
            if tracked_task.progress is None or self._reported_progress.get(task_id) == (
                tracked_task.progress.stage,
                tracked_task.progress.done,
            ):
                continue
            reports.append(
                PendingReport(_progress_report(task_id, tracked_task), self._on_progress_verdict(task_id, tracked_task))
            )
        return reports

    def _on_progress_verdict(self, task_id: str, tracked_task: TrackedTask) -> Callable[[ReportVerdict], None]:
        progress_sent = (
            (tracked_task.progress.stage, tracked_task.progress.done) if tracked_task.progress is not None else ("", 0)
        )

        def on_verdict(verdict: ReportVerdict) -> None:
            self._reported_progress[task_id] = progress_sent

        return on_verdict

    async def _log_reports(self) -> list[PendingReport]:
        for task_id, tracked_task in self.executor.outputs.items():
            owner = Owner(tracked_task.task.allocation_id, tracked_task.task.label)
            self._outputs.setdefault(task_id, OutputStream(owner, tracked_task.fence)).fence = tracked_task.fence
        self._has_postponed = False
        reports: list[PendingReport] = []
        size = 0
        for task_id, output in self._outputs_in_turn():
            is_over = task_id not in self.executor.tracked  # read before the output, which is then complete
            if not is_over and time.monotonic() - output.read_at < READ_GAP_SECONDS:
                continue
            if len(reports) >= CHUNKS_MAX or size >= BATCH_BYTES:
                self._has_postponed = True
                break
            text = await self._read_chunk(task_id, output)
            output.read_at = time.monotonic()
            output.is_whole = is_over and output.is_read
            if text:
                encoded = encode(text)
                report = {
                    "task_id": task_id,
                    "fence": output.fence,
                    "kind": "log",
                    "offset": output.offset,
                    "text": encoded,
                }
                size += len(encoded)
                reports.append(PendingReport(report, self._on_log_verdict(output, len(text), is_over)))
            elif is_over:
                output.ended = True
        return reports

    def _outputs_in_turn(self) -> list[tuple[str, OutputStream]]:
        """The outputs of finished tasks first; one of each allocation before the second one of any."""
        turns: Counter[str] = Counter()
        placed: list[tuple[tuple[bool, int], str, OutputStream]] = []
        for task_id, output in sorted(self._outputs.items(), key=lambda item: item[1].read_at):
            if output.ended:
                continue
            output.is_whole = False  # until it is read for this batch
            turns[output.owner.allocation_id] += 1
            placed.append(((task_id in self.executor.tracked, turns[output.owner.allocation_id]), task_id, output))
        placed.sort(key=lambda each: each[0])
        return [(task_id, output) for _, task_id, output in placed]

    def _on_log_verdict(self, output: OutputStream, length: int, is_over: bool) -> Callable[[ReportVerdict], None]:
        def on_verdict(verdict: ReportVerdict) -> None:
            if verdict.accepted:
                output.offset += length
                output.ended = output.ended or output.is_whole
                self._has_more_output |= is_over and not output.is_whole
            elif verdict.code not in RETRYABLE_CODES:
                output.ended = True  # the lease is lost or the log is full: stop sending

        return on_verdict

    async def _read_chunk(self, task_id: str, output: OutputStream) -> bytes:
        if output.ended or output.offset >= LOG_MAX_BYTES:
            output.ended = output.ended or task_id not in self.executor.tracked
            output.is_read = True
            return b""
        is_over = task_id not in self.executor.tracked
        text = b""
        try:
            async for part in self.host.read_log(output.owner, task_id, output.offset):
                text += part
                if len(text) >= CHUNK_BYTES:
                    break
        except HostFailure as failure:
            log.warning("cannot read the output of %s: %s; skipping the rest of it", task_id, failure)
            output.ended = True
        output.is_read = len(text) < CHUNK_BYTES
        mask = self.executor.masks.of(output.owner.allocation_id)
        text = mask.hide(text[:CHUNK_BYTES])
        # A secret that ends in the next part is sent with that part, masked; if there is no next part, it is cut here.
        unfinished = mask.unfinished(text)
        if unfinished and unfinished < CHUNK_BYTES:
            text = text[:-unfinished] + (b"*" * unfinished if is_over and output.is_read else b"")
        return text

    def _results(self) -> list[JournalEntry]:
        """The results that can be sent: those whose output was sent or is in this batch."""
        found: list[JournalEntry] = []
        for entry in self.journal.undelivered():
            output = self._outputs.get(entry.task_id)
            if output is None and entry.task_id in self.executor.outputs:
                continue  # it started and ended while the others were read: its output comes in the next round
            is_ready = output is None or output.ended or output.is_whole
            if is_ready and self._retry_after.get(entry.task_id, 0.0) <= self.now():
                found.append(entry)
                if len(found) == BATCH_MAX:
                    break
        return found

    def _is_after_output(self, entry: JournalEntry) -> bool:
        output = self._outputs.get(entry.task_id)
        return output is not None and not output.ended

    def _result_reports(self, entries: list[JournalEntry]) -> list[PendingReport]:
        return [PendingReport(_result_report(entry), self._on_result_verdict(entry)) for entry in entries]

    def _can_wait(self, entry: JournalEntry) -> bool:
        """Whether a result may be sent a moment later with its owner's next one; failures never wait."""
        if entry.result is None or entry.result.outcome != "succeeded" or entry.task_id not in self.executor.in_order:
            return False
        if not self.executor.is_busy(entry.owner):
            return False
        now = time.monotonic()
        return now < self._hold_until.setdefault(entry.task_id, now + COALESCE_SECONDS)

    def _on_result_verdict(self, entry: JournalEntry) -> Callable[[ReportVerdict], None]:
        def on_verdict(verdict: ReportVerdict) -> None:
            if not verdict.accepted:
                log.warning(
                    "the platform rejected the result of task %s: %s %s; %s",
                    entry.task_id,
                    verdict.code,
                    verdict.detail or "",
                    "retrying" if verdict.code in RETRYABLE_CODES else "not sending it again",
                )
                if verdict.code in RETRYABLE_CODES:
                    self._retry_after[entry.task_id] = self.now() + RETRY_SECONDS
                    return
            self._retry_after.pop(entry.task_id, None)
            self.journal.mark_delivered(entry.task_id, entry.fence, self.now(), _kept_result(entry))
            self._outputs.pop(entry.task_id, None)
            self.executor.outputs.pop(entry.task_id, None)
            self.executor.in_order.discard(entry.task_id)
            self._reported_progress.pop(entry.task_id, None)

        return on_verdict


def _kept_result(entry: JournalEntry) -> TaskResult | None:
    """What is kept of a delivered log read: not its content, since a new task can read the log again."""
    if entry.result is None or "content_base64" not in entry.result.result:
        return None
    return TaskResult("failed", failure=TaskFailure("not_found", "the content was delivered and is not kept"))


def _fit_request(reports: list[PendingReport]) -> list[PendingReport]:
    """As many reports as fit into one request; one that is too large is sent alone, and rejected by the platform."""
    batch: list[PendingReport] = []
    size = 0
    for report in reports[:BATCH_MAX]:
        size += len(msgspec.json.encode(report.message))
        if batch and size > BATCH_BYTES:
            break
        batch.append(report)
    return batch


def _progress_report(task_id: str, tracked_task: TrackedTask) -> dict[str, Any]:
    progress = tracked_task.progress
    if progress is None:
        raise ValueError("a task without progress cannot be reported")
    progress_sent = {"stage": progress.stage, "done": progress.done, "total": progress.total, "unit": progress.unit}
    return {"task_id": task_id, "fence": tracked_task.fence, "kind": "progress", "progress": progress_sent}


def _result_report(entry: JournalEntry) -> dict[str, Any]:
    result = entry.result
    if result is None:
        raise ValueError(f"the journal has a finished task without a result: {entry.task_id}")
    report: dict[str, Any] = {
        "task_id": entry.task_id,
        "fence": entry.fence,
        "kind": "result",
        "outcome": result.outcome,
        "result": result.result,
        "last_lines": list(result.last_lines),
    }
    if result.failure is not None:
        report["failure"] = result.failure
    if result.receipt is not None:
        report["receipt"] = result.receipt
    return report
