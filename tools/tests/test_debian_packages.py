"""While packages are installed no daemon may start, and afterwards nothing of ours is left."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tools import debian_packages
from tools.debian_packages import MARK, PackagesMissing, no_daemon_starts, nothing_is_enabled


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy-rc.d"


def write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def test_starts_are_refused_while_apt_works_and_the_file_is_gone_afterwards(policy: Path) -> None:
    with no_daemon_starts(policy):
        assert subprocess.run([policy, "postgresql", "start"], check=False).returncode == 101
    assert not policy.exists()


def test_the_file_is_removed_after_a_failure(policy: Path) -> None:
    with pytest.raises(PackagesMissing), no_daemon_starts(policy):
        raise PackagesMissing("apt failed")
    assert not policy.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_file_is_removed_when_the_set_up_is_ended(policy: Path, number: signal.Signals) -> None:
    with pytest.raises(SystemExit), no_daemon_starts(policy):
        signal.raise_signal(number)
    assert not policy.exists()


def test_the_file_of_a_set_up_that_was_killed_is_replaced_and_removed(policy: Path) -> None:
    write_script(policy, f"#!/bin/sh\n{MARK}\nexit 101\n")
    with no_daemon_starts(policy):
        assert policy.exists()
    assert not policy.exists()


def test_a_file_of_somebody_else_that_refuses_starts_is_kept_as_it_is(policy: Path) -> None:
    write_script(policy, "#!/bin/sh\nexit 101\n")
    with no_daemon_starts(policy):
        pass
    assert policy.read_text() == "#!/bin/sh\nexit 101\n"


def test_nothing_is_installed_under_a_file_of_somebody_else_that_allows_starts(policy: Path) -> None:
    write_script(policy, "#!/bin/sh\nexit 0\n")
    with pytest.raises(PackagesMissing, match="allows daemons to start"), no_daemon_starts(policy):
        pytest.fail("must not be reached")
    assert policy.exists()


def test_what_was_newly_enabled_is_disabled_and_the_rest_stays(tmp_path: Path) -> None:
    wants = tmp_path / "systemd" / "system" / "multi-user.target.wants"
    wants.mkdir(parents=True)
    (wants / "cron.service").symlink_to("/lib/systemd/system/cron.service")
    with nothing_is_enabled(tmp_path):
        (wants / "slurmd.service").symlink_to("/lib/systemd/system/slurmd.service")
    assert [path.name for path in wants.iterdir()] == ["cron.service"]


def test_an_ordinary_user_sees_what_root_has_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(debian_packages, "missing", lambda names: list(names))
    with pytest.raises(PackagesMissing, match="apt-get install chromium"):
        debian_packages.install(["chromium"])


def test_nothing_is_done_when_all_packages_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_packages, "missing", lambda names: [])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is to be run"))
    debian_packages.install(["chromium"])
