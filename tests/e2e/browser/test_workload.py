"""The pages around one workload, in a real browser on a cluster of the echo app."""

import base64
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.browser.console_page import ConsolePage
from tests.e2e.browser.echo_app import launched, running_echo
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")
EXPORT = re.compile(r"/receipts/[^/]+/export$")
CLOSING = re.compile(r"/closing-records\?")


@pytest.fixture(scope="module")
def echo(trial: TrialProcess) -> Iterator[TrialProcess]:
    with running_echo(trial):
        yield trial


def changed(change: Callable[[dict[str, Any]], None]) -> Callable[[Route], None]:
    """A handler that changes the server's answer."""

    def handle(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        change(body)
        route.fulfill(response=response, json=body)

    return handle


def other_body(bundle: dict[str, Any]) -> None:
    """Says in the signed text that the node belongs to somebody else."""
    receipt = next(each for each in bundle["receipts"] if each["id"] == bundle["receipt_id"])
    text = base64.urlsafe_b64decode(receipt["body"] + "=" * (-len(receipt["body"]) % 4))
    receipt["body"] = base64.urlsafe_b64encode(text.replace(b'"owner":"', b'"owner":"x')).decode().rstrip("=")


def other_chain(bundle: dict[str, Any]) -> None:
    for each in bundle["chain"]:
        each["digest"] = "0" * 64


def other_key(bundle: dict[str, Any]) -> None:
    bundle["signing_key"] = base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")


def missing(bundle: dict[str, Any]) -> None:
    bundle["receipt_id"] = "rcp_00000000000000000000000000"


def written_off(page: dict[str, Any]) -> None:
    page["items"] = [
        {**each, "kind": "write_off", "reason": "lost at sea", "may_be_left": "files"} for each in page["items"]
    ]


def test_a_receipt_is_verified_in_the_browser_and_a_changed_one_is_not(
    console: ConsolePage, echo: TrialProcess
) -> None:
    page = console.page
    found = launched(echo, "proof")
    echo.mooring("stop", "proof", "--yes", "--wait")
    console.go(f"/workloads/{found['id']}?tab=receipts")
    console.sign_in()
    page.get_by_role("button", name="Verify in this browser").click()
    expect(page.get_by_text("3 of 3 verified")).to_be_visible()
    expect(page.get_by_text(re.compile("The key sha256:[0-9a-f]{64} signed this receipt"))).to_have_count(3)
    for change, reason in (
        (other_body, "did not sign this receipt, or it was changed"),
        (other_key, "did not sign this receipt, or it was changed"),
        (other_chain, "the chain has another receipt at"),
        (missing, "the receipt that it was exported for is missing"),
    ):
        page.route(EXPORT, changed(change))
        page.get_by_role("button", name="Verify in this browser").click()
        expect(page.get_by_text(reason)).to_have_count(3)
        expect(page.get_by_text("0 of 3 verified")).to_be_visible()
        page.unroute(EXPORT)
    page.route(CLOSING, changed(written_off))
    page.reload()
    expect(page.get_by_text("There is no receipt. The reason given: lost at sea")).to_have_count(3)
    expect(page.get_by_role("button", name="Verify in this browser")).to_have_count(0)
    expect(page.get_by_text(re.compile("Receipt rcp_"))).to_have_count(0)


def test_a_cluster_grows_drains_and_stops_in_the_browser(console: ConsolePage, echo: TrialProcess) -> None:
    page = console.page
    found = launched(echo, "crew")
    console.go(f"/workloads/{found['id']}?tab=members")
    console.sign_in()
    page.get_by_role("button", name="Add", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Component").select_option("worker")
    dialog.get_by_label("How many").fill("2")
    expect(dialog.get_by_text("All 2 fit now.")).to_be_visible()
    dialog.get_by_role("button", name="Add", exact=True).click()
    table = page.get_by_role("table", name="Members", exact=True)
    for name in ("crew-worker-1", "crew-worker-2"):
        expect(table.get_by_role("row").filter(has_text=name).get_by_text("ready")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile(f"{name}.*ready.*healthy, GPU slots: 1"))).to_be_visible()
    page.get_by_label("Choose crew-worker-2").check()
    page.get_by_role("button", name="Drain 1 chosen").click()
    dialog.get_by_role("button", name="Drain", exact=True).click()
    expect(table.get_by_role("row").filter(has_text="crew-worker-2").get_by_text("drained")).to_be_visible()
    page.get_by_role("link", name="timeline").click()
    page.get_by_role("link", name="waterfall").click()
    for word in ("Operations: deploy, succeeded", "Operations: add, succeeded", "crew-worker-2: drained"):
        expect(page.get_by_role("button", name=re.compile(word))).to_have_count(1)
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog.get_by_role("button", name="Stop it").click()
    page.get_by_role("link", name="overview").click()
    page.get_by_role("link", name="Verify the receipts").click()
    page.get_by_role("button", name="Verify in this browser").click()
    expect(page.get_by_text("5 of 5 verified")).to_be_visible()


FOCUSED = "() => (document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText ?? '').trim()"


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the control with this name has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate(FOCUSED).lower() == name.lower():
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_launch_drain_and_stop_with_the_keyboard_alone(console: ConsolePage, echo: TrialProcess) -> None:
    page = console.page
    console.go("/launch/echo?name=keys")
    console.sign_in()
    expect(page.get_by_text("It fits now")).to_be_visible()
    expect(page.get_by_role("button", name="Launch", exact=True)).not_to_have_attribute("aria-disabled", "true")
    tab_to(page, "Launch")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status", name="State")).to_have_text(re.compile("running.*healthy"))
    tab_to(page, "Members")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Choose keys-gate-0")).to_be_visible()
    tab_to(page, "Drain")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to(page, "Drain")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Members", exact=True).get_by_text("drained")).to_be_visible()
    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    tab_to(page, "Stop it")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status", name="State")).to_have_text(re.compile("stopped"))


HOSTILE = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"


def test_what_tenants_and_apps_write_stays_text(console: ConsolePage, echo: TrialProcess) -> None:
    page = console.page
    found = launched(echo, "hostile", "--config", f"greeting={HOSTILE}")
    console.go(f"/workloads/{found['id']}?tab=config")
    console.sign_in()
    expect(page.get_by_text(HOSTILE)).to_be_visible()
    page.get_by_role("link", name="actions").click()
    page.get_by_role("button", name="Say…").click()
    page.get_by_label("Text").fill(HOSTILE)
    page.get_by_role("dialog").get_by_role("button", name="Say").click()
    expect(page.get_by_role("dialog").get_by_text(HOSTILE)).to_be_visible()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="timeline").click()
    page.get_by_role("link", name="raw").click()
    expect(page.get_by_role("button", name=re.compile("operation deploy is succeeded"))).to_have_count(1)
    console.go(f"/launch/echo?name={HOSTILE}")
    expect(page.get_by_label("Name")).to_have_value(HOSTILE[:40])
    assert "taken" not in page.title()
    echo.mooring("stop", "hostile", "--yes")
