"""Log lines of the agent carry the correlation id of their task."""

import io
import logging
import time
from pathlib import Path

import pytest

from agent.tests.support.fake_platform import CREATE, FakePlatform
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.log_context import FORMAT, ContextFilter
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.journal import Journal

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_the_lines_of_a_task_have_its_correlation_id_and_nothing_of_its_secrets(tmp_path: Path) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(ContextFilter())
    handler.setFormatter(logging.Formatter(FORMAT))
    log = logging.getLogger("mooring.agent")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        fake_platform = FakePlatform()
        journal = Journal(tmp_path / "journal.sqlite")
        executor = Executor(SimulatedHost(), journal, make_keys(), time.time, lambda: None, 4)
        tasks = [
            fake_platform.task("sandbox.create", CREATE),
            fake_platform.task("process.run", {"argv": ["exit-3", "hunter2"]}),
        ]
        for task in tasks:
            executor.accept(task)
            await executor.wait_until_idle()
        log.info("something of the agent's own")
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    lines = written.getvalue().splitlines()
    for task in tasks:
        own = [line for line in lines if task.task_id in line]
        assert len(own) == 2  # it begins, and it ends
        assert all(f"correlation_id={task.correlation_id} " in line for line in own)
    assert "failed: exited" in lines[3]
    assert "correlation_id" not in lines[-1]
    assert "hunter2" not in written.getvalue()
