"""`make demo`, as far as it is not set-up: it tells its story, ends well, and leaves nothing behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_part("postgresql")
ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_demo_shows_a_denial_its_audit_row_and_the_events(tmp_path: Path) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MOORING_DATABASE_URL": "postgresql://nobody.test/x",
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "demo.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    for words in ("403 permission_denied", "denied  project.update", "identity.project.created", "/docs", "make up"):
        assert words in done.stdout
    assert list(tmp_path.iterdir()) == [], "nothing is left in the home"
