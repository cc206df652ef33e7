"""The worker that reconciles allocations: places those that wait, and takes each of them one step further.

A tick has two halves. First everything that has a next step takes it: a sandbox that is ready makes its allocation
active, a clean receipt ends one, a failed teardown is retried when its pause is over. Then everything that waits for a
place is decided on one snapshot of the fleet, the oldest first, and each plan is claimed in one statement. When a claim
loses its race to another worker or an operator, a new snapshot decides again. An allocation without a place gets the
reason, and the worker tries again soon; it fails at its deadline.

The worker holds no state that matters between two ticks: any number of workers may run side by side, and one that dies
leaves only untaken steps behind.
"""

import random
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mooring.commands.fleet import allocation_reconcile as commands
from mooring.commands.services import Services
from mooring.core.fleet.allocation import Allocation
from mooring.core.fleet.allocation_reconcile import AllocationSnapshot, due_seconds
from mooring.core.fleet.placement import NodeSnapshot, PlacementBoard, PlacementRequest, Plan
from mooring.core.fleet.placement_explanation import AllowedChoices, explain
from mooring.core.fleet.placement_forecast import placement_request
from mooring.core.kernel.event import Event
from mooring.storage.fleet import placement
from mooring.storage.fleet.placement import UnplacedAllocation
from mooring.workers.loop import WakePace, is_of_app
from mooring.workers.reconcile_loop import Reconciled, ReconcileLoop, run_concurrently

PACE_SECONDS: Final = 0.05  # events come by the thousand; one pass answers all of them
WAIT_SECONDS: Final = 2.0  # how soon placement is tried again when nothing has changed
WAIT_SECONDS_MAX: Final = 30.0
BATCH: Final = 200
REQUESTED_MAX: Final = 20_000
ROUNDS_MAX: Final = 5
NODES_PER_CHUNK: Final = 16
REASON_LENGTH_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class PlacementUnit:
    """What is placed together: one allocation, or those of a group that must share a node."""

    waiting: tuple[UnplacedAllocation, ...]

    @property
    def allocations(self) -> tuple[Allocation, ...]:
        return tuple(each.allocation for each in self.waiting)

    def requests(self) -> tuple[PlacementRequest, ...]:
        return tuple(placement_request(each.allocation, each.node_id) for each in self.waiting)


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """A unit and the places that the board found for it, not claimed yet."""

    unit: PlacementUnit
    plan: Plan

    @property
    def node_id(self) -> str:
        return self.plan[0].node_id


def units_of(waiting: Sequence[UnplacedAllocation]) -> list[PlacementUnit]:
    """Group what is placed together; the units are in the order of the oldest allocation of each."""
    groups: dict[str, list[UnplacedAllocation]] = {}
    for each in waiting:
        key = str(each.allocation.group_id) if each.same_node else each.allocation.id
        groups.setdefault(key, []).append(each)
    return [PlacementUnit(tuple(members)) for members in groups.values()]


