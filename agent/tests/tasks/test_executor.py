"""Tasks run in order and at most once, and interrupted ones are reported truthfully."""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent.tests.support.fake_platform import ALLOCATION, CREATE, OTHER_ALLOCATION, FakePlatform, seal
from mooring_agent.control_plane.keys import NodeKeys, is_valid_signature, make_keys
from mooring_agent.control_plane.messages import TaskResult, decode
from mooring_agent.hosts.contract import Host, HostFailure
from mooring_agent.hosts.simulated import FaultProfile, SimulatedHost
from mooring_agent.tasks.arguments import ProcessRun
from mooring_agent.tasks.executor import Executor
from mooring_agent.tasks.handlers import HANDLERS, ResultFields, TaskContext, TaskHandler
from mooring_agent.tasks.journal import Journal
from mooring_agent.tasks.probes import PROBES
from mooring_agent.tasks.verifier import TaskRefused

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@dataclass
class ExecutorMachine:
    """A machine with an agent that can be killed and restarted."""

    directory: Path
    host: Host = field(default_factory=SimulatedHost)
    fake_platform: FakePlatform = field(default_factory=FakePlatform)
    keys: NodeKeys = field(default_factory=make_keys)
    handlers: dict[str, TaskHandler] = field(default_factory=lambda: {**HANDLERS, **PROBES})

    def start(self) -> Executor:
        """Start an agent on this machine's journal."""
        self.journal = Journal(self.directory / "journal.sqlite")
        return Executor(self.host, self.journal, self.keys, time.time, lambda: None, 4, self.handlers)

    def result(self, task_id: str) -> TaskResult:
        entry = self.journal.find(task_id)
        assert entry is not None
        assert entry.result is not None
        return entry.result


@pytest.fixture
def machine(tmp_path: Path) -> ExecutorMachine:
    """A simulated machine."""
    return ExecutorMachine(tmp_path)


async def done(
    machine: ExecutorMachine, executor: Executor, type: str, arguments: dict[str, Any], **other: Any
) -> TaskResult:
    """Run one task to its end."""
    task = machine.fake_platform.task(type, arguments, **other)
    executor.accept(task)
    await executor.wait_until_idle()
    return machine.result(task.task_id)


async def test_a_task_ends_with_its_result_in_the_journal(machine: ExecutorMachine) -> None:
    executor = machine.start()
    created = await done(machine, executor, "sandbox.create", CREATE)
    ran = await done(machine, executor, "process.run", {"argv": ["true"]})
    failed = await done(machine, executor, "process.run", {"argv": ["exit-3"]})
    assert (created.outcome, created.result["isolation"]) == ("succeeded", "simulated")
    assert (ran.outcome, ran.result) == ("succeeded", {"exit_code": 0})
    assert failed.failure is not None
    assert (failed.outcome, failed.failure.code, failed.failure.exit_code) == ("failed", "exited", 3)
    assert ran.last_lines != ()
    assert ran.last_lines[0].startswith("simulated output")


async def test_an_output_that_is_asked_for_is_in_the_result_however_the_program_ended(machine: ExecutorMachine) -> None:
    executor = machine.start()
    await done(machine, executor, "sandbox.create", CREATE)
    ran = await done(machine, executor, "process.run", {"argv": ["true"], "output_bytes": 100})
    failed = await done(machine, executor, "process.run", {"argv": ["exit-3"], "output_bytes": 12})
    unasked = await done(machine, executor, "process.run", {"argv": ["exit-3"]})
    probed = await done(machine, executor, "probe.exec", {"argv": ["true"], "output_bytes": 100})
    refused = await done(machine, executor, "probe.exec", {"argv": ["exit-1"], "output_bytes": 100})
    simulated = {"output": '{"simulated": true}\n', "output_truncated": False}
    assert ran.result == {"exit_code": 0, **simulated}
    assert failed.result == {"exit_code": 3, "output": '{"simulated"', "output_truncated": True}
    assert unasked.result == {"exit_code": 3}
    assert (probed.result["observed"], probed.result["output"]) == ("0", simulated["output"])
    assert (refused.outcome, refused.result) == ("failed", {"exit_code": 1, **simulated})


async def test_a_task_that_comes_again_is_answered_and_not_done_again(machine: ExecutorMachine) -> None:
    executor = machine.start()
    starts = count_starts(machine)
    await done(machine, executor, "sandbox.create", CREATE)
    payload = machine.fake_platform.payload("process.run", {"argv": ["true"]})
    for fence in (1, 2, 5):
        executor.accept(
            machine.fake_platform.verifier.verify(machine.fake_platform.sign({**payload, "fence": fence}), time.time())
        )
        await executor.wait_until_idle()
    assert len(starts) == 1
    assert machine.journal.undelivered()[-1].fence == 5
    with pytest.raises(TaskRefused) as caught:
        executor.accept(
            machine.fake_platform.verifier.verify(machine.fake_platform.sign({**payload, "fence": 5}), time.time())
        )
    assert caught.value.reason == "replayed"


