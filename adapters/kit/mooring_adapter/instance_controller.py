"""The keeper of one claimed instance: it reads the view, plans, does what is due, and waits for news.

It works by level: whatever woke it, it reads everything and plans anew; so a message that was lost, doubled or late
changes nothing. It holds no state that matters. When its fence is refused it ends at once, and whoever holds the
instance then goes on from what is recorded.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from mooring_adapter import failures
from mooring_adapter.adapter import Adapter, Planner
from mooring_adapter.instance_view import InstanceView, Operation, read_view
from mooring_adapter.logs import labels_of, log_labels
from mooring_adapter.next_actions import NextActions, TaskRequest, cancelling, next_actions
from mooring_adapter.platform_client import TASKS_MAX, InstanceClaim, PlatformClient
from mooring_adapter.steps import Failure, Finish, MemberObservation, Observation, Plan, Usage
from mooring_sdk import MooringError

SIDE_BY_SIDE: Final = 16
GATHER_SECONDS_MIN: Final = 0.003
GATHER_SECONDS_PER_MEMBER: Final = 0.001
GATHER_SECONDS_MAX: Final = 0.25
"""Reading a wide instance takes its time: a moment passes between two looks, and one answers for all of the news."""
SHOW_SECONDS: Final = 0.3
"""How late people may see how far a task is, where nothing else is to be told."""
CALM_SECONDS: Final = 60.0
LISTED_MAX: Final = 200
MISTAKES_MAX: Final = 3
OLD_VIEWS_MAX: Final = 3
"""So many old views in a row are read again; then the platform's clock was set back, and its time is taken."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0

Result = TypeVar("Result")

log = logging.getLogger("mooring.adapter")


class ClaimLost(Exception):
    """The instance is no longer ours."""


