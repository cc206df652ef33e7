"""The console shows what needs somebody, what GPUs do, and finds everything by typing."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import ConsolePage, trial_record
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")

ROUTERS = [Path("console/src/router.tsx"), *sorted(Path("console/src/routes").glob("*.ts*"))]
NOT_OFFERED = {"/sign-in", "/operate", "/nodes", "/platform-billing", "/allocations/explain"}
"""What a tenant's admin reaches in another way, or not at all; a page with an id in its address is found by it."""
SAMPLED_MILLISECONDS = 120_000
"""A poll announces how often to sample, fifteen seconds later there is a sample, and the next poll has it."""


@pytest.fixture
def measured(trial: TrialProcess) -> str:
    """The address of a workload that has a GPU, which the node simulates."""
    found = json.loads(trial.mooring("instances", "list", "-o", "json"))
    if not any(each["name"] == "measured" for each in found):
        trial.mooring("launch", "hello", "--name", "measured", "--gpu-count", "1", "--wait")
    return f"/workloads/{json.loads(trial.mooring('instances', 'get', 'measured', '-o', 'json'))['id']}"


def test_a_workload_shows_what_its_gpus_do(console: ConsolePage, measured: str) -> None:
    page = console.page
    console.go(f"{measured}?tab=metrics")
    console.sign_in()
    expect(page.get_by_text(re.compile("GPU-.*allocated"))).to_be_visible(timeout=SAMPLED_MILLISECONDS)
    expect(page.get_by_text("simulated", exact=True)).to_be_visible()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("columnheader", name="Temperature")).to_be_visible()
    expect(page.get_by_role("cell", name=re.compile(r"\d+ W"))).not_to_have_count(0)
    page.get_by_role("link", name="24h").click()
    expect(page).to_have_url(re.compile("range=24h"))
    page.reload()
    expect(page.get_by_role("link", name="24h")).to_have_attribute("aria-current", "page")
    assert console.accessibility() == []


def test_staff_sees_what_needs_an_operator_and_no_name_of_a_tenant(console: ConsolePage, trial: TrialProcess) -> None:
    page = console.page
    console.go("/")
    console.sign_in(trial_record(trial)["admin_password"], tenant="", email="admin@mooring.local")
    expect(page).to_have_url(re.compile("/operate$"))
    expect(page.get_by_role("heading", name="Needs an operator")).to_be_visible()
    expect(page.get_by_role("table", name="Capacity by region and GPU model")).to_be_visible()
    page.route("**/api/v1/platform/attention**", lambda route: route.abort())
    page.reload()
    expect(page.get_by_text("The server does not answer")).to_be_visible()
    expect(page.get_by_role("table", name="Capacity by region and GPU model")).to_be_visible()
    assert console.accessibility() == []


def test_the_palette_finds_every_page_and_whatever_the_server_finds(console: ConsolePage, measured: str) -> None:
    page = console.page
    console.go("/")
    console.sign_in()
    expect(page.get_by_role("heading", name="Home")).to_be_visible()
    offered = {
        re.sub(r"/console", "", each.get_attribute("href") or "") or "/" for each in page.locator("#pages a").all()
    }
    routes = {each for file in ROUTERS for each in re.findall(r'\bpath: "(/[^"$]*)"', file.read_text(encoding="utf-8"))}
    assert {each.rstrip("/") or "/" for each in offered} == routes - NOT_OFFERED
    page.keyboard.press("/")
    found = page.get_by_role("dialog", name="Find")
    labels = [each.inner_text() for each in page.locator("#pages a").all()]
    for label in labels:
        expect(found.get_by_role("option", name=re.compile(label))).to_be_visible()
    page.keyboard.type("measur")
    expect(found.get_by_role("option", name=re.compile("measured"))).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="measured")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("metrics")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"{measured}.*tab=metrics"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("find a page, a name or an id")
