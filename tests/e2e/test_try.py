"""`mooring up --try`: killed at any moment, started twice in a row, and removed."""

import json
import os
import pwd
import signal
import stat

import pytest

from tests.e2e.leftovers import leftovers_of
from tests.e2e.trial_process import trial_directory

pytestmark = pytest.mark.real_part("postgresql")
ORDINARY = "nobody"
READY = "┘"  # the end of the box
MOMENTS = (
    "creating the data directory",
    "Mooring listens on",  # the first admin exists, and nobody has used their code
    "/api/v1/sign-in",
    'POST.*/api/v1/tenants"',  # its user exists, and nobody has used their code
    "POST.*/tenants/{tenant_id}/projects",
    "POST.*/platform/skus",
    'POST.*/platform/artifacts"',
    'POST.*/platform/apps"',
    'POST.*/apps/{app_id}/versions"',
    "POST.*/versions/{version_id}/promote",
)


def test_a_trial_that_is_killed_at_any_moment_is_continued_by_the_next_start() -> None:
    with trial_directory() as trial:
        for moment in MOMENTS:
            trial.start(f"{moment}|{READY}", "--node-host", "process")
            assert trial.end(signal.SIGKILL) == -signal.SIGKILL
        for _ in range(2):  # the second start finds everything made
            trial.start(READY, "--node-host", "process")
            for words, names in (
                (("tenants", "list", "--context", "try-admin"), ["try"]),
                (("skus", "list", "--context", "try-admin"), ["this-machine"]),
                (("projects", "list"), ["try"]),
                (("nodes", "list", "--context", "try-admin"), ["this-machine"]),
                (("context", "list"), ["try", "try-admin"]),
            ):
                found = json.loads(trial.mooring(*words, "-o", "json"))
                assert sorted(each.get("slug") or each["name"] for each in found) == names, words
            assert trial.end(signal.SIGINT) == 0
        trial.start(READY, "--node-host", "process")
        assert "running" in trial.mooring("launch", "hello", "--name", "greeter", "--wait")
        for each in ("trial.json", "lock"):
            assert stat.S_IMODE(os.stat(trial.data / "try" / each).st_mode) == 0o600
        assert not (trial.data / "try" / "code").exists(), "the one-time code is used up"
        assert "process" in trial.mooring("try", "remove", "--data-dir", str(trial.data), "--yes")
        assert trial.process is not None
        assert trial.process.wait(60) == 0
        trial.process = None
        assert (leftovers_of(trial.directory), trial.data.exists()) == ([], False)
        assert json.loads(trial.mooring("context", "list", "-o", "json")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_tries_it_and_owns_everything_that_it_made() -> None:
    with trial_directory(ORDINARY) as trial:
        trial.start(READY)
        assert "running" in trial.mooring("launch", "hello", "--name", "greeter", "--wait")
        (node,) = json.loads(trial.mooring("nodes", "list", "--context", "try-admin", "-o", "json"))
        assert node["host"] == "process"
        account = pwd.getpwnam(ORDINARY).pw_uid
        assert {each.lstat().st_uid for each in trial.directory.rglob("*")} == {account}
        trial.mooring("stop", "greeter", "--yes", "--wait")


def test_a_trial_with_tls_is_used_by_every_part_without_an_option() -> None:
    with trial_directory() as trial:
        box = trial.start(READY, "--node-host", "process", "--tls")
        assert f"https://127.0.0.1:{trial.port}" in box
        assert f"http://127.0.0.1:{trial.port}" not in box
        assert "running" in trial.mooring("launch", "hello", "--name", "greeter", "--wait")
        found = json.loads(trial.mooring("context", "list", "-o", "json"))
        assert {each["url"] for each in found} == {f"https://127.0.0.1:{trial.port}"}
