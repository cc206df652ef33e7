"""A supervisor for a test, and checks of the machine."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mooring_agent.kernel import proc
from mooring_agent.supervisor.launcher import ensure_supervisor
from mooring_agent.supervisor.supervisor_client import ProgramSpec, SupervisorClient, SupervisorGone, SupervisorStatus
from tests.support import waiting

WAIT_SECONDS = 120.0
NEVER = {"policy": "never", "backoff_seconds": 0, "limit": 0}

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
middle = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == middle: time.sleep(0.001)
open(sys.argv[1], "w").write(str(os.getpid()))
os.rename(sys.argv[1], sys.argv[1] + ".pid")
while True: time.sleep(1000)
"""
"""A program that detaches by two forks, and writes its pid to a file when its parent is gone."""


@dataclass(frozen=True)
class RunningSupervisor:
    """A supervisor and its directories."""

    state: Path
    root: Path
    client: SupervisorClient

    async def status(self) -> SupervisorStatus:
        """Start the supervisor unless it is running."""
        return await ensure_supervisor(self.state, self.root, "mooring-init test", {"MOORING_SANDBOX": "test/test"})

    def log(self, owner: str, key: str) -> str:
        """The directory of a program's log."""
        return str(self.state / (f"label-{owner}" if owner else "allocation") / "logs" / key)


@asynccontextmanager
async def running_supervisor(directory: Path) -> AsyncIterator[RunningSupervisor]:
    """A running supervisor; afterwards nothing of it is left."""
    state, root = directory / "state", directory / "root"
    state.mkdir(exist_ok=True)
    root.mkdir(exist_ok=True)
    made = RunningSupervisor(state, root, SupervisorClient(state))
    status = await made.status()
    try:
        yield made
    finally:
        try:
            status = await made.client.status()
            await made.client.shut_down()
        except SupervisorGone:
            pass
        await until(lambda: not is_alive(status.pid))
        errors = (state / "supervisor.log").read_text()
        assert errors == "", errors


def shell(script: str, **environment: str) -> ProgramSpec:
    """A shell script as a program."""
    return ProgramSpec(("sh", "-c", script), environment)


def python(script: str, *arguments: str) -> ProgramSpec:
    """A Python script as a program."""
    return ProgramSpec((sys.executable, "-c", script, *arguments), {})


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    await waiting.until(condition, WAIT_SECONDS)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    process = proc.find_process(pid)
    return process is not None and not process.ended


async def daemon_pid(path: Path) -> int:
    """The pid that a `DAEMON` wrote."""
    written = path.with_name(path.name + ".pid")
    await until(written.exists)
    return int(written.read_text())


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Kill one process that the test started."""
    os.kill(pid, number)
