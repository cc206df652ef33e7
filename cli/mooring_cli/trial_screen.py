"""What `mooring up --try` shows: a line while it starts, and one box when it is ready."""

import os
import shutil
import sys
import textwrap
import threading
from pathlib import Path

import click

from mooring_cli import contexts as stored
from mooring_cli.output import terminal_width
from mooring_cli.trial import EMAIL, PROJECT, Trial
from mooring_cli.trial_files import TrialFiles

TICK_SECONDS = 0.5
WIDTH_MAX = 80


class TrialScreen:
    """The terminal of `up --try`. In a pipe only the box is printed, below the server's own output."""

    def __init__(self, files: TrialFiles, data_dir: str | None = None) -> None:
        """`data_dir` is the directory that commands about the trial have to name, if it is not the default."""
        self.drawn = sys.stdout.isatty() and sys.stderr.isatty()
        self._files = files
        self._data_dir = data_dir
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self, trial: Trial) -> None:
        """Show the current step until the box is printed."""
        if self.drawn:
            self._thread = threading.Thread(target=self._draw, args=(trial,), daemon=True)
            self._thread.start()

    def _draw(self, trial: Trial) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._lock:
                if not self._over.is_set():
                    click.echo(f"\r\x1b[KStarting Mooring: {trial.step} …", err=True, nl=False)

    def close(self) -> None:
        """Clear the line."""
        with self._lock:
            if not self._over.is_set():
                self._over.set()
                if self.drawn:
                    click.echo("\r\x1b[K", err=True, nl=False)

    def note(self, text: str) -> None:
        """A note of a program beside the server: on a terminal it goes to the log."""
        if not self.drawn:
            click.echo(text, err=True)
            return
        with self._files.log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def ended(self, trial: Trial) -> None:
        """Print the box, or what went wrong."""
        self.close()
        if trial.failure is not None:
            click.echo(f"error: {trial.failure}", err=True)
            click.echo(
                f"Mooring is up at {trial.url}, but not set up for a trial. Details: {self._files.log}", err=True
            )
            click.echo("Ctrl-C and the same command again go on from here.", err=True)
            return
        click.echo("\n".join(box(self._lines(trial))))
        sys.stdout.flush()

    def _lines(self, trial: Trial) -> list[str]:
        name = trial.record.context
        current = stored.load(stored.contexts_file(dict(os.environ))).current
        program = program_name()
        given = "" if current == name else f"--context {name} "
        lines = [
            f"Mooring is ready at {trial.url}",
            "",
            f"Signed in  context {name}: {EMAIL}, project {PROJECT}",
            f"           context {trial.record.admin_context}: the platform's admin",
            f"Apps       {', '.join(trial.apps)}",
            f"Machine    {trial.machine}",
            f"Console    {trial.url}/console/ (`{program} {self._command('console')}` shows your sign-in)",
            f"Next       {program} {given}launch {trial.apps[0]} --open",
        ]
        if self.drawn:
            lines.append(f"Log        {self._files.log}")
        before = trial.record.context_before
        if before not in (None, name) and current == name:
            lines.append(f"Before     context {before}; `{program} context use {before}` goes back to it")
        return [
            *lines,
            "",
            "Ctrl-C stops Mooring; apps keep running, and the next start finds them.",
            f"`{program} {self._command('remove')}` removes all of it.",
        ]

    def _command(self, verb: str) -> str:
        return f"try {verb}" if self._data_dir is None else f"try {verb} --data-dir {self._data_dir}"


def box(lines: list[str]) -> list[str]:
    """The lines in a frame, as wide as the terminal at the most; a longer word makes it wider."""
    room = max(min(terminal_width(), WIDTH_MAX) - 4, 20)
    folded = [
        part
        for line in lines
        for part in textwrap.wrap(
            line, room, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    ]
    wide = max(map(len, folded))
    edge = "─" * (wide + 2)
    return [f"┌{edge}┐", *(f"│ {line:<{wide}} │" for line in folded), f"└{edge}┘"]


def program_name() -> str:
    """How to call this command from here: by its name if the shell finds it, otherwise by its path."""
    if shutil.which("mooring"):
        return "mooring"
    beside = Path(sys.executable).parent / "mooring"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)
