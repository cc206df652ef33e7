"""`mooring up`, completion and versions."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from agent.tests.support.supervisors import is_alive
from cli.tests.support.fake_platform import CannedResponse, FakeCliPlatform
from mooring_cli import up
from mooring_cli.local_layout import layout_of
from tests.support.rows import every_row
from tests.support.waiting import until_sync

Run = Callable[..., Result]


def test_without_the_server_s_program_up_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "find_spec", lambda name: None)
    result = run("up")
    assert result.exit_code == 1
    assert "mooring-server is not installed" in result.stderr


def test_up_hands_its_options_to_the_server_s_program(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(up, "find_spec", lambda name: object())

    def start(arguments: list[str]) -> int:
        started.append(arguments)
        return 0

    monkeypatch.setattr(up, "run", start)
    assert run("up", "--no-node", "--data-dir", str(tmp_path / "x"), "--port", "0").exit_code == 0
    database = str(tmp_path / "x" / "database")
    assert started == [[sys.executable, "-m", "mooring", "up", "--data-dir", database, "--port", "0"]]


def test_a_data_directory_keeps_everything_below_it_unless_it_is_an_older_database(tmp_path: Path) -> None:
    new = layout_of(str(tmp_path / "new"))
    assert all(each.is_relative_to(tmp_path / "new") for each in new.everything())
    assert not new.keys.is_relative_to(new.database), "a copy of the database is not a copy of its key"
    (tmp_path / "old" / "postgres").mkdir(parents=True)
    old = layout_of(str(tmp_path / "old"))
    assert (old.database, old.node) == (tmp_path / "old", tmp_path / "old-node")


@every_row(
    ("words", "environment_of_it", "reason"),
    [
        (("--host", "0.0.0.0"), {}, "0.0.0.0 is not an address of the loopback"),
        ((), {"MOORING_LISTEN_HOST": "192.0.2.7"}, "192.0.2.7 is not an address of the loopback"),
        (("--host", "gpu-1"), {}, "gpu-1 is not an address of the loopback"),
        (
            (),
            {"MOORING_DATABASE_URL": "postgresql://db/mooring"},
            "it makes a database of its own; unset MOORING_DATABASE_URL",
        ),
        (("--no-node",), {}, "it needs this machine as a node"),
        (("--no-adapters",), {}, "it needs this machine as a node"),
        (("--data-dir", "USED"), {}, "there is a database in"),
    ],
)
def test_a_trial_is_for_this_machine_and_a_database_of_its_own(
    run: Run, tmp_path: Path, words: tuple[str, ...], environment_of_it: dict[str, str], reason: str
) -> None:
    used = tmp_path / "used"
    (used / "database" / "postgres" / "cluster").mkdir(parents=True, exist_ok=True)
    given = [str(used) if each == "USED" else each for each in words]
    if "--data-dir" not in given:
        given += ["--data-dir", str(tmp_path / "new")]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of_it.items():
            patch.setenv(name, value)
        result = run("up", "--try", *given)
    assert (result.exit_code, f"--try: {reason}" in result.stderr.replace("it is for this machine only, and ", "")) == (
        1,
        True,
    )
    assert not (tmp_path / "new" / "try").exists()


def test_try_remove_leaves_alone_what_was_not_made_by_try(run: Run, tmp_path: Path) -> None:
    (tmp_path / "used" / "database").mkdir(parents=True)
    result = run("try", "remove", "--data-dir", str(tmp_path / "used"), "--yes")
    assert (result.exit_code, "`mooring up --try` made nothing" in result.stderr) == (1, True)
    assert (tmp_path / "used" / "database").is_dir()


CHILD = """
import os, signal
asked = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, asked)  # kept until it is waited for: none comes too early
print(os.getpid(), flush=True)
print("got", signal.Signals(signal.sigwait(asked)).name)
"""

ELSEWHERE = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
"""
"""What makes the kernel give signals to another thread than the one that waits for the child: its call goes on."""


def start_parent(tmp_path: Path, before: str = "") -> tuple["subprocess.Popen[str]", int]:
    """Start a process that runs a child as `mooring up` does; returns the child's id."""
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    program = f"{before}\nimport sys; from mooring_cli import up; sys.exit(up.run([sys.executable, {str(child)!r}]))"
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


@pytest.mark.parametrize("before", ["", ELSEWHERE], ids=["here", "elsewhere"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handed_on_and_the_child_ends_in_its_own_way(
    tmp_path: Path, number: signal.Signals, before: str
) -> None:
    """Also when it arrives just before the wait, which it then does not interrupt."""
    parent, _ = start_parent(tmp_path, before)
    parent.send_signal(number)
    out, _ = parent.communicate(timeout=180)
    assert out == f"got {number.name}\n"
    assert parent.returncode == 0


EARLY = """
import os, signal, subprocess, sys
from mooring_cli import up
from mooring_cli.local_layout import layout_of
start = subprocess.Popen
def interrupted(*words, **options):
    child = start(*words, **options)
    os.kill(os.getpid(), signal.SIGTERM)
    return child
subprocess.Popen = interrupted
sys.exit(up.run([sys.executable, "-c", "import signal; signal.pause()"]))
"""
"""A program that gets a signal just after its child was started, before the handler knows it."""

TWICE = """
import os, signal, subprocess, sys
from mooring_cli import up
from mooring_cli.local_layout import layout_of
wait = up._end_of
def signalled_again(child):
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGTERM)
    return wait(child)
up._end_of = signalled_again
"""
"""The signal arrives again after the child has ended, so that the handler reaps it."""


@every_row("program", [EARLY, TWICE + EARLY], ids=["once", "twice"])
def test_a_signal_that_comes_while_the_child_is_started_is_handed_on_too(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent, child = start_parent(tmp_path)
    parent.kill()
    out, _ = parent.communicate(timeout=180)
    assert out == "got SIGTERM\n", "the kernel asked the child to stop"
    until_sync(lambda: not is_alive(child), what="the end of the child")


def test_a_program_that_fails_fails_up(tmp_path: Path) -> None:
    for code, wanted in ((0, 0), (1, 1), (7, 2)):
        assert up.run([sys.executable, "-c", f"raise SystemExit({code})"]) == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_completion_script(run: Run, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_MOORING_COMPLETE" in result.stdout


def test_words_are_completed(environment: dict[str, str]) -> None:
    def complete(words: str, number: int) -> str:
        asked = {"_MOORING_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
        command = [sys.executable, "-c", "from mooring_cli.main import main; main()"]
        done = subprocess.run(
            command, env={**environment, **asked}, capture_output=True, text=True, timeout=180, check=True
        )
        return done.stdout

    assert "plain,projects" in complete("mooring proj", 1)
    assert "plain,create" in complete("mooring projects cr", 2)
    assert "plain,--display-name" in complete("mooring projects create --disp", 3)
    assert "plain,tenant_admin" in complete("mooring memberships create --role ten", 4)


def test_versions_are_printed_and_an_unreachable_server_is_not_an_error(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/openapi.json", CannedResponse(body={"info": {"version": "9.9.9"}}))
    assert "9.9.9" in run("version").stdout
    assert "SERVER" not in run("version", "--client").stdout
    result = run("version", "--url", "http://127.0.0.1:9", "--timeout", "0.2")
    assert result.exit_code == 0
    assert "unknown" in result.stdout
