"""The adapters that `mooring up` runs next to the local node, so that apps can be operated at once.

Like every adapter, one has its own key and only uses the public API. Its key and the bundle of its app are next to
the data. One thread supervises it from start to end, because the kernel ends the adapter when the thread that started
it is gone. An adapter that dies is restarted.
"""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from mooring_cli import output
from mooring_cli.parent_death import end_with

OFFERED = "mooring.local_adapters"
"""The entry points of adapters that `mooring up --try` can run."""
STOP_SECONDS = 30.0
STEADY_SECONDS = 30.0
"""An adapter that ran this long does not count as a failed attempt."""
PAUSE_SECONDS_MAX = 60.0
SOURCE_DIRECTORY = "MOORING_SOURCE_FILE_DIRECTORY"


@dataclass(frozen=True, slots=True)
class AdapterProgram:
    """An adapter that comes with Mooring, its app, and the programs that a node needs for it."""

    name: str
    module: str
    app: str
    bundle: tuple[str, ...]  # the arguments that write the app's bundle, with {apps} and {key}
    needs: tuple[str, ...] = ()
    host: str | None = None  # the only kind of node that the app runs on

    def bundle_words(self, apps: Path, key: Path) -> list[str]:
        return [each.format(apps=apps, key=key) for each in self.bundle]

    def is_here(self, node_host: str | None = None) -> bool:
        """Whether the adapter and what its app needs are installed, and such a node can run it."""
        path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        installed = find_spec(self.module) is not None and all(shutil.which(each, path=path) for each in self.needs)
        return installed and self.host in (None, node_host)


WORKLOAD = AdapterProgram(
    "workload", "mooring_workload", "hello", ("bundle", "hello", "--output", "{apps}", "--key-file", "{key}")
)


def bundled_adapters(node_host: str) -> list[AdapterProgram]:
    """The workload adapter, and every adapter that offers itself by an entry point and can run here."""
    found = [WORKLOAD]
    for point in sorted(entry_points(group=OFFERED), key=lambda each: each.name):
        about = point.load()
        module = point.module.partition(".")[0]
        needs, bundle = tuple(about["needs"]), tuple(about["bundle"])
        found.append(AdapterProgram(point.name, module, about["app"], bundle, needs, about.get("host")))
    return [each for each in found if each.is_here(node_host)]


class LocalAdapter:
    """An adapter on this machine, with its key and the bundle of its app."""

    def __init__(
        self, program: AdapterProgram, state: Path, apps: Path, tell: Callable[[str], None] = output.note
    ) -> None:
        self.name, self.app = program.name, program.app
        self._program = program
        self._note = tell
        self._bundle: str | None = None
        self._bundle_known = threading.Event()
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

    def bundle(self, timeout_seconds: float) -> str | None:
        """The file of the app's bundle once the adapter has been started; None if it cannot be."""
        self._bundle_known.wait(timeout_seconds)
        return self._bundle

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
            self._bundle = self._bundled()
            self._bundle_known.set()
            if self._bundle is not None:
                self._keep_running(self._bundle)
        except OSError as error:
            self._tell(f"The {self.name} adapter cannot start, Mooring runs without it: {error}")
        finally:
            self._bundle_known.set()

    def _bundled(self) -> str | None:
        """Write the bundle of its app; this installation may be newer than the last one."""
        words = [sys.executable, "-m", self._program.module, *self._program.bundle_words(self._apps, self._key)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self._tell(f"The {self.name} adapter cannot start, Mooring runs without it: {_last_line(done.stderr)}")
            return None
        return done.stdout.strip()

    @property
    def _key(self) -> Path:
        return self._state / f"{self.name}.key"

    def _keep_running(self, bundle: str) -> None:
        attempts = 0
        log = self._state / f"{self.name}.log"
        while (process := self._start(log)) is not None:
            began = time.monotonic()
            if attempts == 0:
                self._tell(
                    f"The {self.name} adapter is running; its log is {log}. "
                    f"`mooring install {bundle}` puts the app {self.app} into the catalog."
                )
            code = process.wait()
            attempts = 1 if time.monotonic() - began > STEADY_SECONDS else attempts + 1
            last = _last_line(log.read_text(encoding="utf-8", errors="replace"))
            self._tell(f"The {self.name} adapter exited with code {code}; restarting it: {last}")
            if self._over.wait(min(2.0**attempts, PAUSE_SECONDS_MAX)):
                return

    def _start(self, log: Path) -> "subprocess.Popen[bytes] | None":
        """Start it, unless the command is ending."""
        command = [sys.executable, "-m", self._program.module, "--url", self._url, "--key-file", str(self._key)]
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
                    preexec_fn=end_with(os.getpid()),
                )
            return self._process

    def _tell(self, text: str) -> None:
        if not self._over.is_set():
            self._note(text)


def file_source(apps: Path) -> dict[str, str]:
    """The setting that lets the platform read the artifacts of bundles, unless the operator has set their own."""
    return {} if os.environ.get(SOURCE_DIRECTORY) else {SOURCE_DIRECTORY: str(apps)}


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return re.sub(r"^mooring-\w+: ", "", lines[-1]) if lines else "no output"
