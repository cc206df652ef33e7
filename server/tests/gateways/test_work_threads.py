"""Threads that tenants share: each gets its turn, and nobody gets more than the budget."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.work_threads import WAITING_PER_TENANT_MAX, WorkThreads
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def threads() -> AsyncIterator[WorkThreads]:
    made = WorkThreads()
    yield made
    made.close()


async def test_a_result_and_an_error_come_back_to_their_caller(threads: WorkThreads) -> None:
    assert await threads.run("acme", sum, [1, 2]) == 3
    with pytest.raises(ZeroDivisionError):
        await threads.run("acme", divmod, 1, 0)
    assert await threads.run("acme", threading.current_thread) is not threading.current_thread()


async def test_a_tenant_has_one_thread_even_when_its_callers_hang_up(threads: WorkThreads) -> None:
    go_on, running = threading.Event(), []

    def hold() -> None:
        running.append(1)
        go_on.wait(30)

    try:
        held = [asyncio.create_task(threads.run("acme", hold)) for _ in range(3)]
        await until(lambda: len(running) == 1)
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        later = asyncio.create_task(threads.run("acme", hold))
        assert await threads.run("other", len, "ab") == 2
        assert await threads.run("third", len, "abc") == 3
        assert len(running) == 1, "the second thread is never the first tenant's"
    finally:
        go_on.set()
    await later
    assert len(running) == 2, "those whose caller hung up while they waited never ran"


async def test_too_many_waiting_jobs_are_refused(threads: WorkThreads) -> None:
    go_on = threading.Event()
    try:
        held = [asyncio.create_task(threads.run("acme", go_on.wait, 30)) for _ in range(WAITING_PER_TENANT_MAX + 1)]
        await until(lambda: len(threads._waiting.get("acme", ())) == WAITING_PER_TENANT_MAX)
        with pytest.raises(Refusal) as refused:
            await threads.run("acme", len, "")
        assert refused.value.code is Code.RATE_LIMITED
        assert await threads.run("other", len, "") == 0
    finally:
        go_on.set()
    await asyncio.gather(*held)


async def test_a_tenant_that_used_up_its_processor_time_has_to_wait() -> None:
    def burn() -> None:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.02:
            pass

    threads = WorkThreads(seconds_burst=0.01)
    try:
        await threads.run("acme", burn)
        with pytest.raises(Refusal, match="used up its time") as refused:
            await threads.run("acme", len, "")
        assert int(str(refused.value.details["retry_after_seconds"])) >= 1
        assert await threads.run("other", len, "") == 0
    finally:
        threads.close()
