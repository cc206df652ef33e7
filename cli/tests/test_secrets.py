"""`mooring secrets`: the value comes from stdin, a file or a prompt, and is neither an option nor shown."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import CREATED, PROJECT, TENANT, CannedResponse, FakeCliPlatform, page

Run = Callable[..., Result]
AT = f"/api/v1/projects/{PROJECT}/secrets"
KEY = "-----BEGIN KEY-----\nabc\n-----END KEY-----\n"


@pytest.fixture(autouse=True)
def in_project(environment: dict[str, str]) -> None:
    environment["MOORING_PROJECT"] = PROJECT


def secret(**changes: Any) -> dict[str, Any]:
    made = {
        "id": "pse_01hub",
        "tenant_id": TENANT,
        "project_id": PROJECT,
        "name": "hub-token",
        "description": "",
        "version": 1,
        "instances": 0,
        "created_by": "usr_1",
        "created_at": CREATED,
        "rotated_at": None,
        "revision": 0,
        "etag": "0",
        "allowed_actions": [],
    }
    return made | changes


def test_a_value_comes_from_stdin_or_a_file_and_is_never_an_option(
    run: Run, platform: FakeCliPlatform, tmp_path: Path
) -> None:
    platform.on("POST", AT, CannedResponse(201, secret()))
    file = tmp_path / "key.pem"
    file.write_text(KEY)
    assert run("secrets", "create", "--name", "hub-token", "--value-file", "-", stdin="hf_abc\n").exit_code == 0
    assert run("secrets", "create", "--name", "key", "--value-file", str(file)).exit_code == 0
    assert [each.body for each in platform.of("POST")] == [
        {"name": "hub-token", "value": "hf_abc"},
        {"name": "key", "value": KEY},
    ]
    result = run("secrets", "create", "--name", "hub-token", "--value", "hf_abc")
    assert result.exit_code == 1
    assert "hf_abc" not in result.stderr + result.stdout
    missing = run("secrets", "create", "--name", "hub-token", "--no-input")
    assert "missing: --value-file" in missing.stderr


def test_a_secret_is_rotated_and_deleted_by_its_name(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", AT, page(secret()))
    platform.on("POST", f"{AT}/pse_01hub/rotate", CannedResponse(200, secret(version=2)))
    platform.on("DELETE", f"{AT}/pse_01hub", CannedResponse(204, None))
    assert run("secrets", "rotate", "hub-token", "--value-file", "-", stdin="hf_new").exit_code == 0
    assert platform.of("POST")[0].body == {"value": "hf_new"}
    assert run("secrets", "delete", "hub-token", "--force", "--yes").exit_code == 0
    assert platform.of("DELETE")[0].query == {"force": "true"}


def test_a_source_needs_a_credential_only_for_a_private_registry(run: Run, platform: FakeCliPlatform) -> None:
    at = f"/api/v1/tenants/{TENANT}/artifact-sources"
    platform.on("POST", at, CannedResponse(201, {"id": "src_1"}))
    platform.on("GET", AT, page(secret()))
    create = ("artifact-sources", "create", "--tenant", TENANT, "--name", "any", "--pattern", "oci://a.example/*")
    assert run(*create).exit_code == 0
    login = ("--credential-username", "robot", "--credential-secret", "hub-token")
    result = run(*create, *login)
    assert result.exit_code == 0, result.stderr
    plain = {"name": "any", "pattern": "oci://a.example/*"}
    private = {**plain, "credential": {"username": "robot", "secret_id": "pse_01hub"}}
    assert [each.body for each in platform.of("POST")] == [plain, private]


def test_a_mistaken_value_in_a_launch_is_not_repeated(run: Run) -> None:
    result = run("instances", "launch", "hello", "--use-secret", "hf_the-value-itself")
    assert (result.exit_code, "hf_the-value-itself" in result.stderr) == (1, False)
