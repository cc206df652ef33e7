"""Threads for work that takes too long for the event loop, shared fairly among tenants.

A tenant has at most one job running, so it cannot occupy all threads, and waiting jobs of several tenants take turns.
A tenant also has a budget of processor time: Python's threads slow the event loop down while they compute, so nobody
may keep one busy for long. What is too much is refused with the time after which to try again.

What runs here is pure code of the core. It must not decode with msgspec, whose types one thread has to prepare.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mooring.core.kernel.errors import Code, Refusal

THREADS: Final = 2
WAITING_PER_TENANT_MAX: Final = 8
WAITING_MAX: Final = 64
SECONDS_BURST: Final = 10.0
SECONDS_PER_SECOND: Final = 0.2
"""The processor time that a tenant may use at once, and how fast it comes back: a fifth of one processor."""
BALANCES_MAX: Final = 10_000

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class _Job:
    tenant: str
    function: Callable[[], Any]
    done: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any
    error: BaseException | None
    seconds: float


class WorkThreads:
    """Runs pure functions in a few threads."""

    def __init__(self, *, threads: int = THREADS, seconds_burst: float = SECONDS_BURST) -> None:
        self._threads = threads
        self._seconds_burst = seconds_burst
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="work")
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()  # by tenant; the first one is next
        self._running: set[str] = set()
        self._balances: OrderedDict[str, tuple[float, float]] = OrderedDict()  # seconds left, and when that was

    async def run(self, tenant: str, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function for a tenant; refuses when the tenant, or everybody together, asks for too much."""
        left = self._balance(tenant)
        if left <= 0:
            raise _refused("this tenant has used up its time for such requests", 1 - left / SECONDS_PER_SECOND)
        lane = self._waiting.get(tenant, ())
        if len(lane) >= WAITING_PER_TENANT_MAX:
            raise _refused("this tenant has too many such requests waiting", 2)
        if sum(len(each) for each in self._waiting.values()) >= WAITING_MAX:
            raise _refused("too many such requests are waiting", 5)
        job = _Job(tenant, lambda: function(*arguments))
        self._waiting.setdefault(tenant, deque()).append(job)
        self._start_waiting()
        result: Result = await job.done
        return result

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _start_waiting(self) -> None:
        """Start jobs while a thread is free, of each tenant at most one, and let its next job wait behind others."""
        for tenant in list(self._waiting):
            if len(self._running) >= self._threads:
                return
            if tenant in self._running:
                continue
            lane = self._waiting.pop(tenant)
            while lane and lane[0].done.done():  # its caller is gone
                lane.popleft()
            if lane:
                self._start(lane.popleft())
            if lane:
                self._waiting[tenant] = lane

    def _start(self, job: _Job) -> None:
        loop = asyncio.get_running_loop()
        self._running.add(job.tenant)
        # The tenant's turn ends with the thread and not with the request: hanging up must not free a place.
        self._pool.submit(_timed, job.function).add_done_callback(
            lambda ended: None if ended.cancelled() else loop.call_soon_threadsafe(self._ended, job, ended.result())
        )

    def _ended(self, job: _Job, outcome: _Outcome) -> None:
        self._running.discard(job.tenant)
        self._balances[job.tenant] = (self._balance(job.tenant) - outcome.seconds, time.monotonic())
        self._balances.move_to_end(job.tenant)
        if len(self._balances) > BALANCES_MAX:
            self._balances.popitem(last=False)
        if not job.done.done():
            if outcome.error is not None:
                job.done.set_exception(outcome.error)
            else:
                job.done.set_result(outcome.value)
        self._start_waiting()

    def _balance(self, tenant: str) -> float:
        now = time.monotonic()
        left, at = self._balances.get(tenant, (self._seconds_burst, now))
        return min(self._seconds_burst, left + (now - at) * SECONDS_PER_SECOND)


def _timed(function: Callable[[], Any]) -> _Outcome:
    begun = time.thread_time()
    try:
        value = function()
    except Exception as error:  # noqa: BLE001  it is raised again where the result is awaited
        return _Outcome(None, error, time.thread_time() - begun)
    return _Outcome(value, None, time.thread_time() - begun)


def _refused(detail: str, seconds: float) -> Refusal:
    return Refusal(Code.RATE_LIMITED, detail, {"retry_after_seconds": max(1, int(seconds + 0.999))})
