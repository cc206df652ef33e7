"""A cluster's queue in a real browser: submit, see why a job waits, cancel. The console knows only the manifest."""

import json

import pytest
from playwright.sync_api import expect

from tests.e2e.browser.console_page import CHROMIUM, ConsolePage, console_page
from tests.e2e.trial_process import trial_directory

pytestmark = pytest.mark.real_part("browser")

READY = "┘"  # the end of the box
SCRIPT = "#!/bin/sh\nsleep 900\n"


def submit(console: ConsolePage) -> None:
    """Submit a job that takes the worker's only GPU, by the form of the manifest."""
    console.page.get_by_role("button", name="Submit a job").click()
    dialog = console.page.get_by_role("dialog")
    dialog.get_by_label("Script").fill(SCRIPT)
    dialog.get_by_label("GPUs per node").fill("1")
    dialog.get_by_role("button", name="Submit a job").click()
    expect(dialog.get_by_text("Submit a job: done")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed; as root: apt-get install chromium")
def test_a_job_is_submitted_waits_for_a_reason_and_is_cancelled_in_the_browser() -> None:
    with trial_directory() as trial:
        trial.start(READY)
        trial.mooring("launch", "slurm", "--name", "queue", "--wait")
        cluster = json.loads(trial.mooring("instances", "get", "queue", "-o", "json"))["id"]
        with console_page(trial) as console:
            console.go(f"/workloads/{cluster}?tab=actions")
            console.sign_in()
            for _ in range(2):
                submit(console)
            jobs = console.page.get_by_role("table", name="Jobs")
            expect(jobs.get_by_role("row").filter(has_text="RUNNING")).to_have_count(1)
            waiting = jobs.get_by_role("row").filter(has_text="PENDING")
            expect(waiting).to_have_count(1)
            expect(waiting).to_contain_text("It waits for free cores, memory or GPUs.")
            waiting.get_by_role("button", name="Cancel a job").click()
            console.page.get_by_role("dialog").get_by_role("button", name="Cancel a job").click()
            expect(jobs.get_by_role("row").filter(has_text="CANCELLED")).to_have_count(1)
            assert console.complaints == []
        trial.mooring("stop", "queue", "--yes", "--wait")