class InstanceController:
    """Keeps one instance, for as long as its claim lasts."""

    def __init__(
        self,
        adapter: Adapter,
        platform: PlatformClient,
        held: InstanceClaim,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock = clock
        self.adapter = adapter
        self.platform = platform
        self.held = held
        self.wake = asyncio.Event()
        self._side_by_side = asyncio.Semaphore(SIDE_BY_SIDE)
        self._mistakes: dict[str, int] = {}
        self._shown_at: dict[str, datetime] = {}  # operations of whose tasks something is told later, and when
        self._failures = 0
        self._seen_at: datetime | None = None  # the platform's time of the newest view
        self._old_views = 0
        self._gather_seconds = 0.0
        self.is_busy = True  # whether something is open that it works on

    async def run(self) -> None:
        """Work until the claim is lost or given back."""
        with log_labels(app_instance_id=self.held.instance_id):
            while True:
                self.wake.clear()
                try:
                    wait_seconds = await self._round()
                    self._failures = 0
                except ClaimLost:
                    log.info("the instance is no longer ours", extra={"fence": self.held.fence})
                    return
                except MooringError as error:
                    wait_seconds = self._pause()
                    log.warning("the platform could not be asked: %s", error, extra={"code": error.code})
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

    def _pause(self) -> float:
        self._failures += 1
        longest = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE_SECONDS)
        return random.uniform(longest / 2, longest)

    async def _round(self) -> float:
        """Look once and do what is due; how long to rest then."""
        asked_at = self.clock()
        view = read_view(await self._read(), asked_at)
        if self._is_old(view):
            return self._pause()
        offset = (view.now or asked_at) - asked_at
        self.is_busy = bool(view.operations)
        self._shown_at = {each.id: self._shown_at[each.id] for each in view.operations if each.id in self._shown_at}
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
        """Whether an answer overtook this one: what woke us may not be in it, so that it is read again at once.

        A view of the very moment that was seen before is that view once more, and just as old.
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
        """Do what is due of one operation; when to look again without being woken, None for no time at all."""
        with log_labels(**labels_of(view, operation)):
            wanted = self._due(view, operation)
            if wanted.is_empty:
                return wanted.wake_at
            show_at = self._show_at(operation, view.now or self.clock()) if wanted.report_may_wait else None
            if show_at is not None and wanted.does_nothing:
                return show_at if wanted.wake_at is None else min(show_at, wanted.wake_at)
            try:
                await self._perform(wanted, tells=show_at is None)
            except MooringError as error:
                if error.retryable or error.status == 401:
                    raise  # nothing is wrong with the operation
                await self._refused(operation, error)
            return view.now or self.clock()  # something was done, so that the view has changed

    def _show_at(self, operation: Operation, now: datetime) -> datetime | None:
        """When to tell how far tasks are, where that is all there is to tell; none for now.

        Most tasks take less time than it takes to tell of them, and what is told shortly after tells it as well.
        """
        latest = now + timedelta(seconds=SHOW_SECONDS)
        show_at = self._shown_at.setdefault(operation.id, latest)
        return show_at if now < show_at <= latest else None

    def _due(self, view: InstanceView, operation: Operation) -> NextActions:
        try:
            return next_actions(self._planner(operation)(view, operation), view, operation)
        except Exception as error:  # a mistake in one plan must not end the work on the others
            log.exception("the plan of %s %s came to an error", operation.kind, operation.id)
            detail = f"the adapter's plan came to an error: {type(error).__name__}: {error}"
            return NextActions(operation, finish=Finish(outcome="failed", failure=Failure("adapter_error", detail)))

    def _planner(self, operation: Operation) -> Planner:
        if operation.status == "cancelling":
            return self.adapter.cancel or cancelling
        if operation.kind != "action":
            return self.adapter.plan
        name = action_name(operation)
        return self.adapter.actions.get(name) or _unknown_action(name)

    async def _perform(self, wanted: NextActions, *, tells: bool) -> None:
        operation = wanted.operation
        if wanted.begins and (
            wanted.secrets or wanted.usage
        ):  # whoever is refused one of them has begun, and can end it
            await self._ours(self.platform.report(self.held, {"begin": True}, operation))
        for secret in wanted.secrets:
            await self._ours(self.platform.make_secret(self.held, operation, secret))
        for metered in wanted.usage:
            await self._tell_usage(metered.usage)
        for told in report_parts(wanted.report()) if tells else ():  # it says of those that they are done
            await self._ours(self.platform.report(self.held, told, operation))
            self._shown_at.pop(operation.id, None)
        await self._make_tasks(operation, wanted.tasks)
        if wanted.finish is not None:
            await self._finish(operation, wanted.finish)
        self._mistakes.pop(operation.id, None)

    async def _tell_usage(self, usage: Sequence[Usage]) -> None:
        """What was metered; a record that is stored with another content stays as it is, and holds up nothing."""
        try:
            await self._ours(self.platform.report_usage(self.held, usage))
        except MooringError as error:
            if error.code != "conflict":
                raise
            if len(usage) == 1:
                log.error("what was metered is stored otherwise: %s", error, extra={"record_id": usage[0].record_id})
                return
            for each in usage:
                await self._tell_usage((each,))

    async def _make_tasks(self, operation: Operation | None, tasks: Sequence[TaskRequest]) -> None:
        """Many at once, within bounds; the first refusal is told when all have been tried."""
        outcomes = await asyncio.gather(
            *(self._make_part(operation, each) for each in task_batches(tasks)), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _make_part(self, operation: Operation | None, tasks: Sequence[TaskRequest]) -> None:
        wishes = [task_body(each) for each in tasks]
        async with self._side_by_side:
            if len(wishes) == 1:
                made = await self._ours(self.platform.create_task(self.held, operation, wishes[0]))
                log.debug("task %s for %s", made.id, made.step, extra={"task_id": made.id, "step": made.step})
                return
            outcomes = await self._ours(self.platform.create_tasks(self.held, operation, wishes))
        for each in outcomes:
            if each.refusal is not None:
                raise each.refusal.error()
            if each.task is not None:
                log.debug("task %s for %s", each.task.id, each.step, extra={"task_id": each.task.id, "step": each.step})

    async def _finish(self, operation: Operation, end: Finish) -> None:
        told: dict[str, Any] = {"outcome": end.outcome, "evidence": dict(end.evidence)}
        if end.output is not None:
            told["output"] = dict(end.output)
        if end.failure is not None:
            told["failure"] = end.failure.plain()
        await self._ours(self.platform.finish(self.held, operation, told))
        failure = {} if end.failure is None else {"code": end.failure.code, "detail": end.failure.detail}
        log.info("%s %s %s", operation.kind, operation.id, end.outcome, extra=failure)

    async def _refused(self, operation: Operation, error: MooringError) -> None:
        """What the platform does not take: an old view is read again a few times, anything else ends the operation."""
        mistakes = self._mistakes[operation.id] = self._mistakes.get(operation.id, 0) + 1
        log.warning("refused: %s", error, extra={"code": error.code, "mistakes": mistakes})
        if error.code in failures.STALE and mistakes < MISTAKES_MAX:
            await asyncio.sleep(self._pause())
            return
        try:
            await self._finish(operation, Finish(outcome="failed", failure=failures.of_refusal(error)))
        except MooringError as again:
            log.warning("the failure was not taken either: %s", again, extra={"code": again.code})
            await asyncio.sleep(self._pause())

    async def _watch(self, view: InstanceView, watch: Callable[[InstanceView], Observation]) -> datetime | None:
        """Look at a running instance, and tell what is new."""
        try:
            seen = watch(view)
        except Exception:  # a mistake in the watch must not end the claim
            log.exception("the watch came to an error")
            return None
        if seen.usage:
            await self._tell_usage(seen.usage)
        known = {each.step for each in view.looks}
        looks = [TaskRequest(each.step, each) for each in seen.looks if each.step not in known]
        try:
            if told := unrecorded_changes(view, seen):
                await self._ours(self.platform.report(self.held, told))
            await self._make_tasks(None, looks)
        except MooringError as error:
            if error.retryable or error.status == 401:
                raise
            log.warning("what was seen is refused: %s", error, extra={"code": error.code})
        # Not all at once: many instances may have been claimed in one moment.
        pause = self.adapter.watch_seconds * random.uniform(0.8, 1.2)
        return (view.now or self.clock()) + timedelta(seconds=pause)

    async def _read(self) -> Mapping[str, Any]:
        try:
            return await self._ours(self.platform.read(self.held))
        except MooringError as error:
            if error.code == "not_found":  # of another project, or gone: nothing that we may touch
                raise ClaimLost from error
            raise

    async def _ours(self, call: Awaitable[Result]) -> Result:
        """A call under our fence; a refusal of the fence ends the work on this instance."""
        try:
            return await call
        except MooringError as error:
            if error.code == "lease_lost":
                raise ClaimLost from error
            raise


def task_batches(tasks: Sequence[TaskRequest]) -> list[list[TaskRequest]]:
    """The tasks of each request: a member's stay together and in order, since a node does them in that order.

    What of one member is too much for a request is due in the next round.
    """
    of_member: dict[str, list[TaskRequest]] = {}
    for each in tasks:
        of_member.setdefault(each.task.member_id, []).append(each)
    parts: list[list[TaskRequest]] = []
    for mine in of_member.values():
        if parts and len(parts[-1]) + len(mine) <= TASKS_MAX:
            parts[-1] += mine
        else:
            parts.append(mine[:TASKS_MAX])
    return parts


def task_body(wanted: TaskRequest) -> dict[str, Any]:
    """A task as the platform is asked for it."""
    task = wanted.task
    wish: dict[str, Any] = {
        "step": wanted.name,
        "member_id": task.member_id,
        "type": task.type,
        "arguments": dict(task.arguments),
    }
    if task.grants:
        wish["grants"] = [dict(each) for each in task.grants]
    if task.lifetime_seconds is not None:
        wish["lifetime_seconds"] = task.lifetime_seconds
    return wish


def action_name(operation: Operation) -> str:
    """The action that an operation asks for."""
    return str(operation.request.get("action") or operation.request.get("name") or "")


def _unknown_action(name: str) -> Planner:
    def plan(view: InstanceView, operation: Operation) -> Plan:
        failure = Failure("adapter_error", f"this adapter knows no action {name!r}")
        return Plan((Finish(outcome="failed", failure=failure),))

    return plan


def report_parts(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A long report in several, the steps behind the members: what is noted as done has been told then."""
    if not told:
        return []
    if all(len(told.get(name, ())) <= LISTED_MAX for name in ("members", "steps")):
        return [dict(told)]
    first = {name: value for name, value in told.items() if name not in ("members", "steps")}
    lists = [
        {name: told[name][start : start + LISTED_MAX]}
        for name in ("members", "steps")
        for start in range(0, len(told.get(name, ())), LISTED_MAX)
    ]
    return [*([first] if first else []), *lists]


