"""Reports are sent until they are accepted: in order, under the right fence, however long the platform is away."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.tests.support.fake_platform import (
    ALLOCATION,
    AUDIENCE,
    CREATE,
    NODE,
    OTHER_ALLOCATION,
    FakePlatform,
)
from agent.tests.support.supervisors import until
from mooring_agent.agent import Agent, AgentParts, NodeRetired
from mooring_agent.control_plane.keys import make_keys
from mooring_agent.control_plane.messages import PlatformKey, decode, encode
from mooring_agent.control_plane.platform_client import PlatformClient, Unreachable
from mooring_agent.control_plane.reconnect import ReconnectBackoff
from mooring_agent.control_plane.trust import Identity
from mooring_agent.hosts.contract import FileSpec, HostFailure, Owner, ProcessSpec, RestartPolicy, ServiceState
from mooring_agent.hosts.simulated import SimulatedHost
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.reporter import CHUNK_BYTES, Reporter

pytestmark = pytest.mark.anyio
ReportVerdict = dict[str, Any]


def accept(report: dict[str, Any]) -> ReportVerdict:
    """The usual response."""
    return {"accepted": True}


@dataclass
class ReportedPlatform:
    """The platform on the wire: reachable or not, with a verdict on each report."""

    away: bool = False
    dismisses: bool = False
    answer: Callable[[dict[str, Any]], ReportVerdict] = accept
    received: list[dict[str, Any]] = field(default_factory=list)
    batches: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Handle one request."""
        if self.away:
            raise httpx.ConnectError("nobody is there", request=request)
        if request.url.path.endswith("/oauth/token"):
            if self.dismisses:
                return httpx.Response(401, json={"code": "assertion_refused", "detail": "this node was retired"})
            return httpx.Response(200, json={"access_token": "token", "expires_in": 600})
        self.batches += 1
        reports = json.loads(request.content)["reports"]
        self.received += reports
        return httpx.Response(200, json={"results": [self.answer(report) for report in reports]})

    def reported(self, kind: str) -> list[dict[str, Any]]:
        """The received reports of this kind."""
        return [report for report in self.received if report["kind"] == kind]


@dataclass
class ReporterMachine:
    """An agent's executor and reporter on a simulated host, and its platform."""

    directory: Path
    platform: ReportedPlatform = field(default_factory=ReportedPlatform)
    host: SimulatedHost = field(default_factory=SimulatedHost)
    fake_platform: FakePlatform = field(default_factory=FakePlatform)
    keys: Any = field(default_factory=make_keys)
    now: float = field(default_factory=time.time)

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[tuple[Executor, Reporter]]:
        """Run the agent until the block ends; its journal stays."""
        identity = Identity("http://platform.example", NODE, AUDIENCE, ())
        client = PlatformClient(identity, self.keys, lambda: self.now, httpx.MockTransport(self.platform))
        journal = Journal(self.directory / "journal.sqlite")
        executor = Executor(self.host, journal, self.keys, lambda: self.now, lambda: reporter.wake.set())
        reporter = Reporter(client, executor, journal, self.host, lambda: self.now)
        try:
            yield executor, reporter
        finally:
            await executor.stop()
            await client.close()
            journal.close()


async def run_one(machine: ReporterMachine, executor: Executor, argv: str = "true") -> str:
    """Run a program to its end; returns the task's id."""
    task = machine.fake_platform.task("process.run", {"argv": [argv]})
    executor.accept(task)
    await executor.wait_until_idle()
    return str(task.task_id)


async def flush(reporter: Reporter) -> None:
    """Send everything that can be sent now."""
    while await reporter.flush():
        pass


@pytest.fixture
def machine(tmp_path: Path) -> ReporterMachine:
    """A machine with a platform."""
    return ReporterMachine(tmp_path)


async def test_results_are_kept_while_the_platform_is_away_and_delivered_by_the_next_agent(
    machine: ReporterMachine,
) -> None:
    machine.platform.away = True
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        task_id = await run_one(machine, executor)
        with pytest.raises(Unreachable):
            await reporter.flush()
        assert len(reporter.journal.undelivered()) == 2
    machine.platform.away = False
    async with machine.agent() as (_, reporter):
        await flush(reporter)
        assert [each["outcome"] for each in machine.platform.reported("result")] == ["succeeded", "succeeded"]
        assert machine.platform.reported("result")[1]["task_id"] == task_id
        assert reporter.journal.undelivered() == []
        await flush(reporter)
    assert len(machine.platform.reported("result")) == 2


