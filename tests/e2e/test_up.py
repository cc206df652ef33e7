"""`mooring up` and this machine's own node: found again at every start, whatever ended the one before."""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mooring_cli.local_layout import LocalLayout, layout_of
from mooring_sdk import Client, ClientSettings, models
from tests.e2e.leftovers import SECONDS_MAX, eventually, leftovers_of, wait_for_no_leftovers
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, copy_first_start
from tools.demo_nodes import remains
from tools.ports import free_port

pytestmark = pytest.mark.real_part("postgresql")
HOSTS = ("process", "namespace") if os.geteuid() == 0 else ("process",)
PATIENT = ClientSettings(timeout_seconds=90, deadline_seconds=300)
PROGRAMS = ("-m mooring up", "-m mooring_agent run", "mooring_cli up", "-m mooring_workload", "postgres -D")
Stateful = TypeVar("Stateful", models.Allocation, models.Task)


@dataclass
class MooringUp:
    """`mooring up` in a directory, started as often as a test likes, and what it says."""

    directory: Path
    host: str
    process: "subprocess.Popen[str] | None" = None
    port: int = 0
    lines: "queue.Queue[str | None]" = field(default_factory=queue.Queue)
    welcome: str = ""  # the line that its start was waited for with

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def layout(self) -> LocalLayout:
        return layout_of(str(self.directory / "data"))

    def start(self, wanted: str, *, adapters: bool = True, **environment: str) -> str:
        """Start it on a new port, and wait for a line with these words."""
        self.port = free_port()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        own = {
            "MOORING_FIRST_ADMIN_CODE_FILE": str(self.directory / "code"),
            "MOORING_RELAY_LISTEN_PORT": str(free_port()),
            **environment,
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "mooring_cli",
                "up",
                "--data-dir",
                str(self.directory / "data"),
                "--port",
                str(self.port),
                "--node-host",
                self.host,
                "--adapters" if adapters else "--no-adapters",
            ],
            env={**kept, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines = queue.Queue()
        threading.Thread(target=pump, args=(self.process, self.lines), daemon=True).start()
        self.welcome = self.line(wanted)
        return self.welcome

    def line(self, wanted: str) -> str:
        """The next line with these words."""
        said = []
        until = time.monotonic() + SECONDS_MAX
        while (line := self.lines.get(timeout=max(0.0, until - time.monotonic()))) is not None:
            said.append(line)
            if wanted in line:
                return line
        raise AssertionError(f"it ended without {wanted!r}: {''.join(said)[-3000:]}")

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """End it, and wait until none of its programs is left; its exit code."""
        assert self.process is not None
        os.killpg(self.process.pid, number)
        code = self.process.wait(timeout=SECONDS_MAX)
        self.process = None
        eventually(self.programs, lambda left: left == [])
        return code

    def programs(self) -> list[str]:
        """Those of its programs that run, its sandboxes not among them."""
        found = [each.replace("\0", " ") for each in leftovers_of(self.directory)]
        return [each for each in found if any(words in each for words in PROGRAMS)]

    def clients(self) -> tuple[Client, Client]:
        """The platform's admin, and the admin of a tenant."""
        return tuple(  # type: ignore[return-value]
            Client(self.url, token=(self.directory / name).read_text(), settings=PATIENT) for name in ("admin", "ada")
        )


def pump(process: "subprocess.Popen[str]", lines: "queue.Queue[str | None]") -> None:
    """Hand on what it says, so that nobody waits for it longer than he wants."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


@contextmanager
def place(host: str) -> Iterator[MooringUp]:
    """A `mooring up` in a directory that is short, as sockets need it, and open for the database's account."""
    directory = Path(tempfile.mkdtemp(prefix="mooring-e2e-"))
    directory.chmod(0o711)
    up = MooringUp(directory, host)
    try:
        yield up
    finally:
        if up.process is not None:
            up.stop()
        if up.layout.node.is_dir():
            remains(up.layout.node, host)
        shutil.rmtree(directory)


def begun(up: MooringUp) -> tuple[models.Project, models.Allocation]:
    """The first steps: a SKU, a tenant, a project, and an allocation with a service that writes down its start."""
    with Client(up.url, settings=PATIENT) as door:
        code = (up.directory / "code").read_text().strip()
        admin = door.sign_in(email=FIRST_ADMIN, one_time_code=code, new_password=PASSWORD).token
        (up.directory / "admin").write_text(admin)
        with Client(up.url, token=admin, settings=PATIENT) as client:
            client.create_sku(
                slug="slice",
                display_name="Simulated",
                shape="gpu_slice",
                gpu_model="simulated",
                regions=["local"],
                allowed_gpu_counts=[1, 2, 4],
                price_minor_per_gpu_hour=0,
                currency="EUR",
            )
            first = models.FirstAdminBody(email="ada@harbour.test", display_name="Ada")
            tenant = client.create_tenant(slug="harbour", display_name="Harbour", first_admin=first)
        ada = door.sign_in(
            email="ada@harbour.test", tenant="harbour", one_time_code=tenant.one_time_code, new_password=PASSWORD
        ).token
        (up.directory / "ada").write_text(ada)
    with Client(up.url, token=ada, settings=PATIENT) as client:
        project = client.create_project(tenant.id, slug="vision", display_name="Vision")
        asked = client.create_allocation(project.id, sku="slice", shape="gpu_slice", gpu_count=1, name="box")
        held = awaited("active,failed", partial(client.get_allocation, project.id, asked.id))
        assert held.status == "active", held
        counts = "echo started >> count; exec sleep 6000"
        arguments = {"name": "counter", "argv": ["/bin/sh", "-c", counts], "directory": "/tmp"}
        done(client, project, held, "service.start", arguments)
    return project, held


def awaited(states: str, read: Callable[..., Stateful]) -> Stateful:
    """What is read once it has come to one of these states, or as it is when nobody is patient any more."""
    until = time.monotonic() + SECONDS_MAX
    while (seen := read(wait=30, until=states)).status not in states.split(",") and time.monotonic() < until:
        continue
    return seen


def done(
    client: Client, project: models.Project, held: models.Allocation, type: str, arguments: dict[str, Any]
) -> models.Task:
    """A task to its good end."""
    made = client.create_allocation_task(project.id, held.id, type=type, arguments=arguments)
    seen = awaited("succeeded,failed,cancelled,expired", partial(client.get_task, project.id, made.id))
    assert seen.status == "succeeded", seen
    return seen


@pytest.mark.parametrize(("host", "ends_by"), list(zip(HOSTS, (signal.SIGINT, signal.SIGKILL), strict=False)))
def test_the_next_start_on_another_port_finds_the_node_and_what_runs_on_it(host: str, ends_by: signal.Signals) -> None:
    with place(host) as up:
        found_again(up, ends_by)


def found_again(up: MooringUp, ends_by: signal.Signals) -> None:
    line = up.start("This machine is a node")
    assert ("NOTHING IS ISOLATED" in line) == (up.host == "process")
    project, held = begun(up)
    code = up.stop(ends_by)
    assert code == (0 if ends_by == signal.SIGINT else -signal.SIGKILL)
    assert leftovers_of(up.directory) != [], "what runs in the sandbox goes on"
    up.start("This machine is a node")
    admin, ada = up.clients()
    with admin, ada:
        looked = done(ada, project, held, "process.run", {"argv": ["/bin/cat", "count"], "directory": "/tmp"})
        assert looked.last_lines == ["started"], "the service was not started twice"
        assert typed(up, project, held, Path("/dev/null")) == ""
        assert "words of a file" in typed(up, project, held, up.directory / "words")
        (node,) = admin.iter_nodes()
        assert (node.id, node.allocations) == (held.node_id, 1)
        ada.release_allocation(project.id, held.id)
        over = awaited("released,release_failed", partial(ada.get_allocation, project.id, held.id))
        assert (over.status, over.teardown_proof) == ("released", "receipts"), over
    assert up.stop() == 0
    wait_for_no_leftovers(up.directory)


def typed(up: MooringUp, project: models.Project, held: models.Allocation, given: Path) -> str:
    """What `cat` says in the sandbox, by `mooring exec`, to what is in a file."""
    (up.directory / "words").write_text("words of a file\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(up.directory),
        "MOORING_URL": up.url,
        "MOORING_TOKEN": (up.directory / "ada").read_text(),
    }
    command = [sys.executable, "-m", "mooring_cli", "exec", "--project", project.id, held.id, "--", "cat"]
    with given.open("rb") as stdin:
        ran = subprocess.run(command, env=environment, stdin=stdin, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def test_a_platform_that_can_have_no_node_here_says_why_in_a_line_and_runs() -> None:
    with place(HOSTS[-1]) as up:
        says_why(up)


def says_why(up: MooringUp) -> None:
    copy_first_start(up.directory)
    state = up.layout.node
    state.write_text("in the way")
    assert str(state) in up.start("runs without this machine as a node")
    ready(up)
    assert up.stop() == 0
    state.unlink()
    state.mkdir(mode=0o700)
    (state / "identity.json").write_text(json.dumps({"audience": "mooring:another"}))
    assert "another platform" in up.start("runs without this machine as a node")
    ready(up)
    assert up.stop() == 0
    (state / "identity.json").unlink()
    if up.host == "namespace":
        line = up.start("runs without this machine as a node", PATH="/nowhere")
        assert "needs ip, nsenter, unshare: apt-get install iproute2 util-linux" in line
        ready(up)
        assert up.stop() == 0
        programs = up.directory / "bin"
        programs.mkdir()
        for name in ("ip", "nsenter", "unshare"):
            (programs / name).symlink_to(str(shutil.which(name)))
        assert "podman is not installed" in up.start("This machine is a node", PATH=str(programs))
    else:
        up.start("This machine is a node")
    assert up.stop() == 0
    wait_for_no_leftovers(up.directory)


def ready(up: MooringUp) -> None:
    """The platform is."""
    with Client(up.url, settings=PATIENT) as client:
        client.get_readiness()


@pytest.fixture(scope="module")
def standing() -> Iterator[MooringUp]:
    """One that runs with a node and an adapter, whatever is killed of it; nothing of it is left at the end."""
    with place("process") as up:
        copy_first_start(up.directory)
        up.start("The workload adapter is running")
        yield up
        if up.process is not None:
            assert up.stop() == 0
        wait_for_no_leftovers(up.directory)


def first_of(up: MooringUp, words: str) -> int:
    """The process with these words that no other one with them has started: its child has them until it is another."""
    found = {int(each.split()[0]) for each in up.programs() if words in each}
    (first,) = (each for each in found if parent_of(each) not in {*found, None})
    return first


def parent_of(pid: int) -> int | None:
    """The process that started this one; none when it has ended meanwhile."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_an_agent_that_is_killed_is_started_again(standing: MooringUp) -> None:
    up = standing
    eventually(up.programs, lambda seen: any("-m mooring_agent run" in each for each in seen))
    os.kill(first_of(up, "-m mooring_agent run"), signal.SIGKILL)
    assert "exited with code -9" in up.line("restarting it")
    eventually(up.programs, lambda seen: any("-m mooring_agent run" in each for each in seen))


def test_the_adapter_that_is_killed_is_started_again_with_its_key_and_can_be_left_out(standing: MooringUp) -> None:
    up = standing
    bundle = up.layout.apps / "hello.json"
    assert f"mooring install {bundle}" in up.welcome
    key = json.loads(bundle.read_text())["adapter_key"]
    eventually(up.programs, lambda seen: any("-m mooring_workload" in each for each in seen))
    os.kill(first_of(up, "-m mooring_workload"), signal.SIGKILL)
    assert "The workload adapter exited with code -9" in up.line("restarting it")
    eventually(up.programs, lambda seen: any("-m mooring_workload" in each for each in seen))
    assert up.stop() == 0
    up.start("This machine is a node", adapters=False)
    assert not any("-m mooring_workload" in each for each in up.programs())
    assert up.stop() == 0
    assert json.loads(bundle.read_text())["adapter_key"] == key
