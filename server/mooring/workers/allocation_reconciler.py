"""The runtime worker: finds places for allocations, and takes each of them one step further as soon as it can go.

A tick has two halves. First everything that has a next step takes it: a sandbox that stands makes its allocation
active, a clean receipt ends one, a teardown that failed is tried again when its pause is over. Then all that waits for
a place is decided on one snapshot, the oldest first; what is decided is claimed, one statement for each. Whoever loses
a claim, to another worker or to an operator, is decided again on a new snapshot. What has no place is told why, and is
looked at again soon; when its time is over it fails.

Nothing is held between two ticks that matters: any number of workers may do this side by side, and one that dies
leaves nothing behind but steps that were not taken yet.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mooring.commands.fleet import allocation_reconcile as commands
from mooring.commands.services import Services
from mooring.core.catalog.compatibility import CapacityShape
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import AllocationSnapshot, due_seconds
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, PlacementRequest, Plan
from mooring.core.fleet.placement_explanation import AllowedChoices, explain
from mooring.core.kernel.errors import Refusal
from mooring.core.kernel.event import Event
from mooring.storage.fleet import placement
from mooring.storage.fleet.placement import UnplacedAllocation
from mooring.workers.loop import WakePace, is_of_app

PACE_SECONDS: Final = 0.05  # events come by the thousand; one look answers for all of them
WAIT_SECONDS: Final = 2.0  # how soon what has no place is looked at again, when nobody came or went
WAIT_SECONDS_MAX: Final = 30.0
ROUND_SECONDS: Final = 20.0
BATCH: Final = 200
REQUESTED_MAX: Final = 20_000
ROUNDS_MAX: Final = 5
REST_SECONDS: Final = 30.0
CHUNK: Final = 16
AT_ONCE: Final = 4
SAID_MAX: Final = 300

log = logging.getLogger("mooring.runtime")


@dataclass(frozen=True, slots=True)
class PlacementUnit:
    """What is placed together: one allocation, or those of a group that stay on one machine."""

    waiting: tuple[UnplacedAllocation, ...]

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        """The allocations themselves."""
        return tuple(each.allocation for each in self.waiting)

    def requests(self) -> tuple[PlacementRequest, ...]:
        """What they ask the board for."""
        return tuple(
            PlacementRequest(
                each.allocation.id,
                each.allocation.project_id,
                CapacityShape(each.allocation.shape),
                each.allocation.gpu_model,
                each.allocation.gpu_count,
                tuple(each.allocation.regions),
                node_id=each.node_id,
            )
            for each in self.waiting
        )


def units_of(waiting: Sequence[UnplacedAllocation]) -> list[PlacementUnit]:
    """What is placed together, in the order of the oldest of each."""
    groups: dict[str, list[UnplacedAllocation]] = {}
    for each in waiting:
        key = str(each.allocation.group_id) if each.same_node else each.allocation.id
        groups.setdefault(key, []).append(each)
    return [PlacementUnit(tuple(members)) for members in groups.values()]


class AllocationReconciler:
    """Takes allocations from asked for to gone."""

    name = "runtime"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pace = WakePace(PACE_SECONDS)
        self._mark: tuple[int, str] = (0, "")
        self._placed_at = 0.0
        self._took = 0.0
        self._news = True
        self._resting: dict[str, float] = {}  # allocations that met an error, and until when they are left alone

    def wants(self, event: Event) -> bool:
        """What apps do on nodes moves no allocation."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Everything that can go on goes on; returns when something else will be due."""
        async with self._pace.look():
            moved = await self.advance()
            waiting = await self._place_if_due(freed=moved > 0)
            retry = await placement.next_retry(self._services.database)
        now = self._services.clock.now()
        again = [] if retry is None else [max(0.0, (retry - now).total_seconds())]
        return min([*again, *waiting], default=None)

    async def close(self) -> None:
        """Nothing is held between two ticks."""

    async def advance(self) -> int:
        """Take every next step there is, until a whole pass finds none; returns how many were taken."""
        services, until = self._services, time.monotonic() + ROUND_SECONDS
        self._resting = {each: end for each, end in self._resting.items() if end > time.monotonic()}
        taken, in_this_pass, after = 0, 0, ""
        while time.monotonic() < until:
            ids = await placement.due(services.database, services.clock.now(), after, BATCH)
            if not ids:
                if not in_this_pass:
                    break
                in_this_pass, after = 0, ""
                continue
            seen = await placement.allocation_snapshots(services.database, ids)
            done = sum(await _side_by_side([self._step(each) for each in seen]))
            taken, in_this_pass, after = taken + done, in_this_pass + done, ids[-1]
        return taken

    async def place(self) -> list[Allocation]:
        """Find places for all that waits; returns what is still without one."""
        full: set[str] = set()
        left: list[Allocation] = []
        for _ in range(ROUNDS_MAX):
            waiting = await placement.requested(self._services.database, REQUESTED_MAX)
            if not waiting:
                return []
            nodes = [_closed(each, full) for each in await placement.snapshot(self._services.database)]
            board, blocked, claims = PlacementBoard(nodes), list[PlacementUnit](), list[tuple[PlacementUnit, Plan]]()
            for unit in units_of(waiting):
                plan = board.place(unit.requests())
                if plan is None:
                    blocked.append(unit)
                else:
                    board.claim(plan)
                    claims.append((unit, plan))
            lost = await self._claim(claims, full)
            left = [each for unit in blocked for each in unit.allocations]
            if not lost:
                await self._tell(board, blocked)
                return left
        return left

    async def _place_if_due(self, *, freed: bool) -> list[float]:
        """Place when somebody came or something became free, otherwise now and then; returns when to look again.

        A snapshot of many machines takes its time. So the pauses grow with it: the worker rests at least as long as it
        took to place, and five times as long where nothing has changed.
        """
        services, rested = self._services, time.monotonic() - self._placed_at
        mark = await placement.requested_mark(services.database)
        if not mark[0]:
            self._mark = mark
            return []
        self._news = self._news or freed or mark != self._mark
        pause = min(self._took if self._news else max(WAIT_SECONDS, 5 * self._took), WAIT_SECONDS_MAX)
        if rested < pause:
            return [pause - rested]
        begun, self._news = time.monotonic(), False
        left = await self.place()
        self._placed_at = time.monotonic()
        self._took = self._placed_at - begun
        self._mark = await placement.requested_mark(services.database)
        now = services.clock.now()
        dues = [each for allocation in left if (each := due_seconds(allocation, now)) is not None]
        return [min([max(WAIT_SECONDS, 5 * self._took), *dues])] if left else []

    async def _claim(self, claims: Sequence[tuple[PlacementUnit, Plan]], full: set[str]) -> int:
        """Make plans true; returns how many were not, although what they are for still waits.

        What goes to one node is claimed one after the other, since all of it touches the node's networks; nodes are
        dealt with side by side. Workers plan alike: so each begins somewhere else, and now and then drops what others
        have done.
        """
        by_node: dict[str, list[tuple[PlacementUnit, Plan]]] = {}
        for unit, plan in claims:
            by_node.setdefault(plan[0].node_id, []).append((unit, plan))
        nodes = list(by_node.values())
        first, lost = random.randrange(len(nodes) or 1), 0
        turned = [*nodes[first:], *nodes[:first]]
        for begin in range(0, len(turned), CHUNK):
            chunk = turned[begin : begin + CHUNK]
            ids = [each.id for there in chunk for unit, _ in there for each in unit.allocations]
            left = await placement.still_requested(self._services.database, ids) if begin else set(ids)
            lost += sum(await _side_by_side([self._claim_on_node(there, left, full) for there in chunk]))
        return lost

    async def _claim_on_node(self, claims: Sequence[tuple[PlacementUnit, Plan]], left: set[str], full: set[str]) -> int:
        lost = 0
        for unit, plan in claims:
            if all(each.id in left for each in unit.allocations):
                outcome = await commands.claim(self._services, unit.allocations, plan)
                lost += not outcome.done
                if outcome.full:
                    full.add(plan[0].node_id)
        return lost

    async def _tell(self, board: PlacementBoard, blocked: Sequence[PlacementUnit]) -> None:
        """Say to each that has no place why, and fail those whose time is over."""
        shared = not any(standing.node.single_project for standing in board)
        said: dict[tuple[object, ...], str] = {}
        telling: list[Awaitable[int]] = []
        for unit in blocked:
            requests = unit.requests()
            key = tuple(replace(each, id="", project_id="" if shared else each.project_id) for each in requests)
            if key not in said:
                answer = explain(board, requests, AllowedChoices())
                said[key] = f"no room: {answer.because[:SAID_MAX]}; what would help: {answer.smallest_change}"
            telling += [commands.keep_waiting(self._services, each, said[key]) for each in unit.allocations]
        await _side_by_side(telling)

    async def _step(self, snapshot: AllocationSnapshot) -> bool:
        """One step; an allocation that cannot go on rests for a while, and holds up no other."""
        allocation_id = snapshot.allocation.id
        if self._resting.get(allocation_id, 0.0) > time.monotonic():
            return False
        try:
            return await commands.step(self._services, snapshot)
        except Refusal as refusal:
            log.warning("allocation %s cannot go on now: %s", allocation_id, refusal.detail)
        except Exception:  # an error with one allocation must not end the others; the log has its cause
            log.exception("allocation %s cannot go on", allocation_id)
        self._resting[allocation_id] = time.monotonic() + REST_SECONDS
        return False


def _closed(node: NodeSnapshot, full: set[str]) -> NodeSnapshot:
    return replace(node, refuses=node.refuses or "without a free network") if node.id in full else node


async def _side_by_side(steps: Sequence[Awaitable[int]]) -> list[int]:
    """All of them, a few at a time; the first error is raised when all have ended."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(step: Awaitable[int]) -> int:
        async with turn:
            return await step

    results = await asyncio.gather(*(one(step) for step in steps), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, int)]
