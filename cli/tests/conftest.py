"""A fake platform, and three ways to run the command: in the test, as a process, and on a terminal."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cli.tests.support.fake_platform import FakeCliPlatform, serving
from mooring_cli.main import mooring

TOKEN = "mrgp_the-secret-token"


@pytest.fixture
def platform() -> Iterator[FakeCliPlatform]:
    with serving() as platform:
        yield platform


@pytest.fixture
def environment(platform: FakeCliPlatform, tmp_path: Path) -> dict[str, str]:
    """The environment of a user who is signed in by a variable."""
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "PATH": os.environ["PATH"],
        "MOORING_URL": platform.url,
        "MOORING_TOKEN": TOKEN,
        "LANG": "C.UTF-8",
    }


@pytest.fixture
def run(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command in the test."""
    for name in [name for name in os.environ if name.startswith(("MOORING_", "XDG_", "NO_COLOR"))]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(mooring, list(arguments), input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@dataclass(frozen=True)
class TerminalResult:
    """The result of a process on a terminal."""

    exit_code: int
    screen: str


@pytest.fixture
def spawn(environment: dict[str, str]) -> Callable[..., "subprocess.Popen[str]"]:
    """Start the command as a process with its output in pipes."""

    def spawn(*arguments: str, **extra: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "mooring_cli", *arguments],
            env={**environment, **extra},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return spawn


@pytest.fixture
def on_terminal(environment: dict[str, str]) -> Callable[..., TerminalResult]:
    """Run the command on a terminal, and type the given text."""

    def run(*arguments: str, typed: str = "", **extra: str) -> TerminalResult:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "mooring_cli", *arguments],
            env={**environment, "TERM": "xterm-256color", "COLUMNS": "120", **extra},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            screen = converse(ours, typed)
        finally:
            os.close(ours)
            if process.poll() is None:
                process.terminate()
        return TerminalResult(process.wait(timeout=180), screen)

    return run


def converse(terminal: int, typed: str) -> str:
    """Read a terminal until the last process leaves it; at each prompt one line is typed."""
    screen = b""
    lines = typed.splitlines(keepends=True)
    while select.select([terminal], [], [], 30)[0]:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # the last process that had the terminal is gone
            break
        screen += piece
        if lines and screen.rstrip(b" ").endswith(b":"):
            os.write(terminal, lines.pop(0).encode())
    return screen.decode()