async def test_output_is_sent_before_the_result_also_after_a_crash_in_between(machine: ReporterMachine) -> None:
    async with machine.agent() as (executor, _):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        task_id = await run_one(machine, executor)
    async with machine.agent() as (_, reporter):
        reporting = asyncio.create_task(reporter.run())
        await until(lambda: not reporter.journal.undelivered())
        reporting.cancel()
    about = [report for report in machine.platform.received if report["task_id"] == task_id]
    assert [report["kind"] for report in about] == ["log", "result"]
    assert decode(about[0]["text"]) == f"simulated output of {task_id}\n".encode()
    assert about[0]["offset"] == 0


async def test_the_end_of_a_program_is_reported_at_once_with_the_rest_of_its_output(machine: ReporterMachine) -> None:
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        await flush(reporter)
        task_id = await run_one(machine, executor)
        batches = machine.platform.batches
        await reporter.flush()
        about = [report["kind"] for report in machine.platform.received if report["task_id"] == task_id]
        assert (about, machine.platform.batches) == (["log", "result"], batches + 1)


class TalkativeHost(SimulatedHost):
    """A simulated host whose programs print more than one report can hold."""

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        yield (b"x" * (2 * CHUNK_BYTES + 5))[offset:]


async def test_long_output_is_sent_to_its_end_before_the_result_without_a_pause(machine: ReporterMachine) -> None:
    machine.host = TalkativeHost()
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        task_id = await run_one(machine, executor)
        await flush(reporter)
        about = [report for report in machine.platform.received if report["task_id"] == task_id]
    assert [report["kind"] for report in about] == ["log", "log", "log", "result"]
    assert [len(decode(report["text"])) for report in about[:3]] == [CHUNK_BYTES, CHUNK_BYTES, 5]


class InterleavedHost(SimulatedHost):
    """A simulated host on which other programs start and end while the output of one is read."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        """Its lines, after what happens meanwhile."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        yield b"a line\n"[offset:]


class NoisyHost(SimulatedHost):
    """Every program of the first allocation has written more than a batch can carry."""

    async def read_log(self, owner: Owner, key: str, offset: int) -> AsyncIterator[bytes]:
        if owner.allocation_id == ALLOCATION:
            yield b"x" * CHUNK_BYTES
        elif not offset:
            yield b"hello\n"


async def test_a_neighbours_result_does_not_wait_behind_output_without_end(tmp_path: Path) -> None:
    machine = ReporterMachine(tmp_path, host=NoisyHost())
    async with machine.agent() as (executor, reporter):
        place = {"allocation_id": OTHER_ALLOCATION, "owner": OTHER_ALLOCATION, "tenant_id": "ten_2"}
        for other in ({}, place):
            executor.accept(machine.fake_platform.task("sandbox.create", CREATE, **other))
        await executor.wait_until_idle()
        await flush(reporter)
        for number in range(20):
            owner = f"{ALLOCATION}/own{number}"
            executor.accept(machine.fake_platform.task("process.run", {"argv": ["true"]}, owner=owner))
        await executor.wait_until_idle()
        quiet = machine.fake_platform.task("process.run", {"argv": ["true"]}, **place)
        executor.accept(quiet)
        await executor.wait_until_idle()
        machine.platform.received.clear()
        await reporter.flush()
        await reporter.flush()
        assert quiet.task_id in {each["task_id"] for each in machine.platform.reported("result")}
        assert all(each["kind"] == "log" for each in machine.platform.received if each["task_id"] != quiet.task_id)


async def test_output_of_a_program_that_ran_while_another_was_read_is_sent_before_its_result(
    machine: ReporterMachine,
) -> None:
    machine.host = host = InterleavedHost()
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        await flush(reporter)
        ran: list[str] = []

        async def another() -> None:
            ran.append(await run_one(machine, executor))

        await run_one(machine, executor)
        host.meanwhile = another
        await flush(reporter)
        await flush(reporter)  # it was woken
        about = [report for report in machine.platform.received if report["task_id"] in ran]
    assert [report["kind"] for report in about] == ["log", "result"]


