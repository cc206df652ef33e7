"""`make demo`, as far as it is not set-up: it tells its story, ends well, and leaves nothing behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_part("postgresql")
ROOT = Path(__file__).resolve().parent.parent.parent
IDENTITY = ("403 permission_denied", "denied  project.update", "identity.project.created", "/docs", "make up")
CATALOG = (
    "422 signature_missing", "trust now          verified", "may not be launched: not_entitled", "may be launched",
    "decided by the project layer", "policy_denied", "canary → active",
)  # fmt: skip


def demo(home: Path, path: str) -> str:
    """What the demo prints to somebody with this home and these programs."""
    environment = {"PATH": path, "HOME": str(home), "MOORING_DATABASE_URL": "postgresql://nobody.test/x"}
    done = subprocess.run(
        [sys.executable, "-m", "tools.demo"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert list(home.iterdir()) == [], "nothing is left in the home"
    return done.stdout


@pytest.mark.real_part("registry")
def test_the_demo_shows_a_denial_its_audit_row_the_events_and_an_app_that_may_be_launched(tmp_path: Path) -> None:
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed; as root: apt-get install docker-registry")
    said = demo(tmp_path, os.environ["PATH"])
    for words in (*IDENTITY, *CATALOG):
        assert words in said
    assert "Left out" not in said


def test_the_demo_says_what_it_leaves_out_where_there_is_no_registry(tmp_path: Path) -> None:
    said = demo(tmp_path, "/nowhere")
    for words in (*IDENTITY, "Left out", "docker-registry is not installed"):
        assert words in said
    assert "signature_missing" not in said
