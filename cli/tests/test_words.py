"""What the command line says: refused values, remedies, examples, versions, help, and what an update keeps."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from cli.tests.conftest import TerminalResult
from cli.tests.support.fake_platform import (
    PROJECT,
    TENANT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    account,
    page,
    problem,
    whoami,
)
from mooring_cli.contexts import Context, Contexts, contexts_file, save
from mooring_cli.main import HAND_WRITTEN, mooring
from mooring_cli.noun_table import NOUNS
from tests.support.rows import every_row

Run = Callable[..., Result]


def refused(code: str, status: int, detail: str, remedy: str = "", **details: Any) -> CannedResponse:
    made = problem(status, code, detail)
    return CannedResponse(status, {**made.body, "remedy": remedy, "details": details}, media_type=made.media_type)


# Refused values -----------------------------------------------------------------------------------------------------


@every_row(
    ("words", "path", "detail", "said"),
    [
        (
            ["projects", "create", "--slug", "v", "--display-name", "V"],
            "slug",
            "slug: at least 2 characters",
            "error: --slug: at least 2 characters",
        ),
        (
            ["service-accounts", "create", "--project", PROJECT, "--name", "x", "--action", "?"],
            "actions[0]",
            "actions[0]: does not have the form ^[a-z.]+$",
            "error: --actions: does not have the form ^[a-z.]+$",
        ),
        (
            ["instances", "launch", "hello", "--project", PROJECT, "--name", "x", "--sku", "slice"],
            "name",
            "name: at least 3 characters",
            "error: --name: at least 3 characters",
        ),
        (
            ["instances", "launch", "hello", "--project", PROJECT, "--sku", "s"],
            "placement.sku",
            "placement.sku: at least 1 characters",
            "error: --sku: at least 1 characters",
        ),
    ],
)
def test_a_refused_value_is_named_by_its_option(
    run: Run, platform: FakeCliPlatform, words: list[str], path: str, detail: str, said: str
) -> None:
    answer = refused("validation_failed", 422, detail, "Correct the value that `details.path` names.", path=path)
    for at in (
        f"tenants/{TENANT}/projects",
        f"projects/{PROJECT}/service-accounts",
        f"projects/{PROJECT}/app-instances",
    ):
        platform.on("POST", f"/api/v1/{at}", answer)
    result = run(*words)
    assert (result.exit_code, result.stderr.splitlines()[0]) == (1, said)
    assert "details.path" not in result.stderr
    assert json.loads(run(*words, "-o", "json").stderr)["error"]["details"] == {"path": path}


def test_a_remedy_shows_the_values_that_it_refers_to(run: Run, platform: FakeCliPlatform) -> None:
    remedy = "Ask somebody who holds the actions in `details.missing_actions`."
    answer = refused("grant_exceeds_ceiling", 403, "too much", remedy, missing_actions=["a.b", "c.d"], other=1)
    platform.on("GET", "/api/v1/projects", answer)
    assert "missing_actions: a.b, c.d" in run("projects", "list").stderr


def test_an_app_that_does_not_exist_points_at_the_catalog_and_not_at_ids(run: Run, platform: FakeCliPlatform) -> None:
    answer = refused("not_found", 404, "there is no such app, or you may not see it", "Check the id.", noun="app")
    platform.on("POST", f"/api/v1/projects/{PROJECT}/app-instances", answer)
    result = run("instances", "launch", "nothing", "--project", PROJECT, "--sku", "slice")
    assert result.exit_code == 4
    assert "mooring catalog list" in result.stderr
    assert "Check the id" not in result.stderr


def test_a_denied_source_names_the_context_and_the_one_of_the_platform(
    run: Run, platform: FakeCliPlatform, environment: dict[str, str]
) -> None:
    ann = Context("ann", platform.url, tenant=TENANT, token="mrgp_a")
    admin = Context("admin", platform.url, token="mrgp_b")
    save(contexts_file(environment), Contexts("ann", {"ann": ann, "admin": admin}))
    platform.on("POST", f"/api/v1/tenants/{TENANT}/artifacts", refused("source_denied", 403, "no source matches"))
    words = ["artifacts", "register", "--kind", "blob", "--location", "file:x", "--digest", "sha256:1", "--no-input"]
    result = run(*words)
    assert "in the context 'ann'" in result.stderr, result.stderr
    assert "--context admin" in result.stderr


def test_a_mistyped_app_gets_the_one_of_the_catalog_as_a_hint(run: Run, platform: FakeCliPlatform) -> None:
    unknown = refused("not_found", 404, "there is no such app, or you may not see it", "Check the id.", noun="app")
    platform.on("POST", f"/api/v1/projects/{PROJECT}/app-instances", unknown)
    platform.on("GET", f"/api/v1/projects/{PROJECT}/catalog", page({"app_id": "app_1", "slug": "hello"}))
    result = run("instances", "launch", "helo", "--project", PROJECT, "--sku", "slice")
    assert (result.exit_code, "did you mean hello?" in result.stderr) == (4, True), result.stderr
    platform.on("GET", f"/api/v1/tenants/{TENANT}/apps", page())
    assert "mooring catalog list" in run("apps", "get", "slurm").stderr


@every_row(
    ("typed", "said"),
    [("members", "instances members"), ("versions", "apps versions or catalog versions"), ("get", "instances get")],
)
def test_a_noun_or_verb_without_the_noun_above_it_is_completed(run: Run, typed: str, said: str) -> None:
    assert f"did you mean {said}?" in run(typed, "x").stderr


def test_the_advice_about_an_empty_list_never_puts_a_secret_on_the_command_line(
    run: Run, platform: FakeCliPlatform
) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}/secrets", page())
    assert "--value-file …" in run("secrets", "list", "--project", PROJECT).stderr


def test_an_empty_list_of_apps_points_at_the_catalog(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/tenants/{TENANT}/apps", page())
    assert "mooring catalog list" in run("apps", "list").stderr


# Help ---------------------------------------------------------------------------------------------------------------


def every_command(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inside = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group) and command.list_commands(inside):
            yield from every_command(command, inside)
        else:
            yield command, inside


def test_every_help_has_examples_that_the_command_line_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FILE", "hello.json", "key.json", "mooring.yaml", "receipt.json", "root.pem"):
        (tmp_path / name).write_text("{}")
    root = click.Context(mooring, info_name="mooring")
    for name in [*HAND_WRITTEN, *NOUNS]:
        command = mooring.get_command(root, name)
        assert command is not None
        inside = click.Context(command, info_name=name, parent=root)
        found = every_command(command, inside) if isinstance(command, click.Group) else [(command, inside)]
        for each, context in found:
            text = each.get_help(context)
            assert "Examples:" in text, context.command_path
            for line in text.partition("Examples:\n")[2].splitlines():
                if line.strip().startswith("mooring "):
                    parse(shlex.split(line.partition(" > ")[0])[1:], line)


def parse(words: list[str], line: str) -> None:
    command: click.Command = mooring
    context = click.Context(mooring, info_name="mooring")
    while isinstance(command, click.Group) and words and command.get_command(context, words[0]) is not None:
        found = command.get_command(context, words[0])
        assert found is not None
        command, context = found, click.Context(found, info_name=words[0], parent=context)
        words = words[1:]
    if words in (["--help"], []) and isinstance(command, click.Group):
        return
    try:
        command.make_context(command.name, list(words), parent=context.parent)
    except click.ClickException as error:
        raise AssertionError(f"{line.strip()}: {error.format_message()}") from error


def test_the_version_and_the_help_of_any_command_are_shown(run: Run) -> None:
    assert run("--version").stdout.startswith("mooring ")
    assert run("help").stdout == run("--help").stdout
    assert run("help", "instances", "launch").stdout == run("instances", "launch", "--help").stdout
    assert "did you mean instances?" in run("help", "instance").stderr


@every_row(("program", "verbs"), [("mooring_slurm", ["bundle", "manifest"]), ("mooring_workload", ["build-image"])])
def test_the_help_of_an_adapter_shows_its_verbs(program: str, verbs: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", program, "--help"], capture_output=True, text=True, check=True)
    for verb in (*verbs, "--key-file"):
        assert verb in done.stdout


# Values -------------------------------------------------------------------------------------------------------------


def test_a_new_password_is_asked_for_again_until_it_is_long_enough(
    run: Run, on_terminal: Callable[..., TerminalResult], platform: FakeCliPlatform
) -> None:
    words = ["login", "--email", "ann@acme.test", "--tenant", "acme"]
    refused_here = run(*words, "--one-time-code-stdin", stdin="mrg1_code\nshort\n")
    assert (refused_here.exit_code, platform.of("POST")) == (1, [])
    assert "has 5 characters; it needs 12" in refused_here.stderr
    screen = on_terminal(*words, "--one-time-code", typed="mrg1_code\nshort\nlong enough by far\nlong enough by far\n")
    assert "has 5 characters; it needs 12" in screen.screen
    assert platform.of("POST")[0].body["new_password"] == "long enough by far"


def test_a_generated_key_s_id_is_in_the_json(run: Run, platform: FakeCliPlatform, tmp_path: Path) -> None:
    path = f"/api/v1/projects/{PROJECT}/service-accounts"
    platform.on("POST", path, CannedResponse(201, account()))

    def keys(asked: RecordedRequest) -> CannedResponse:
        return page({"id": "key_01", "public_key": platform.of("POST")[0].body["public_key"]})

    platform.on("GET", f"{path}/sa_01ci/keys", keys)
    words = ["service-accounts", "create", "--project", PROJECT, "--name", "ci", "--action", "a.b"]
    shown = run(*words, "--generate-key", str(tmp_path / "key.pem"), "-o", "json")
    assert json.loads(shown.stdout) == {**account(), "key_id": "key_01"}


def test_an_account_names_its_own_project_without_project_read(run: Run, platform: FakeCliPlatform) -> None:
    caller = whoami(
        kind="service_account", project_actions={PROJECT: ["task.create"]}, project_slugs={PROJECT: "vision"}
    )
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=caller))
    platform.on("GET", "/api/v1/projects", page())
    platform.on("GET", f"/api/v1/projects/{PROJECT}/tasks", page())
    assert run("tasks", "list", "--project", "vision").exit_code == 0
    assert run("tasks", "list", "--project", "other").exit_code == 4


def test_an_update_of_an_entitlement_changes_only_what_is_named(run: Run, platform: FakeCliPlatform) -> None:
    at = f"/api/v1/projects/{PROJECT}/entitlements/ent_1"
    present = {"id": "ent_1", "enabled": False, "versions": ">=1.0.0", "rules": {"regions": {"allow": ["north"]}}}
    platform.on("GET", at, CannedResponse(body={**present, "agreed_actions": ["a.b"], "revision": 4}))
    platform.on("PUT", at, CannedResponse(body=present))
    words = ["entitlements", "update", "ent_1", "--project", PROJECT, "--reason", "they need it now"]
    assert run(*words, "--versions", ">=2.0.0").exit_code == 0
    assert platform.of("PUT")[0].body == {
        "enabled": False,
        "versions": ">=2.0.0",
        "rules": {"regions": {"allow": ["north"]}},
        "agreed_actions": ["a.b"],
        "revision": 4,
        "reason": "they need it now",
    }


@pytest.mark.parametrize("words", [["apps", "versions", "get", "hello", "1.0.0"]])
def test_a_version_is_named_by_its_number(run: Run, platform: FakeCliPlatform, words: list[str]) -> None:
    at = f"/api/v1/tenants/{TENANT}/apps"
    platform.on("GET", at, page({"id": "app_1", "slug": "hello"}))
    platform.on("GET", f"{at}/app_1/versions", page({"id": "ver_1", "app_slug": "hello", "version": "1.0.0"}))
    platform.on(
        "GET",
        f"{at}/app_1/versions/ver_1",
        CannedResponse(body={"id": "ver_1", "app_slug": "hello", "version": "1.0.0"}),
    )
    shown = run(*words, "-o", "name")
    assert (shown.exit_code, shown.stdout) == (0, "1.0.0\n")