def count_starts(machine: ExecutorMachine) -> list[str]:
    """Count each real execution of `process.run` from here on."""
    starts: list[str] = []
    performed = HANDLERS["process.run"].perform

    async def perform(host: Host, context: TaskContext, wanted: ProcessRun) -> ResultFields:
        starts.append(context.task.task_id)
        return await performed(host, context, wanted)

    machine.handlers["process.run"] = TaskHandler(perform, is_repeatable=False, streams_output=True)
    return starts


async def test_one_owners_tasks_keep_their_order_and_others_do_not_wait(machine: ExecutorMachine) -> None:
    order: list[str] = []
    gate = asyncio.Event()

    async def perform(host: Host, context: TaskContext, wanted: ProcessRun) -> ResultFields:
        if wanted.argv[0] == "wait":
            await gate.wait()
        order.append(wanted.argv[0])
        if wanted.argv[0] == "other":
            gate.set()
        return {}

    machine.handlers["process.run"] = TaskHandler(perform, is_repeatable=False)
    executor = machine.start()
    for name in ("wait", "second"):
        executor.accept(machine.fake_platform.task("process.run", {"argv": [name]}))
    other = {"allocation_id": OTHER_ALLOCATION, "owner": OTHER_ALLOCATION}
    executor.accept(machine.fake_platform.task("process.run", {"argv": ["other"]}, **other))
    await executor.wait_until_idle()
    assert order == ["other", "wait", "second"]


async def test_teardown_closes_its_owner_also_for_what_was_queued_before(machine: ExecutorMachine) -> None:
    started = asyncio.Event()

    async def perform(host: Host, context: TaskContext, wanted: ProcessRun) -> ResultFields:
        started.set()
        await asyncio.Event().wait()
        return {}

    machine.handlers["process.run"] = TaskHandler(perform, is_repeatable=False)
    executor = machine.start()
    await done(machine, executor, "sandbox.create", CREATE)
    one, two = ALLOCATION + "/one", ALLOCATION + "/two"
    runs = machine.fake_platform.task("process.run", {"argv": ["x"]}, owner=one)
    queued = machine.fake_platform.task("process.run", {"argv": ["y"]}, owner=one)
    lives = machine.fake_platform.task("process.run", {"argv": ["z"]}, owner=two)
    for task in (runs, queued, lives):
        executor.accept(task)
    await started.wait()
    teardown = machine.fake_platform.task("teardown.verify", {"close": True}, owner=one)
    executor.accept(teardown)
    with pytest.raises(TaskRefused) as late:
        executor.accept(machine.fake_platform.task("process.run", {"argv": ["late"]}, owner=one))
    await asyncio.wait([each.work for key, each in executor.tracked.items() if key != lives.task_id and each.work])
    assert late.value.reason == "owner_closed"
    assert [machine.result(task.task_id).outcome for task in (runs, queued)] == ["cancelled", "cancelled"]
    assert machine.result(teardown.task_id).receipt is not None
    executor.cancel(lives.task_id)
    await executor.wait_until_idle()


async def test_destroying_the_allocation_closes_all_within_it(machine: ExecutorMachine) -> None:
    executor = machine.start()
    await done(machine, executor, "sandbox.create", CREATE)
    await done(machine, executor, "sandbox.destroy", {})
    for type, arguments, owner in (
        ("process.run", {"argv": ["x"]}, ALLOCATION + "/one"),
        ("sandbox.create", CREATE, ALLOCATION),
    ):
        with pytest.raises(TaskRefused) as caught:
            executor.accept(machine.fake_platform.task(type, arguments, owner=owner))
        assert caught.value.reason == "owner_closed"


async def test_receipts_are_signed_by_the_node_and_follow_each_other(machine: ExecutorMachine) -> None:
    executor = machine.start()
    previous = "0" * 64
    for sequence, allocation in enumerate((ALLOCATION, OTHER_ALLOCATION), 1):
        place = {"allocation_id": allocation, "owner": allocation}
        await done(machine, executor, "sandbox.create", CREATE, **place)
        ended = await done(machine, executor, "sandbox.destroy", {}, **place)
        assert ended.receipt is not None
        body = decode(ended.receipt.body)
        receipt = json.loads(body)
        assert is_valid_signature(
            decode(machine.keys.signing_public), decode(ended.receipt.signature), b"mooring-receipt-v1\n" + body
        )
        assert body == json.dumps(receipt, sort_keys=True, separators=(",", ":")).encode()
        assert (receipt["sequence"], receipt["previous"], receipt["clean"], receipt["host"]) == (
            sequence,
            previous,
            True,
            "simulated",
        )
        previous = hashlib.sha256(body).hexdigest()


async def test_what_remains_makes_the_receipt_unclean(tmp_path: Path) -> None:
    machine = ExecutorMachine(tmp_path, SimulatedHost(FaultProfile(leftover_rate=1.0)))
    executor = machine.start()
    await done(machine, executor, "sandbox.create", CREATE)
    ended = await done(machine, executor, "sandbox.destroy", {})
    assert ended.receipt is not None
    receipt = json.loads(decode(ended.receipt.body))
    assert (receipt["clean"], receipt["remaining"]) == (False, [{"kind": "processes", "name": "simulated leftover"}])
    assert ended.result["clean"] is False


