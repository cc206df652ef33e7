"""The controller of one claimed instance: it reads the view, plans, does what is due, and waits for news.

It reconciles by level: after every wake-up it reads everything and plans again, so a lost, repeated or late
notification changes nothing. It keeps no state that matters. When the platform refuses its fence it stops at once, and
the next holder of the claim continues from what is recorded.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from mooring_adapter import failures
from mooring_adapter.adapter import Adapter, Planner
from mooring_adapter.backoff import RetryBackoff
from mooring_adapter.instance_view import InstanceView, Operation, read_view
from mooring_adapter.logs import labels_of, log_labels
from mooring_adapter.next_actions import NextActions, PendingTask, cancelling, next_actions
from mooring_adapter.platform_client import TASKS_MAX, HeldClaim, PlatformClient
from mooring_adapter.steps import Failure, Finish, MemberObservation, Observation, Plan, Reading, Usage
from mooring_sdk import MooringError

SIDE_BY_SIDE: Final = 16
GATHER_SECONDS_MIN: Final = 0.003
GATHER_SECONDS_PER_MEMBER: Final = 0.001
GATHER_SECONDS_MAX: Final = 0.25
"""Reading a wide instance is expensive: the controller pauses between two reads, so that one read covers more news."""
SHOW_SECONDS: Final = 0.3
"""How late people may see the progress of a task when there is nothing else to report."""
CALM_SECONDS: Final = 60.0
LISTED_MAX: Final = 200
MISTAKES_MAX: Final = 3
OLD_VIEWS_MAX: Final = 3
"""After this many outdated views in a row the platform's clock must have been set back, and its time is accepted."""

Result = TypeVar("Result")

log = logging.getLogger("mooring.adapter")


class ClaimLost(Exception):
    """The instance is no longer ours."""


