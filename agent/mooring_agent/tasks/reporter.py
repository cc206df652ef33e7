"""Tells the platform what happened, in order, until it has heard.

Results come from the journal and stay there until they are accepted, however long the platform is away. Output is
sent from the offset that was accepted last, progress as it is now: of both only the newest matters, so nothing piles
up. A result goes after the output of its task.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mooring_agent.control_plane.messages import Failure, Result, Verdict, encode
from mooring_agent.control_plane.platform_client import Client, Turned, Unreachable
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.hosts.contract import Host, HostFailure, Owner
from mooring_agent.tasks.executor import Executor, Tracked
from mooring_agent.tasks.journal import Entry, Journal

BATCH_MAX: Final = 100
BATCH_BYTES: Final = 700_000
"""The platform takes a request of 1 MiB."""
CHUNK_BYTES: Final = 131_072
LOG_MAX_BYTES: Final = 8 * 1_048_576
STREAM_SECONDS: Final = 0.5
TOGETHER_SECONDS: Final = 0.1
"""How long a success waits for its owner's next one, where that is under way: whoever asked for both waits for both."""
AGAIN_SECONDS: Final = 2.0
AGAIN: Final = frozenset(("conflict", "receipt_gap"))
"""Verdicts that ask to be told once more: somebody else wrote at the same moment, or an earlier receipt comes first."""
REFUSALS_MAX: Final = 1_000

_WORDS: Final = ""  # what is said of no task

log = logging.getLogger("mooring.agent")

Report = tuple[dict[str, Any], Callable[[Verdict], None]]


@dataclass(slots=True)
class Output:
    """How much of a task's output the platform has."""

    owner: Owner
    fence: int
    offset: int = 0
    ended: bool = False
    is_whole: bool = False  # the rest of it is in the batch that is being told


