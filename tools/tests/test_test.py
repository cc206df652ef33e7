"""The account of a test run: what was skipped is said, and a skipped real part fails where all must run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools import test as runner

ROOT = Path(runner.__file__).resolve().parent.parent
SAMPLE = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False

@pytest.mark.real_part("postgresql")
def test_real(): pytest.skip("no binaries")
"""


def account_of(skips: list[tuple[str, str, bool]]) -> runner.Account:
    account = runner.Account()
    account.skips = skips
    account.outcomes.update(passed=3, skipped=len(skips))
    return account


def test_a_skipped_real_part_fails_the_run_where_it_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: True)
    lines, code = runner.summary(account_of([("a::real", "no binaries", True)]), 0)
    assert code == 1
    assert "a real part was skipped where all of them must run: a::real" in lines


def test_a_skipped_real_part_is_only_listed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: False)
    lines, code = runner.summary(account_of([("a::real", "no binaries", True)]), 0)
    assert code == 0
    assert lines == ["skipped: a::real: no binaries", "3 passed, 0 failed, 0 errors, 1 skipped, 0 xfailed"]


def test_another_skip_never_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: True)
    assert runner.summary(account_of([("a::b", "not here", False)]), 0)[1] == 0


def test_a_failure_of_pytest_stays_a_failure() -> None:
    assert runner.summary(account_of([]), 2)[1] == 2


@pytest.mark.parametrize("workers", [["-n", "0"], ["-n", "2"]])
def test_outcomes_and_reasons_are_heard_from_every_worker(tmp_path: Path, workers: list[str]) -> None:
    sample = tmp_path / "test_sample.py"
    sample.write_text(SAMPLE)
    (tmp_path / "test_module.py").write_text('import pytest\n\npytest.skip("whole", allow_module_level=True)\n')
    command = [
        sys.executable,
        "-m",
        "tools.test",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(tmp_path),
        *workers,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    assert last.startswith("1 passed, 0 failed, 0 errors, 3 skipped, 1 xfailed"), done.stdout
    assert "test_skipped: no such machine" in done.stdout
    assert "test_module.py: whole" in done.stdout
    assert done.returncode == (1 if runner.real_parts_must_run() else 0)
