"""The ways in, and what protects a session, in a real browser."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browser.console_page import SECONDS_MAX, ConsolePage, console_page
from tests.e2e.trial_process import TrialProcess

pytestmark = pytest.mark.real_part("browser")

INVITED, PASSWORD = "ines@try.local", "four unrelated words here"
AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def with_authenticator(page: Page) -> None:
    """Give the browser its own virtual authenticator, which always says yes."""
    session = page.context.new_cdp_session(page)
    session.send("WebAuthn.enable")
    session.send("WebAuthn.addVirtualAuthenticator", {"options": AUTHENTICATOR})


def named(console: ConsolePage, path: str) -> None:
    """Open a page by the machine's name: passkeys belong to no IP address."""
    console.page.goto(f"http://localhost:{console.trial.port}/console{path}")


@contextmanager
def another(console: ConsolePage) -> Iterator[ConsolePage]:
    """The browser of somebody else, who shares nothing with the first."""
    browser = console.page.context.browser
    assert browser is not None
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(SECONDS_MAX * 1_000)
    yield ConsolePage(context.new_page(), console.trial)
    context.close()


def test_a_passkey_made_in_the_settings_signs_in_until_it_is_deleted(console: ConsolePage) -> None:
    page = console.page
    with_authenticator(page)
    named(console, "/settings")
    console.sign_in()
    page.get_by_role("button", name="Add a passkey").click()
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("table", name="My passkeys").get_by_text("laptop")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("button", name="Use a passkey")).to_be_enabled()
    named(console, "/sign-in?to=/settings")
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("heading", name="My settings")).to_be_visible()
    page.get_by_role("table", name="My passkeys").get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(page.get_by_text("No passkey yet")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("alert")).to_contain_text("cor_")


def test_an_invited_person_signs_in_with_the_code_and_sees_what_they_may_not(console: ConsolePage) -> None:
    page = console.page
    console.go("/access")
    console.sign_in()
    page.get_by_role("button", name="Invite somebody").click()
    page.get_by_label("E-mail address").fill(INVITED)
    page.get_by_label("Name", exact=True).fill("Ines")
    page.get_by_label("Role").select_option("project_viewer")
    page.get_by_role("button", name="Invite them").click()
    code = page.locator("[data-secret]").inner_text()
    page.get_by_role("button", name="I have copied it").click()
    expect(page.get_by_text(code)).to_have_count(0)
    page.get_by_role("button", name="Take away: tenant admin · the whole tenant").click()
    page.get_by_role("button", name="Take it away").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("the last tenant_admin")
    with another(console) as other:
        other.go("/access")
        other.page.get_by_role("button", name="Use a one-time code").click()
        other.page.get_by_label("Tenant").fill("try")
        other.page.get_by_label("E-mail").fill(INVITED)
        other.page.get_by_label("One-time code").fill(code)
        other.page.get_by_label("New password").fill(PASSWORD)
        other.page.get_by_role("button", name="Set the password and sign in").click()
        expect(other.page.get_by_role("alert")).to_contain_text("user.read")


def test_a_new_token_is_shown_once_and_other_sessions_end_at_once(console: ConsolePage) -> None:
    page = console.page
    with another(console) as other:
        other.go("/workloads")
        other.sign_in()
        expect(other.page.get_by_role("heading", name="Workloads")).to_be_visible()
        console.go("/settings")
        console.sign_in()
        page.get_by_role("button", name="Create a token").click()
        page.get_by_label("Name").fill("shown-once")
        page.get_by_role("button", name="Create it").click()
        token = page.locator("[data-secret]").inner_text()
        page.get_by_role("button", name="I have copied it").click()
        page.reload()
        expect(page.get_by_text("shown-once")).to_be_visible()
        assert token not in page.content()
        page.get_by_role("button", name="End all others").click()
        page.get_by_role("button", name="End them").click()
        expect(page.get_by_role("table", name="My sessions").get_by_role("row")).to_have_count(2)
        expect(other.page).to_have_url(re.compile("/console/sign-in"))
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.get(f"http://127.0.0.1:{console.trial.port}/api/v1/whoami", headers=headers).status_code == 200


@contextmanager
def strange_site(target: str) -> Iterator[str]:
    """A page of another origin that frames the console, and makes requests in the name of its viewer."""
    script = f"""
      const tries = {{
        read: () => fetch("{target}/api/v1/whoami", {{credentials: "include"}}).then(r => r.status),
        change: () => fetch("{target}/api/v1/tokens", {{method: "POST", credentials: "include", mode: "no-cors",
          body: JSON.stringify({{name: "forged"}})}}).then(r => r.type),
        header: () => fetch("{target}/api/v1/tokens", {{method: "POST", credentials: "include",
          headers: {{"X-Mooring-Console": "1"}}}}).then(r => r.status),
        signIn: () => fetch("{target}/api/v1/browser-session", {{method: "POST", credentials: "include",
          mode: "no-cors", body: "{{}}"}}).then(r => r.type),
      }};
      (async () => {{ const results = {{}};
        for (const name in tries)
          try {{ results[name] = await tries[name](); }} catch (e) {{ results[name] = "threw"; }}
        window.results = results; }})();"""
    page = f'<!doctype html><title>strange</title><iframe src="{target}/console/"></iframe><script>{script}</script>'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_no_script_reads_the_session_and_no_other_site_uses_or_frames_it(trial: TrialProcess) -> None:
    with console_page(trial) as console:  # its complaints are the test: the policy refuses the frame
        page = console.page
        console.go("/settings")
        console.sign_in()
        expect(page.get_by_role("heading", name="My settings")).to_be_visible()
        stored = [each for each in page.context.cookies() if each["name"] == "__Host-mooring-session"]
        assert [(each["httpOnly"], each["secure"], each["sameSite"]) for each in stored] == [(True, True, "Strict")]
        kept = "[document.cookie, JSON.stringify(localStorage), JSON.stringify(sessionStorage)].join()"
        assert stored[0]["value"] not in page.evaluate(kept) + page.content()
        with strange_site(f"http://127.0.0.1:{trial.port}") as address:
            page.goto(address)
            page.wait_for_function("window.results !== undefined")
            assert page.evaluate("window.results") == {
                "read": "threw",
                "change": "opaque",
                "header": "threw",
                "signIn": "opaque",
            }
            framed = next(each for each in page.frames if each != page.main_frame)
            assert framed.get_by_role("heading").count() == 0, framed.url
        console.go("/settings")
        expect(page.get_by_role("heading", name="My settings")).to_be_visible()
        expect(page.get_by_text("forged")).to_have_count(0)
