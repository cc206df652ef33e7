"""`mooring adapter test` runs the kit's suite as a program, and says what to install if it is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mooring_cli import adapter
from mooring_cli.main import mooring


def ran(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mooring_cli", "adapter", "test", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_promises_are_listed() -> None:
    listed = ran("--list")
    assert listed.returncode == 0
    assert "A drained member was observed to be quiet." in listed.stdout


def test_a_yaml_manifest_is_accepted_and_a_missing_program_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "mooring.yaml"
    file.write_text("app: a\nversion: 1.0.0\nartifacts: {main: sha256:ab}\n", encoding="utf-8")
    done = ran("--manifest", str(file), "no-such-adapter")
    assert done.returncode == 2
    assert "there is no program 'no-such-adapter'" in done.stderr


def test_without_the_kit_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "SUITE_PACKAGE", "no_such_kit")
    done = CliRunner().invoke(mooring, ["adapter", "test", "--list"])
    assert done.exit_code != 0
    assert "install mooring-adapter" in done.output
