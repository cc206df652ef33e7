"""`kill -9` at every step: the next agent reaches the same state, and nothing is left twice or for ever."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.tests.support import killed_namespace_agent, killed_spawner
from agent.tests.support.namespace_sandboxes import Inside, left_of, spec_of
from agent.tests.support.supervisors import until
from mooring_agent.hosts.contract import Owner, ProcessSpec, RestartPolicy
from mooring_agent.hosts.namespace import (
    NamespaceHost,
    cgroups,
    create,
    destroy,
    init_process,
    namespace_processes,
    uid_ranges,
)
from mooring_agent.hosts.namespace.sandbox_records import UIDS, SandboxRecord, SandboxStore, sandbox_owner

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
SEE = "hostname; getent hosts host5; ls /sys/class/net"
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


def host_of(directory: Path) -> NamespaceHost:
    """The host of an agent that has just started."""
    return NamespaceHost(directory / "state", killed_namespace_agent.NODE)


async def kill_an_agent(directory: Path, what: str, step: str, isolation: str = "user_namespace") -> None:
    """Run an agent until it is killed after this step."""
    command = [sys.executable, killed_namespace_agent.__file__, what, str(directory / "state"), isolation, step]
    process = await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stderr=-1)
    _, errors = await process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()


CREATING = [
    *(("user_namespace", step) for step in ("begin", *(step.__name__ for step in create.STEPS))),
    # Only these steps work differently without a uid range.
    *(("bounded", step) for step in ("allocate_uids", "build_root_filesystem", "spawn_init")),
]


@pytest.mark.parametrize(("isolation", "step"), CREATING)
async def test_an_agent_that_is_killed_while_it_makes_a_sandbox_leaves_one_that_the_next_completes(
    tmp_path: Path, step: str, isolation: str
) -> None:
    await kill_an_agent(tmp_path, "create", step, isolation)
    host = host_of(tmp_path)
    before = init_process.find_living(host.store, sandbox_owner("alc_1"))
    assert await host.recover() == ["alc_1"]
    after = init_process.find_living(host.store, sandbox_owner("alc_1"))
    assert before is None or before == after  # what was born is not born again
    assert (await host.create(spec_of("alc_1", isolation="bounded"))).isolation == isolation
    _, text = await Inside(host, Owner("alc_1", "member")).run(
        "sh", "-c", "hostname; getent hosts host5; ls /sys/class/net"
    )
    assert text.split() == ["host5", "10.77.0.5", "host5", "eth0", "lo"]
    assert (await host.destroy("alc_1")).clean
    assert left_of(host) == []


@pytest.mark.parametrize("step", ["begin", *(step.__name__ for step in destroy.STEPS)])
async def test_an_agent_that_is_killed_while_it_destroys_a_sandbox_leaves_nothing_after_the_next_try(
    tmp_path: Path, step: str
) -> None:
    host = host_of(tmp_path)
    await host.create(spec_of("alc_1"))
    await host.start_service(
        Owner("alc_1", "member"), "sleeper", ProcessSpec(("sleep", "1000000")), RestartPolicy("always")
    )
    await kill_an_agent(tmp_path, "destroy", step)
    following = host_of(tmp_path)
    destroying = step not in ("begin", "remove_record")
    assert await following.recover() == (["alc_1"] if step == "begin" else [])
    assert (following.store.load("alc_1") is not None) == (destroying or step == "begin")
    report = await following.destroy("alc_1")
    assert (report.remaining, report.clean) == ((), True)
    assert left_of(following) == []


@pytest.mark.parametrize("place", killed_spawner.PLACES)
async def test_a_spawner_that_is_killed_leaves_no_process_and_the_next_spawn_succeeds(
    tmp_path: Path, place: str
) -> None:
    host = host_of(tmp_path)
    record = create.record_intent(host.machine, spec_of("alc_1"))
    for step in create.STEPS[: create.STEPS.index(create.spawn_init)]:
        record = step(host.machine, record)
    plan = init_process.sandbox_plan(host.store, record, None)
    command = [sys.executable, killed_spawner.__file__, place]
    process = await asyncio.create_subprocess_exec(*command, env=ENVIRONMENT, stdin=-1, stdout=-1, stderr=-1)
    _, errors = await process.communicate(json.dumps(plan).encode())
    assert process.returncode == -signal.SIGKILL, errors.decode()
    # The spawner and its init hold the lock: when it is free, they are gone.
    init_process.wait_for_spawn(host.store.owner(sandbox_owner("alc_1")))
    # (A process releases its files a moment before it is gone itself.)
    await until(lambda: in_range(record) == [])
    assert init_process.find_living(host.store, sandbox_owner("alc_1")) is None
    assert await host.recover() == ["alc_1"]
    assert (await host.destroy("alc_1")).clean
    assert left_of(host) == []


def in_range(record: SandboxRecord) -> list[int]:
    """The living processes in the sandbox's uid range."""
    first = record.first_uid or 0
    return [each.pid for each in namespace_processes.survey() if first <= each.uid < first + UIDS]


