"""The agent of this machine, which `mooring up` runs beside the server so that there is somewhere to launch things.

It joins with a token that the server writes into a pipe, keeps its identity, and is the same node at every
start, whatever the port is then. One thread looks after it from its start to its end: the kernel ends the agent when
the thread that started it is gone, and that must be no sooner than this program. An agent that dies is started again.
What cannot be a node is told in one line, and the platform runs without.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mooring_cli import output

AGENT = "mooring_agent"
NAME = "this-machine"
STOP_SECONDS = 30.0
ATTEMPTS_MAX = 5
STEADY_SECONDS = 30.0
"""An agent that ran so long was no failed attempt."""
WITHOUT = "Mooring runs without this machine as a node"


class LocalNode:
    """This machine as a node of the platform that runs here."""

    def __init__(
        self, offered: int, state: Path, host: str, simulated_gpus: int, beside: Callable[[str], None] | None = None
    ) -> None:
        """`beside` is told the platform's address once it is there."""
        self._offered = offered
        self._beside = beside
        self._state = state
        self._host = host
        self._gpus = simulated_gpus
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._look_after, daemon=True)

    def begin(self) -> None:
        """Join as soon as the server is there."""
        self._thread.start()

    def end(self) -> None:
        """End the agent; what runs in its sandboxes goes on, and is found again at the next start."""
        with self._turn:
            self._over.set()
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join(STOP_SECONDS)

    def _look_after(self) -> None:
        try:
            with os.fdopen(self._offered, encoding="utf-8") as pipe:
                told = pipe.read().splitlines()
            if not told:
                return  # the server ended before it was ready, and has said why
            url, token, platform = told
            if self._beside is not None:
                self._beside(url)
            if self._joined(url, token, platform):
                self._keep_running(url)
        except (OSError, ValueError) as error:
            self._tell(f"{WITHOUT}: {error}")

    def _joined(self, url: str, token: str, platform: str) -> bool:
        """Whether this machine is a node of this platform, by now or from before."""
        identity = self._state / "identity.json"
        if identity.exists():
            known = json.loads(identity.read_text(encoding="utf-8"))["audience"]
            if known == platform:
                return True
            self._tell(
                f"{WITHOUT}: {self._state} belongs to a node of another platform (another database). "
                "If nothing of it runs any more, move that directory away and start again."
            )
            return False
        told = subprocess.run(
            [*self._agent("enrol"), "--url", url, "--name", NAME],
            input=token, text=True, capture_output=True, check=False,
        )  # fmt: skip
        if told.returncode != 0:
            self._tell(f"{WITHOUT}: {_last_line(told.stderr)}")
        return told.returncode == 0

    def _keep_running(self, url: str) -> None:
        attempts = 0
        while True:
            began = time.monotonic()
            process, log = self._start(url)
            if process is None:
                return
            if attempts == 0:
                self._tell(f"{_kind(self._host)} Its agent's log is {log}")
            code = process.wait()
            attempts = 1 if time.monotonic() - began > STEADY_SECONDS else attempts + 1
            last = _last_line(log.read_text(encoding="utf-8", errors="replace"))
            if attempts == ATTEMPTS_MAX:
                self._tell(f"{WITHOUT}: its agent ended {attempts} times, at last with exit code {code}: {last}")
                return
            self._tell(f"The agent of this machine ended with exit code {code} and is started again: {last}")
            if self._over.wait(2.0**attempts):
                return

    def _start(self, url: str) -> tuple["subprocess.Popen[bytes] | None", Path]:
        """Start the agent, unless all of it is over."""
        log = self._state / "agent.log"
        command = [*self._agent("run"), "--url", url, "--simulated-gpus", str(self._gpus), "--end-with-parent"]
        with self._turn:
            if self._over.is_set():
                return None, log
            if log.exists():
                shutil.move(log, log.with_suffix(".log.1"))
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
                )
            return self._process, log

    def _agent(self, verb: str) -> list[str]:
        return [sys.executable, "-m", AGENT, verb, "--state-dir", str(self._state), "--host", self._host]

    def _tell(self, text: str) -> None:
        if not self._over.is_set():
            output.note(text)


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


def default_host() -> str:
    """The best that this account can have."""
    return "namespace" if os.geteuid() == 0 else "process"


def _kind(host: str) -> str:
    """What kind of a node this is, in a line."""
    if host == "process":
        why = "" if os.geteuid() == 0 else ", without root"
        return f"This machine is a node{why}: its sandboxes are plain processes, and NOTHING IS ISOLATED."
    without = "" if shutil.which("podman") else " There is no podman: containers are not to be had."
    return f"This machine is a node; its sandboxes are isolated (namespaces).{without}"


def _last_line(text: str) -> str:
    """What a program said last."""
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("mooring-agent: ") if lines else "it said nothing"
