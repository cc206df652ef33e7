"""The workload adapter that `mooring up` runs next to the local node, so that apps can be operated at once.

Like every adapter it has its own key and only uses the public API. Its key and the bundle of a first app are next to
the data. One thread supervises it from start to end, because the kernel ends the adapter when the thread that started
it is gone. An adapter that dies is restarted.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from mooring_cli import output

ADAPTER = "mooring_workload"
APP = "hello"
STOP_SECONDS = 30.0
STEADY_SECONDS = 30.0
"""An adapter that ran this long does not count as a failed attempt."""
PAUSE_SECONDS_MAX = 60.0
SOURCE_DIRECTORY = "MOORING_SOURCE_FILE_DIRECTORY"
PR_SET_PDEATHSIG = 1


class LocalAdapter:
    """The workload adapter on this machine, with its key and the bundle of its first app."""

    def __init__(self, state: Path, apps: Path) -> None:
        self._state = state
        self._apps = apps
        self._url = ""
        self._ca_file: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._supervise, daemon=True)

    def begin(self, url: str, ca_file: str | None) -> None:
        """Start the adapter for the platform at this address, whose certificate this file vouches for."""
        self._url, self._ca_file = url, ca_file
        self._thread.start()

    def end(self) -> None:
        """Stop the adapter; the apps keep running, and the next start finds them again."""
        with self._turn:
            self._over.set()
            process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _supervise(self) -> None:
        try:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            bundle = self._bundled()
            if bundle is not None:
                self._keep_running(bundle)
        except OSError as error:
            self._tell(f"The workload adapter cannot start, Mooring runs without it: {error}")

    def _bundled(self) -> str | None:
        """Write the bundle of the first app; this installation may be newer than the last one."""
        words = ["bundle", APP, "--output", str(self._apps), "--key-file", str(self._key)]
        done = subprocess.run([sys.executable, "-m", ADAPTER, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self._tell(f"The workload adapter cannot start, Mooring runs without it: {_last_line(done.stderr)}")
            return None
        return done.stdout.strip()

    @property
    def _key(self) -> Path:
        return self._state / "workload.key"

    def _keep_running(self, bundle: str) -> None:
        attempts = 0
        log = self._state / "workload.log"
        while (process := self._start(log)) is not None:
            began = time.monotonic()
            if attempts == 0:
                self._tell(
                    f"The workload adapter is running; its log is {log}. "
                    f"`mooring install {bundle}` puts the app {APP} into the catalog."
                )
            code = process.wait()
            attempts = 1 if time.monotonic() - began > STEADY_SECONDS else attempts + 1
            last = _last_line(log.read_text(encoding="utf-8", errors="replace"))
            self._tell(f"The workload adapter exited with code {code}; restarting it: {last}")
            if self._over.wait(min(2.0**attempts, PAUSE_SECONDS_MAX)):
                return

    def _start(self, log: Path) -> "subprocess.Popen[bytes] | None":
        """Start it, unless the command is ending."""
        command = [sys.executable, "-m", ADAPTER, "--url", self._url, "--key-file", str(self._key)]
        if self._ca_file is not None:
            command += ["--ca-file", self._ca_file]
        with self._turn:
            if self._over.is_set():
                return None
            if log.exists():
                shutil.move(log, log.with_suffix(".log.1"))
            with log.open("wb") as file:
                self._process = subprocess.Popen(
                    command,
                    stdout=file,
                    stderr=file,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=_die_with_thread,
                )
            return self._process

    def _tell(self, text: str) -> None:
        if not self._over.is_set():
            output.note(text)


def _die_with_thread() -> None:
    """Runs in the child before the program: ask the kernel for SIGTERM when the thread that started it is gone."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def adapter_directories(node_state: Path) -> tuple[Path, Path]:
    """The directories of the adapter's key and of the bundles, next to the node's state."""
    name = node_state.name.removesuffix("-node")
    return node_state.with_name(f"{name}-adapter"), node_state.with_name(f"{name}-apps")


def file_source(apps: Path) -> dict[str, str]:
    """The setting that lets the platform read the artifacts of bundles, unless the operator has set their own."""
    return {} if os.environ.get(SOURCE_DIRECTORY) else {SOURCE_DIRECTORY: str(apps)}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("mooring-workload: ") if lines else "no output"