class SlowHost(SimulatedHost):
    """A simulated host that is slow to start a service, and may refuse files."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self.refuses = False

    async def write_files(self, owner: Owner, files: Sequence[FileSpec]) -> int:
        if self.refuses:
            raise HostFailure("refused", "no files here")
        return await super().write_files(owner, files)

    async def start_service(
        self, owner: Owner, name: str, process: ProcessSpec, restart: RestartPolicy
    ) -> ServiceState:
        self.begun.set()
        await self.over.wait()
        return await super().start_service(owner, name, process, restart)


async def half_way(machine: ReporterMachine, host: SlowHost, executor: Executor, reporter: Reporter) -> str:
    """An owner whose files are written but not reported, while its service is starting; returns the id of the first
    task.
    """
    executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
    await executor.wait_until_idle()
    await flush(reporter)
    first = machine.fake_platform.task("files.write", {"files": [{"path": "/srv/file", "content": "text"}]})
    executor.accept(first)
    executor.accept(machine.fake_platform.task("service.start", {"name": "web", "argv": ["serve"]}))
    await until(host.begun.is_set)
    return str(first.task_id)


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
async def test_a_success_waits_a_moment_for_the_next_of_its_owner_and_a_failure_does_not(
    machine: ReporterMachine, outcome: str
) -> None:
    machine.host = host = SlowHost()
    host.refuses = outcome == "failed"
    async with machine.agent() as (executor, reporter):
        first = await half_way(machine, host, executor, reporter)
        assert [each.task_id for each in reporter.journal.undelivered()] == [first]
        await reporter.flush()
        reported = [each["task_id"] for each in machine.platform.reported("result")][1:]
        assert reported == ([first] if outcome == "failed" else [])
        reporting = asyncio.create_task(reporter.run())
        await until(lambda: len(machine.platform.reported("result")) == 2)
        assert machine.platform.reported("result")[1]["outcome"] == outcome
        assert executor.tracked  # the service is not there yet
        host.over.set()
        await executor.wait_until_idle()
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def test_a_success_is_sent_with_other_reports(machine: ReporterMachine) -> None:
    machine.host = host = SlowHost()
    async with machine.agent() as (executor, reporter):
        await half_way(machine, host, executor, reporter)
        assert await reporter.flush() is False
        batches = machine.platform.batches
        reporter.report_refusal("bad_signature", "not believed", "tsk_other")
        await flush(reporter)
        assert [each["kind"] for each in machine.platform.received[-2:]] == ["refused", "result"]
        assert machine.platform.batches == batches + 1
        host.over.set()
        await executor.wait_until_idle()


async def test_a_success_that_waits_does_not_shorten_the_pauses_while_the_platform_is_away(
    machine: ReporterMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.host = host = SlowHost()
    async with machine.agent() as (executor, reporter):
        await half_way(machine, host, executor, reporter)
        machine.platform.away = True
        paused: list[str] = []
        enough = asyncio.Event()

        async def wait(backoff: ReconnectBackoff) -> None:
            paused.append("pause")
            if paused.count("pause") == 3:
                enough.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(ReconnectBackoff, "wait", wait)
        monkeypatch.setattr(ReconnectBackoff, "reset", lambda backoff: paused.append("reset"))
        reporting = asyncio.create_task(reporter.run())
        await until(enough.is_set)
        assert "reset" not in paused[paused.index("pause") :]
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        host.over.set()
        await executor.wait_until_idle()


class LastingHost(SimulatedHost):
    """A simulated host whose programs have printed something and run until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.over = asyncio.Event(), asyncio.Event()

    async def run(self, owner: Owner, key: str, process: ProcessSpec, timeout_seconds: float) -> int:
        self.begun.set()
        await self.over.wait()
        return await super().run(owner, key, process, timeout_seconds)


async def test_an_agent_with_nothing_else_to_report_streams_the_output_of_a_program(machine: ReporterMachine) -> None:
    machine.host = host = LastingHost()
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        reporting = asyncio.create_task(reporter.run())
        await until(lambda: bool(machine.platform.reported("result")) and not reporter.wake.is_set())
        task = machine.fake_platform.task("process.run", {"argv": ["true"]})
        executor.accept(task)
        await until(lambda: bool(machine.platform.reported("log")))
        assert host.begun.is_set()
        assert task.task_id in executor.tracked
        host.over.set()
        await executor.wait_until_idle()
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)


