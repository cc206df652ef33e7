"""The agent is killed at every step; a new one recovers and does nothing twice. Also: running without root."""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.tests.support import killed_process_agent
from agent.tests.support.process_sandboxes import A, get, host_below, is_running, log_of, root_of, shell, wanted
from agent.tests.support.supervisors import is_alive, until
from mooring_agent.hosts.contract import HostFailure
from mooring_agent.hosts.process import ProcessHost, create, destroy
from mooring_agent.kernel import proc
from mooring_agent.supervisor.supervisor_client import SupervisorClient


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that another user may use; pytest's own ones are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


async def begin(
    directory: Path, node_id: str, words: str, *end: str, before: tuple[str, ...] = (), python: str = sys.executable
) -> asyncio.subprocess.Process:
    """Start an agent in a process of its own."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    arguments = (*before, python, killed_process_agent.__file__, str(directory), node_id, words, *end)
    return await asyncio.create_subprocess_exec(*arguments, stdout=-1, env=environment)


async def results_of(agent: asyncio.subprocess.Process) -> dict[str, object]:
    """Everything an agent reported, until it ended."""
    output, _ = await agent.communicate()
    return dict(json.loads(line) for line in output.splitlines())


async def test_an_agent_that_is_killed_in_a_run_is_followed_by_one_that_waits_for_its_end(tmp_path: Path) -> None:
    node_id = f"node_{uuid.uuid4().hex}"
    agent = await begin(tmp_path, node_id, "create,serve,run")
    await until((root_of(tmp_path) / "times").exists)
    agent.kill()
    await agent.wait()
    async with host_below(tmp_path, node_id) as host:
        assert await host.recover() == ["alc_1"]
        assert await host.find_run(A, "task-1") == "running"
        assert b"200 OK" in await get(host, int((root_of(tmp_path) / "a.port").read_text()))
        (root_of(tmp_path) / "go").touch()
        assert await host.run(A, "task-1", shell("echo twice >> times"), 600) == 7
        assert (root_of(tmp_path) / "times").read_text() == "once\n"
        assert await host.read_output(A, "task-1") == (b"went on\n", False)
        assert (await host.destroy("alc_1")).clean


ENDS = [
    *(("create", name) for name in ("begin", *(step.__name__ for step in create.STEPS))),
    *(("destroy", name) for name in ("begin", *(step.__name__ for step in destroy.STEPS))),
]


@pytest.mark.parametrize(("word", "step"), ENDS)
async def test_at_whatever_step_an_agent_is_killed_the_next_one_comes_to_the_same_end(
    tmp_path: Path, word: str, step: str
) -> None:
    node_id = f"node_{uuid.uuid4().hex}"
    killed = await begin(tmp_path, node_id, "create,files,serve,destroy", word, step)
    done = await results_of(killed)
    assert killed.returncode == -signal.SIGKILL
    assert list(done) == ([] if word == "create" else ["create", "files", "serve"])
    if word == "create":
        after = await results_of(await begin(tmp_path, node_id, "recover,create,files,serve,get,destroy"))
        assert after["create"] == "none"
        assert str(after["get"]).startswith("HTTP/1.0 200")
        assert after["destroy"] == [True, ["files", "ports", "processes", "sockets"]]
    else:
        after = await results_of(await begin(tmp_path, node_id, "recover,destroy"))
        assert after["recover"] == (["alc_1"] if step == "begin" else [])
        assert isinstance(after["destroy"], list)
        assert after["destroy"][0] is True
    assert list((tmp_path / "host/sandboxes").iterdir()) == []
    assert [each for each in proc.processes().values() if node_id in proc.title(each.pid)] == []
    marked = [pid for pid in proc.processes() if node_id in proc.environment(pid).get("MOORING_SANDBOX", "")]
    assert marked == []


async def test_a_sandbox_whose_supervisor_was_killed_recovers_and_reports_what_is_lost(tmp_path: Path) -> None:
    node_id = f"node_{uuid.uuid4().hex}"
    async with host_below(tmp_path, node_id) as host:
        await host.create(wanted())
        running = asyncio.create_task(host.run(A, "task-1", shell("exec sleep 1000"), 600))
        await until(lambda: is_running(host))
        status = await SupervisorClient(tmp_path / "host/sandboxes/alc_1/supervisor").status()
        os.kill(status.pid, signal.SIGKILL)
        with pytest.raises(HostFailure) as cut:
            await running
        assert cut.value.code == "interrupted"
        await until(lambda: not is_alive(status.pid))
        again = ProcessHost(tmp_path / "host", node_id)
        assert await again.recover() == ["alc_1"]
        assert await again.find_run(A, "task-1") == "absent"
        with pytest.raises(HostFailure) as cut:
            await again.run(A, "task-1", shell("touch twice"), 600)
        assert cut.value.code == "interrupted"
        assert not (root_of(tmp_path) / "twice").exists()
        assert await again.run(A, "task-2", shell("echo on"), 600) == 0
        assert await log_of(again, A, "task-2") == b"on\n"


@pytest.mark.skipif(
    os.geteuid() != 0, reason="becomes somebody else, as root; otherwise every other test shows the same"
)
async def test_everything_works_without_root(open_directory: Path) -> None:
    node_id = f"node_{uuid.uuid4().hex}"
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    # The Python that runs the tests may be in a directory that is closed to others.
    steps, python = "uid,create,files,serve,get,close,destroy", shutil.which("python3", path="/usr/bin") or "python3"
    report = await results_of(await begin(open_directory, node_id, steps, before=nobody, python=python))
    assert report["uid"] == 65534
    assert str(report["get"]).startswith("HTTP/1.0 200")
    assert (report["close"], report["destroy"]) == (True, [True, ["files", "processes"]])
    assert list((open_directory / "host/sandboxes").iterdir()) == []
