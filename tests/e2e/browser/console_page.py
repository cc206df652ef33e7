"""A browser at the console of a trial, for end-to-end tests."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from playwright.sync_api import Page, expect, sync_playwright

from tests.e2e.trial_process import TrialProcess
from tools.console import MODULES

CHROMIUM = shutil.which("chromium")
SECONDS_MAX = 60.0
AXE = MODULES / "axe-core" / "axe.min.js"
AXE_RUN = """async () => (await axe.run(document, {resultTypes: ["violations"]})).violations
  .filter((each) => ["serious", "critical"].includes(each.impact))
  .map((each) => `${each.id}: ${each.nodes.map((node) => node.html).join(" | ")}`)"""
WATCH_POLICY = (
    "document.addEventListener('securitypolicyviolation', (e) => console.error(`policy ${e.violatedDirective}`))"
)


def trial_record(trial: TrialProcess) -> dict[str, str]:
    """The passwords that the trial made."""
    found: dict[str, str] = json.loads((trial.data / "try" / "trial.json").read_text(encoding="utf-8"))
    return found


@dataclass
class ConsolePage:
    """A page of the console, with what its browser complained of."""

    page: Page
    trial: TrialProcess
    complaints: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.trial.port}/console"

    def go(self, path: str) -> None:
        self.page.goto(self.url + path)

    def sign_in(self, password: str | None = None, tenant: str = "try", email: str = "you@try.local") -> None:
        """Fill in the form, as the trial's user unless another is named."""
        self.page.get_by_label("Tenant").fill(tenant)
        self.page.get_by_label("E-mail").fill(email)
        self.page.get_by_label("Password").fill(password or trial_record(self.trial)["user_password"])
        self.page.get_by_role("button", name="Sign in").click()

    def accessibility(self) -> list[str]:
        """What axe finds serious or critical on this page. The debugger's scripts are not subject to the policy."""
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: list[str] = self.page.evaluate(AXE_RUN)
        return found


@contextmanager
def console_page(trial: TrialProcess, **options: object) -> Iterator[ConsolePage]:
    """A new browser without a session."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(reduced_motion="reduce", **options)  # type: ignore[arg-type]
        context.set_default_timeout(SECONDS_MAX * 1_000)
        expect.set_options(timeout=SECONDS_MAX * 1_000)
        context.add_init_script(WATCH_POLICY)
        made = ConsolePage(context.new_page(), trial)
        made.page.on("pageerror", lambda error: made.complaints.append(f"error: {error}"))
        made.page.on(
            "console",
            lambda said: made.complaints.append(said.text) if "olicy" in said.text or "CSP" in said.text else None,
        )
        try:
            yield made
        finally:
            browser.close()