async def test_a_lost_lease_ends_the_reports_of_its_task_and_of_no_other(machine: ReporterMachine) -> None:
    machine.platform.answer = lambda report: (
        {"accepted": False, "code": "lease_lost"} if report["task_id"].endswith("2") else {"accepted": True}
    )
    async with machine.agent() as (executor, reporter):
        for _ in range(3):
            executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        await flush(reporter)
        assert reporter.journal.undelivered() == []
        received = len(machine.platform.received)
        await flush(reporter)
        assert len(machine.platform.received) == received == 3
        # It is assigned again: the result is sent again under the new fence, and nothing is done again.
        lost = machine.fake_platform.payload(
            "sandbox.create", CREATE, task_id="tsk_01h00000000000000000000002", fence=2
        )
        executor.accept(machine.fake_platform.verifier.verify(machine.fake_platform.sign(lost), time.time()))
        await flush(reporter)
        assert [each["fence"] for each in machine.platform.reported("result")] == [1, 1, 1, 2]


@pytest.mark.parametrize("code", ["receipt_gap", "conflict"])
async def test_a_receipt_that_arrives_too_early_is_sent_again_and_not_lost(machine: ReporterMachine, code: str) -> None:
    machine.platform.answer = lambda report: {"accepted": False, "code": code}
    async with machine.agent() as (executor, reporter):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        executor.accept(machine.fake_platform.task("sandbox.destroy"))
        await executor.wait_until_idle()
        reporter.report_strays([])
        assert await reporter.flush() is False  # there is something to tell, and not at once
        assert len(reporter.journal.undelivered()) == 2
        received = machine.platform.batches
        await flush(reporter)
        assert machine.platform.batches == received
        machine.platform.answer = accept
        machine.now += 60
        await flush(reporter)
        assert reporter.journal.undelivered() == []
        assert [each["kind"] for each in machine.platform.received[-3:]] == ["stray", "result", "result"]
        assert machine.platform.received[-1]["receipt"]["signature"]


async def test_a_batch_is_bounded_and_all_of_it_arrives(machine: ReporterMachine) -> None:
    async with machine.agent() as (_, reporter):
        for number in range(250):
            reporter.report_refusal("bad_signature", "x" * 10_000, f"tsk_{number}")
        await flush(reporter)
    assert [each["task_id"] for each in machine.platform.reported("refused")] == [
        f"tsk_{number}" for number in range(250)
    ]
    assert max(len(each["detail"]) for each in machine.platform.received) == 500
    assert machine.platform.batches == 3


async def test_an_agent_whose_node_was_retired_ends(machine: ReporterMachine) -> None:
    machine.platform.dismisses = True
    identity = Identity("http://platform.example", NODE, AUDIENCE, (PlatformKey("key-1", encode(b"0" * 32)),))
    parts = AgentParts(identity, machine.keys, machine.host, Journal(":memory:"), dict, time.time)
    agent = Agent(parts)
    agent.client = agent.reporter.client = PlatformClient(
        identity, machine.keys, time.time, httpx.MockTransport(machine.platform)
    )
    with pytest.raises(NodeRetired, match="retired"):
        await agent.run()
    parts.journal.close()


async def test_what_was_cut_off_in_a_teardown_is_done_again_by_the_next_agent(machine: ReporterMachine) -> None:
    async with machine.agent() as (executor, _):
        executor.accept(machine.fake_platform.task("sandbox.create", CREATE))
        await executor.wait_until_idle()
        # The state after a kill: the intent is on disk, and nothing else.
        executor.journal.close_owner(ALLOCATION, machine.now)
        executor.journal.record_intent(machine.fake_platform.task("sandbox.destroy"), machine.now)
    assert await machine.host.recover() == [ALLOCATION]
    async with machine.agent() as (executor, reporter):
        await executor.resume()
        await executor.wait_until_idle()
        await flush(reporter)
    assert await machine.host.recover() == []
    receipt = json.loads(decode(machine.platform.reported("result")[-1]["receipt"]["body"]))
    assert (receipt["task_type"], receipt["clean"]) == ("sandbox.destroy", True)
