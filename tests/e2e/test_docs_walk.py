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
from tests.e2e.mooring_process import PASSWORD
from tests.e2e.shell_terminal import ShellTerminal
from tests.e2e.trial_process import trial_directory
from tools.ports import free_port

pytestmark = [
    pytest.mark.real_part("slurm"),
    pytest.mark.skipif(os.geteuid() != 0, reason="isolated sandboxes need root"),
]
TOP = Path(__file__).resolve().parents[2]
TUTORIALS = TOP / "docs" / "tutorials"
WALKED = ("launch-an-app.md", "slurm-cluster.md", "first-node.md")
BARE = "bare-platform.md"
NOT_WALKED = {
    "image-of-your-own.md": "It builds an image of the reader's own. `tests/e2e/test_from_image.py` plays its story.",
    "publish-an-app.md": "A reader fills in ids, a token and an image of their own, and the page is of a registry with "
    "tokens. `tests/e2e/test_catalog_walk.py` plays its story with that registry.",
    "write-an-adapter.md": "It has files to write, and installs packages. `adapters/kit/tests/test_tutorial.py` plays "
    "the adapter of the page as it stands there.",
}
"""Why nobody types these pages; `cli/tests/test_docs_commands.py` parses their commands like all others."""
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
            if command.startswith(("make up", "mooring up", "mooring-agent run")):
                self._stays(command)
            elif command.endswith("--one-time-code"):
                self._signs_in(command)
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
        said = terminal.wait_for(re.compile(r"┘|runs \(host|This machine is a node|walk:\d+> $"), 240)[0]
        assert not said.startswith("walk:"), terminal.screen

    def _signs_in(self, command: str) -> None:
        """Type the one-time code that was printed last, and a new password."""
        printed = self.others[0] if "admin@mooring.local" in command else self.shell
        code = re.findall(r"mrg1_\S+", printed.everything)[-1]
        self.shell.start(command)
        for prompt, typed in (("one-time code", code), ("new password", PASSWORD), ("repeat the new", PASSWORD)):
            self.shell.wait_for(re.compile(f"{prompt}[^\\n]*: $"), 60)
            self.shell.type(f"{typed}\n")
        ended, screen = self.shell.finish()
        assert ended == 0, screen

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
        if command.endswith("-- sh"):
            self.shell.wait_for(re.compile(r"[#$] $"), 60)
            self.shell.type("exit\n")
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
            "mooring up --data-dir /srv/mooring": f"mooring up --port {trial.port} --data-dir {trial.directory}/bare",
            "mooring login --email": f"mooring login --url http://127.0.0.1:{trial.port} --email",
            "/srv/mooring": f"{trial.directory}/bare",
            "127.0.0.1:7420": f"127.0.0.1:{trial.port}",
            "8080": str(free_port()),
        }
        walked = Walk(environment, replaced, shell)
        shell.beside = walked.others
        try:
            yield walked
        finally:
            for each in (*walked.others, shell):
                each.interrupt()
                with suppress(AssertionError):
                    each.finish(60)
                each.close()
            for state in (trial.directory / "second", trial.directory / "bare" / "node"):
                if state.exists():
                    os.spawnvp(os.P_WAIT, "mooring-agent", ["mooring-agent", "purge", "--state-dir", str(state)])
                    shutil.rmtree(state)


def test_every_tutorial_is_walked_or_says_why_not() -> None:
    walked = {*WALKED, BARE}
    assert {each.name for each in TUTORIALS.glob("*.md")} == walked | set(NOT_WALKED)
    assert not walked & set(NOT_WALKED)
    for reason in NOT_WALKED.values():
        assert all((TOP / each).is_file() for each in re.findall(r"`(\S+\.py)`", reason)), reason


def test_the_tutorial_of_a_bare_platform_works_as_it_is_written() -> None:
    with walk() as reader:
        reader.take(TUTORIALS / BARE)
        assert len(reader.walked) > 10
        assert "Traceback" not in reader.shell.everything


@pytest.mark.skipif(shutil.which("slurmctld", path="/usr/sbin:/usr/bin") is None, reason="Slurm is not installed")
def test_the_readme_and_the_tutorials_work_as_they_are_written() -> None:
    with walk() as reader:
        reader.take(TOP / "README.md", "First steps")
        for page in WALKED:
            reader.take(TUTORIALS / page)
        assert len(reader.walked) > 50
        up = reader.others[0]
        up.screen = ""
        up.interrupt()
        up.wait_for(re.compile(r"Mooring has stopped. What runs in sandboxes goes on"), 60)
        everything = "".join(each.everything for each in (reader.shell, *reader.others))
        assert "Traceback" not in everything