@dataclass(slots=True)
class Reporter:
    """The way of everything that this agent has to say."""

    client: Client
    executor: Executor
    journal: Journal
    host: Host
    now: Callable[[], float]
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _refusals: list[dict[str, Any]] = field(default_factory=list)
    _outputs: dict[str, Output] = field(default_factory=dict)
    _told: dict[str, tuple[str, int]] = field(default_factory=dict)
    _later: dict[str, float] = field(default_factory=dict)  # results that are told again, and not before this time
    _waits_until: dict[str, float] = field(default_factory=dict)  # results that are told together with others
    _goes_on: bool = False  # there is more output of a task that is over: it is told at once
    _is_heard: bool = True  # the platform answered when it was told something last

    def refuse(self, reason: str, detail: str, task_id: str | None) -> None:
        """A task was not believed or not taken; the platform writes it into its audit trail."""
        if len(self._refusals) < REFUSALS_MAX:
            self._refusals.append({"kind": "refused", "task_id": task_id, "reason": reason, "detail": detail[:500]})
        self.wake.set()

    def stray(self, what: list[Mapping[str, Any]]) -> None:
        """What a sweep found that the platform does not know."""
        self._refusals.append({"kind": "stray", "what": what[:BATCH_MAX]})
        self.wake.set()

    async def run(self) -> None:
        """Tell, wait until there is more to tell, tell."""
        backoff = ReconnectBackoff()
        self._find_outputs()
        while True:
            self.wake.clear()
            try:
                more = await self.flush()
                if self._is_heard:
                    backoff.reset()
            except (Unreachable, Turned) as error:
                log.warning("the platform cannot be told: %s", error)
                await backoff.wait()
                continue
            if more:
                continue
            try:
                async with asyncio.timeout(self._rest_seconds()):
                    await self.wake.wait()
            except TimeoutError:
                continue

    def _rest_seconds(self) -> float | None:
        """When to look again without being woken."""
        soon = bool(self._later) or any(not output.ended for output in self._outputs.values())
        if not self._waits_until:
            return STREAM_SECONDS if soon else None
        waits = max(0.0, min(self._waits_until.values()) - time.monotonic())
        return min(waits, STREAM_SECONDS) if soon else waits

    async def flush(self) -> bool:
        """Send one batch; whether there is more."""
        pressing = [*self._refused(), *self._progress(), *await self._logs()]
        results = self._results()
        if not pressing and all(self._may_wait(entry) for entry in results):
            return False
        self._waits_until.clear()
        batch = _bounded([*pressing, *((_result_of(entry), self._heard_result(entry)) for entry in results)])
        self._goes_on = self._is_heard = False
        answer = await self.client.report([report for report, _ in batch])
        if len(answer.results) != len(batch):
            raise Unreachable(f"{len(batch)} reports were answered with {len(answer.results)} verdicts")
        self._is_heard = True
        for (_, heard), verdict in zip(batch, answer.results, strict=True):
            heard(verdict)
        return self._goes_on or bool(self._refused()) or bool(self._results()) or len(batch) == BATCH_MAX

    def _find_outputs(self) -> None:
        """After a start: a result that is still owed goes after what is left to be told of its task's output."""
        for entry in self.journal.owed():
            if entry.result is not None and entry.result.last_lines:
                allocation_id, _, label = entry.owner.partition("/")
                self._outputs.setdefault(entry.task_id, Output(Owner(allocation_id, label), entry.fence))

    def _refused(self) -> list[Report]:
        def heard(report: dict[str, Any]) -> Callable[[Verdict], None]:
            def take(verdict: Verdict) -> None:
                if verdict.code in AGAIN:
                    self._later[_WORDS] = self.now() + AGAIN_SECONDS
                else:
                    self._refusals.remove(report)

            return take

        if self._later.get(_WORDS, 0.0) > self.now():
            return []
        self._later.pop(_WORDS, None)
        return [(report, heard(report)) for report in self._refusals[:BATCH_MAX]]

    def _progress(self) -> list[Report]:
        reports: list[Report] = []
        for task_id, each in self.executor.tracked.items():
            if each.progress is None or self._told.get(task_id) == (each.progress.stage, each.progress.done):
                continue
            reports.append((_progress_of(task_id, each), self._heard_progress(task_id, each)))
        return reports

    def _heard_progress(self, task_id: str, each: Tracked) -> Callable[[Verdict], None]:
        told = (each.progress.stage, each.progress.done) if each.progress is not None else ("", 0)

        def heard(verdict: Verdict) -> None:
            self._told[task_id] = told

        return heard

    async def _logs(self) -> list[Report]:
        for task_id, each in self.executor.outputs.items():
            owner = Owner(each.task.allocation_id, each.task.label)
            self._outputs.setdefault(task_id, Output(owner, each.fence)).fence = each.fence
        reports: list[Report] = []
        for task_id, output in list(self._outputs.items()):
            is_over = task_id not in self.executor.tracked  # before it is read: what it writes until then is in there
            text = await self._chunk(task_id, output)
            output.is_whole = is_over and len(text) < CHUNK_BYTES
            if text:
                report = {
                    "task_id": task_id, "fence": output.fence, "kind": "log", "offset": output.offset,
                    "text": encode(text),
                }  # fmt: skip
                reports.append((report, self._heard_log(output, len(text), is_over)))
            elif is_over:
                output.ended = True
        return reports

    def _heard_log(self, output: Output, length: int, is_over: bool) -> Callable[[Verdict], None]:
        def heard(verdict: Verdict) -> None:
            if verdict.accepted:
                output.offset += length
                output.ended = output.ended or output.is_whole
                self._goes_on |= is_over and not output.is_whole
            elif verdict.code not in AGAIN:
                output.ended = True  # the lease is lost or the log is full: no more is wanted

        return heard

    async def _chunk(self, task_id: str, output: Output) -> bytes:
        if output.ended or output.offset >= LOG_MAX_BYTES:
            output.ended = output.ended or task_id not in self.executor.tracked
            return b""
        text = b""
        try:
            async for part in self.host.read_log(output.owner, task_id, output.offset):
                text += part
                if len(text) >= CHUNK_BYTES:
                    break
        except HostFailure as failure:
            log.warning("the output of %s cannot be read: %s", task_id, failure)
            output.ended = True
        return text[:CHUNK_BYTES]

    def _results(self) -> list[Entry]:
        """The results that can be told: those behind their output, all of which was told or is in this batch."""
        found: list[Entry] = []
        for entry in self.journal.owed()[:BATCH_MAX]:
            output = self._outputs.get(entry.task_id)
            if output is None and entry.task_id in self.executor.outputs:
                continue  # it began and ended while the others were read: its own is read in the next round
            is_behind = output is None or output.ended or output.is_whole
            if is_behind and self._later.get(entry.task_id, 0.0) <= self.now():
                found.append(entry)
        return found

    def _may_wait(self, entry: Entry) -> bool:
        """Whether a result is told a moment later with the next of its owner: one that failed never waits."""
        if entry.result is None or entry.result.outcome != "succeeded" or entry.task_id not in self.executor.in_order:
            return False
        if not self.executor.is_busy(entry.owner):
            return False
        now = time.monotonic()
        return now < self._waits_until.setdefault(entry.task_id, now + TOGETHER_SECONDS)

    def _heard_result(self, entry: Entry) -> Callable[[Verdict], None]:
        def heard(verdict: Verdict) -> None:
            if not verdict.accepted:
                log.warning("the result of %s was not taken: %s %s", entry.task_id, verdict.code, verdict.detail or "")
                if verdict.code in AGAIN:
                    self._later[entry.task_id] = self.now() + AGAIN_SECONDS
                    return
            self._later.pop(entry.task_id, None)
            self.journal.delivered(entry.task_id, entry.fence, self.now(), _instead(entry))
            self._outputs.pop(entry.task_id, None)
            self.executor.outputs.pop(entry.task_id, None)
            self.executor.in_order.discard(entry.task_id)
            self._told.pop(entry.task_id, None)

        return heard


def _instead(entry: Entry) -> Result | None:
    """What is remembered of a log that was read and told: that it was; the log itself is read anew by a new task."""
    if entry.result is None or "content_base64" not in entry.result.result:
        return None
    return Result("failed", failure=Failure("not_found", "what was read is told, and is not kept"))


def _bounded(reports: list[Report]) -> list[Report]:
    """As many as go into one request; one that is too large alone goes alone, and is told so."""
    taken: list[Report] = []
    size = 0
    for report in reports[:BATCH_MAX]:
        size += len(msgspec.json.encode(report[0]))
        if taken and size > BATCH_BYTES:
            break
        taken.append(report)
    return taken


def _progress_of(task_id: str, each: Tracked) -> dict[str, Any]:
    progress = each.progress
    if progress is None:
        raise ValueError("a task without progress has none to tell")
    told = {"stage": progress.stage, "done": progress.done, "total": progress.total, "unit": progress.unit}
    return {"task_id": task_id, "fence": each.fence, "kind": "progress", "progress": told}


def _result_of(entry: Entry) -> dict[str, Any]:
    result = entry.result
    if result is None:
        raise ValueError(f"the journal has an end without its result: {entry.task_id}")
    report: dict[str, Any] = {
        "task_id": entry.task_id, "fence": entry.fence, "kind": "result", "outcome": result.outcome,
        "result": result.result, "last_lines": list(result.last_lines),
    }  # fmt: skip
    if result.failure is not None:
        report["failure"] = result.failure
    if result.receipt is not None:
        report["receipt"] = result.receipt
    return report
