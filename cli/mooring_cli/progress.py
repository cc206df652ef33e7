"""The one progress display: a block of lines at the end of the terminal that is drawn again when it changes.

    with ProgressDisplay.of(invocation) as display:
        display.show(["deploying greeter", "  greeter-web-0  joining"])  # replaces the lines before
        display.say("12:00:01  instance greeter is starting")            # stays, above the block

In a pipe a line is printed when it changed, so that the log of a job shows each line once. With `-o json` and `-o yaml`
nothing is shown. The block goes to stderr; it is removed when the display closes. A line may contain `ELAPSED`, which
is replaced by the time since the display was opened, and counted on by a thread while the command waits for the server.
"""

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mooring_cli.output import fold, plain, shorten

if TYPE_CHECKING:
    from mooring_cli.invocation import Invocation

ELAPSED = "{elapsed}"
TICK_SECONDS = 1.0


class ProgressDisplay:
    """Lines that are drawn again in place on a terminal, and printed when they change elsewhere."""

    def __init__(self, *, drawn: bool, silent: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._drawn, self._silent, self._clock = drawn, silent, clock
        self._begun = clock()
        self._lines: list[str] = []
        self._height = 0
        self._printed: set[str] = set()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    @classmethod
    def of(cls, invocation: "Invocation", clock: Callable[[], float] = time.monotonic) -> "ProgressDisplay":
        """The display of a command: drawn on a terminal, and silent where programs read."""
        drawn = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        return cls(drawn=drawn, silent=invocation.output in ("json", "yaml"), clock=clock)

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, *raised: Any) -> None:
        self.close()

    @property
    def elapsed_seconds(self) -> float:
        return self._clock() - self._begun

    def show(self, lines: Sequence[str]) -> None:
        """Replace the lines."""
        if self._silent:
            return
        if not self._drawn:
            self._print_changed(lines)
            return
        with self._lock:
            self._lines = list(lines)
            self._draw()
        if self._ticker is None and any(ELAPSED in line for line in lines):
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            self._ticker.start()

    def say(self, line: str) -> None:
        """Print a line on stdout that stays, above the block."""
        with self._lock:
            self._erase()
            click.echo(line)
            sys.stdout.flush()
            self._draw()

    def keep(self) -> None:
        """Leave the block as it is; what comes next is drawn below it."""
        with self._lock:
            self._lines, self._height = [], 0

    def close(self) -> None:
        """Remove the block; the cursor is where it began."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join()
        with self._lock:
            self._erase()
            self._lines = []

    def _print_changed(self, lines: Sequence[str]) -> None:
        for line in lines:
            text = line.replace(ELAPSED, "").rstrip()
            if text and text not in self._printed:
                click.echo(plain(line.replace(ELAPSED, in_words(self.elapsed_seconds)).rstrip()), err=True)
        self._printed = {line.replace(ELAPSED, "").rstrip() for line in lines}

    def _tick(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        """Draw the lines over the ones before; the caller holds the lock."""
        if not self._lines:
            return
        columns, rows = shutil.get_terminal_size((80, 24))
        texts = [plain(line.replace(ELAPSED, in_words(self.elapsed_seconds))) for line in self._lines]
        lines = [shorten(each, columns - 1) for text in texts for each in fold(text, columns - 1)]
        shown = lines if len(lines) < rows else [*lines[: rows - 2], "…"]
        up = f"\x1b[{self._height}A" if self._height else ""
        click.echo(f"{up}\r\x1b[J" + "\n".join(shown), err=True, color=True)
        self._height = len(shown)

    def _erase(self) -> None:
        if self._height:
            click.echo(f"\x1b[{self._height}A\r\x1b[J", err=True, nl=False, color=True)
            self._height = 0


def in_words(seconds: float) -> str:
    """A duration such as 12 s, 3 min 5 s or 1 h 2 min."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
