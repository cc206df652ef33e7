"""The commands of the README and of the tutorials, as a reader types them: in order, on one server, at 80 columns.

The server listens on another port than the pages say, and keeps everything below one directory. Ctrl-C ends each
command that would run on.
"""

import os
import re
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.doc_commands import DocCommand, commands_of
from tests.e2e.shell_terminal import ShellTerminal
from tests.e2e.trial_process import trial_directory
from tools.ports import free_port

pytestmark = [
    pytest.mark.real_part("slurm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="isolated sandboxes need root"),
]
TOP = Path(__file__).resolve().parents[2]
TUTORIALS = TOP / "docs" / "tutorials"
ID = re.compile(r"\b([a-z]{2,4}_01[0-9a-z]{24})\b")
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+/); press Ctrl-C")


@dataclass
class Walk:
    """A reader with two terminals: one for programs that stay, one for everything else."""

    environment: dict[str, str]
    replaced: dict[str, str]
    shell: ShellTerminal
    others: list[ShellTerminal] = field(default_factory=list)
    walked: list[str] = field(default_factory=list)

    def take(self, page: Path, section: str = "") -> None:
        """Run every command of a page."""
        for each in commands_of(page, section):
            command = self._as_here(each.text)
            self.walked.append(command)
            if command.startswith(("make up", "mooring-agent run")):
                self._stays(command)
            elif re.search(r"connect greeter$", command):
                self._connects(command)
            elif command.endswith("--follow"):
                self._follows(command)
            elif "launch hello --name greeter" in command:
                self._interrupted(command)
            else:
                self._ends(command, each)

    def _as_here(self, text: str) -> str:
        for name, value in self.replaced.items():
            text = text.replace(name, value)
        return text

    def _stays(self, command: str) -> None:
        terminal = ShellTerminal(TOP, self.environment)
        self.others.append(terminal)
        terminal.start(command)
        said = terminal.wait_for(re.compile(r"┘|runs \(host|walk:\d+> $"), 240)[0]
        assert not said.startswith("walk:"), terminal.screen

    def _connects(self, command: str) -> None:
        """Use the local port, then press Ctrl-C: it ends without a word."""
        self.shell.start(command)
        address = self.shell.wait_for(ADDRESS, 60)[1]
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"Hello from Ann" in page.read()
        self.shell.screen = ""
        self.shell.interrupt()
        _, screen = self.shell.finish()
        assert len(screen.strip().splitlines()) <= 2, screen

    def _follows(self, command: str) -> None:
        self.shell.start(command)
        self.shell.wait_for(re.compile(r"--follow\n.*\n"), 60)  # the first line of output
        self.shell.interrupt()
        self.shell.finish()

    def _interrupted(self, command: str) -> None:
        """Ctrl-C while it waits: the launch goes on, and can be watched again."""
        if "--plan" in command:
            assert self.shell.run(command)[0] == 0, self.shell.screen
            return
        self.shell.start(command)
        self.shell.wait_for(re.compile(r"Launched greeter"), 60)
        self.shell.interrupt()
        self.shell.finish()
        code, screen = self.shell.run("mooring instances watch greeter")
        assert code == 0, screen

    def _ends(self, command: str, each: DocCommand) -> None:
        self.shell.start(command)
        if command.startswith("mooring-agent enrol"):
            self.shell.wait_for(re.compile(r"One-time token"), 60)
            self.shell.type(re.findall(r"mrge_\S+", self.shell.everything)[-1] + "\n")
        if command.endswith("&"):
            self.shell.wait_for(re.compile(r"press Ctrl-C"), 60)
        code, screen = self.shell.finish() if not command.endswith("&") else (0, self.shell.screen)
        expected = "Failed to connect" in each.output
        assert (code != 0) == expected, (command, screen)
        self._map_ids(each.output, screen)

    def _map_ids(self, shown: str, real: str) -> None:
        """The ids of the page stand for those of this server."""
        for prefix in {each.partition("_")[0] for each in ID.findall(shown)}:
            here = [each for each in dict.fromkeys(ID.findall(real)) if each.startswith(prefix)]
            there = [each for each in dict.fromkeys(ID.findall(shown)) if each.startswith(prefix)]
            self.replaced.update(zip(there, here, strict=False))


@contextmanager
def walk() -> Iterator[Walk]:
    with trial_directory() as trial:
        work = trial.directory / "work"
        work.mkdir()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**trial.environment, "PATH": path}
        shell = ShellTerminal(work, environment)
        (work / ".venv").symlink_to(TOP / ".venv")
        replaced = {
            "make up": f"make up ARGS='--data-dir {trial.data} --port {trial.port}'",
            "/var/lib/mooring-": f"{trial.data}/",
            "/srv/second": str(trial.directory / "second"),
            "127.0.0.1:7420": f"127.0.0.1:{trial.port}",
            "8080": str(free_port()),
        }
        walked = Walk(environment, replaced, shell)
        try:
            yield walked
        finally:
            for each in (*walked.others, shell):
                each.interrupt()
                with suppress(AssertionError):
                    each.finish(60)
                each.close()
            if (second := trial.directory / "second").exists():
                os.spawnvp(os.P_WAIT, "mooring-agent", ["mooring-agent", "purge", "--state-dir", str(second)])
                shutil.rmtree(second)


@pytest.mark.skipif(shutil.which("slurmctld", path="/usr/sbin:/usr/bin") is None, reason="Slurm is not installed")
def test_the_readme_and_the_tutorials_work_as_they_are_written() -> None:
    with walk() as reader:
        reader.take(TOP / "README.md", "First steps")
        reader.take(TUTORIALS / "launch-an-app.md")
        reader.take(TUTORIALS / "slurm-cluster.md")
        reader.take(TUTORIALS / "first-node.md")
        assert len(reader.walked) > 50
        up = reader.others[0]
        up.screen = ""
        up.interrupt()
        up.wait_for(re.compile(r"Mooring has stopped. What runs in sandboxes goes on"), 60)
        everything = "".join(each.everything for each in (reader.shell, *reader.others))
        assert "Traceback" not in everything
