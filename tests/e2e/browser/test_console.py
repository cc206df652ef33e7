"""The console in a real browser, on a platform of `mooring up --try`: nothing is simulated but the GPUs."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import CHROMIUM, ConsolePage, console_page, trial_record
from tests.e2e.trial_process import TrialProcess, trial_directory

pytestmark = pytest.mark.real_part("browser")
OTHER, VIEWER, PASSWORD = "admin@other.example", "vera@try.local", "four unrelated words here"
READY = "┘"  # the end of the box


@pytest.fixture(scope="module")
def trial() -> Iterator[TrialProcess]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; as root: apt-get install chromium")
    with trial_directory() as made:
        said = made.start(READY, "--node-host", "process")
        assert f"http://127.0.0.1:{made.port}/console/" in said
        yield made


@pytest.fixture
def console(trial: TrialProcess) -> Iterator[ConsolePage]:
    with console_page(trial) as made:
        yield made
        assert made.complaints == [], "the page's policy was violated, or a script failed"


@contextmanager
def signed_in(trial: TrialProcess, body: dict[str, str]) -> Iterator[httpx.Client]:
    """The API as somebody with this sign-in."""
    with httpx.Client(base_url=f"http://127.0.0.1:{trial.port}/api/v1", timeout=60) as client:
        client.headers["authorization"] = (
            f"Bearer {client.post('/sign-in', json=body).raise_for_status().json()['token']}"
        )
        yield client


def other_tenant(trial: TrialProcess) -> None:
    """A second tenant, whose admin has a password."""
    admin = {"email": "admin@mooring.local", "password": trial_record(trial)["admin_password"]}
    with signed_in(trial, admin) as client:
        person = {"email": OTHER, "display_name": "Other"}
        body = {"slug": "other", "display_name": "Other", "first_admin": person}
        code = client.post("/tenants", json=body).raise_for_status().json()["one_time_code"]
    with signed_in(trial, {"tenant": "other", "email": OTHER, "one_time_code": code, "new_password": PASSWORD}):
        pass


def viewer(trial: TrialProcess) -> None:
    """A person who may only look, in the one project of the trial."""
    you = {"tenant": "try", "email": "you@try.local", "password": trial_record(trial)["user_password"]}
    with signed_in(trial, you) as client:
        project = client.get("/projects").json()["items"][0]
        made = client.post(f"/tenants/{project['tenant_id']}/users", json={"email": VIEWER, "display_name": "Vera"})
        role = {"user_id": made.raise_for_status().json()["id"], "role": "project_viewer"}
        client.post(f"/projects/{project['id']}/memberships", json=role).raise_for_status()
    code = {"one_time_code": made.json()["one_time_code"], "new_password": PASSWORD}
    with signed_in(trial, {"tenant": "try", "email": VIEWER, **code}):
        pass


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
    expect(page.get_by_role("cell", name=re.compile("walk-web-1"))).to_be_visible()  # by the CLI, without a reload
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop it").click()
    page.get_by_role("link", name="receipts").click()
    expect(page.get_by_text("Torn down, and the node found nothing left")).to_have_count(2)
    expect(page.get_by_role("status", name="State")).to_have_text(re.compile("stopped"))
    page.get_by_text(re.compile("Receipt rcp_")).first.click()
    expect(page.get_by_text(re.compile("looked .* and found nothing left"))).to_be_visible()
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


def test_an_instance_of_another_tenant_is_a_not_found_page(console: ConsolePage) -> None:
    trial = console.trial
    trial.mooring("launch", "hello", "--name", "private", "--wait")
    foreign = json.loads(trial.mooring("instances", "get", "private", "-o", "json"))["id"]
    other_tenant(trial)
    console.go(f"/workloads/{foreign}")
    console.sign_in(PASSWORD, tenant="other", email=OTHER)
    expect(console.page.get_by_text("There is no such workload, or you may not see it")).to_be_visible()
    assert "private" not in console.page.content()


def test_a_viewer_sees_the_project_and_why_a_button_cannot_be_used(console: ConsolePage) -> None:
    page, trial = console.page, console.trial
    if not listed(trial, "private"):
        trial.mooring("launch", "hello", "--name", "private", "--wait")
    viewer(trial)
    console.go("/workloads?q=private")
    console.sign_in(PASSWORD, email=VIEWER)
    page.get_by_role("link", name="private").click()
    expect(page.get_by_role("heading", name="private")).to_be_visible()
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_disabled()
    expect(stop).to_have_accessible_description(re.compile("you need instance.delete"))
    stop.click(force=True)
    expect(page.get_by_role("dialog")).to_have_count(0)
    trial.mooring("users", "sign-out", VIEWER)  # the session ends elsewhere: to the sign-in, and back
    expect(page).to_have_url(re.compile("/console/sign-in"))
    console.sign_in(PASSWORD, email=VIEWER)
    expect(page.get_by_role("heading", name="private")).to_be_visible()


def test_every_page_has_no_serious_fault_of_accessibility(console: ConsolePage) -> None:
    page = console.page
    console.go("/")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    faults = {"sign-in": console.accessibility()}
    console.trial.mooring("launch", "hello", "--name", "seen", "--wait")
    found = json.loads(console.trial.mooring("instances", "get", "seen", "-o", "json"))
    console.sign_in()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    here = f"/workloads/{found['id']}"
    tabs = [f"{here}?tab={each}" for each in ("overview", "timeline", "members", "operations", "logs", "receipts")]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for path in ("/", "/catalog", "/launch/hello", "/workloads", *tabs, f"{here}?tab=timeline&view=raw"):
            console.go(path)
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            expect(page.get_by_label("Loading")).to_have_count(0)
            faults[f"{path} {scheme}"] = console.accessibility()
    assert {path: found for path, found in faults.items() if found} == {}
