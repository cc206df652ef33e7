"""The command against a real Mooring: from the first sign-in to a service account that is refused."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mooring_cli.main import mooring as command
from tests.e2e.leftovers import eventually
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, MooringProcess, running_mooring

pytestmark = pytest.mark.real_part("postgresql")


@dataclass(frozen=True)
class CliProcessResult:
    """What came of one run of the command."""

    exit_code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The output as JSON."""
        assert self.exit_code == 0, self.err
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The error as JSON."""
        assert self.exit_code != 0, self.out
        return json.loads(self.err.splitlines()[-1])["error"]


Run = Callable[..., CliProcessResult]


@pytest.fixture(scope="module")
def mooring() -> Iterator[MooringProcess]:
    with running_mooring() as started:
        yield started


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def run(mooring: MooringProcess, home: Path) -> Run:
    """Run the command with an empty home of its own; the tests of the CLI show how it behaves as a process."""

    def run(*words: str, stdin: str = "", **variables: str) -> CliProcessResult:
        unset = {name: None for name in os.environ if name.startswith(("MOORING_", "XDG_"))}
        result = CliRunner().invoke(command, list(words), input=stdin, env={**unset, "HOME": str(home), **variables})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return CliProcessResult(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="module")
def platform_admin(mooring: MooringProcess, run: Run) -> str:
    """The first admin, signed in by the one-time code of the first start; the name of its context."""
    ran = run(
        "login",
        "--context",
        "platform",
        "--url",
        mooring.url,
        "--email",
        FIRST_ADMIN,
        "--one-time-code-stdin",
        stdin=f"{mooring.code}\n{PASSWORD}\n",
    )
    assert ran.exit_code == 0, ran.err
    return "platform"


@pytest.fixture(scope="module")
def tenant_admin(mooring: MooringProcess, run: Run, platform_admin: str) -> str:
    """The first admin of a tenant, signed in, with a project in its context; the name of its context."""
    made = run(
        "tenants",
        "create",
        "--context",
        platform_admin,
        "--slug",
        "harbour",
        "--display-name",
        "Harbour",
        "--first-admin-email",
        "ada@harbour.test",
        "--first-admin-display-name",
        "Ada",
        "-o",
        "json",
    ).data
    ran = run(
        "login",
        "--context",
        "harbour",
        "--url",
        mooring.url,
        "--tenant",
        "harbour",
        "--email",
        "ada@harbour.test",
        "--one-time-code-stdin",
        stdin=f"{made['one_time_code']}\n{PASSWORD}\n",
    )
    assert ran.exit_code == 0, ran.err
    made = run("projects", "create", "--context", "harbour", "--slug", "vision", "--display-name", "Vision")
    assert made.exit_code == 0, made.err
    assert run("context", "set", "harbour", "--project", "vision").exit_code == 0
    return "harbour"


@pytest.fixture(scope="module")
def robot(mooring: MooringProcess, run: Run, tenant_admin: str, home: Path) -> dict[str, str]:
    """The environment of a service account with a key that the command made."""
    made = run(
        "service-accounts",
        "create",
        "--context",
        tenant_admin,
        "--name",
        "robot",
        "--action",
        "project.read",
        "--action",
        "event.read",
        "--generate-key",
        str(home / "robot.pem"),
        "-o",
        "json",
    )
    said = dict(
        line.strip().removeprefix("export ").split("=", 1) for line in made.err.splitlines() if "export" in line
    )
    assert said["MOORING_SERVICE_ACCOUNT"] == made.data["id"]
    return said


def test_the_platform_s_admin_is_at_home_in_the_platform(run: Run, platform_admin: str) -> None:
    caller = run("whoami", "--context", platform_admin, "-o", "json").data
    assert [role["role"] for role in caller["roles"]] == ["platform_admin"]
    users = run("users", "list", "--context", platform_admin, "-o", "json").data
    assert [user["email"] for user in users] == [FIRST_ADMIN]


def test_the_same_password_signs_in_again_and_a_wrong_one_does_not(
    run: Run, mooring: MooringProcess, platform_admin: str
) -> None:
    words = ("login", "--context", "again", "--url", mooring.url, "--email", FIRST_ADMIN, "--password-stdin")
    assert run(*words, stdin=f"{PASSWORD}\n").exit_code == 0
    assert run("logout", "--context", "again").exit_code == 0
    assert run("whoami", "--context", "again").exit_code == 3
    refused = run(*words, "-o", "json", stdin="not the password\n")
    assert refused.exit_code == 3
    assert refused.error["code"] == "sign_in_refused"


def test_a_name_that_is_taken_is_a_conflict(run: Run, tenant_admin: str) -> None:
    ran = run("projects", "create", "--context", tenant_admin, "--slug", "vision", "--display-name", "V", "-o", "json")
    assert (ran.exit_code, ran.error["code"]) == (5, "name_taken")


def test_a_value_that_is_not_taken_is_a_usage_error(run: Run, tenant_admin: str) -> None:
    ran = run("projects", "create", "--context", tenant_admin, "--slug", "No!", "--display-name", "V", "-o", "json")
    assert (ran.exit_code, ran.error["code"]) == (1, "validation_failed")


def test_a_repeat_under_one_key_has_one_effect(run: Run, tenant_admin: str) -> None:
    words = ("projects", "create", "--context", tenant_admin, "--idempotency-key", "once", "-o", "json", "--slug")
    first = run(*words, "once", "--display-name", "Once").data
    assert run(*words, "once", "--display-name", "Once").data["id"] == first["id"]
    other = run(*words, "twice", "--display-name", "Once")
    assert (other.exit_code, other.error["code"]) == (5, "idempotency_conflict")


def test_another_tenant_s_things_are_not_found(run: Run, platform_admin: str, tenant_admin: str) -> None:
    project = run("projects", "get", "--context", tenant_admin, "-o", "json").data["id"]
    ran = run("projects", "get", project, "--context", platform_admin, "-o", "json")
    assert (ran.exit_code, ran.error["code"]) == (4, "not_found")


def test_a_service_account_works_by_its_key_and_is_refused_the_rest(run: Run, robot: dict[str, str]) -> None:
    caller = run("whoami", "-o", "json", **robot).data
    assert (caller["kind"], list(caller["project_actions"].values())) == (
        "service_account",
        [["event.read", "project.read"]],
    )
    project = next(iter(caller["project_actions"]))
    assert run("projects", "get", project, "-o", "json", **robot).data["slug"] == "vision"
    denied = run(
        "projects", "update", project, "--display-name", "Mine", "-o", "json", "--correlation-id", "the-denial", **robot
    )
    assert (denied.exit_code, denied.error["code"]) == (3, "permission_denied")
    assert denied.error["correlation_id"] == "the-denial"


def test_a_denial_is_in_the_audit_trail_under_its_correlation_id(
    run: Run, tenant_admin: str, robot: dict[str, str]
) -> None:
    project = run("projects", "get", "--context", tenant_admin, "-o", "json").data["id"]
    run("projects", "delete", project, "--yes", "--correlation-id", "look-here", **robot)
    rows = run(
        "audit", "--context", tenant_admin, "--correlation", "look-here", "--outcome", "denied", "-o", "json"
    ).data
    assert [(row["action"], row["actor_kind"]) for row in rows] == [("project.delete", "service_account")]


def test_a_disabled_service_account_gets_no_token(run: Run, tenant_admin: str, home: Path) -> None:
    made = run(
        "service-accounts",
        "create",
        "--context",
        tenant_admin,
        "--name",
        "short-lived",
        "--action",
        "project.read",
        "--generate-key",
        str(home / "short.pem"),
        "-o",
        "json",
    )
    said = dict(
        line.strip().removeprefix("export ").split("=", 1) for line in made.err.splitlines() if "export" in line
    )
    assert run("whoami", **said).exit_code == 0
    disabled = run("service-accounts", "disable", "short-lived", "--context", tenant_admin, "-o", "json").data
    assert disabled["status"] == "disabled"
    refused = run("whoami", "-o", "json", **said)
    assert (refused.exit_code, refused.error["code"]) == (3, "assertion_refused")


def test_events_are_shown_and_followed(run: Run, mooring: MooringProcess, tenant_admin: str, home: Path) -> None:
    # A read stops at the oldest transaction that is open anywhere: what is new may be missing for a moment.
    shown = eventually(
        lambda: run("events", "--context", tenant_admin, "--tenant", "harbour", "-o", "json", "--limit", "0").data,
        lambda events: "identity.project.created" in [event["type"] for event in events],
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mooring_cli",
            "events",
            "--follow",
            "--context",
            tenant_admin,
            "--tenant",
            "harbour",
            "--since",
            shown[-1]["cursor"],
            "-o",
            "json",
        ],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        made = run("projects", "create", "--context", tenant_admin, "--slug", "followed", "--display-name", "F")
        assert made.exit_code == 0, made.err
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        assert any(
            (each["type"], each["data"].get("slug")) == ("identity.project.created", "followed") for each in events
        )
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_an_unknown_webhook_address_is_refused_and_the_outbox_is_empty(run: Run, tenant_admin: str) -> None:
    refused = run("webhooks", "create", "--context", tenant_admin, "--url", "https://127.0.0.1/hook", "-o", "json")
    assert (refused.exit_code, refused.error["code"]) == (1, "address_refused")
    assert run("outbox", "list", "--context", tenant_admin, "-o", "json").data == []
    assert run("outbox", "replay", "--dead", "--context", tenant_admin, "-o", "json").data == {"replayed": 0}


def test_every_code_that_the_command_meets_is_explained(run: Run, mooring: MooringProcess) -> None:
    for word in ("name_taken", "service_account.active", "project.create", "identity.project.created", "tenant_admin"):
        ran = run("explain", word, "--url", mooring.url)
        assert ran.exit_code == 0, ran.err
    assert run("schema", "service-accounts", "--url", mooring.url).data["components"]["schemas"]


def test_no_token_is_in_the_file_of_anybody_else_or_in_any_output(run: Run, tenant_admin: str, home: Path) -> None:
    file = home / ".config" / "mooring" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    tokens = [each["token"] for each in json.loads(file.read_text())["contexts"].values() if each["token"]]
    assert tokens
    for words in (["whoami", "-v"], ["context", "list", "-o", "yaml"], ["tokens", "list", "-o", "json", "-v"]):
        ran = run(*words, "--context", tenant_admin)
        assert ran.exit_code == 0, ran.err
        for token in tokens:
            assert token not in ran.out + ran.err
