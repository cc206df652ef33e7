"""The commands of the catalog: references to resources without a name, files as values, and columns."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import PROJECT, TENANT, CannedResponse, FakeCliPlatform, page, whoami
from mooring_cli.columns import columns_of

Run = Callable[..., Result]

DIGEST = "sha256:" + "a" * 64
HERE = f"/api/v1/tenants/{TENANT}"
MANIFEST = "manifest_version: 1\napp: hello\nversion: 1.0.0\nreleased: 2026-01-31\n"


def an_artifact(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"art_{number}",
        "visibility": "tenant",
        "kind": "oci",
        "source_type": "oci",
        "location": "oci://registry.example/hello",
        "digest": DIGEST,
        "algorithm": "sha256",
        "size_bytes": 1,
        "media_type": "an image",
        "promotion": "draft",
        "trust": "verified",
        "doubts": [],
        **changes,
    }


@pytest.fixture
def app(platform: FakeCliPlatform) -> str:
    """An app of the tenant with two versions."""
    platform.on("GET", f"{HERE}/apps", page({"id": "app_1", "slug": "hello"}))
    platform.on(
        "GET",
        f"{HERE}/apps/app_1/versions",
        page({"id": "ver_1", "version": "1.0.0", "status": "active"}, {"id": "ver_2", "version": "2.0.0"}),
    )
    return "hello"


def test_a_version_is_named_by_its_app_and_its_number(run: Run, platform: FakeCliPlatform, app: str) -> None:
    platform.on("GET", f"{HERE}/apps/app_1/versions/ver_2", CannedResponse(body={"id": "ver_2"}))
    assert json.loads(run("apps", "versions", "get", app, "2.0.0", "-o", "json").stdout) == {"id": "ver_2"}
    missing = run("apps", "versions", "get", app, "3.0.0")
    assert (missing.exit_code, missing.stderr) == (4, "error: there is no version '3.0.0' here; did you mean 2.0.0?\n")


def test_a_successor_is_named_as_what_it_supersedes_is(run: Run, platform: FakeCliPlatform, app: str) -> None:
    platform.on("POST", f"{HERE}/apps/app_1/versions/ver_1/promote", CannedResponse(body={"id": "ver_1"}))
    words = ("apps", "versions", "promote", app, "1.0.0", "--move", "deprecate", "--reason", "two is out")
    assert run(*words, "--superseded-by", "2.0.0").exit_code == 0
    assert platform.of("POST")[0].body == {"move": "deprecate", "reason": "two is out", "superseded_by": "ver_2"}


def test_an_artifact_is_named_by_its_digest(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{HERE}/artifacts", page(an_artifact()))
    platform.on("GET", f"{HERE}/artifacts/art_1/history", CannedResponse(body={"items": []}))
    assert run("artifacts", "history", DIGEST, "-o", "json").exit_code == 0
    (listed,) = [asked for asked in platform.asked if asked.path == f"{HERE}/artifacts"]
    assert listed.query["digest"] == DIGEST


def test_a_digest_that_two_places_registered_needs_an_id(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", f"{HERE}/artifacts", page(an_artifact(1), an_artifact(2, visibility="platform")))
    result = run("artifacts", "get", DIGEST)
    assert (result.exit_code, "is the name of 2 of them" in result.stderr) == (4, True)


def test_names_are_looked_for_where_the_command_acts(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("GET", "/api/v1/whoami", CannedResponse(body=whoami(tenant_id=None)))
    platform.on("GET", "/api/v1/platform/artifacts", page(an_artifact(7)))
    platform.on("GET", "/api/v1/platform/artifacts/art_7", CannedResponse(body=an_artifact(7)))
    assert run("artifacts", "get", DIGEST, "--platform", "-o", "name").stdout == "art_7\n"


def test_an_entitlement_is_named_by_its_app_and_made_for_any_app_in_sight(run: Run, platform: FakeCliPlatform) -> None:
    here = f"/api/v1/projects/{PROJECT}/entitlements"
    platform.on("GET", here, page({"id": "ent_1", "app_slug": "hello"}))
    platform.on("POST", f"{here}/ent_1/disable", CannedResponse(body={"id": "ent_1", "enabled": False}))
    off = ("entitlements", "disable", "hello", "--project", "vision", "--reason", "it costs too much")
    assert run(*off).exit_code == 0
    platform.on("GET", "/api/v1/apps/catalog", page({"app_id": "app_9", "slug": "shared", "tenant_id": None}))
    platform.on("POST", here, CannedResponse(201, {"id": "ent_2"}))
    made = ("entitlements", "create", "--app", "shared", "--project", "vision", "--reason", "they asked for it")
    assert run(*made).exit_code == 0
    assert platform.of("POST")[-1].body == {"app_id": "app_9", "reason": "they asked for it"}


def test_a_manifest_comes_from_a_file_in_yaml(run: Run, platform: FakeCliPlatform, app: str, tmp_path: Path) -> None:
    file = tmp_path / "mooring.yaml"
    file.write_text(MANIFEST)
    platform.on("POST", f"{HERE}/apps/app_1/versions", CannedResponse(201, {"id": "ver_3"}))
    assert run("apps", "versions", "create", app, "--manifest", f"@{file}").exit_code == 0
    sent = platform.of("POST")[0].body["manifest"]
    assert sent == {"manifest_version": 1, "app": "hello", "version": "1.0.0", "released": "2026-01-31"}
    for wrong in ("@nowhere.yaml", "{"):
        assert run("apps", "versions", "create", app, "--manifest", wrong).exit_code == 1


def test_a_public_key_comes_from_the_file_that_a_signing_tool_wrote(
    run: Run, platform: FakeCliPlatform, tmp_path: Path
) -> None:
    file = tmp_path / "cosign.pub"
    file.write_text("-----BEGIN PUBLIC KEY-----\nabc\n-----END PUBLIC KEY-----\n")
    platform.on("POST", f"{HERE}/signer-keys", CannedResponse(201, {"id": "sgk_1", "public_key": file.read_text()}))
    result = run("signer-keys", "add", "--name", "release", "--public-key-pem", f"@{file}")
    assert platform.of("POST")[0].body["public_key_pem"] == file.read_text()
    assert result.stdout.splitlines()[1:] == [
        "PUBLIC KEY  -----BEGIN PUBLIC KEY-----",
        "            abc",
        "            -----END PUBLIC KEY-----",
    ]


def test_rules_that_are_not_given_are_no_rules(run: Run, platform: FakeCliPlatform) -> None:
    platform.on("PUT", f"{HERE}/policy", CannedResponse(body={"id": "pol_1"}))
    assert run("policy", "update", "--tenant", TENANT, "--reason", "nothing is narrowed").exit_code == 0
    assert platform.of("PUT")[0].body == {"reason": "nothing is narrowed", "rules": {}}


def test_a_table_shows_the_states_whatever_stands_before_them() -> None:
    found = columns_of([an_artifact()])
    assert found.first[:3] == ("id", "promotion", "trust")
    assert {"kind", "location", "digest"} <= set(found.others)
    assert "superseded_by" not in (*found.first, *found.others, *found.wide), "a field without a value"


def test_a_project_s_catalog_shows_the_version_and_what_hinders(run: Run, platform: FakeCliPlatform) -> None:
    line = {
        "app_id": "app_1",
        "slug": "hello",
        "display_name": "Hello",
        "category": "web",
        "created_at": "",
        "version": {"id": "ver_1", "version": "1.0.0", "status": "active"},
        "launchable": False,
        "hindrances": [
            {
                "code": "not_entitled",
                "obstacle": "actions_not_agreed",
                "reason": "…",
                "details": {"missing_actions": ["task.cancel", "usage.report"]},
            },
            {"code": "policy_denied", "obstacle": "policy", "reason": "…", "details": {}},
        ],
    }
    platform.on("GET", f"/api/v1/projects/{PROJECT}/catalog", page(line))
    head, row = run("catalog", "list", "--project", "vision").stdout.splitlines()
    assert head.split() == ["SLUG", "LAUNCHABLE", "VERSION", "CATEGORY", "HINDRANCES", "DISPLAY", "NAME"]
    assert "actions_not_agreed (task.cancel, usage.report), policy_denied" in row
    assert "1.0.0 (active)" in row


def test_a_history_shows_who_and_why(run: Run, platform: FakeCliPlatform) -> None:
    step = {
        "machine": "promotion",
        "generation": 1,
        "before": "draft",
        "trigger": "stage",
        "after": "staged",
        "occurred_at": "2999-01-31T12:00:00Z",
        "correlation_id": "cor_1",
        "actor_kind": "user",
        "actor_id": "usr_1",
        "reason": "tried by the team",
    }
    platform.on("GET", f"{HERE}/artifacts/art_1/history", CannedResponse(body={"items": [step]}))
    head, row = run("artifacts", "history", "art_1").stdout.splitlines()
    assert head.split() == ["MACHINE", "BEFORE", "TRIGGER", "AFTER", "OCCURRED", "ACTOR", "ID", "REASON"]
    assert row.endswith("usr_1     tried by the team")


def test_things_inside_of_a_thing_are_a_table_of_their_own(run: Run, platform: FakeCliPlatform) -> None:
    answers = [{"layer": "tenant", "allowed": True, "reason": None}, {"layer": "project", "allowed": False}]
    platform.on("GET", f"{HERE}/policy/explain", CannedResponse(body={"allowed": False, "answers": answers}))
    shown = run("policy", "explain", "--tenant", TENANT, "--app", "hello").stdout.splitlines()
    assert shown == ["ALLOWED  no", "", "ANSWERS", "  LAYER    ALLOWED", "  tenant   yes", "  project  no"]
