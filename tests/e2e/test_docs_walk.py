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

from mooring_agent.containers.podman import Podman
from tests.e2e.doc_commands import DocCommand, commands_of, files_of
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
IMAGE, PUBLISH, ADAPTER = "image-of-your-own.md", "publish-an-app.md", "write-an-adapter.md"
NOT_TYPED = {
    "mooring adapter test": "`adapters/kit/tests/test_scaffold_conformance.py` plays the suite",
    "venv/bin/python -m mooring_adapter.conformance": "`adapters/kit/tests/test_tutorial.py` plays the suite",
    "python3 -m venv venv": "the environment of the tests stands at its place",
    "venv/bin/pip install": "the environment of the tests has the kit",
}
"""What a reader would type, by its beginning, and why nobody types it here."""
ID = re.compile(r"\b([a-z]{2,4}_01[0-9a-z]{24})\b")
STAYS = re.compile(r"([A-Z_]+=\S+ )*(make up|mooring up|mooring-agent run)\b")
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+/); press Ctrl-C")


with_images = pytest.mark.skipif(
    not Podman.on_this_machine() or shutil.which("docker-registry") is None,
    reason="it needs podman and docker-registry",
)


@dataclass
class Walk:
    """A reader with two terminals: one for programs that stay, one for everything else."""

    environment: dict[str, str]
    replaced: dict[str, str]
    directory: Path
    shell: ShellTerminal
    others: list[ShellTerminal] = field(default_factory=list)
    walked: list[str] = field(default_factory=list)

    def type(self, text: str) -> None:
        """Run a command that is on no page at this place."""
        self._take(DocCommand(text, ""))

    def take(self, page: Path, section: str = "") -> None:
        """Run every command of a page."""
        for each in commands_of(page, section):
            self._take(each)

    def _take(self, each: DocCommand) -> None:
        command = self._as_here(each.text)
        self.walked.append(command)
        if command.startswith(tuple(NOT_TYPED)):
            return
        if STAYS.match(command):
            self._stays(command)
        elif command.endswith("--one-time-code"):
            self._signs_in(command)
        elif re.search(r"connect greeter$", command):
            self._connects(command)
        elif re.search(r"from-image \S+ --open$", command):
            self._agrees(command)
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

    def _agrees(self, command: str) -> None:
        """Read what the operator account may do, and agree."""
        self.shell.start(command)
        self.shell.wait_for(re.compile(r"\[y/N\][^\n]*$"), 240)
        self.shell.type("y\n")
        code, screen = self.shell.finish(240)
        assert code == 0, screen

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
        stays = command.endswith("&") and not command.endswith("2>&1 &")
        if stays:
            self.shell.wait_for(re.compile(r"press Ctrl-C"), 60)
        code, screen = self.shell.finish() if not stays else (0, self.shell.screen)
        expected = "Failed to connect" in each.output or each.output.startswith("error: ")
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
        # What podman's users sign in to is otherwise in one file for all of the machine.
        environment = {**trial.environment, "PATH": path, "REGISTRY_AUTH_FILE": str(trial.directory / "auth.json")}
        shell = ShellTerminal(work, environment)
        (work / ".venv").symlink_to(TOP / ".venv")
        published = f"{trial.directory}/published"
        replaced = {
            "make up": f"make up ARGS='--data-dir {trial.data} --port {trial.port}'",
            "/var/lib/mooring-": f"{trial.data}/",
            "mooring up --data-dir /srv/publish": f"mooring up --port {trial.port} --data-dir {published}",
            "/srv/publish": published,
            "docker-registry serve": "env --unset=REGISTRY_AUTH_FILE docker-registry serve",  # it reads REGISTRY_…
            "127.0.0.1:5005": f"127.0.0.1:{free_port()}",
            ".venv/bin/python -m tools.demo_push": f"PYTHONPATH={TOP} .venv/bin/python -m tools.demo_push",
            "/srv/second": str(trial.directory / "second"),
            "mooring up --data-dir /srv/mooring": f"mooring up --port {trial.port} --data-dir {trial.directory}/bare",
            "mooring login --email": f"mooring login --url http://127.0.0.1:{trial.port} --email",
            "/srv/mooring": f"{trial.directory}/bare",
            "127.0.0.1:7420": f"127.0.0.1:{trial.port}",
            "8080": str(free_port()),
        }
        walked = Walk(environment, replaced, work, shell)
        shell.beside = walked.others
        try:
            yield walked
        finally:
            for each in (*walked.others, shell):
                each.interrupt()
                with suppress(AssertionError):
                    each.finish(60)
                each.close()
            nodes = [trial.directory / each / "node" for each in ("bare", "published")]
            for state in (trial.directory / "second", *nodes):
                if state.exists():
                    os.spawnvp(os.P_WAIT, "mooring-agent", ["mooring-agent", "purge", "--state-dir", str(state)])
                    shutil.rmtree(state)


def test_every_tutorial_is_walked() -> None:
    assert {each.name for each in TUTORIALS.glob("*.md")} == {*WALKED, BARE, IMAGE, PUBLISH, ADAPTER}
    for reason in NOT_TYPED.values():
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


@with_images
def test_the_tutorials_of_an_image_and_of_an_adapter_work_as_they_are_written() -> None:
    with walk() as reader:
        reader.type("make up")
        for section in ("Build", "Launch", "Change it", "Stop it"):
            reader.take(TUTORIALS / IMAGE, section)
        reader.type("podman rmi --force localhost/welcome")
        greeter = reader.directory / "greeter"
        greeter.mkdir()
        (greeter / "venv").symlink_to(TOP / ".venv")
        for name, content in files_of(TUTORIALS / ADAPTER).items():
            (greeter / name).write_text(content, encoding="utf-8")
        reader.take(TUTORIALS / ADAPTER)
        reader.type("kill %1")
        assert "Traceback" not in reader.shell.everything


@with_images
def test_the_tutorial_of_publishing_works_as_it_is_written() -> None:
    with walk() as reader:
        reader.take(TUTORIALS / IMAGE, "Build")
        reader.take(TUTORIALS / PUBLISH)
        reader.type("kill %1 %2")
        reader.type("podman rmi --force $(podman images -q '127.0.0.1:5005/*/welcome')")
        assert "Traceback" not in reader.shell.everything