async def test_what_runs_outlives_its_agent_and_is_found_again_and_not_started_twice(tmp_path: Path) -> None:
    await kill_an_agent(tmp_path, "create", "mark_standing")
    first = host_of(tmp_path)
    owner = Owner("alc_1", "member")
    argv = ("sh", "-c", "echo started; echo > /tmp/ready; read line < /tmp/gate; echo ended; exit 3")
    await Inside(first, owner).run("mkfifo", "/tmp/gate", "/tmp/ready")
    running = asyncio.create_task(first.run(owner, "tsk_1", ProcessSpec(argv, output_bytes=100), 600))
    await Inside(first, owner).run("cat", "/tmp/ready")
    running.cancel()
    second = host_of(tmp_path)
    assert await second.recover() == ["alc_1"]
    assert await second.find_run(owner, "tsk_1") == "running"
    again = asyncio.create_task(second.run(owner, "tsk_1", ProcessSpec(argv), 600))
    await Inside(second, Owner("alc_1", "member")).run("sh", "-c", "echo go > /tmp/gate")
    assert await again == 3
    assert await Inside(second, owner).log("tsk_1") == "started\nended\n"
    assert await second.read_output(owner, "tsk_1") == (b"started\nended\n", False)
    assert await second.find_run(owner, "tsk_1") == "ended"
    assert await second.find_run(owner, "tsk_2") == "absent"
    assert (await second.destroy("alc_1")).clean
    assert left_of(second) == []


async def test_a_sandbox_whose_init_is_gone_does_not_stand_and_can_be_destroyed(host: NamespaceHost) -> None:
    await host.create(spec_of("alc_1"))
    init = host.store.load_init(sandbox_owner("alc_1"))
    assert init is not None
    namespace_processes.kill([init])
    assert await host.recover() == []
    assert (await host.destroy("alc_1")).clean


async def test_the_sweep_reaps_what_the_platform_does_not_know_and_names_what_is_another_agents(tmp_path: Path) -> None:
    ours, theirs = host_of(tmp_path), NamespaceHost(tmp_path / "other", "nod_other")
    await ours.create(spec_of("alc_1", number=5))
    await ours.create(spec_of("alc_2", number=6))
    await theirs.create(spec_of("alc_1", number=7))
    group = Path(ours.machine.hierarchies.parents["pids"], f"mooring-{ours.store.label}", "alc_9")
    os.mkdir(group)
    verdicts = {(stray.verdict, stray.allocation_id) for stray in await ours.sweep(["alc_1"])}
    assert {("reaped", "alc_2"), ("reaped", "alc_9")} <= verdicts
    assert ("foreign", None) in verdicts
    assert ("reaped", "alc_1") not in verdicts
    assert f"group {group.parent}" in left_of(ours)
    assert str(group) not in cgroups.existing((str(group),))
    for host in (ours, theirs):
        assert init_process.find_living(host.store, sandbox_owner("alc_1")) is not None
        assert (await host.destroy("alc_1")).clean
        assert left_of(host) == []


async def test_numbers_that_the_kernel_gave_to_another_agents_sandbox_are_not_the_killed_ones(tmp_path: Path) -> None:
    ours, theirs = host_of(tmp_path), NamespaceHost(tmp_path / "other", "nod_other")
    itself = sandbox_owner("alc_1")
    await ours.create(spec_of("alc_1", number=5))
    await theirs.create(spec_of("alc_1", number=7))
    dead, stranger = ours.store.load_init(itself), theirs.store.load_init(itself)
    assert dead is not None
    assert stranger is not None
    os.kill(dead.pid, signal.SIGKILL)
    await until(lambda: not namespace_processes.is_alive(dead))
    # This happens now and then: the numbers are free, and the machine's next sandbox gets them.
    again = replace(dead, namespaces=stranger.namespaces)
    (ours.store.owner(itself) / "init.json").write_bytes(msgspec.json.encode(again))
    assert (await ours.destroy("alc_1")).clean
    assert init_process.find_living(theirs.store, itself) is not None
    assert (await theirs.destroy("alc_1")).clean
    assert [*left_of(ours), *left_of(theirs)] == []


async def test_ranges_of_two_agents_never_overlap_and_are_given_back(tmp_path: Path) -> None:
    registry = tmp_path / "ranges"
    registry.mkdir()
    firsts = [uid_ranges.claim(registry, tmp_path / str(number)) for number in range(5)]
    assert len(set(firsts)) == 5
    assert all(first % UIDS == 0 and uid_ranges.FIRST <= first < uid_ranges.END for first in firsts)
    assert uid_ranges.claim(registry, tmp_path / "0") == firsts[0]
    uid_ranges.release(registry, tmp_path / "0")
    assert uid_ranges.allocated(registry) == {
        first: str(tmp_path / str(number)) for number, first in enumerate(firsts) if number
    }
    assert uid_ranges.claim(registry, tmp_path / "9") not in firsts[1:]


async def test_a_range_that_a_standing_user_namespace_has_is_passed_over(host: NamespaceHost, tmp_path: Path) -> None:
    await host.create(spec_of("alc_1"))
    record = host.store.load("alc_1")
    assert record is not None
    other = tmp_path / "registry-of-somebody-who-does-not-know"
    other.mkdir()
    assert uid_ranges.claim(other, tmp_path / "x") != record.first_uid


async def test_a_crash_between_the_last_file_and_the_range_leaves_no_range(host: NamespaceHost) -> None:
    holder = host.store.sandbox("alc_gone")
    uid_ranges.claim(host.store.registry, holder)
    await host.recover()
    assert str(holder) not in uid_ranges.allocated(host.store.registry).values()


async def test_a_directory_without_a_record_is_removed(host: NamespaceHost) -> None:
    host.store.sandbox("alc_never").mkdir()
    assert await host.recover() == []
    assert host.store.allocations() == []


async def test_a_record_contains_everything_that_it_was_created_with(tmp_path: Path) -> None:
    store = SandboxStore(tmp_path / "state", "label", tmp_path / "ranges")
    store.make()
    spec = replace(spec_of("alc_1"), isolation="bounded")
    record = SandboxRecord(spec=spec, status="creating", first_uid=7, cgroups=("a",), limits={"b": "c"})
    store.save(record)
    assert store.load("alc_1") == record