def unrecorded_changes(view: InstanceView, seen: Observation) -> dict[str, Any]:
    """What a look found that is not recorded so already."""
    told: dict[str, Any] = {}
    members = [each for each in (_member_changes(view, seen_member) for seen_member in seen.members) if each]
    if members:
        told["members"] = members
    instance = view.instance
    whole: dict[str, Any] = {}
    if seen.health is not None and seen.health != instance.health:
        whole["health"] = seen.health
        if seen.health_detail is not None:
            whole["health_detail"] = seen.health_detail
    if seen.detail is not None and dict(seen.detail) != instance.adapter_detail:
        whole["detail"] = dict(seen.detail)
    if whole:
        told["instance"] = whole
    return told


def _member_changes(view: InstanceView, seen: MemberObservation) -> dict[str, Any] | None:
    member = view.member(seen.member_id)
    if member is None:
        return None
    told: dict[str, Any] = {}
    if seen.status is not None and seen.status != member.status:
        told["status"] = seen.status
    if seen.health is not None and seen.health != member.health:
        told["health"] = seen.health
        if seen.health_detail is not None:
            told["health_detail"] = seen.health_detail
    if seen.detail is not None and dict(seen.detail) != member.adapter_detail:
        told["detail"] = dict(seen.detail)
    if seen.failure is not None and "status" in told:
        told["failure"] = seen.failure.plain()
    return {"id": member.id, **told} if told else None
