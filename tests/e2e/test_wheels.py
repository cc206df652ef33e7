"""Wheels: the agent's has the same bytes each time and needs nothing of the server; the server's brings the console."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools import set_up
from tools.dist import build, commit_seconds


def digest(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_the_agents_wheel_is_reproducible_and_installs_without_the_server(tmp_path: Path) -> None:
    seconds = commit_seconds()
    (wheel,) = build(set_up.ROOT, ["agent"], tmp_path / "one", seconds)
    (again,) = build(set_up.ROOT, ["agent"], tmp_path / "two", seconds)
    assert digest(wheel) == digest(again)

    uv, environment = set_up.uv(), tmp_path / "venv"
    if uv is None:
        pytest.skip("uv cannot be had here")
    assert set_up.run([str(uv), "venv", "--quiet", "--python", sys.executable, str(environment)])
    python = environment / "bin" / "python"
    pins = tmp_path / "pins.txt"
    locked = [line.split()[0] for line in set_up.LOCK.read_text(encoding="utf-8").splitlines() if "==" in line]
    pins.write_text("\n".join(locked))
    install = [str(uv), "pip", "install", "--quiet", "--python", str(python), "--constraint", str(pins)]
    assert set_up.run([*install, "--index-strategy", "unsafe-best-match", str(wheel)], set_up.pip_settings())

    program = [str(environment / "bin" / "mooring-agent"), "--help"]
    assert "usage: mooring-agent" in subprocess.run(program, capture_output=True, text=True, check=True).stdout
    look = "import importlib.util as u, mooring_agent; print([u.find_spec(n) for n in ('mooring', 'mooring_sdk')])"
    # In a directory of its own: the clone is not on the path.
    found = subprocess.run([str(python), "-I", "-c", look], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[None, None]"


def test_the_servers_wheel_brings_the_console(tmp_path: Path) -> None:
    (wheel,) = build(set_up.ROOT, ["server"], tmp_path, commit_seconds())
    names = zipfile.ZipFile(wheel).namelist()
    assert "mooring/console/index.html" in names
    assert any(re.fullmatch(r"mooring/console/assets/index-.+\.js\.gz", each) for each in names)
