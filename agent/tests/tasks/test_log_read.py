"""`log.read` on real programs: it waits beside its owner's other tasks, survives a restart, and is bounded."""

import base64
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent.tests.support.fake_platform import ALLOCATION, CREATE, FakePlatform
from agent.tests.support.supervisors import until
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import TaskResult
from mooring_agent.hosts.contract import HostFailure, LogRequest, Owner
from mooring_agent.hosts.process import ProcessHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.log_read import LogReadHandler
from mooring_agent.tasks.room import Room, RoomLimits
from mooring_agent.tasks.verifier import TaskRefused
from tests.support.rows import every_row

pytestmark = pytest.mark.anyio
OWNER = f"{ALLOCATION}/mem_1"
TALKS = "echo one; while read -r line; do echo $line; done < pipe; exec sleep 1000"
"""Prints what is written into a pipe, so that a test decides when there is more."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class LogMachine:
    """A process host with an agent's executor, which can be restarted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fake_platform = FakePlatform()
        self.host = ProcessHost(directory / "host", f"node_{uuid.uuid4().hex}")
        self.start()

    def start(self) -> None:
        """Start an agent on this machine."""
        self.journal = Journal(self.directory / "journal.sqlite")
        handlers = {**HANDLERS, **LogReadHandler().handlers()}
        self.executor = Executor(self.host, self.journal, make_keys(), time.time, lambda: None, 1, handlers)

    def begin(self, type: str, arguments: dict[str, Any], owner: str = OWNER) -> str:
        """Accept a task; returns its id."""
        task = self.fake_platform.task(type, arguments, owner=owner)
        self.executor.accept(task)
        return str(task.task_id)

    async def do(self, type: str, arguments: dict[str, Any], owner: str = OWNER) -> TaskResult:
        """Run one task to its end, whatever else is running."""
        return await self.ended(self.begin(type, arguments, owner))

    async def ended(self, task_id: str) -> TaskResult:
        await until(lambda: task_id not in self.executor.tracked)
        entry = self.journal.find(task_id)
        assert entry is not None
        assert entry.result is not None
        return entry.result


def text_of(result: TaskResult) -> str:
    """The content of a log read."""
    assert result.outcome == "succeeded", result.failure
    return base64.b64decode(result.result["content_base64"]).decode()


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LogMachine]:
    """A machine with a service that has printed one word, and prints more on demand."""
    made = LogMachine(tmp_path)
    try:
        await made.do("sandbox.create", CREATE, ALLOCATION)
        await made.do("process.run", {"argv": ["mkfifo", "pipe"]})
        await made.do("service.start", {"name": "web", "argv": ["sh", "-c", TALKS], "restart": {"policy": "never"}})
        assert text_of(await made.do("log.read", read(offset=0, wait_seconds=25))) == "one\n"
        yield made
    finally:
        await made.executor.stop()
        await made.host.destroy(ALLOCATION)
        made.journal.close()


def read(**other: Any) -> dict[str, Any]:
    """The arguments of a read."""
    return {"name": "web", "kind": "service", **other}


async def test_a_read_that_waits_holds_up_nothing_and_ends_as_soon_as_there_is_more(machine: LogMachine) -> None:
    first = await machine.do("log.read", read(offset=0, wait_seconds=25))
    assert text_of(first) == "one\n"
    waiting = machine.begin("log.read", read(offset=first.result["next_offset"], wait_seconds=25))
    for _ in range(2):  # the executor does one ordered task at a time, and of this very owner
        ran = await machine.do("process.run", {"argv": ["true"]})
        assert ran.outcome == "succeeded"
        assert waiting in machine.executor.tracked
    await machine.do("process.run", {"argv": ["sh", "-c", "echo two > pipe"]})
    more = await machine.ended(waiting)
    assert text_of(more) == "two\n"
    assert (more.result["offset"], more.result["next_offset"], more.result["size"]) == (4, 8, 8)


async def test_a_log_is_read_after_a_restart_of_the_agent_and_after_the_service_was_stopped(
    machine: LogMachine,
) -> None:
    assert text_of(await machine.do("log.read", read(offset=0, wait_seconds=25))) == "one\n"
    cut_off = machine.begin("log.read", read(offset=4, wait_seconds=25))
    await until(lambda: machine.executor.tracked[cut_off].has_intent)
    await machine.executor.stop()
    machine.journal.close()
    machine.start()
    await machine.executor.resume()
    await machine.do("process.run", {"argv": ["sh", "-c", "echo two > pipe"]})
    assert text_of(await machine.ended(cut_off)) == "two\n"
    await machine.do("service.stop", {"name": "web", "grace_seconds": 0})
    assert text_of(await machine.do("log.read", read())) == "one\ntwo\n"
    assert text_of(await machine.do("log.read", read(tail_lines=1))) == "two\n"


async def test_a_read_ends_with_its_owner(machine: LogMachine) -> None:
    waiting = machine.begin("log.read", read(offset=4, wait_seconds=25))
    torn = await machine.do("teardown.verify", {})
    ended = await machine.ended(waiting)
    assert torn.result["clean"] is True
    assert ended.outcome == "cancelled"
    with pytest.raises(TaskRefused) as refused:
        machine.begin("log.read", read())
    assert refused.value.reason == "owner_closed"


async def test_what_is_not_there_and_what_is_another_owners_is_not_found(machine: LogMachine) -> None:
    for arguments, owner in (
        ({"name": "db", "kind": "service"}, OWNER),
        (read(), f"{ALLOCATION}/mem_2"),
        ({"name": "web", "kind": "container"}, OWNER),
    ):
        ended = await machine.do("log.read", arguments, owner)
        assert ended.failure is not None
        assert ended.failure.code == "not_found"


@every_row("name", ["../mem_2/logs/web", "..", "a/b", "web\n", "", "WEB", "a" * 64, "we\u202eb"])
async def test_a_name_that_is_a_path_is_refused_before_anything_is_opened(machine: LogMachine, name: str) -> None:
    with pytest.raises(TaskRefused) as refused:
        machine.begin("log.read", {"name": name, "kind": "service"})
    assert refused.value.reason == "bad_arguments"
    if "/" in name or "." in name:
        with pytest.raises(HostFailure) as kept_out:
            await machine.host.read_log_part(Owner(ALLOCATION, "mem_1"), name, LogRequest(0, 0, 1_024))
        assert kept_out.value.code == "path_refused"


@every_row(
    "bound", [{"max_bytes": 262_145}, {"max_bytes": 0}, {"wait_seconds": 26}, {"tail_lines": 10_001}, {"offset": -1}]
)
async def test_sizes_and_times_are_bounded(machine: LogMachine, bound: dict[str, Any]) -> None:
    with pytest.raises(TaskRefused) as refused:
        machine.begin("log.read", read(**bound))
    assert refused.value.reason == "bad_arguments"


async def test_too_many_concurrent_reads_are_refused(machine: LogMachine) -> None:
    machine.executor._rooms["read"] = Room(RoomLimits(allocation=2, tenant=2))
    waiting = [machine.begin("log.read", read(offset=4, wait_seconds=25)) for _ in range(2)]
    await until(lambda: all(machine.executor.tracked[each].has_intent for each in waiting))
    third = await machine.do("log.read", read())
    assert third.failure is not None
    assert third.failure.code == "capacity"
    for each in waiting:
        machine.executor.cancel(each)
    assert (await machine.ended(waiting[0])).outcome == "cancelled"
    await machine.ended(waiting[1])
    assert text_of(await machine.do("log.read", read())) == "one\n"