class InstanceController:
    """Works on one instance for as long as its claim lasts."""

    def __init__(
        self,
        adapter: Adapter,
        platform: PlatformClient,
        claim: HeldClaim,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock = clock
        self.adapter = adapter
        self.platform = platform
        self.claim = claim
        self.wake = asyncio.Event()
        self._side_by_side = asyncio.Semaphore(SIDE_BY_SIDE)
        self._mistakes: dict[str, int] = {}
        self._show_later: dict[str, datetime] = {}  # by operation: when to report the progress of its tasks
        self._backoff = RetryBackoff()
        self._seen_at: datetime | None = None  # the platform's time of the newest view
        self._old_views = 0
        self._gather_seconds = 0.0
        self._readings: tuple[Reading, ...] = ()  # those that were reported last
        self.is_busy = True  # whether an operation is open

    async def run(self) -> None:
        """Work until the claim is lost or released."""
        with log_labels(app_instance_id=self.claim.instance_id):
            while True:
                self.wake.clear()
                try:
                    wait_seconds = await self._round()
                    self._backoff.reset()
                except ClaimLost:
                    log.info("lost the claim; stopping the controller", extra={"fence": self.claim.fence})
                    return
                except MooringError as error:
                    wait_seconds = self._backoff.next_pause()
                    log.warning("a request to the platform failed; retrying: %s", error, extra={"code": error.code})
                await self._rest(wait_seconds)

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(self._gather_seconds)
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.wake.wait()
        except TimeoutError:
            return

    async def _round(self) -> float:
        """Read once and do what is due; returns the seconds to rest."""
        asked_at = self.clock()
        view = read_view(await self._read(), asked_at)
        if self._is_old(view):
            return self._backoff.next_pause()
        offset = (view.now or asked_at) - asked_at
        self.is_busy = bool(view.operations)
        open_ids = {each.id for each in view.operations}
        self._show_later = {name: at for name, at in self._show_later.items() if name in open_ids}
        wide = min(GATHER_SECONDS_PER_MEMBER * len(view.members), GATHER_SECONDS_MAX)
        self._gather_seconds = max(GATHER_SECONDS_MIN, wide)
        rests = [await self._advance(view, operation) for operation in view.operations]
        if view.instance.status == "running" and self.adapter.watch is not None:
            with log_labels(**labels_of(view)):
                rests.append(await self._watch(view, self.adapter.watch))
        sooner = [each for each in rests if each is not None]
        now = self.clock() + offset
        return min((max((each - now).total_seconds(), 0.0) for each in sooner), default=CALM_SECONDS)

    def _is_old(self, view: InstanceView) -> bool:
        """Whether a newer response overtook this one: it may lack what woke us, so it is read again at once.

        A view of exactly the same moment is the same view again, and just as old.
        """
        if view.now is None or self._seen_at is None or view.now > self._seen_at:
            self._seen_at, self._old_views = view.now, 0
            return False
        self._old_views += 1
        if self._old_views <= OLD_VIEWS_MAX:
            return True
        self._seen_at, self._old_views = view.now, 0
        return False

    async def _advance(self, view: InstanceView, operation: Operation) -> datetime | None:
        """Do what is due of one operation; returns when to look again unless woken earlier, None for never."""
        with log_labels(**labels_of(view, operation)):
            actions = self._next_actions(view, operation)
            if actions.is_empty:
                return actions.wake_at
            show_at = self._show_at(operation, view.now or self.clock()) if actions.report_may_wait else None
            if show_at is not None and actions.does_nothing:
                return show_at if actions.wake_at is None else min(show_at, actions.wake_at)
            try:
                await self._perform(actions, reports=show_at is None)
            except MooringError as error:
                if error.retryable or error.status == 401:
                    raise  # nothing is wrong with the operation
                await self._refused(operation, error)
            return view.now or self.clock()  # something was done, so the instance has changed

    def _show_at(self, operation: Operation, now: datetime) -> datetime | None:
        """When to report the progress of tasks if there is nothing else to report; None for now.

        Most tasks end sooner than a report about them would take, and the next report covers them as well.
        """
        latest = now + timedelta(seconds=SHOW_SECONDS)
        show_at = self._show_later.setdefault(operation.id, latest)
        return show_at if now < show_at <= latest else None

    def _next_actions(self, view: InstanceView, operation: Operation) -> NextActions:
        try:
            return next_actions(self._planner(operation)(view, operation), view, operation)
        except Exception as error:  # a mistake in one plan must not end the work on the others
            log.exception("the plan of %s %s raised an error; failing the operation", operation.kind, operation.id)
            detail = f"the adapter's plan raised an error: {type(error).__name__}: {error}"
            return NextActions(operation, finish=Finish(outcome="failed", failure=Failure("adapter_error", detail)))

    def _planner(self, operation: Operation) -> Planner:
        if operation.status == "cancelling":
            return self.adapter.cancel or cancelling
        if operation.kind != "action":
            return self.adapter.plan
        name = action_name(operation)
        return self.adapter.actions.get(name) or _unknown_action(name)

    async def _perform(self, actions: NextActions, *, reports: bool) -> None:
        operation = actions.operation
        if actions.begins and (actions.secrets or actions.usage):
            # An operation has to be begun before it can be failed, in case one of these is refused.
            await self._ours(self.platform.report(self.claim, {"begin": True}, operation))
        for secret in actions.secrets:
            await self._ours(self.platform.make_secret(self.claim, operation, secret))
        for metered in actions.usage:
            await self._report_usage(metered.usage)
        for report in report_parts(actions.report()) if reports else ():  # after the secrets: it says they are done
            await self._ours(self.platform.report(self.claim, report, operation))
            self._show_later.pop(operation.id, None)
        await self._create_tasks(operation, actions.tasks)
        if actions.finish is not None:
            await self._finish(operation, actions.finish)
        self._mistakes.pop(operation.id, None)

    async def _report_readings(self, readings: Sequence[Reading]) -> None:
        """Report what counters show; a series that is refused blocks no other one, and is tried again with its next."""
        try:
            await self._ours(self.platform.report_readings(self.claim, readings))
        except MooringError as error:
            if error.code not in ("conflict", "validation_failed"):
                raise
            series = sorted({each.series for each in readings})
            if len(series) == 1:
                log.error("the platform refused a reading; skipping it: %s", error, extra={"series": series[0]})
                return
            for name in series:
                await self._report_readings([each for each in readings if each.series == name])

    async def _report_usage(self, usage: Sequence[Usage]) -> None:
        """Report usage; a record that is already stored with other content stays as it is and blocks nothing."""
        try:
            await self._ours(self.platform.report_usage(self.claim, usage))
        except MooringError as error:
            if error.code != "conflict":
                raise
            if len(usage) == 1:
                extra = {"record_id": usage[0].record_id}
                log.error("the platform has this usage record with other content; skipping it: %s", error, extra=extra)
                return
            for each in usage:
                await self._report_usage((each,))

    async def _create_tasks(self, operation: Operation | None, tasks: Sequence[PendingTask]) -> None:
        """Create many at once, within bounds; the first refusal is raised when all have been tried."""
        outcomes = await asyncio.gather(
            *(self._create_batch(operation, each) for each in task_batches(tasks)), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _create_batch(self, operation: Operation | None, tasks: Sequence[PendingTask]) -> None:
        bodies = [task_body(each) for each in tasks]
        async with self._side_by_side:
            if len(bodies) == 1:
                created = await self._ours(self.platform.create_task(self.claim, operation, bodies[0]))
                _log_created(created.id, created.step)
                return
            outcomes = await self._ours(self.platform.create_tasks(self.claim, operation, bodies))
        for each in outcomes:
            if each.refusal is not None:
                raise each.refusal.error()
            if each.task is not None:
                _log_created(each.task.id, each.step)

    async def _finish(self, operation: Operation, end: Finish) -> None:
        body: dict[str, Any] = {"outcome": end.outcome, "evidence": dict(end.evidence)}
        if end.output is not None:
            body["output"] = dict(end.output)
        if end.failure is not None:
            body["failure"] = end.failure.plain()
        await self._ours(self.platform.finish(self.claim, operation, body))
        failure = {} if end.failure is None else {"code": end.failure.code, "detail": end.failure.detail}
        log.info("%s %s %s", operation.kind, operation.id, end.outcome, extra=failure)

    async def _refused(self, operation: Operation, error: MooringError) -> None:
        """Handle a refusal: an outdated view is read again a few times, anything else fails the operation."""
        mistakes = self._mistakes[operation.id] = self._mistakes.get(operation.id, 0) + 1
        extra = {"code": error.code, "mistakes": mistakes}
        if error.code in failures.STALE and mistakes < MISTAKES_MAX:
            log.warning(
                "the platform refused a request based on an outdated view; reading the instance again: %s",
                error,
                extra=extra,
            )
            await asyncio.sleep(self._backoff.next_pause())
            return
        log.warning("the platform refused a request; failing the operation: %s", error, extra=extra)
        try:
            await self._finish(operation, Finish(outcome="failed", failure=failures.of_refusal(error)))
        except MooringError as again:
            log.warning(
                "the platform refused the report of the failure too; retrying: %s", again, extra={"code": again.code}
            )
            await asyncio.sleep(self._backoff.next_pause())

    async def _watch(self, view: InstanceView, watch: Callable[[InstanceView], Observation]) -> datetime | None:
        """Observe a running instance, and report what is new."""
        try:
            observation = watch(view)
        except Exception:  # a mistake in the watch must not end the claim
            log.exception("the watch raised an error; trying again at the next change")
            return None
        if observation.usage:
            await self._report_usage(observation.usage)
        if observation.readings and observation.readings != self._readings:
            await self._report_readings(observation.readings)
            self._readings = observation.readings
        known = {each.step for each in view.looks}
        looks = [PendingTask(each.step, each) for each in observation.looks if each.step not in known]
        try:
            if report := unrecorded_changes(view, observation):
                await self._ours(self.platform.report(self.claim, report))
            await self._create_tasks(None, looks)
        except MooringError as error:
            if error.retryable or error.status == 401:
                raise
            log.warning("the platform refused an observation; dropping it: %s", error, extra={"code": error.code})
        # Not all at once: many instances may have been claimed in one moment.
        pause = self.adapter.watch_seconds * random.uniform(0.8, 1.2)
        return (view.now or self.clock()) + timedelta(seconds=pause)

    async def _read(self) -> Mapping[str, Any]:
        try:
            return await self._ours(self.platform.read(self.claim))
        except MooringError as error:
            if error.code == "not_found":  # it is gone, or belongs to another project
                raise ClaimLost from error
            raise

    async def _ours(self, call: Awaitable[Result]) -> Result:
        """Make a call under our fence; a refused fence ends the work on this instance."""
        try:
            return await call
        except MooringError as error:
            if error.code == "lease_lost":
                raise ClaimLost from error
            raise


def _log_created(task_id: str, step: str) -> None:
    log.debug("created task %s for %s", task_id, step, extra={"task_id": task_id, "step": step})


def task_batches(tasks: Sequence[PendingTask]) -> list[list[PendingTask]]:
    """The tasks of each request: one member's stay together and in order, because its node does them in that order.

    Tasks of one member that do not fit into a request are created in the next round.
    """
    of_member: dict[str, list[PendingTask]] = {}
    for each in tasks:
        of_member.setdefault(each.task.member_id, []).append(each)
    batches: list[list[PendingTask]] = []
    for mine in of_member.values():
        if batches and len(batches[-1]) + len(mine) <= TASKS_MAX:
            batches[-1] += mine
        else:
            batches.append(mine[:TASKS_MAX])
    return batches


def task_body(request: PendingTask) -> dict[str, Any]:
    """The JSON body that asks for a task."""
    task = request.task
    body: dict[str, Any] = {
        "step": request.name,
        "member_id": task.member_id,
        "type": task.type,
        "arguments": dict(task.arguments),
    }
    if task.grants:
        body["grants"] = [dict(each) for each in task.grants]
    if task.lifetime_seconds is not None:
        body["lifetime_seconds"] = task.lifetime_seconds
    if task.audited:
        body["audited"] = True
    return body


def action_name(operation: Operation) -> str:
    return str(operation.request.get("action") or operation.request.get("name") or "")


def _unknown_action(name: str) -> Planner:
    def plan(view: InstanceView, operation: Operation) -> Plan:
        failure = Failure("adapter_error", f"this adapter has no action {name!r}")
        return Plan((Finish(outcome="failed", failure=failure),))

    return plan


def report_parts(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a long report; steps come after members, so that a step is recorded as done after its effect."""
    if not report:
        return []
    if all(len(report.get(name, ())) <= LISTED_MAX for name in ("members", "steps")):
        return [dict(report)]
    first = {name: value for name, value in report.items() if name not in ("members", "steps")}
    lists = [
        {name: report[name][start : start + LISTED_MAX]}
        for name in ("members", "steps")
        for start in range(0, len(report.get(name, ())), LISTED_MAX)
    ]
    return [*([first] if first else []), *lists]


def unrecorded_changes(view: InstanceView, observation: Observation) -> dict[str, Any]:
    """The report of what was observed and differs from the records; empty if nothing does."""
    report: dict[str, Any] = {}
    members = [each for each in (_member_changes(view, observed) for observed in observation.members) if each]
    if members:
        report["members"] = members
    instance = view.instance
    whole: dict[str, Any] = {}
    if observation.health is not None and observation.health != instance.health:
        whole["health"] = observation.health
    if observation.health_detail is not None and observation.health_detail != instance.health_detail:
        whole["health_detail"] = observation.health_detail  # also alone: it is of the same moment as the figures
    if observation.detail is not None and dict(observation.detail) != instance.adapter_detail:
        whole["detail"] = dict(observation.detail)
    if whole:
        report["instance"] = whole
    return report


def _member_changes(view: InstanceView, observed: MemberObservation) -> dict[str, Any] | None:
    member = view.member(observed.member_id)
    if member is None:
        return None
    changes: dict[str, Any] = {}
    if observed.status is not None and observed.status != member.status:
        changes["status"] = observed.status
    if observed.health is not None and observed.health != member.health:
        changes["health"] = observed.health
    if observed.health_detail is not None and observed.health_detail != member.health_detail:
        changes["health_detail"] = observed.health_detail
    if observed.detail is not None and dict(observed.detail) != member.adapter_detail:
        changes["detail"] = dict(observed.detail)
    if observed.failure is not None and "status" in changes:
        changes["failure"] = observed.failure.plain()
    return {"id": member.id, **changes} if changes else None
