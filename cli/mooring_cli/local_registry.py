"""The registry that `mooring up` runs for images of one's own, where docker-registry is installed.

It listens on loopback only, on a port that is chosen once, because the locations of images contain it. It trusts the
tokens of this platform: the server writes their certificate into a file before it listens.
"""

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from mooring_cli import output
from mooring_cli.parent_death import end_with

PROGRAM = "docker-registry"
REGISTRY_URL = "MOORING_REGISTRY_URL"
CERTIFICATE_FILE = "MOORING_REGISTRY_CERTIFICATE_FILE"
STOP_SECONDS = 10.0


class LocalRegistry:
    """docker-registry as a child of `mooring up`."""

    def __init__(self, state: Path, tell: Callable[[str], None] = output.note) -> None:
        self._state, self._tell = state, tell
        self._program = None if os.environ.get(REGISTRY_URL) else shutil.which(PROGRAM)
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._url = ""

    def settings(self) -> dict[str, str]:
        """The settings that point the server to this registry; empty if it is not installed, or another one is set."""
        if self._program is None:
            return {}
        self._state.mkdir(mode=0o711, parents=True, exist_ok=True)
        return {REGISTRY_URL: f"http://127.0.0.1:{self._port()}", CERTIFICATE_FILE: str(self._certificate)}

    def begin(self, url: str) -> None:
        """Start it for the platform at this address."""
        self._url = url
        if self._program is not None:
            self._thread.start()

    def end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()

    @property
    def _certificate(self) -> Path:
        return self._state / "certificate.pem"

    def _port(self) -> int:
        file = self._state / "port"
        if file.exists():
            return int(file.read_text(encoding="ascii"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        file.write_text(str(port), encoding="ascii")
        return port

    def _supervise(self) -> None:
        """Run it from a thread that lives as long: the kernel ends it with the thread that started it."""
        config, log = self._state / "config.json", self._state / "registry.log"
        realm = f"{self._url}/api/v1/registry/token"
        token = {"realm": realm, "service": "mooring-registry", "issuer": "mooring"}
        document = {
            "version": "0.1",
            "log": {"level": "warn", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._state / "images")}},
            "http": {"addr": f"127.0.0.1:{self._port()}"},
            "auth": {"token": {**token, "rootcertbundle": str(self._certificate)}},
        }
        config.write_text(json.dumps(document), encoding="utf-8")  # JSON is YAML
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(self._program), "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},  # it reads REGISTRY_… variables as settings
                start_new_session=True,
                preexec_fn=end_with(os.getpid()),
            )
        code = self._process.wait()
        if code > 0:
            self._tell(f"The local registry exited with code {code}; its log is {log}")
