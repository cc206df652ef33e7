"""The generated commands: scopes, names, bodies, lists."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import Result

from cli.tests.support.fake_platform import (
    PROJECT,
    TENANT,
    CannedResponse,
    FakeCliPlatform,
    RecordedRequest,
    account,
    page,
    problem,
    project,
    whoami,
)
from mooring_cli.commands import command_of
from mooring_cli.main import HAND_WRITTEN, mooring
from mooring_cli.noun_table import NOUNS
from mooring_cli.nouns import Noun
from tests.support.rows import every_row

Run = Callable[..., Result]


def every_verb() -> list[tuple[str, ...]]:
    def walk(noun: Noun, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        here = [(*path, noun.name, verb.name) for verb in noun.verbs]
        return here + [each for below in noun.below for each in walk(below, (*path, noun.name))]

    return [each for noun in NOUNS.values() for each in walk(noun, ())]


@every_row("words", [*every_verb(), *((name,) for name in HAND_WRITTEN)], ids=" ".join)
def test_every_command_explains_itself(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: mooring")


def test_no_command_takes_a_secret_as_an_option() -> None:
    for noun in NOUNS.values():
        for verb in noun.verbs:
            for parameter in command_of(noun, verb).params:
                if isinstance(parameter, click.Option):
                    assert not {"--password", "--token", "--secret", "--one-time-code"} & set(parameter.opts)


def test_a_list_is_a_table_with_relative_times(run: Run) -> None:
    result = run("projects", "list")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["SLUG", "AGE", "DISPLAY", "NAME"]
    assert lines[1].split()[::2] == ["vision", "Vision"]


def test_an_empty_list_says_so_with_the_command_for_the_first(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/projects", page())
    result = run("projects", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "Create the first one: mooring projects create --slug … --display-name …" in result.stderr
    assert run("projects", "list", "-o", "json").stdout == "[]\n"


def test_more_than_the_limit_is_reported(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/projects", page(*(project(f"p{number}") for number in range(3))))
    result = run("projects", "list", "--limit", "2", "-o", "name")
    assert len(result.stdout.splitlines()) == 2
    assert "use --limit 0 to show all" in result.stderr


def test_a_create_sends_its_options_and_a_key(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"/api/v1/tenants/{TENANT}/projects", CannedResponse(201, project()))
    result = run("projects", "create", "--slug", "vision", "--display-name", "Vision", "-o", "json")
    assert json.loads(result.stdout)["revision"] == 3
    (asked,) = platform.of("POST")
    assert asked.body == {"slug": "vision", "display_name": "Vision"}
    assert len(asked.headers["idempotency-key"]) >= 16


def test_a_key_of_one_s_own_is_sent(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"/api/v1/tenants/{TENANT}/projects", CannedResponse(201, project()))
    run("projects", "create", "--slug", "vision", "--display-name", "Vision", "--idempotency-key", "mine")
    assert platform.of("POST")[0].headers["idempotency-key"] == "mine"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("body.json", '{"slug": "from-file", "display_name": "File"}'),
        ("body.yaml", "slug: from-file\ndisplay_name: File\n"),
    ],
)
def test_a_body_comes_from_a_file_and_options_win(
    run: Run, platform: FakeCliPlatform, tmp_path: Path, name: str, text: str
) -> None:
    platform.on("POST", f"/api/v1/tenants/{TENANT}/projects", CannedResponse(201, project()))
    file = tmp_path / name
    file.write_text(text)
    run("projects", "create", "-f", str(file), "--slug", "from-option")
    assert platform.of("POST")[0].body == {"slug": "from-option", "display_name": "File"}


def test_a_body_comes_from_stdin(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"/api/v1/tenants/{TENANT}/projects", CannedResponse(201, project()))
    run("projects", "create", "-f", "-", stdin='{"slug": "piped", "display_name": "Piped"}')
    assert platform.of("POST")[0].body == {"slug": "piped", "display_name": "Piped"}


def test_fields_inside_of_fields_are_options_of_their_own(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=whoami(tenant_id=None)))
    platform.on("POST", "/api/v1/tenants", CannedResponse(201, {"id": TENANT, "one_time_code": "mrg1_once"}))
    result = run(
        "tenants",
        "create",
        "--slug",
        "acme",
        "--display-name",
        "Acme",
        "--first-admin-email",
        "ada@acme.test",
        "--first-admin-display-name",
        "Ada",
    )
    assert platform.of("POST")[0].body["first_admin"] == {"email": "ada@acme.test", "display_name": "Ada"}
    assert "mrg1_once" in result.stdout
    assert "will not be shown again" in result.stderr


def test_lists_of_values_are_given_by_repeating(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", f"/api/v1/projects/{PROJECT}/service-accounts", CannedResponse(201, account()))
    run("service-accounts", "create", "--project", "vision", "--name", "ci", "--action", "a.b", "--actions", "c.d")
    assert platform.of("POST")[0].body == {"name": "ci", "actions": ["a.b", "c.d"]}


def test_a_missing_value_without_anybody_to_ask_is_a_usage_error(run: Run, platform: FakeCliPlatform) -> None:
    result = run("projects", "create", "--slug", "vision", "--no-input")
    assert result.exit_code == 1
    assert "missing: --display-name" in result.stderr
    assert platform.of("POST") == []


def test_a_missing_value_is_asked_for_on_a_terminal(
    on_terminal: Callable[..., object], platform: FakeCliPlatform
) -> None:
    platform.on("POST", f"/api/v1/tenants/{TENANT}/projects", CannedResponse(201, project()))
    ran: object = on_terminal("projects", "create", "--slug", "vision", typed="Typed in\n")
    assert ran.exit_code == 0, ran  # type: ignore[attr-defined]
    assert platform.of("POST")[0].body == {"slug": "vision", "display_name": "Typed in"}


def test_a_delete_asks_first(run: Run, on_terminal: Callable[..., object], platform: FakeCliPlatform) -> None:
    platform.on("DELETE", f"/api/v1/projects/{PROJECT}", CannedResponse(204))
    assert run("projects", "delete", "vision").exit_code == 1
    assert on_terminal("projects", "delete", "vision", typed="n\n").exit_code == 1  # type: ignore[attr-defined]
    assert platform.of("DELETE") == []
    assert run("projects", "delete", "vision", "--yes").exit_code == 0
    assert on_terminal("projects", "delete", "vision", typed="y\n").exit_code == 0  # type: ignore[attr-defined]
    assert len(platform.of("DELETE")) == 2


def test_a_revocation_shows_its_blast_radius_and_asks_first(
    run: Run, on_terminal: Callable[..., object], platform: FakeCliPlatform
) -> None:
    artifact = f"/api/v1/projects/{PROJECT}/artifacts/art_01bad"
    platform.on("POST", f"{artifact}/revoke", CannedResponse(body={"id": "art_01bad", "trust": "revoked"}))
    impact = {
        "counts": {"tenants": 1, "projects": 2, "instances": 4, "members": 9, "versions": 1},
        "reactions": {"notify": 0, "refuse": 2, "drain": 0, "stop": 1},
        "instances": [{"name": "hpc"}, {"name": "greeter"}],
    }
    platform.on("GET", f"{artifact}/impact", CannedResponse(body=impact))
    revoke = ("artifacts", "revoke", "art_01bad", "--project", PROJECT, "--reason", "it has a backdoor")
    unasked = run(*revoke)
    assert (unasked.exit_code, "give --yes" in unasked.stderr) == (1, True), unasked.output
    refused: object = on_terminal(*revoke, typed="n\n")
    assert refused.exit_code == 1  # type: ignore[attr-defined]
    for line in (
        "Held by 4 instances with 9 members in 2 projects of 1 tenant; needed by 1 version.",
        "3 instances run it now.",
        "refuse: 2 instances; restarts, repairs and actions are refused",
        "stop: 1 instance; it is stopped",
        "hpc, greeter",
        "revoke artifact art_01bad?",
    ):
        assert line in refused.screen  # type: ignore[attr-defined]
    assert platform.of("POST") == []
    assert run(*revoke, "--yes").exit_code == 0
    assert len(platform.of("POST")) == 1


def test_a_project_is_named_by_slug_or_id(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"/api/v1/projects/{PROJECT}", CannedResponse(body=project()))
    assert run("projects", "get", "vision", "-o", "name").stdout == "vision\n"
    looked_up = len(platform.asked)
    assert run("projects", "get", PROJECT, "-o", "name").stdout == "vision\n"
    assert len(platform.asked) == looked_up + 1, "an id needs no look-up"


def test_a_name_without_a_resource_is_not_found(run: Run) -> None:
    result = run("projects", "get", "nothing")
    assert result.exit_code == 4
    assert "there is no project 'nothing'" in result.stderr


def test_a_service_account_is_named_by_name(run: Run, platform: FakeCliPlatform) -> None:
    platform.on(
        "GET", f"/api/v1/projects/{PROJECT}/service-accounts", page(account(), account(id="sa_02", name="other"))
    )
    platform.on("POST", f"/api/v1/projects/{PROJECT}/service-accounts/sa_01ci/disable", CannedResponse(body=account()))
    assert run("service-accounts", "disable", "ci", "--project", "vision").exit_code == 0
    platform.on("GET", f"/api/v1/projects/{PROJECT}/service-accounts/sa_01ci/keys", page())
    assert run("service-accounts", "keys", "list", "ci", "--project", "vision").exit_code == 0
    assert run("service-accounts", "disable", "nobody", "--project", "vision").exit_code == 4


def test_a_member_is_named_by_address(run: Run, platform: FakeCliPlatform) -> None:
    user = {"id": "usr_02bob", "email": "bob@acme.test"}
    platform.on("GET", f"/api/v1/tenants/{TENANT}/users", page(user))
    platform.on("POST", f"/api/v1/projects/{PROJECT}/memberships", CannedResponse(201, {"id": "mbr_01"}))
    run("memberships", "create", "--project", "vision", "--user", "bob@acme.test", "--role", "project_viewer")
    assert platform.of("POST")[0].body == {"user_id": "usr_02bob", "role": "project_viewer"}


@pytest.mark.parametrize(
    ("variables", "options", "wanted"),
    [
        ({}, [], f"/api/v1/tenants/{TENANT}/memberships"),
        ({"MOORING_TENANT": TENANT}, [], f"/api/v1/tenants/{TENANT}/memberships"),
        ({"MOORING_PROJECT": PROJECT}, [], f"/api/v1/projects/{PROJECT}/memberships"),
        ({"MOORING_PROJECT": PROJECT}, ["--tenant", TENANT], f"/api/v1/tenants/{TENANT}/memberships"),
        ({"MOORING_PROJECT": PROJECT}, ["--platform"], "/api/v1/platform/memberships"),
        ({}, ["--project", PROJECT], f"/api/v1/projects/{PROJECT}/memberships"),
    ],
)
def test_the_place_is_the_option_s_else_the_context_s_else_home(
    run: Run,
    platform: FakeCliPlatform,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    options: list[str],
    wanted: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    platform.on("GET", wanted, page())
    assert run("memberships", "list", *options).exit_code == 0
    assert platform.asked[-1].path == wanted


def test_the_platform_s_people_are_at_home_in_the_platform(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=whoami(tenant_id=None)))
    platform.on("GET", "/api/v1/platform/users", page())
    assert run("users", "list").exit_code == 0


def test_a_service_account_is_at_home_in_its_one_project(run: Run, platform: FakeCliPlatform) -> None:
    caller = whoami(kind="service_account", project_actions={PROJECT: ["project.read"]})
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=caller))
    platform.on("GET", f"/api/v1/projects/{PROJECT}/service-accounts", page())
    assert run("service-accounts", "list").exit_code == 0


def test_two_places_at_once_are_a_usage_error(run: Run) -> None:
    result = run("memberships", "list", "--project", "vision", "--tenant", "acme")
    assert result.exit_code == 1
    assert "give only one of them" in result.stderr


def test_a_duration_is_taken_where_seconds_are(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("POST", "/api/v1/tokens", CannedResponse(201, {"id": "tok_02", "token": "mrgp_new"}))
    result = run("tokens", "create", "--name", "ci", "--expires-in-seconds", "30d")
    assert platform.of("POST")[0].body == {"name": "ci", "expires_in_seconds": 30 * 86_400}
    assert "will not be shown again" in result.stderr
    assert run("tokens", "create", "--name", "ci", "--expires-in-seconds", "soon").exit_code == 1


def test_a_key_pair_is_made_here_and_only_its_public_half_is_sent(
    run: Run, platform: FakeCliPlatform, tmp_path: Path
) -> None:
    file = tmp_path / "ci.pem"
    path = f"/api/v1/projects/{PROJECT}/service-accounts"
    platform.on("POST", path, CannedResponse(201, account()))

    def keys(asked: RecordedRequest) -> CannedResponse:
        return page({"id": "key_01", "public_key": platform.of("POST")[0].body["public_key"]})

    platform.on("GET", f"{path}/sa_01ci/keys", keys)
    result = run(
        "service-accounts",
        "create",
        "--project",
        "vision",
        "--name",
        "ci",
        "--action",
        "a.b",
        "--generate-key",
        str(file),
    )
    assert result.exit_code == 0, result.output
    assert file.stat().st_mode & 0o777 == 0o600
    private = file.read_text()
    assert private.startswith("-----BEGIN PRIVATE KEY-----")
    sent = json.dumps(platform.of("POST")[0].body)
    assert private.splitlines()[1] not in sent + result.output
    assert "MOORING_SERVICE_ACCOUNT_KEY_ID=key_01" in result.stderr


def test_a_key_file_is_never_overwritten_and_goes_when_the_server_refuses(
    run: Run, platform: FakeCliPlatform, tmp_path: Path
) -> None:
    file = tmp_path / "ci.pem"
    words = ["service-accounts", "create", "--project", "vision", "--name", "ci", "--action", "a.b", "--generate-key"]
    path = f"/api/v1/projects/{PROJECT}/service-accounts"
    platform.on("POST", path, problem(409, "name_taken"))
    assert run(*words, str(file)).exit_code == 5
    assert not file.exists()
    platform.on("POST", path, problem(500, "internal"))
    assert run(*words, str(file)).exit_code == 2
    assert file.exists(), "nobody knows whether the server has the public half"
    before = file.read_bytes()
    assert run(*words, str(file)).exit_code == 1
    assert file.read_bytes() == before


def test_what_is_mistyped_gets_a_hint(run: Run) -> None:
    assert "did you mean projects?" in run("project", "list").stderr
    assert "did you mean list?" in run("projects", "lst").stderr


def test_the_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    for name in [*HAND_WRITTEN, *NOUNS]:
        assert f"  {name} " in result.stdout
    assert mooring.name == "mooring"


def test_the_help_is_shown_without_the_sdk_and_that_of_a_command_without_an_http_client() -> None:
    for words, absent in ((["--help"], "mooring_sdk"), (["projects", "create", "--help"], "httpx")):
        program = (
            "import atexit, sys; from mooring_cli.main import mooring\n"
            f"atexit.register(lambda: print({absent!r} in sys.modules, file=sys.stderr))\n"
            f"mooring.main({words!r})\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
        assert done.stderr.split() == ["False"], words
