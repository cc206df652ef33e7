"""One trial for all tests of the console, and the people in it; each test uses names of its own."""

from collections.abc import Iterator

import pytest

from tests.e2e.browser.console_page import CHROMIUM, ConsolePage, console_page
from tests.e2e.browser.people import OTHER, VIEWER, make_other_tenant, make_viewer
from tests.e2e.trial_process import TrialProcess, trial_directory

READY = "┘"  # the end of the box


@pytest.fixture(scope="session")
def trial() -> Iterator[TrialProcess]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed; as root: apt-get install chromium")
    with trial_directory() as made:
        said = made.start(READY, "--node-host", "process", "--simulated-gpus", "16")
        assert f"http://127.0.0.1:{made.port}/console/" in said
        yield made


@pytest.fixture
def console(trial: TrialProcess) -> Iterator[ConsolePage]:
    with console_page(trial) as made:
        yield made
        assert made.complaints == [], "the page's policy was violated, or a script failed"


@pytest.fixture(scope="session")
def other_tenant(trial: TrialProcess) -> str:
    """The address of a second tenant's admin; the tenant is called `other`."""
    make_other_tenant(trial)
    return OTHER


@pytest.fixture(scope="session")
def viewer(trial: TrialProcess) -> str:
    """The address of a person who may only look, in the one project of the trial."""
    make_viewer(trial)
    return VIEWER
