"""How a run ends: exit codes, errors in both forms, signals, pipes, colours, and what is never printed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from cli.tests.conftest import TOKEN, TerminalResult
from cli.tests.support.fake_platform import PROJECT, CannedResponse, FakeCliPlatform, page, problem, project
from tests.support.rows import every_row

Run = Callable[..., Result]
Spawn = Callable[..., "subprocess.Popen[str]"]


@every_row(
    ("status", "code", "exit_code"),
    [
        (400, "malformed_request", 1),
        (401, "unauthenticated", 3),
        (403, "permission_denied", 3),
        (404, "not_found", 4),
        (409, "name_taken", 5),
        (410, "cursor_expired", 4),
        (413, "body_too_large", 1),
        (422, "validation_failed", 1),
        (500, "internal", 2),
        (503, "temporarily_unavailable", 2),
    ],
)
def test_the_exit_code_follows_from_the_answer(
    run: Run, platform: FakeCliPlatform, status: int, code: str, exit_code: int
) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}", problem(status, code))
    result = run("projects", "get", PROJECT)
    assert result.exit_code == exit_code
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == "error: it was refused"
    assert "do it in another way" in result.stderr
    assert "correlation id: cor_problem" in result.stderr
    assert f"mooring explain {code}" in result.stderr


def test_with_json_an_error_is_one_object_on_stderr(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}", problem(409, "name_taken"))
    result = run("projects", "get", PROJECT, "-o", "json")
    assert (result.exit_code, result.stdout) == (5, "")
    error = json.loads(result.stderr)["error"]
    assert (error["code"], error["detail"], error["status"]) == ("name_taken", "it was refused", 409)
    assert (error["remedy"], error["correlation_id"]) == ("do it in another way", "cor_problem")
    assert error["details"] == {"a": 1}


@pytest.mark.parametrize(
    "words",
    [
        ["-o", "json", "projects", "get", "--nonsense"],
        ["projects", "get", "--nonsense", "-o", "json"],
        ["projects", "nonsense", "--output=json"],
        ["nonsense", "-ojson"],
    ],
)
def test_with_json_a_usage_error_is_json_too_wherever_the_option_stands(run: Run, words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "usage"


def test_a_server_that_is_not_there_is_exit_code_two(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOORING_URL", "http://127.0.0.1:9")
    result = run("whoami")
    assert result.exit_code == 2
    assert "could not be reached" in result.stderr


def test_without_a_token_the_error_says_how_to_sign_in(
    run: Run, platform: FakeCliPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOORING_TOKEN")
    result = run("whoami")
    assert result.exit_code == 3
    assert f"mooring login --url {platform.url}" in result.stderr
    assert platform.asked == []


def test_an_address_that_a_token_should_not_go_to_is_a_usage_error(run: Run) -> None:
    result = run("whoami", "--url", "http://mooring.example.org")
    assert result.exit_code == 1
    assert "plain http" in result.stderr


def test_the_forms_of_output_hold_the_same(run: Run, platform: FakeCliPlatform) -> None:
    shown = project(display_name="Größe", invented_later={"x": [1]})
    platform.on("GET", f"/api/v1/projects/{PROJECT}", CannedResponse(body=shown))
    assert json.loads(run("projects", "get", PROJECT, "-o", "json").stdout) == shown
    import yaml

    assert yaml.safe_load(run("-o", "yaml", "projects", "get", PROJECT).stdout) == shown
    assert run("projects", "get", PROJECT, "-o", "name").stdout == "vision\n"
    table = run("projects", "get", PROJECT).stdout
    assert "DISPLAY NAME" in table
    assert "Größe" in table


def test_nothing_of_a_server_s_text_acts_on_the_terminal(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/projects", page(project(display_name="\x1b[2J\x07evil\u202egnp")))
    table = run("projects", "list").stdout
    assert "\x1b" not in table
    assert "\x07" not in table
    assert "\u202e" not in table


def test_there_are_colours_on_a_terminal_and_nowhere_else(
    spawn: Spawn, on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform
) -> None:
    out, err = spawn("projects", "list").communicate(timeout=180)
    assert "\x1b" not in out + err
    assert "vision" in out
    assert "\x1b[" in on_terminal("projects", "list").screen
    assert "\x1b[" not in on_terminal("projects", "list", NO_COLOR="1").screen
    assert "\x1b[" not in on_terminal("projects", "list", TERM="dumb").screen


def test_verbose_shows_requests_and_labels_and_never_a_token(run: Run, platform: FakeCliPlatform) -> None:
    result = run("-v", "projects", "list")
    assert "GET /api/v1/projects" in result.stderr
    assert "correlation id cor_from-double" in result.stderr
    assert TOKEN not in result.output
    assert platform.asked[0].headers["authorization"] == f"Bearer {TOKEN}"


def test_a_correlation_id_is_on_every_request(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}", CannedResponse(body=project()))
    run("projects", "get", "vision", "--correlation-id", "my-label")
    assert {asked.headers["x-correlation-id"] for asked in platform.asked} == {"my-label"}


def test_an_interruption_ends_with_130_and_no_traceback(spawn: Spawn, platform: FakeCliPlatform) -> None:
    def hang(asked: object) -> CannedResponse:
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=180)
        return CannedResponse(500)

    platform.on("GET", "/api/v1/whoami", hang)
    process = spawn("whoami")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert out == ""


def test_the_end_of_input_at_a_question_is_a_missing_value(on_terminal: Callable[..., TerminalResult]) -> None:
    ran = on_terminal("projects", "create", "--slug", "vision", typed="\x04")
    assert ran.exit_code == 1
    assert "Traceback" not in ran.screen


def test_a_reader_that_disconnects_is_not_an_error(environment: dict[str, str], platform: FakeCliPlatform) -> None:
    rows = [project(f"p{number}", description="x" * 500) for number in range(2000)]
    platform.on("GET", "/api/v1/projects", page(*rows))
    command = f"{sys.executable} -m mooring_cli projects list --limit 0 -o json | head -c 10"
    done = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert len(done.stdout) == 10
    assert done.stderr == ""


def test_the_help_imports_nothing_slow() -> None:
    program = (
        "import sys\n"
        "from mooring_cli.main import mooring\n"
        "try:\n    mooring.main(['--help'])\nexcept SystemExit:\n    pass\n"
        "slow = {'httpx', 'rich', 'mooring_sdk', 'msgspec', 'yaml', 'cryptography', 'asyncio', 'importlib.metadata'}\n"
        "sys.exit(', '.join(sorted(slow & set(sys.modules))) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.stderr == ""
    assert "Usage: mooring" in done.stdout


def test_a_plug_in_is_found_listed_and_run(environment: dict[str, str], tmp_path: Path) -> None:
    place = tmp_path / "site"
    about = place / "buoy-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: buoy\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[mooring.cli_plugins]\nbuoy = buoy_plugin:buoy\n")
    (place / "buoy_plugin.py").write_text(
        "import click\n@click.group()\ndef buoy(): 'Buoys.'\n@buoy.command()\ndef ring(): click.echo('ding')\n"
    )
    python_path = os.pathsep.join([str(place), *sys.path])
    command = [sys.executable, "-m", "mooring_cli"]
    extended = {**environment, "PYTHONPATH": python_path}
    shown = subprocess.run([*command, "--help"], env=extended, capture_output=True, text=True, timeout=180, check=True)
    assert "buoy" in shown.stdout.partition("Plug-ins")[2]
    rung = subprocess.run(
        [*command, "buoy", "ring"], env=extended, capture_output=True, text=True, timeout=180, check=True
    )
    assert rung.stdout == "ding\n"
