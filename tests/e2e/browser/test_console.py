"""The console in a real browser, on a platform of `mooring up --try`: nothing is simulated but the GPUs."""

import json
import re

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import ConsolePage
from tests.e2e.browser.people import PASSWORD
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")


def listed(trial: TrialProcess, prefix: str) -> list[str]:
    found = json.loads(trial.mooring("instances", "list", "-o", "json"))
    return [each["name"] for each in found if each["name"].startswith(prefix)]


def test_from_the_sign_in_over_a_launch_and_its_live_timeline_to_the_receipt(console: ConsolePage) -> None:
    page = console.page
    console.go("/catalog?q=hel")
    console.sign_in()
    expect(page).to_have_url(re.compile(r"/console/catalog\?q=hel"))  # back to where one was
    page.get_by_role("link", name="Launch Hello").click()
    page.get_by_label("Name").fill("walk")
    page.get_by_label("Greeting").fill("Ahoy")
    expect(page.get_by_text("It fits now")).to_be_visible()
    page.get_by_role("button", name="Launch", exact=True).click()
    story = page.get_by_role("list", name="Story, the newest first")
    expect(story.get_by_text("instance walk is running", exact=True)).to_be_visible()
    expect(page.get_by_role("status", name="State")).to_have_text(re.compile("running.*healthy"))
    page.get_by_role("link", name="members").click()
    console.trial.mooring("instances", "members", "add", "walk", "--component", "web", "--wait")
    members = page.get_by_role("table", name="Members", exact=True)
    expect(members.get_by_role("row").filter(has_text="walk-web-1")).to_be_visible()  # by the CLI, without a reload
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop it").click()
    page.get_by_role("link", name="receipts").click()
    expect(page.get_by_text("Torn down, and the node found nothing left")).to_have_count(2)
    expect(page.get_by_role("status", name="State")).to_have_text(re.compile("stopped"))
    page.get_by_role("button", name="Verify in this browser").click()
    expect(page.get_by_text("2 of 2 verified")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    console.go("/workloads")
    expect(page).to_have_url(re.compile("/console/sign-in"))


def test_a_double_click_on_launch_makes_one_instance(console: ConsolePage) -> None:
    console.go("/launch/hello")
    console.sign_in()
    console.page.get_by_label("Name").fill("twice")
    expect(console.page.get_by_text("It fits now")).to_be_visible()
    console.page.get_by_role("button", name="Launch", exact=True).dblclick()
    expect(console.page.get_by_role("heading", name="twice")).to_be_visible()
    assert listed(console.trial, "twice") == ["twice"]


def test_a_wrong_password_is_refused_and_a_foreign_address_is_not_followed(console: ConsolePage) -> None:
    console.go("/sign-in?to=//evil.example/")
    console.sign_in("wrong password")
    expect(console.page.get_by_role("alert")).to_contain_text("cor_")
    console.sign_in()
    expect(console.page).to_have_url(f"{console.url}/")


def test_an_instance_of_another_tenant_is_a_not_found_page(console: ConsolePage, other_tenant: str) -> None:
    trial = console.trial
    trial.mooring("launch", "hello", "--name", "private", "--wait")
    foreign = json.loads(trial.mooring("instances", "get", "private", "-o", "json"))["id"]
    console.go(f"/workloads/{foreign}")
    console.sign_in(PASSWORD, tenant="other", email=other_tenant)
    expect(console.page.get_by_text("There is no such workload, or you may not see it")).to_be_visible()
    assert "private" not in console.page.content()


def test_a_viewer_sees_the_project_and_why_a_button_cannot_be_used(console: ConsolePage, viewer: str) -> None:
    page, trial = console.page, console.trial
    if not listed(trial, "private"):
        trial.mooring("launch", "hello", "--name", "private", "--wait")
    console.go("/workloads?q=private")
    console.sign_in(PASSWORD, email=viewer)
    page.get_by_role("link", name="private").click()
    expect(page.get_by_role("heading", name="private")).to_be_visible()
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).to_be_disabled()
    expect(stop).to_have_accessible_description(re.compile("you need instance.delete"))
    stop.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)
    trial.mooring("users", "sign-out", viewer)  # the session ends elsewhere: to the sign-in, and back
    expect(page).to_have_url(re.compile("/console/sign-in"))
    console.sign_in(PASSWORD, email=viewer)
    expect(page.get_by_role("heading", name="private")).to_be_visible()
