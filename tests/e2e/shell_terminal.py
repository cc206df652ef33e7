"""A shell on a terminal of 80 columns, as a reader of the docs has it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path

PROMPT = re.compile(r"walk:(\d+)> $")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class ShellTerminal:
    """An interactive bash; `run` types a command and returns the screen when the prompt is back."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=directory,
            env={**environment, "PS1": "walk:$?> ", "PS2": "", "TERM": "xterm", "HISTFILE": ""},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.everything = ""
        self.screen = ""
        self.beside: list[ShellTerminal] = []  # read too while this one is waited for: who prints must not be stopped
        self.wait_for(PROMPT, 30)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.type("\x03")

    def start(self, command: str) -> None:
        """Type a command, without waiting for its end."""
        self.screen = ""
        self.type(command + "\n")

    def run(self, command: str, seconds: float = 120.0) -> tuple[int, str]:
        """Type a command and wait for the prompt; its exit code, and what it printed."""
        self.start(command)
        return self.finish(seconds)

    def finish(self, seconds: float = 120.0) -> tuple[int, str]:
        """Wait for the prompt after a command."""
        found = self.wait_for(PROMPT, seconds)
        return int(found[1]), self.screen

    def wait_for(self, wanted: "re.Pattern[str]", seconds: float) -> "re.Match[str]":
        """Read the screen until it shows this."""
        until = time.monotonic() + seconds
        while (found := wanted.search(self.screen)) is None:
            left = until - time.monotonic()
            assert left > 0, f"no {wanted.pattern!r} within {seconds:.0f} s: {self.screen[-3000:]}"
            for each in select.select([self, *self.beside], [], [], left)[0]:
                each.read()
        return found

    def fileno(self) -> int:
        return self._ours

    def read(self) -> None:
        """Take down what was printed."""
        piece = CONTROL.sub("", os.read(self._ours, 65_536).decode(errors="replace")).replace("\r", "")
        self.screen += piece
        self.everything += piece

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)
