"""Programs under a supervisor: started once, logged, restarted, stopped."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.tests.support.supervisors import (
    DAEMON,
    NEVER,
    RunningSupervisor,
    daemon_pid,
    is_alive,
    kill,
    python,
    running_supervisor,
    shell,
    until,
)
from mooring_agent.kernel import proc
from mooring_agent.supervisor import segmented_log
from mooring_agent.supervisor.output_capture import read_capture
from mooring_agent.supervisor.supervisor_client import ProgramSpec, SupervisorRefusal
from tests.support.rows import every_row


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[RunningSupervisor]:
    """A running supervisor for one test."""
    async with running_supervisor(tmp_path) as made:
        yield made


def output(sandbox: RunningSupervisor, owner: str, key: str, offset: int = 0) -> bytes:
    return b"".join(segmented_log.read_log(sandbox.log(owner, key), offset))


async def test_a_run_ends_with_its_code_and_its_output(sandbox: RunningSupervisor) -> None:
    program = ProgramSpec(("sh", "-c", "cat; echo to-stderr >&2; exit 7"), {}, stdin=b"typed\n")
    await sandbox.client.start_run("", "task-1", program, 60)
    ended = await sandbox.client.wait_run("", "task-1")
    assert (ended.state, ended.reason, ended.exit_code) == ("ended", "exited", 7)
    assert output(sandbox, "", "task-1") == b"typed\nto-stderr\n"


async def test_the_standard_output_of_a_run_is_kept_apart_from_its_log(sandbox: RunningSupervisor) -> None:
    program = ProgramSpec(("sh", "-c", "echo out; echo to-stderr >&2; echo more; exit 7"), {}, output_bytes=100)
    await sandbox.client.start_run("", "task-1", program, 60)
    assert (await sandbox.client.wait_run("", "task-1")).exit_code == 7
    assert read_capture(sandbox.log("", "task-1")) == (b"out\nmore\n", False)
    assert sorted(output(sandbox, "", "task-1").splitlines()) == [b"more", b"out", b"to-stderr"]


async def test_no_more_of_an_output_is_kept_than_was_asked_for(sandbox: RunningSupervisor) -> None:
    full = python("import sys; sys.stdout.write('x' * 50_000)")
    over = python("import sys; sys.stdout.write('x' * 49_999 + 'yz')")
    for key, program in (("full", full), ("over", over)):
        await sandbox.client.start_run("", key, replace(program, output_bytes=50_000), 60)
    await sandbox.client.start_run("", "unasked", shell("echo out"), 60)
    for key in ("full", "over", "unasked"):
        await sandbox.client.wait_run("", key)
    assert read_capture(sandbox.log("", "full")) == (b"x" * 50_000, False)
    assert read_capture(sandbox.log("", "over")) == (b"x" * 49_999 + b"y", True)
    assert len(output(sandbox, "", "over")) == 50_001
    assert read_capture(sandbox.log("", "unasked")) is None
    with pytest.raises(SupervisorRefusal):
        await sandbox.client.start_run("", "task-3", replace(shell("true"), output_bytes=65_537), 60)


async def test_what_a_run_left_behind_writes_to_the_log_and_not_to_its_output(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    left = f"(while ! test -e {tmp_path}/go; do sleep 0.02; done; echo later) & echo now"
    await sandbox.client.start_run("", "task-1", replace(shell(left), output_bytes=100), 60)
    await sandbox.client.wait_run("", "task-1")
    (tmp_path / "go").touch()
    await until(lambda: output(sandbox, "", "task-1") == b"now\nlater\n")
    assert read_capture(sandbox.log("", "task-1")) == (b"now\n", False)


async def test_a_signal_is_reported_as_128_and_its_number(sandbox: RunningSupervisor) -> None:
    await sandbox.client.start_run("", "task-1", shell("kill -KILL $$"), 60)
    assert (await sandbox.client.wait_run("", "task-1")).exit_code == 128 + signal.SIGKILL


async def test_a_key_is_started_at_most_once(sandbox: RunningSupervisor) -> None:
    program = shell("echo once >> ../times")
    await asyncio.gather(*(sandbox.client.start_run("", "task-1", program, 60) for _ in range(10)))
    await sandbox.client.wait_run("", "task-1")
    again = await sandbox.client.start_run("", "task-1", program, 60)
    assert again.state == "ended"
    assert (sandbox.root.parent / "times").read_text() == "once\n"


async def test_a_run_that_does_not_end_is_killed_with_what_it_started(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    for seconds in (3, 10, 30, 90):  # what it starts has to be there before its time is over, on a slow machine too
        key, written = f"task-{seconds}", tmp_path / f"d{seconds}"
        program = ProgramSpec(("sh", "-c", f"{sys.executable} -c '{DAEMON}' {written}; exec sleep 1000"), {})
        await sandbox.client.start_run("", key, program, seconds)
        ended = await sandbox.client.wait_run("", key)
        assert (ended.reason, ended.exit_code) == ("timed_out", 137)
        if written.with_name(f"{written.name}.pid").exists():
            break
    daemon = await daemon_pid(written)
    await until(lambda: not is_alive(daemon))


async def test_cancelling_a_run_kills_it_and_its_daemon_and_nothing_else(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    await sandbox.client.start_run("", "other", shell("exec sleep 1000"), 600)
    other = (await sandbox.client.find_run("", "other")) or pytest.fail("it was just started")
    program = ProgramSpec(("sh", "-c", f"{sys.executable} -c '{DAEMON}' {tmp_path}/d; exec sleep 1000"), {})
    await sandbox.client.start_run("", "task-1", program, 600)
    daemon = await daemon_pid(tmp_path / "d")
    assert await sandbox.client.cancel_run("", "task-1") == ()
    assert (await sandbox.client.wait_run("", "task-1")).reason == "cancelled"
    assert not is_alive(daemon)
    assert other.pid is not None
    assert is_alive(other.pid)


async def test_a_missing_program_is_reported_and_stays_known(sandbox: RunningSupervisor) -> None:
    with pytest.raises(SupervisorRefusal) as refused:
        await sandbox.client.start_run("", "task-1", ProgramSpec(("no-such-program",), {}), 60)
    assert refused.value.code == "not_found"
    found = await sandbox.client.find_run("", "task-1")
    assert found is not None
    assert (found.state, found.reason) == ("ended", "not_found")


async def test_a_file_that_is_not_executable_is_reported(sandbox: RunningSupervisor) -> None:
    (sandbox.root / "plain").write_text("no program")
    with pytest.raises(SupervisorRefusal) as refused:
        await sandbox.client.start_run("", "task-1", ProgramSpec(("./plain",), {}), 60)
    assert refused.value.code == "permission_denied"


@every_row("key", ["", "../up", "a/b", ".hidden", "x" * 129, "ä", "a\0b", "a\nb"])
async def test_a_key_that_is_not_a_name_is_refused(sandbox: RunningSupervisor, key: str) -> None:
    with pytest.raises(SupervisorRefusal) as refused:
        await sandbox.client.start_run("", key, shell("true"), 60)
    assert refused.value.code == "refused"


async def test_a_directory_outside_of_the_root_is_refused(sandbox: RunningSupervisor) -> None:
    (sandbox.root / "link").symlink_to("/")
    for directory in ("../..", "/link", "/link/etc", "/absent"):
        with pytest.raises(SupervisorRefusal):
            await sandbox.client.start_run("", f"in{hash(directory)}", ProgramSpec(("true",), {}, "", directory), 60)


async def test_long_input_and_environment_arrive_whole(sandbox: RunningSupervisor) -> None:
    content = os.urandom(4 * 1_048_576)
    program = ProgramSpec(("sh", "-c", "sha256sum; echo ${#LONG}"), {"LONG": "x" * 100_000}, stdin=content)
    await sandbox.client.start_run("", "task-1", program, 60)
    await sandbox.client.wait_run("", "task-1")
    oracle = await asyncio.create_subprocess_exec("sha256sum", stdin=-1, stdout=-1)
    expected, _ = await oracle.communicate(content)
    assert output(sandbox, "", "task-1") == expected + b"100000\n"


async def test_a_failing_service_is_restarted_up_to_its_limit(sandbox: RunningSupervisor) -> None:
    restart = {"policy": "on_failure", "backoff_seconds": 0.01, "limit": 3}
    await sandbox.client.start_service("", "web", shell("echo started; exit 4"), restart)
    await until_state(sandbox, "web", "failed")
    state = await sandbox.client.inspect("", "web")
    assert state is not None
    assert (state.restarts, state.exit_code, state.reason) == (3, 4, "restart limit")
    assert output(sandbox, "", "web") == b"started\n" * 4


@pytest.mark.parametrize(
    ("policy", "code", "state"),
    [("never", 0, "exited"), ("never", 1, "failed"), ("on_failure", 0, "exited"), ("always", 0, "failed")],
)
async def test_a_policy_decides_about_the_end(sandbox: RunningSupervisor, policy: str, code: int, state: str) -> None:
    restart = {"policy": policy, "backoff_seconds": 0, "limit": 2}
    await sandbox.client.start_service("", "web", shell(f"echo started; exit {code}"), restart)
    await until_state(sandbox, "web", state)
    assert output(sandbox, "", "web").count(b"started") == (3 if policy == "always" else 1)


async def test_a_service_whose_main_process_is_killed_comes_back(sandbox: RunningSupervisor) -> None:
    restart = {"policy": "on_failure", "backoff_seconds": 0, "limit": 10}
    first = await sandbox.client.start_service("", "web", shell("exec sleep 1000"), restart)
    assert first.pid is not None
    kill(first.pid)

    async def another() -> bool:
        state = await sandbox.client.inspect("", "web")
        return state is not None and state.state == "running" and state.pid != first.pid

    await until(another)


async def test_stopping_the_main_process_leaves_its_job_alive_and_logged(
    sandbox: RunningSupervisor, tmp_path: Path
) -> None:
    job = f"setsid sh -c 'echo job $$; while ! test -e {tmp_path}/go; do sleep 0.05; done; echo done; sleep 1000' &"
    started = await sandbox.client.start_service("", "daemon", shell(f"{job} exec sleep 1000"), NEVER)
    await until(lambda: b"job" in output(sandbox, "", "daemon"))
    assert await sandbox.client.stop_service("", "daemon", 30)
    assert started.pid is not None
    assert not is_alive(started.pid)
    left = await sandbox.client.processes("")
    assert left
    (tmp_path / "go").touch()
    await until(lambda: b"done" in output(sandbox, "", "daemon"))
    again = await sandbox.client.start_service("", "daemon", shell("echo second; exec sleep 1000"), NEVER)
    assert again.state == "running"
    await until(lambda: b"second" in output(sandbox, "", "daemon"))
    assert set(left) & set(await sandbox.client.processes(""))
    assert await sandbox.client.close_owner("") == ()
    assert not any(is_alive(pid) for pid in left)


async def test_a_service_that_does_not_listen_is_killed_after_its_grace(sandbox: RunningSupervisor) -> None:
    stubborn = python(
        "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(1000)"
    )
    await sandbox.client.start_service("", "web", stubborn, NEVER)
    await until(lambda: b"up" in output(sandbox, "", "web"))
    assert await sandbox.client.stop_service("", "web", 0.05)
    state = await sandbox.client.inspect("", "web")
    assert state is not None
    assert (state.state, state.exit_code) == ("exited", 137)


async def test_a_name_is_a_run_or_a_service_and_not_both(sandbox: RunningSupervisor) -> None:
    await sandbox.client.start_run("", "same", shell("true"), 60)
    with pytest.raises(SupervisorRefusal):
        await sandbox.client.start_service("", "same", shell("true"), NEVER)
    assert await sandbox.client.inspect("", "same") is None


async def test_a_program_gets_nothing_of_the_supervisors(sandbox: RunningSupervisor) -> None:
    script = """
