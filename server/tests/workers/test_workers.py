"""How workers are woken, and how soon each looks again."""

import asyncio
import time
from datetime import UTC, datetime

import pytest

from mooring.core.kernel.event import BEGINNING, Event
from mooring.core.kernel.event_types import EventType
from mooring.core.kernel.ids import Prefix, made_at_milliseconds
from mooring.gateways.clock import SystemClock
from mooring.gateways.telemetry.instruments import Telemetry
from mooring.workers.loop import QUICK_PASSES, QUIET_SECONDS, WakePace, WorkerLoop, is_of_app
from tests.support.waiting import turns


def event(kind: EventType, **data: object) -> Event:
    return Event(
        BEGINNING,
        "evt_1",
        kind.value,
        "task",
        "tsk_1",
        1,
        "ten_1",
        "prj_1",
        None,
        None,
        "system",
        "system",
        "cor_1",
        "0" * 32,
        datetime.now(UTC),
        dict(data),
    )


def test_the_first_looks_after_a_quiet_time_follow_each_other_closely_and_the_others_do_not() -> None:
    pace, now = WakePace(0.05), 100.0
    waits = []
    for _ in range(QUICK_PASSES + 5):
        waits.append(pace.wait_seconds(now))
        now += waits[-1]
        pace.passed(now, now)
    assert waits[0] == 0
    assert max(waits[: QUICK_PASSES - 1]) < 0.01
    assert min(waits[QUICK_PASSES:]) == pytest.approx(0.05)
    now += QUIET_SECONDS + 0.1
    assert pace.wait_seconds(now) == 0
    pace.passed(now, now)
    assert pace.wait_seconds(now) < 0.01


def test_a_look_that_takes_long_is_followed_by_a_rest_within_bounds() -> None:
    pace = WakePace(0.05, ratio=2, rest_seconds=0.25)
    pace.passed(100.0, 100.1)
    assert pace.wait_seconds(100.1) == pytest.approx(0.2)
    pace.passed(101.0, 103.0)
    assert pace.wait_seconds(103.0) == pytest.approx(0.25)


@pytest.mark.anyio
async def test_a_look_that_comes_to_an_error_is_followed_by_a_pause_too() -> None:
    pace = WakePace(600.0)
    for _ in range(QUICK_PASSES):
        with pytest.raises(LookupError):
            async with pace.turn():
                raise LookupError
    assert pace.wait_seconds(time.monotonic()) > 500


@pytest.mark.parametrize(
    ("kind", "of", "is_apps"),
    [
        (EventType.TASK_QUEUED, "sandbox.create", True),  # nothing follows before it is over
        (EventType.TASK_FINISHED, "process.run", True),
        (EventType.TASK_FINISHED, "container.launch", True),
        (EventType.TASK_FINISHED, "sandbox.create", False),
        (EventType.TASK_FINISHED, "sandbox.destroy", False),
        (EventType.TASK_FINISHED, "teardown.verify", False),
        (EventType.ALLOCATION_ACTIVE, "", False),
        (EventType.OPERATION_CHANGED, "", False),
    ],
)
def test_who_waits_for_nodes_is_not_woken_by_what_apps_do_there(kind: EventType, of: str, is_apps: bool) -> None:
    assert is_of_app(event(kind, type=of)) is is_apps


class CountingWorker:
    """A worker that counts its ticks and wants one kind of event."""

    name = "counting"
    poll_interval_seconds = 600.0

    def __init__(self) -> None:
        self.ticks = 0
        self.ticked = asyncio.Event()

    def wants(self, event: Event) -> bool:
        """One kind."""
        return event.type == EventType.ALLOCATION_ACTIVE

    async def tick(self) -> float | None:
        """One more."""
        self.ticks += 1
        self.ticked.set()
        return None

    async def close(self) -> None:
        """Nothing is held."""


@pytest.mark.anyio
async def test_a_worker_is_woken_only_by_events_that_it_wants() -> None:
    worker = CountingWorker()
    loop = WorkerLoop(worker, Telemetry().worker_tick)
    async with asyncio.timeout(60), asyncio.TaskGroup() as running:
        running.create_task(loop.run())
        await worker.ticked.wait()
        worker.ticked.clear()
        loop.wake(event(EventType.TASK_QUEUED))
        await turns(20)
        assert worker.ticks == 1
        loop.wake(event(EventType.ALLOCATION_ACTIVE))
        await worker.ticked.wait()
        assert worker.ticks == 2
        loop.stop()


def test_ids_that_are_made_one_after_the_other_sort_in_that_order() -> None:
    clock = SystemClock()
    made = [clock.mint(Prefix.TASK) for _ in range(20_000)]
    assert len(set(made)) == len(made)
    assert made == sorted(made)


def test_a_clock_that_goes_back_a_little_is_waited_for_and_one_that_was_wrong_is_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, now = SystemClock(), [1_700_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: now[0] * 1_000_000)
    made = [clock.mint(Prefix.TASK)]
    for moved in (-1, -400, 0, 3):
        now[0] += moved
        made.append(clock.mint(Prefix.TASK))
    assert made == sorted(made)
    now[0] -= 3_600_000
    assert made_at_milliseconds(clock.mint(Prefix.TASK)) == now[0]
