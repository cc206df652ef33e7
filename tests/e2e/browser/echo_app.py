"""The echo app in a trial: a cluster of three components, with an adapter of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mooring_workload.bundle import key_at, public_half
from tests.e2e.trial_process import TrialProcess

PART = Path(__file__).resolve().parents[3] / "adapters" / "echo"


@contextmanager
def running_echo(trial: TrialProcess) -> Iterator["subprocess.Popen[bytes]"]:
    """Install echo for the trial's project, and run its adapter."""
    apps, key = trial.data / "apps", trial.directory / "echo.key"
    script = apps / "echo_node.py"
    script.write_bytes((PART / "mooring_echo" / "echo_node.py").read_bytes())
    script.chmod(0o644)
    app = {
        "bundle": 1,
        "app": {"slug": "echo", "display_name": "Echo", "category": "web"},
        "adapter_key": public_half(key_at(key)),
        "artifacts": {"script": {"kind": "blob", "location": "file:echo_node.py"}},
        "manifest": json.loads((PART / "manifest.json").read_text(encoding="utf-8")),
    }
    (apps / "echo.json").write_text(json.dumps(app), encoding="utf-8")
    trial.mooring("--context", "try-admin", "install", str(apps / "echo.json"))
    trial.mooring("install", str(apps / "echo.json"), "--project", "try")
    url = f"http://127.0.0.1:{trial.port}"
    command = [sys.executable, "-m", "mooring_echo", "--url", url, "--key-file", str(key)]
    with (trial.directory / "echo.log").open("ab") as log:
        adapter = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield adapter
    finally:
        adapter.terminate()
        adapter.wait(timeout=60)


def launched(trial: TrialProcess, name: str, *words: str) -> dict[str, Any]:
    """An echo cluster that runs."""
    trial.mooring("launch", "echo", "--name", name, "--wait", *words)
    found: dict[str, Any] = json.loads(trial.mooring("instances", "get", name, "-o", "json"))
    return found
