"""Money in the console: what a workload cost, budgets, a statement to the second, the proof; what others see."""

import json
import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.booked_hours import book_hours
from tests.e2e.browser.console_page import ConsolePage, trial_record
from tests.e2e.browser.people import PASSWORD
from tests.e2e.browser.test_pages import see
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")
REASON = "the plan of this quarter"


@pytest.fixture(scope="session")
def booked(trial: TrialProcess) -> str:
    """The id of a workload that has run for three days, all booked by the platform's worker."""
    trial.mooring("launch", "hello", "--name", "booked", "--wait")
    book_hours(trial, "booked")
    return str(json.loads(trial.mooring("instances", "get", "booked", "-o", "json"))["id"])


def set_budget(page: Page) -> None:
    page.get_by_role("button", name="Set a budget").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Amount a month").fill("200")
    dialog.get_by_label("Reason").fill(REASON)
    dialog.get_by_text("The same from the command line").click()
    expect(
        dialog.get_by_text(re.compile("mooring budgets update --currency EUR --minor-per-month 20000"))
    ).to_be_visible()
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_have_count(0)


def test_from_the_cost_of_a_workload_to_its_statement_and_the_proof(console: ConsolePage, booked: str) -> None:
    page = console.page
    console.go(f"/workloads/{booked}?tab=cost")
    console.sign_in()
    chart = page.get_by_role("img", name=re.compile("Cost of booked by"))
    expect(chart).to_be_visible()
    page.get_by_text("The same as a table").click()
    expect(page.get_by_role("rowheader").first).to_be_visible()
    meters = page.get_by_role("table", name="Cost by meter")
    expect(meters.get_by_role("row", name=re.compile("GPU time.*GPU-hours.*€1"))).to_be_visible()
    covered = meters.get_by_role("row", name=re.compile("request"))
    expect(covered.locator("del")).to_have_text(re.compile("€[1-9]"))  # already paid by the allocation

    page.get_by_role("link", name="Billing", exact=True).click()
    expect(page.get_by_text("Forecast for the month")).to_be_visible()
    page.get_by_label("Sum by").select_option("instance")
    expect(page).to_have_url(re.compile("by=instance"))
    expect(page.get_by_role("link", name="booked")).to_be_visible()

    page.get_by_role("button", name="budgets", exact=True).click()
    set_budget(page)
    expect(page.get_by_role("img", name=re.compile("[1-9][0-9]* percent of the budget is spent"))).to_be_visible()
    expect(page.get_by_text(re.compile("80 %: notify"))).to_be_visible()

    page.get_by_role("button", name="statements", exact=True).click()
    page.get_by_role("table", name="Statements").get_by_role("link").first.click()
    expect(page.get_by_text("A preview: hours")).to_be_visible()
    lines = page.get_by_role("table", name="Lines of the statement")
    expect(lines.get_by_text(re.compile(r"\d\d:\d\d:\d\d")).first).to_be_visible()
    expect(lines.get_by_text("3,600 GPU-seconds").first).to_be_visible()
    expect(page.get_by_text(re.compile("statements export .* --format parquet"))).to_be_visible()

    console.go("/billing?tab=prove")
    page.get_by_role("button", name="Prove", exact=True).click()
    expect(page.get_by_text(re.compile(r"All \d+ laws hold"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"25\d,\d{3} checked"))).to_be_visible()  # GPU-seconds of three days


def test_the_pages_of_money_have_no_serious_fault(console: ConsolePage, booked: str) -> None:
    console.go("/")
    console.sign_in()
    expect(console.page.get_by_role("heading", name="Home")).to_be_visible()
    faults: dict[str, list[str]] = {}
    tabs = ("budgets", "statements", "corrections", "late usage", "prove")
    for path in ("/billing?by=instance&step=hour", *(f"/billing?tab={tab}" for tab in tabs), "/prices"):
        faults |= see(console, path, path.strip("/").replace("?", "-").replace("=", "-").replace("&", "-"))
    faults |= see(console, f"/workloads/{booked}?tab=cost", "workload-cost-booked")
    statement = json.loads(console.trial.mooring("statements", "list", "-o", "json"))[0]["id"]
    faults |= see(console, f"/billing/statements/{statement}", "statement")
    assert {path: found for path, found in faults.items() if found} == {}


def test_money_of_another_tenant_is_never_shown(console: ConsolePage, booked: str, other_tenant: str) -> None:
    page = console.page
    statement = json.loads(console.trial.mooring("statements", "list", "-o", "json"))[0]["id"]
    console.go(f"/billing/statements/{statement}")
    console.sign_in(PASSWORD, tenant="other", email=other_tenant)
    expect(page.get_by_text("There is no such statement, or you may not see it")).to_be_visible()
    console.go("/billing")
    expect(page.get_by_text("Nothing costs anything in this month")).to_be_visible()
    console.go(f"/workloads/{booked}?tab=cost")
    expect(page.get_by_text("There is no such workload, or you may not see it")).to_be_visible()


def test_staff_see_totals_and_set_prices_and_meters(console: ConsolePage, booked: str) -> None:
    page = console.page
    console.go("/platform-billing")
    console.sign_in(trial_record(console.trial)["admin_password"], tenant="", email="admin@mooring.local")
    row = page.get_by_role("table", name="Booked cost by tenant").get_by_role("row", name=re.compile("try.*€1"))
    expect(row).to_be_visible()
    expect(page.get_by_role("cell", name="booked", exact=True)).to_have_count(0)  # no instance is named
    page.get_by_role("link", name="Prices").click()
    page.get_by_role("button", name="Add a price").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("App and unit").fill("hello/token_out")
    dialog.get_by_label("Amount").fill("2.00")
    dialog.get_by_label("For how many units").fill("1000000")
    dialog.get_by_label("Reason").fill("short")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog).to_be_visible()  # the field itself says what is missing
    dialog.get_by_label("Reason").fill("tokens get a list price")
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_text("€2.00 per 1,000,000 token out")).to_be_visible()
    page.get_by_role("button", name="meters", exact=True).click()
    page.get_by_role("button", name="Set a meter").click()
    dialog.get_by_role("textbox", name="App").fill("hello")
    dialog.get_by_role("textbox", name="Unit").fill("token_out")
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_text("charged at its price")).to_be_visible()
