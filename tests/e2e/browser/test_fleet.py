"""The pages of operators and admins in a real browser, on a platform of `mooring up --try`."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import ConsolePage, trial_record
from tests.e2e.browser.people import PASSWORD, signed_in
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")

REASON = "a test of the console does it"
STAFF = "admin@mooring.local"


@pytest.fixture
def staff(console: ConsolePage) -> Iterator[ConsolePage]:
    console.page.set_viewport_size({"width": 1440, "height": 900})
    console.go("/nodes")
    console.sign_in(trial_record(console.trial)["admin_password"], tenant="", email=STAFF)
    expect(console.page.get_by_role("heading", name="Nodes")).to_be_visible()
    yield console


def as_staff(trial: TrialProcess) -> dict[str, str]:
    return {"email": STAFF, "password": trial_record(trial)["admin_password"]}


def test_staff_drains_a_node_and_sees_whom_it_touches(staff: ConsolePage) -> None:
    page, trial = staff.page, staff.trial
    trial.mooring("launch", "hello", "--name", "touched", "--wait")
    page.get_by_role("link", name="this-machine").click()
    page.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(re.compile("It waits for: [0-9]+ allocation"))).to_be_visible()
    expect(dialog.get_by_text(re.compile("try: 1 GPU, active")).first).to_be_visible()
    dialog.get_by_role("button", name="Drain").click()
    state = page.get_by_role("status", name="State")
    expect(state).to_have_text(re.compile("draining"))
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(state).to_have_text(re.compile("ready"))


def test_an_artifact_is_promoted_by_keyboard_and_its_revocation_shows_the_impact(staff: ConsolePage) -> None:
    page, trial = staff.page, staff.trial
    with signed_in(trial, as_staff(trial)) as client:
        found = client.get("/platform/artifacts", params={"promotion": "active"}).raise_for_status().json()["items"]
    artifact = found[0]
    staff.go("/artifacts")
    move = page.get_by_role("region", name="active").get_by_role("button", name=re.compile("^Move ")).first
    move.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("radio")).to_have_count(len(artifact["allowed_moves"]))  # the lawful moves, and no other
    dialog.get_by_role("radio", name=re.compile("deprecate")).press("Space")
    dialog.get_by_label("Why there is no successor").fill(REASON)
    dialog.get_by_label("Reason").fill(REASON)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    dialog.get_by_role("button", name="Move it").press("Enter")
    expect(dialog).to_have_count(0)
    deprecated = page.get_by_role("region", name="deprecated")
    expect(deprecated.get_by_role("link").first).to_be_visible()
    deprecated.get_by_role("link").first.click()
    page.get_by_role("button", name="Revoke").click()
    impact = page.get_by_role("dialog").get_by_role("region", name="What it affects")
    expect(impact).to_contain_text(re.compile("It affects .* versions"))
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    with signed_in(trial, as_staff(trial)) as client:  # as it was, for the tests that come later
        moved = client.get("/platform/artifacts", params={"promotion": "deprecated"}).json()["items"][0]
        body = {"move": "rollback", "reason": REASON}
        if "rollback" in moved["allowed_moves"]:
            client.post(f"/platform/artifacts/{moved['id']}/promote", json=body).raise_for_status()


def test_a_denial_is_found_by_its_correlation_id(console: ConsolePage, viewer: str) -> None:
    page, trial = console.page, console.trial
    sign_in = {"tenant": "try", "email": viewer, "password": PASSWORD}
    with signed_in(trial, sign_in) as client:
        project = client.get("/projects").json()["items"][0]
        refused = client.post(f"/projects/{project['id']}/allocations", json={"shape": "gpu_slice", "sku": "none"})
    assert refused.status_code == 403
    correlation = refused.json()["correlation_id"]
    console.go(f"/audit?correlation={correlation}")
    console.sign_in()
    row = page.get_by_role("row").filter(has_text="allocation.create")
    expect(row).to_contain_text("denied")
    row.get_by_role("link", name=re.compile("Follow")).click()
    expect(page.get_by_role("list", name="What followed, the oldest first")).to_contain_text("allocation.create")
    console.go("/audit")
    page.get_by_role("button", name="Verify it here").click()
    expect(page.get_by_text("The chain is whole")).to_be_visible()


def test_the_secret_of_a_webhook_is_shown_once(console: ConsolePage) -> None:
    page = console.page
    console.go("/webhooks")
    console.sign_in()
    page.get_by_role("button", name="New webhook").click()
    page.get_by_label("Address").fill("https://example.org/hooks")
    page.get_by_role("dialog").get_by_role("button", name="Create it").click()
    secret = page.get_by_role("dialog", name="The signing key").get_by_label("Signing key", exact=True)
    expect(secret).to_have_text(re.compile("^whsec_"))
    key = secret.inner_text()
    page.get_by_role("button", name="I saved it").click()
    expect(page.get_by_role("link", name="https://example.org/hooks")).to_be_visible()
    page.reload()
    expect(page.get_by_role("link", name="https://example.org/hooks")).to_be_visible()
    assert key not in page.content()


def test_an_admin_of_a_tenant_sees_neither_nodes_nor_another_tenant(console: ConsolePage, other_tenant: str) -> None:
    page, trial = console.page, console.trial
    held = json.loads(trial.mooring("allocations", "list", "-o", "json"))
    if not held:
        trial.mooring("launch", "hello", "--name", "held", "--wait")
        held = json.loads(trial.mooring("allocations", "list", "-o", "json"))
    console.go(f"/allocations/{held[0]['id']}?project={held[0]['project_id']}")
    console.sign_in(PASSWORD, tenant="other", email=other_tenant)
    expect(page.get_by_text("There is no")).to_be_visible()
    assert held[0]["name"] not in page.content()
    expect(page.get_by_role("link", name="Nodes")).to_have_count(0)
    console.go("/nodes")
    expect(page.get_by_role("alert")).to_contain_text("node.read")
    assert "this-machine" not in page.content()
