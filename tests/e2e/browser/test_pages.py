"""Every page of the console, light and dark: no serious fault of accessibility, and a screenshot to look at."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import ConsolePage, trial_record
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")

NAVIGATION = Path("console/src/navigation.ts")
PICTURES = Path(".test-output/console")
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
PAGES = (
    "/",
    "/catalog",
    "/apps/hello",
    "/launch/hello",
    "/workloads",
    "/billing",
    "/prices",
    "/allocations",
    "/allocations/explain",
    "/artifacts",
    "/policy",
    "/entitlements",
    "/audit",
    "/events",
    "/webhooks",
    "/break-glass",
    "/access",
    "/access?tab=accounts",
    "/access?tab=roles",
    "/access?tab=ways-in",
    "/settings",
)
"""What a tenant's admin opens."""
STAFF_PAGES = (
    "/operate",
    "/nodes",
    "/nodes?view=table",
    "/nodes?view=tokens",
    "/artifacts",
    "/policy",
    "/audit",
    "/events",
    "/webhooks",
    "/break-glass",
    "/platform-billing",
    "/prices",
    "/prices?tab=meters",
    "/settings",
)
"""What the platform's staff opens."""
TABS = ("overview", "timeline", "members", "operations", "actions", "config", "logs", "metrics", "cost", "receipts")


def see(console: ConsolePage, path: str, name: str) -> dict[str, list[str]]:
    """What axe finds on the page in both schemes; a picture of each, and of the narrow page."""
    page, faults = console.page, {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        console.go(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_label("Loading")).to_have_count(0)
        faults[f"{path} {scheme}"] = console.accessibility()
        page.screenshot(path=PICTURES / f"{name}-{scheme}.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]  # a dict of its form
    page.screenshot(path=PICTURES / f"{name}-narrow.png")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]  # a dict of its form
    return {**faults, **({f"{path} narrow": [f"{overflow} pixels wider than the screen"]} if overflow > 0 else {})}


def name_of(path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", path).strip("-") or "home"


@pytest.fixture
def seen(trial: TrialProcess) -> str:
    """The address of a workload that runs."""
    found = json.loads(trial.mooring("instances", "list", "-o", "json"))
    if not any(each["name"] == "seen" for each in found):
        trial.mooring("launch", "hello", "--name", "seen", "--wait")
    return f"/workloads/{json.loads(trial.mooring('instances', 'get', 'seen', '-o', 'json'))['id']}"


def test_every_page_of_a_tenant_has_no_serious_fault(console: ConsolePage, seen: str) -> None:
    console.page.set_viewport_size(WIDE)  # type: ignore[arg-type]  # a dict of its form
    console.go("/")
    expect(console.page.get_by_role("button", name="Sign in")).to_be_visible()
    faults = {"sign-in": console.accessibility()}
    console.sign_in()
    expect(console.page.get_by_role("heading", name="Home")).to_be_visible()
    for path in PAGES:
        faults |= see(console, path, name_of(path))
    for tab in TABS:
        faults |= see(console, f"{seen}?tab={tab}", f"workload-{tab}")
    for view in ("raw", "waterfall"):
        faults |= see(console, f"{seen}?tab=timeline&view={view}", f"workload-timeline-{view}")
    assert {path: found for path, found in faults.items() if found} == {}


def test_every_page_of_the_staff_has_no_serious_fault(console: ConsolePage) -> None:
    console.page.set_viewport_size(WIDE)  # type: ignore[arg-type]  # a dict of its form
    console.go("/")
    console.sign_in(trial_record(console.trial)["admin_password"], tenant="", email="admin@mooring.local")
    expect(console.page.get_by_role("button", name="Sign out")).to_be_visible()
    faults: dict[str, list[str]] = {}
    for path in STAFF_PAGES:
        faults |= see(console, path, f"staff-{name_of(path)}")
    assert {path: found for path, found in faults.items() if found} == {}


def test_no_page_of_the_navigation_is_left_out() -> None:
    offered = set(re.findall(r'\bto: "([^"]+)"', NAVIGATION.read_text(encoding="utf-8")))
    assert offered
    assert offered - {*PAGES, *STAFF_PAGES} == set()
