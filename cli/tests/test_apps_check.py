"""`mooring apps check` and the onboarding checklist agree, and a missing point is named and fails the command."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from cli.tests.support.fake_platform import PROJECT, CannedResponse, FakeCliPlatform, page
from mooring_adapter.conformance.suite import promises
from mooring_cli.apps_check import OF_PROMISES, POINTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checklists" / "app-onboarding.md"
TENANT = "ten_00000000000000000000000001"
INSTANCE = "ins_01m7prhrvd41zagasgcy65nswq"


def test_the_checklist_and_the_command_have_the_same_points() -> None:
    assert re.findall(r"^- \[ \] `([a-z-]+)`: ", PAGE.read_text(), re.MULTILINE) == list(POINTS)


MANIFEST = {
    "artifacts": {"main": f"sha256:{'a' * 64}"},
    "required_actions": ["runtime.claim"],
    "lifecycle": {"upgrade": {"from_versions": [">=1.0.0"]}, "delete": {"data": "removed"}},
    "runbook": {"entries": [{"symptom": "s", "steps": "t"}]},
}
CHECK = ("apps", "check", "welcome", "--tenant", TENANT, "-o", "json")


@pytest.fixture
def published(platform: FakeCliPlatform) -> FakeCliPlatform:
    """A tenant with an app, its version and its artifact."""
    place = f"/api/v1/tenants/{TENANT}"
    platform.on("GET", f"{place}/apps", page({"id": "app_1", "slug": "welcome", "adapter_key": "k"}))
    platform.on("GET", f"{place}/apps/app_1/versions", page({"id": "ver_1", "status": "staged", "manifest": MANIFEST}))
    platform.on("POST", "/api/v1/manifests/lint", CannedResponse(body={"findings": []}))
    platform.on("GET", f"{place}/artifacts", page({"id": "art_1", "trust": "verified"}))
    return platform


def results_of(ran: Result) -> dict[str, str]:
    rows = json.loads(ran.stdout)
    assert all(each["how"] for each in rows if each["result"] != "ok")
    assert (ran.exit_code == 1) == any(each["result"] == "missing" for each in rows), ran.output
    return {each["point"]: each["missing"] or each["result"] for each in rows}


def test_what_is_missing_is_named_with_what_mends_it(run: Callable[..., Result], published: FakeCliPlatform) -> None:
    assert results_of(run(*CHECK))["artifacts"] == "ok"
    published.on("GET", f"/api/v1/tenants/{TENANT}/artifacts", page({"id": "art_1", "trust": "unverified"}))
    assert "not verified: main" in results_of(run(*CHECK))["artifacts"]


def test_the_report_of_the_suite_shows_what_the_adapter_does(
    run: Callable[..., Result], published: FakeCliPlatform, tmp_path: Path
) -> None:
    played = {each.key: "kept" for each in promises()}
    report = tmp_path / "report.json"
    for broken, point in (("task_failure", "failures"), ("crash", "replicas"), ("rollback", "upgrade")):
        verdicts = {**played, broken: "broken"}
        report.write_text(
            json.dumps({"promises": [{"promise": key, "verdict": each} for key, each in verdicts.items()]})
        )
        found = results_of(run(*CHECK, "--report", str(report)))
        assert broken in found[point]
        assert broken in found["promises"]
        assert [each for each in OF_PROMISES if each not in (point, "promises") and found[each] != "ok"] == []
    report.write_text(json.dumps({"promises": [{"promise": "deploy", "verdict": "kept"}]}))
    assert "no verdict about" in results_of(run(*CHECK, "--report", str(report)))["lost-node"]
    report.write_text("[]")
    assert run(*CHECK, "--report", str(report)).exit_code == 1


def test_an_instance_shows_what_its_adapter_left_behind(run: Callable[..., Result], published: FakeCliPlatform) -> None:
    at = f"/api/v1/projects/{PROJECT}"
    instance = {"id": INSTANCE, "name": "page", "status": "running", "correlation_id": "cor_1", "claim": {"held": True}}
    published.on("GET", f"{at}/app-instances/{INSTANCE}", CannedResponse(body=instance))
    closed = {"member_name": "page-web-0", "kind": "receipt", "receipt": {"receipt_id": "rcp_1"}}
    deployed = {"kind": "deploy", "status": "succeeded", "steps": [{"name": "start"}]}
    for actors, steps, receipt, wrong in (
        (("service_account", "node", "system"), deployed, closed, {}),
        (("service_account", "system"), deployed, closed, {"correlation": "no event of node"}),
        (("service_account", "node", "system"), {**deployed, "steps": []}, closed, {"steps": "without a step: deploy"}),
        (
            ("service_account", "node", "system"),
            deployed,
            {**closed, "receipt": None},
            {"delete": "without a receipt: page-web-0", "neighbours": "without a receipt: page-web-0"},
        ),
    ):
        published.on("GET", f"{at}/events", page(*({"actor_kind": each} for each in actors)))
        published.on("GET", f"{at}/app-instances/{INSTANCE}/operations", page(steps))
        published.on("GET", f"{at}/app-instances/{INSTANCE}/closing-records", page(receipt))
        found = results_of(run(*CHECK, "--instance", INSTANCE, "--project", PROJECT))
        points = ("correlation", "steps", "neighbours", "delete", "key-rotation")
        assert {each: found[each] for each in points if found[each] != "ok"}.keys() == wrong.keys()
        assert all(said in found[point] for point, said in wrong.items())