async def test_a_secret_reaches_only_the_task_it_was_sealed_for(machine: ExecutorMachine) -> None:
    seen: list[bytes] = []

    async def perform(host: Host, context: TaskContext, wanted: ProcessRun) -> ResultFields:
        seen.append(context.secret("key"))
        return {}

    machine.handlers["process.run"] = TaskHandler(perform, is_repeatable=False)
    executor = machine.start()
    payload = machine.fake_platform.payload("process.run", {"argv": ["x"]})
    sealed = seal(b"hush", machine.keys.sealing_public, payload["task_id"], "artifact_pull", "key")
    elsewhere = seal(b"hush", machine.keys.sealing_public, "tsk_99hzzzzzzzzzzzzzzzzzzzzzzz", "artifact_pull", "key")
    for secret in (sealed, elsewhere):
        task_id = payload["task_id"] if secret is sealed else "tsk_77hzzzzzzzzzzzzzzzzzzzzzzz"
        whole = {**payload, "task_id": task_id, "secrets": [secret]}
        executor.accept(machine.fake_platform.verifier.verify(machine.fake_platform.sign(whole), time.time()))
        await executor.wait_until_idle()
    assert seen == [b"hush"]
    failure = machine.result("tsk_77hzzzzzzzzzzzzzzzzzzzzzzz").failure
    assert failure is not None
    assert failure.code == "refused"
    assert b"hush" not in (machine.directory / "journal.sqlite").read_bytes()


class AgentKilled(BaseException):
    """The agent is gone at this moment, as by kill -9: nothing after it is done."""


def killed_at(moment: str) -> Callable[[Journal], None]:
    """Make an agent die just before or just after a write to its journal."""

    def arm(journal: Journal) -> None:
        when, _, verb = moment.partition(" ")
        real = getattr(journal, verb)

        def strike(*arguments: Any, **more: Any) -> None:
            if when == "before":
                raise AgentKilled(moment)
            real(*arguments, **more)
            raise AgentKilled(moment)

        setattr(journal, verb, strike)

    return arm


MOMENTS = ("before record_intent", "after record_intent", "before record_result", "after record_result")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(
    ("type", "arguments"),
    [
        ("sandbox.create", CREATE),
        ("process.run", {"argv": ["true"]}),
        ("service.start", {"name": "web", "argv": ["serve"]}),
        ("files.write", {"files": [{"path": "/a", "content": "x"}]}),
        ("teardown.verify", {"close": True}),
        ("sandbox.destroy", {}),
    ],
)
async def test_an_agent_that_dies_at_any_write_ends_the_same(
    machine: ExecutorMachine, moment: str, type: str, arguments: dict[str, Any]
) -> None:
    executor = machine.start()
    if type != "sandbox.create":
        await done(machine, executor, "sandbox.create", CREATE)
    starts = count_starts(machine)
    owner = ALLOCATION + "/one" if type == "teardown.verify" else ALLOCATION
    payload = machine.fake_platform.payload(type, arguments, owner=owner)
    killed_at(moment)(machine.journal)
    executor.accept(machine.fake_platform.verifier.verify(machine.fake_platform.sign(payload), time.time()))
    with pytest.raises(AgentKilled):
        await asyncio.gather(*[each.work for each in executor.tracked.values() if each.work is not None])
    machine.journal.close()

    executor = machine.start()
    await executor.resume()
    await executor.wait_until_idle()
    again = machine.fake_platform.sign({**payload, "fence": 2})
    executor.accept(machine.fake_platform.verifier.verify(again, time.time()))
    await executor.wait_until_idle()
    result = machine.result(payload["task_id"])
    if type == "process.run":
        assert len(starts) <= 2  # the second is the one that looks
    interrupted = moment == "after record_intent" and type in ("process.run", "service.start")
    if interrupted:
        assert result.failure is not None
        assert (result.outcome, result.failure.code) == ("failed", "interrupted")
    else:
        assert result.outcome == "succeeded"
    assert machine.journal.unfinished() == []


async def test_a_failing_host_is_a_failed_task_and_not_a_dead_agent(machine: ExecutorMachine) -> None:
    async def perform(host: Host, context: TaskContext, wanted: ProcessRun) -> ResultFields:
        if wanted.argv[0] == "known":
            raise HostFailure("permission_denied", "not here")
        raise RuntimeError("unforeseen")

    machine.handlers["process.run"] = TaskHandler(perform)
    executor = machine.start()
    known = await done(machine, executor, "process.run", {"argv": ["known"]})
    unforeseen = await done(machine, executor, "process.run", {"argv": ["x"]})
    assert known.failure is not None
    assert unforeseen.failure is not None
    assert (known.failure.code, unforeseen.failure.code) == ("permission_denied", "host_error")
    assert "unforeseen" in unforeseen.failure.detail
