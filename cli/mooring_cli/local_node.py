"""The agent of this machine, which `mooring up` runs next to the server, so that there is capacity at once.

It joins with a token that the server writes into a pipe, keeps its identity, and is the same node at every start,
whatever the port is then. One thread supervises it from start to end, because the kernel ends the agent when the
thread that started it is gone. An agent that dies is restarted. If this machine cannot be a node, one line says why,
and the platform runs without it.
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
from mooring_cli.parent_death import end_with

AGENT = "mooring_agent"
NAME = "this-machine"
STOP_SECONDS = 30.0
ATTEMPTS_MAX = 5
STEADY_SECONDS = 30.0
"""An agent that ran this long does not count as a failed attempt."""
WITHOUT = "Mooring runs without this machine as a node"


class LocalNode:
    """This machine as a node of the platform that runs here."""

    def __init__(
        self,
        offered: int,
        state: Path,
        host: str,
        simulated_gpus: int,
        on_address: Callable[[str, str | None], None] | None = None,
        *,
        tell: Callable[[str], None] = output.note,
    ) -> None:
        """`on_address` is called with the platform's address and its CA file, if it has one, once they are known."""
        self._note = tell
        self._offered = offered
        self._on_address = on_address
        self._state = state
        self._host = host
        self._gpus = simulated_gpus
        self._ca_file: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def begin(self) -> None:
        """Join as soon as the server is ready."""
        self._thread.start()

    def end(self) -> None:
        """Stop the agent; its sandboxes keep running, and the next start finds them again."""
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

    def _supervise(self) -> None:
        try:
            with os.fdopen(self._offered, encoding="utf-8") as pipe:
                offered = pipe.read().splitlines()
            if not offered:
                return  # the server ended before it was ready, and printed why
            url, token, platform, *trusted = offered
            self._ca_file = trusted[0] if trusted else None
            if self._on_address is not None:
                self._on_address(url, self._ca_file)
            if self._joined(url, token, platform):
                self._keep_running(url)
        except (OSError, ValueError) as error:
            self._tell(f"{WITHOUT}: {error}")

    def _joined(self, url: str, token: str, platform: str) -> bool:
        """Whether this machine is a node of this platform, now or from an earlier start."""
        identity = self._state / "identity.json"
        if identity.exists():
            known = json.loads(identity.read_text(encoding="utf-8"))["audience"]
            if known == platform:
                return True
            self._tell(
                f"{WITHOUT}: {self._state} belongs to a node of another platform (another database). "
                "If nothing of it is running any more, move that directory away and start again."
            )
            return False
        done = subprocess.run(
            [*self._agent("enrol"), "--url", url, "--name", NAME, *self._trust()],
            input=token,
            text=True,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            self._tell(f"{WITHOUT}: {_last_line(done.stderr)}")
        return done.returncode == 0

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
                self._tell(f"{WITHOUT}: its agent exited {attempts} times, the last time with code {code}: {last}")
                return
            self._tell(f"The agent of this machine exited with code {code}; restarting it: {last}")
            if self._over.wait(2.0**attempts):
                return

    def _start(self, url: str) -> tuple["subprocess.Popen[bytes] | None", Path]:
        """Start the agent, unless the command is ending."""
        log = self._state / "agent.log"
        command = [*self._agent("run"), "--url", url, *self._trust()]
        command += ["--simulated-gpus", str(self._gpus), "--end-with-parent"]
        with self._turn:
            if self._over.is_set():
                return None, log
            if log.exists():
                shutil.move(log, log.with_suffix(".log.1"))
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=file,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=end_with(os.getpid()),
                )
            return self._process, log

    def _agent(self, verb: str) -> list[str]:
        return [sys.executable, "-m", AGENT, verb, "--state-dir", str(self._state), "--host", self._host]

    def _trust(self) -> list[str]:
        return [] if self._ca_file is None else ["--ca-file", self._ca_file]

    def _tell(self, text: str) -> None:
        if not self._over.is_set():
            self._note(text)


def default_host() -> str:
    """The most isolated host that this account can use."""
    return "namespace" if os.geteuid() == 0 else "process"


def _kind(host: str) -> str:
    """Say in one line whether the sandboxes of this node are isolated."""
    if host == "process":
        why = "" if os.geteuid() == 0 else ", without root"
        return f"This machine is a node{why}: its sandboxes are plain processes, and NOTHING IS ISOLATED."
    without = "" if shutil.which("podman") else " podman is not installed, so containers are not available."
    return f"This machine is a node; its sandboxes are isolated (namespaces).{without}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("mooring-agent: ") if lines else "no output"