class AllocationReconciler:
    """Takes allocations from requested to released."""

    name = "runtime"
    poll_interval_seconds = 5.0

    def __init__(self, services: Services) -> None:
        self._services = services
        self._pace = WakePace(PACE_SECONDS)
        self._requested_mark: tuple[int, str] = (0, "")
        self._placed_at = 0.0
        self._placing_seconds = 0.0
        self._changed = True  # something was requested or freed since the last placement
        database = services.database
        self._loop = ReconcileLoop[AllocationSnapshot](
            Reconciled(
                noun="allocation",
                due=lambda now, after: placement.due(database, now, after, BATCH),
                snapshots=lambda now, ids: placement.allocation_snapshots(database, ids),
                id_of=lambda snapshot: snapshot.allocation.id,
                step=lambda snapshot: commands.step(services, snapshot),
            ),
            services.clock,
        )

    def wants(self, event: Event) -> bool:
        """Everything but the tasks of apps: those move no allocation."""
        return not is_of_app(event)

    async def tick(self) -> float | None:
        """Take every step that is due, then place; returns in how many seconds something is due again, or None."""
        async with self._pace.turn():
            moved = await self.advance()
            waiting = await self._place_if_due(freed=moved > 0)
            retry = await placement.next_retry(self._services.database)
        now = self._services.clock.now()
        again = [] if retry is None else [max(0.0, (retry - now).total_seconds())]
        return min([*again, *waiting], default=None)

    async def close(self) -> None:
        """Nothing to hand back: the worker holds no leases."""

    async def advance(self) -> int:
        """Take every next step there is; returns how many were taken."""
        return await self._loop.run()

    async def place(self) -> list[Allocation]:
        """Find places for everything that waits; returns the allocations that are still without one."""
        full: set[str] = set()
        left: list[Allocation] = []
        for _ in range(ROUNDS_MAX):
            waiting = await placement.requested(self._services.database, REQUESTED_MAX)
            if not waiting:
                return []
            facts = sorted({need["fact"] for each in waiting for need in each.allocation.needs})
            snapshot = await placement.snapshot(self._services.database, with_facts=bool(facts))
            board = PlacementBoard([_without_full(each, full) for each in snapshot], facts)
            blocked, planned = list[PlacementUnit](), list[PlannedUnit]()
            for unit in units_of(waiting):
                plan = board.place(unit.requests())
                if plan is None:
                    blocked.append(unit)
                else:
                    board.claim(plan)
                    planned.append(PlannedUnit(unit, plan))
            lost = await self._claim(planned, full)
            left = [each for unit in blocked for each in unit.allocations]
            if not lost:
                await self._explain(board, blocked)
                return left
        return left

    async def _place_if_due(self, *, freed: bool) -> list[float]:
        """Place when something was requested or freed, otherwise now and then; returns when to try again, if ever.

        A snapshot of many nodes takes time, so the pauses grow with it: the worker pauses at least as long as the last
        placement took, and five times as long when nothing has changed.
        """
        services, rested = self._services, time.monotonic() - self._placed_at
        mark = await placement.requested_mark(services.database)
        if not mark[0]:
            self._requested_mark = mark
            return []
        self._changed = self._changed or freed or mark != self._requested_mark
        took = self._placing_seconds
        pause = min(took if self._changed else max(WAIT_SECONDS, 5 * took), WAIT_SECONDS_MAX)
        if rested < pause:
            return [pause - rested]
        begun, self._changed = time.monotonic(), False
        left = await self.place()
        self._placed_at = time.monotonic()
        self._placing_seconds = self._placed_at - begun
        self._requested_mark = await placement.requested_mark(services.database)
        now = services.clock.now()
        dues = [each for allocation in left if (each := due_seconds(allocation, now)) is not None]
        return [min([max(WAIT_SECONDS, 5 * self._placing_seconds), *dues])] if left else []

    async def _claim(self, planned: Sequence[PlannedUnit], full: set[str]) -> int:
        """Claim the plans; returns how many claims failed although their allocations still wait.

        The claims of one node follow each other, because all of them change the node's networks; nodes are claimed side
        by side. Other workers make the same plans: so each worker starts at a random node, and before each chunk it
        drops what others have placed meanwhile.
        """
        by_node: dict[str, list[PlannedUnit]] = {}
        for each in planned:
            by_node.setdefault(each.node_id, []).append(each)
        nodes = list(by_node.values())
        first, lost = random.randrange(len(nodes) or 1), 0
        rotated = [*nodes[first:], *nodes[:first]]
        for begin in range(0, len(rotated), NODES_PER_CHUNK):
            chunk = rotated[begin : begin + NODES_PER_CHUNK]
            ids = [allocation.id for claims in chunk for each in claims for allocation in each.unit.allocations]
            waiting = await placement.still_requested(self._services.database, ids) if begin else set(ids)
            lost += sum(await run_concurrently([self._claim_on_node(claims, waiting, full) for claims in chunk]))
        return lost

    async def _claim_on_node(self, planned: Sequence[PlannedUnit], waiting: set[str], full: set[str]) -> int:
        lost = 0
        for each in planned:
            if all(allocation.id in waiting for allocation in each.unit.allocations):
                outcome = await commands.claim(self._services, each.unit.allocations, each.plan)
                lost += not outcome.done
                if outcome.full:
                    full.add(each.node_id)
        return lost

    async def _explain(self, board: PlacementBoard, blocked: Sequence[PlacementUnit]) -> None:
        """Record for each allocation why it has no place, and fail those that are past their deadline."""
        shared = not any(standing.node.single_project for standing in board)
        reasons: dict[tuple[object, ...], str] = {}
        steps: list[Awaitable[int]] = []
        for unit in blocked:
            requests = unit.requests()
            # Equal requests have the same reason; on nodes of a single project it also depends on the project.
            key = tuple(replace(each, id="", project_id="" if shared else each.project_id) for each in requests)
            if key not in reasons:
                answer = explain(board, requests, AllowedChoices())
                because = answer.because[:REASON_LENGTH_MAX]
                reasons[key] = f"no room: {because}; what would help: {answer.smallest_change}"
            steps += [commands.keep_waiting(self._services, each, reasons[key]) for each in unit.allocations]
        await run_concurrently(steps)


def _without_full(node: NodeSnapshot, full: set[str]) -> NodeSnapshot:
    """The node, refusing work if a claim found that it has no free network."""
    return replace(node, refuses=node.refuses or "without a free network") if node.id in full else node