import os, signal, json
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "session": os.getsid(0) == os.getpid(),
    # The kernel's signals 32 and 33 are the C library's own, and no program can set them.
    "ignored": int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24 | 3 << 31), "blocked": int(status["SigBlk"], 16),
    "nnp": status["NoNewPrivs"].strip(), "capabilities": int(status["CapEff"], 16),
    "environment": sorted(os.environ),
}))
"""
    await sandbox.client.start_run(
        "", "task-1", ProgramSpec((sys.executable, "-I", "-S", "-c", script), {"A": "1"}), 60
    )
    assert (await sandbox.client.wait_run("", "task-1")).exit_code == 0
    seen = json.loads(output(sandbox, "", "task-1"))
    names = ["A", "LANG", "MOORING_KEY", "MOORING_OWNER", "MOORING_SANDBOX", "PATH"]
    assert seen == {
        "descriptors": [0, 1, 2],
        "session": True,
        "ignored": 0,
        "blocked": 0,
        "nnp": "1",
        "capabilities": 0,
        "environment": names,
    }


async def test_no_secret_is_in_an_argument_list_a_file_or_the_supervisors_environment(
    sandbox: RunningSupervisor,
) -> None:
    secret = "tell-nobody-4711"
    program = ProgramSpec(("sh", "-c", "read word; exec sleep 1000"), {"TOKEN": secret}, stdin=f"{secret}\n".encode())
    started = await sandbox.client.start_service("", "web", program, NEVER)
    status = await sandbox.client.status()
    assert started.pid is not None
    pid = started.pid
    await until(lambda: "TOKEN" in proc.environment(pid))  # the kernel shows it a moment after the program's start
    assert proc.environment(pid)["TOKEN"] == secret
    for pid in (status.pid, *status.owners.values(), started.pid):
        assert secret not in proc.title(pid)
    for pid in (status.pid, *status.owners.values()):
        assert proc.title(pid) == "mooring-init test"
        assert environment_of(pid) == b""
    for file in sandbox.state.rglob("*"):
        if file.is_file():
            assert secret.encode() not in file.read_bytes(), file


async def until_state(sandbox: RunningSupervisor, name: str, wanted: str) -> None:
    """Wait for a service to reach this state."""

    async def is_so() -> bool:
        state = await sandbox.client.inspect("", name)
        return state is not None and state.state == wanted

    await until(is_so)


def environment_of(pid: int) -> bytes:
    """The environment of a process, according to /proc."""
    return Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")
