"""`mooring apps check` and the onboarding checklist agree, and a missing point is named and fails the command."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from cli.tests.support.fake_platform import CannedResponse, FakeCliPlatform, page
from mooring_cli.apps_check import POINTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checklists" / "app-onboarding.md"
TENANT = "ten_00000000000000000000000001"


def test_the_checklist_and_the_command_have_the_same_points() -> None:
    assert re.findall(r"^- \[ \] `([a-z-]+)`: ", PAGE.read_text(), re.MULTILINE) == list(POINTS)


def test_what_is_missing_is_named_with_what_mends_it(run: Callable[..., Result], platform: FakeCliPlatform) -> None:
    manifest = {
        "artifacts": {"main": f"sha256:{'a' * 64}"},
        "required_actions": ["runtime.claim"],
        "lifecycle": {"upgrade": {"from_versions": [">=1.0.0"]}, "delete": {"data": "removed"}},
        "runbook": {"entries": [{"symptom": "s", "steps": "t"}]},
    }
    place = f"/api/v1/tenants/{TENANT}"
    app = {"id": "app_1", "slug": "welcome", "adapter_key": "k"}
    platform.on("GET", f"{place}/apps", page(app))
    platform.on("GET", f"{place}/apps/app_1/versions", page({"id": "ver_1", "status": "staged", "manifest": manifest}))
    platform.on("POST", "/api/v1/manifests/lint", CannedResponse(body={"findings": []}))
    for trust, code, missing in (("verified", 0, []), ("unverified", 1, ["artifacts"])):
        platform.on("GET", f"{place}/artifacts", page({"id": "art_1", "trust": trust}))
        ran = run("apps", "check", "welcome", "--tenant", TENANT, "-o", "json")
        assert ran.exit_code == code, ran.output
        rows = json.loads(ran.stdout)
        assert [each["point"] for each in rows if each["result"] == "missing"] == missing
        assert all(each["how"] for each in rows if each["result"] != "ok")
