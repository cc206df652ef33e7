"""`mooring up`: the programs of Mooring on this machine, as children of this one.

The command knows the other programs only as programs: it starts them, hands signals on, and ends when the server
does. A child is in a process group of its own, so that Ctrl-C reaches it once, from here; the kernel ends it when
this process dies in whatever way.

Beside the server runs the agent of this machine's own node, so that there is somewhere to launch things: with root
it isolates what it runs, without root it does not, and says so.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

from mooring_cli import failures, output
from mooring_cli.main import MooringCommand

SERVER = "mooring"
AGENT = "mooring_agent"
LOCAL_NODE_FILE = "MOORING_LOCAL_NODE_FILE"
PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 30.0
LOOK_SECONDS = 0.1


@click.command(cls=MooringCommand)
@click.option("--data-dir", metavar="DIR", help="Directory of the embedded database.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.")
@click.option("--node/--no-node", default=True, help="Let this machine be a node as well. [default: --node]")
@click.option(
    "--simulated-gpus",
    type=click.IntRange(0, 64),
    default=4,
    help="GPUs that compute nothing, where the machine has none. [default: 4]",
)
def up(*, data_dir: str | None, host: str | None, port: int | None, node: bool, simulated_gpus: int) -> int:
    """Start Mooring on this machine: the database, the API, the workers, and a node.

    It stays until it is interrupted. On the first start it prints the one-time sign-in of the first admin.
    What runs in sandboxes of the node goes on when this ends, and is found again at the next start.
    Settings come from the environment (MOORING_DATABASE_URL, …).
    """
    if find_spec(SERVER) is None:
        raise click.ClickException(
            "mooring-server is not installed where this command is; install it there, or work with a server elsewhere: "
            "mooring login --url URL"
        )
    arguments = [sys.executable, "-m", SERVER, "up"]
    for name, value in (("--data-dir", data_dir), ("--host", host), ("--port", port)):
        if value is not None:
            arguments += [name, str(value)]
    if not node or find_spec(AGENT) is None:
        return run(arguments)
    with tempfile.TemporaryDirectory(prefix="mooring-up-") as private:
        return LocalNode(Path(private), state_directory(data_dir), simulated_gpus).run_beside(arguments)


def state_directory(data_dir: str | None) -> Path:
    """Where the local node's agent keeps its state: beside the database, not in it."""
    given = data_dir or os.environ.get("MOORING_DATA_DIR")
    if given:
        path = Path(given).absolute()
    elif os.geteuid() == 0:
        path = Path("/var/lib/mooring")
    else:
        path = Path.home() / ".local" / "share" / "mooring"
    return path.with_name(path.name + "-node")


class LocalNode:
    """The agent of this machine, which joins once the server is there."""

    def __init__(self, private: Path, state: Path, simulated_gpus: int) -> None:
        self._offer = private / "offer"
        self._state = state
        self._gpus = simulated_gpus
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()

    def run_beside(self, arguments: list[str]) -> int:
        """Run the server to its end, with the agent beside it."""
        joining = threading.Thread(target=self._join, daemon=True)
        joining.start()
        try:
            return run(arguments, {**os.environ, LOCAL_NODE_FILE: str(self._offer)})
        finally:
            self._over.set()
            joining.join(STOP_SECONDS)
            self._stop()

    def _join(self) -> None:
        while not self._offer.exists():
            if self._over.wait(LOOK_SECONDS):
                return
        url, token = self._offer.read_text(encoding="utf-8").splitlines()
        self._offer.unlink()
        agent = [sys.executable, "-m", AGENT]
        place = ["--state-dir", str(self._state)]
        if not (self._state / "identity.json").exists():
            told = subprocess.run(
                [*agent, "enrol", *place, "--url", url, "--name", "this-machine"],
                input=token, text=True, capture_output=True, check=False,
            )  # fmt: skip
            if told.returncode != 0:
                output.note(f"This machine could not become a node: {told.stderr.strip()}")
                return
        self._start([*agent, "run", *place, "--url", url, "--simulated-gpus", str(self._gpus), "--end-with-parent"])

    def _start(self, command: list[str]) -> None:
        if self._over.is_set():
            return
        log = self._state / "agent.log"
        if log.exists():
            shutil.move(log, log.with_suffix(".log.1"))
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
            )
        kind = "namespace host: sandboxes are isolated" if os.geteuid() == 0 else "process host: nothing is isolated"
        output.note(f"This machine is a node ({kind}); its agent's log is {log}")
        threading.Thread(target=self._watch, args=(self._process, log), daemon=True).start()

    def _watch(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        code = process.wait()
        if not self._over.is_set():
            output.note(f"The agent of this machine ended with exit code {code}; its log is {log}")

    def _stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


def run(arguments: list[str], environment: dict[str, str] | None = None) -> int:
    """Run a program to its end, hand signals on to it, and give its end as ours."""
    child = subprocess.Popen(arguments, process_group=0, preexec_fn=_die_with_parent, env=environment)
    with _handed_on(child):
        code = child.wait()
    if code in (0, -signal.SIGTERM, -signal.SIGINT):
        return failures.DONE
    return failures.USAGE if code == 1 else failures.SERVER


def _die_with_parent() -> None:
    """Runs in the child before the program: ask the kernel for SIGTERM when the parent is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _handed_on(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    """While this lasts, the first signal asks the child to stop, and a second one insists."""

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
