"""The pages of operators and admins in a real browser, on a platform of `mooring up --try`."""

import json
import re
from base64 import b64encode

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import ConsolePage, trial_record
from tests.e2e.browser.people import PASSWORD, signed_in

pytestmark = pytest.mark.real_part("browser")

REASON = "a test of the console does it"
STAFF = "admin@mooring.local"


@pytest.fixture
def staff(console: ConsolePage) -> ConsolePage:
    console.page.set_viewport_size({"width": 1440, "height": 900})
    console.go("/nodes")
    console.sign_in(trial_record(console.trial)["admin_password"], tenant="", email=STAFF)
    expect(console.page.get_by_role("heading", name="Nodes")).to_be_visible()
    return console


def test_staff_drains_a_node_and_sees_whom_it_touches(staff: ConsolePage) -> None:
    page, trial = staff.page, staff.trial
    trial.mooring("launch", "hello", "--name", "touched", "--wait")
    page.get_by_role("link", name="this-machine").click()
    expect(page.get_by_role("table", name=re.compile("Slots of"))).to_be_visible()
    assert staff.accessibility() == []
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


def test_an_artifact_is_promoted_by_keyboard(console: ConsolePage) -> None:
    page, trial = console.page, console.trial
    you = {"tenant": "try", "email": "you@try.local", "password": trial_record(trial)["user_password"]}
    with signed_in(trial, you) as client:
        tenant = client.get("/whoami").json()["tenant_id"]
        upload = {"content_base64": b64encode(b"#!/bin/sh\n").decode(), "labels": {"name": "script"}}
        client.post(f"/tenants/{tenant}/artifacts/upload", json=upload).raise_for_status()
    console.go("/artifacts")
    console.sign_in()
    page.get_by_role("region", name="draft").get_by_role("button", name="Move script").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("radio", name=re.compile("stage")).press("Space")
    dialog.get_by_label("Reason").fill(REASON)
    dialog.get_by_role("button", name="Move it").press("Enter")
    expect(page.get_by_role("region", name="staged").get_by_role("link", name="script")).to_be_visible()


def test_a_revocation_shows_first_what_it_affects(staff: ConsolePage) -> None:
    page = staff.page
    staff.go("/artifacts")
    page.get_by_role("region", name="active").get_by_role("link").first.click()
    page.get_by_role("button", name="Revoke").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("region", name="What it affects")).to_contain_text("version hello 1.0.0, active")
    assert staff.accessibility() == []
    dialog.get_by_label("Reason").fill(REASON)
    dialog.get_by_role("button", name="Revoke it").click()  # refused by the form: the box is not ticked
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("status", name="State")).to_contain_text("active")


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
