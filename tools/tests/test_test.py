"""The runner of the tests: gates, second runs, crashed workers, skips and budgets, each seen in a run of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import test as runner

ROOT = Path(runner.__file__).resolve().parent.parent
SETTINGS = '[tool.pytest.ini_options]\nmarkers = ["real_part(name): a real part"]\n'
SKIPS = """
import pytest

def test_passes(): pass

@pytest.mark.skip(reason="no such machine")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False

@pytest.mark.real_part("postgresql")
def test_real(): pytest.skip("no binaries")
"""
FIRST_TIME = """
from pathlib import Path

def is_first(name):
    path = Path(__file__).with_name(name + ".seen")
    was_there = path.exists()
    path.touch()
    return not was_there
"""
FLAKY = f"""
import pytest
{FIRST_TIME}
def test_passes(): pass

@pytest.mark.parametrize("number", range(COUNT))
def test_fails_at_first(number):
    first = is_first(str(number))
    print("the words of run", "one" if first else "two")
    assert not first
"""
FUZZING = "def test_fuzz(record_property): record_property('inputs', 1234)\n"
BROKEN = "def test_passes(): pass\n\ndef test_fails(): assert 1 == 2\n"
CRASHING = f"""
import os
{FIRST_TIME}
def test_before(): pass

def test_kills_its_worker():
    if is_first("crash") or ALWAYS:
        os._exit(9)

def test_after(): pass
"""
IN_ORDER = f"""
{FIRST_TIME}
made = []

def test_makes(): made.append(1)

def test_uses(): assert made and not is_first("order")
"""


def make_project(directory: Path, **texts: str) -> None:
    """A project of a few tests."""
    (directory / "pyproject.toml").write_text(SETTINGS)
    for name, text in texts.items():
        (directory / f"{name}.py").write_text(text)


def run(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The runner at work there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MOORING_"))}
    return subprocess.run(
        [sys.executable, "-m", "tools.test", "-p", "xdist", *arguments],
        cwd=directory,
        env=kept | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # the others take long to import
        capture_output=True,
        text=True,
        check=False,
    )


def last(done: "subprocess.CompletedProcess[str]", count: int = 1) -> list[str]:
    """The last lines that were printed."""
    return done.stdout.splitlines()[-count:]


def account_of(*skips: runner.SkippedTest) -> runner.RunSummary:
    account = runner.RunSummary()
    account.skips = set(skips)
    account.outcomes.update(passed=3, skipped=len(skips))
    return account


REAL = runner.SkippedTest("a::real", "no binaries", is_real_part=True)


def test_a_skipped_real_part_fails_the_run_where_it_must_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: True)
    lines, code = runner.summary(account_of(REAL), [], 0)
    assert code == 1
    assert "a real part was skipped where all of them must run: a::real" in lines


def test_a_skipped_real_part_is_only_listed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: False)
    lines, code = runner.summary(account_of(REAL), [], 0)
    assert code == 0
    assert lines == ["skipped: a::real: no binaries", "3 passed, 0 failed, 0 errors, 1 skipped, 0 xfailed"]


def test_another_skip_never_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "real_parts_must_run", lambda: True)
    assert runner.summary(account_of(runner.SkippedTest("a::b", "not here", is_real_part=False)), [], 0)[1] == 0


@pytest.mark.parametrize("workers", ["0", "2"])
def test_outcomes_and_reasons_of_every_worker_are_counted(tmp_path: Path, workers: str) -> None:
    skipped = 'import pytest\n\npytest.skip("whole", allow_module_level=True)\n'
    make_project(tmp_path, test_sample=SKIPS, test_module=skipped, test_fuzz=FUZZING)
    done = run(tmp_path, "-n", workers)
    assert "fuzzed: test_fuzz.py::test_fuzz: 1,234 inputs" in done.stdout
    assert last(done)[0].startswith("2 passed, 0 failed, 0 errors, 3 skipped, 1 xfailed"), done.stdout
    assert "test_skipped: no such machine" in done.stdout
    assert "test_module.py: whole" in done.stdout
    assert done.returncode == (1 if runner.real_parts_must_run() else 0)


def test_a_test_that_fails_on_its_first_run_only_is_reported_and_does_not_fail_the_run(tmp_path: Path) -> None:
    make_project(tmp_path, test_sample=FLAKY.replace("COUNT", "1"))
    done = run(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout
    counts, flaky = last(done, 2)
    assert counts == "1 passed, 1 failed, 0 errors, 0 skipped, 0 xfailed, 1 of the failed ones flaky"
    assert flaky.startswith(
        "flaky: test_sample.py::test_fails_at_first[0] (not in tests/flaky.toml; .test-output/test/"
    )
    (kept,) = (tmp_path / ".test-output" / "test").iterdir()
    text = kept.read_text()
    assert "the words of run one" in text.partition("== alone ==")[0]
    assert "1 passed" in text.partition("== alone ==")[2]


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    make_project(tmp_path, test_sample=BROKEN)
    done = run(tmp_path, "-n", "0")
    assert done.returncode == 1
    counts, broken = last(done, 2)
    assert counts == "1 passed, 1 failed, 0 errors, 0 skipped, 0 xfailed; exit code 1"
    assert broken.startswith("failed twice: test_sample.py::test_fails (.test-output/test/failed-")


@pytest.mark.parametrize(("count", "code"), [(3, 0), (4, 1)])
def test_more_than_three_flaky_tests_fail_the_run(tmp_path: Path, count: int, code: int) -> None:
    make_project(tmp_path, test_sample=FLAKY.replace("COUNT", str(count)))
    done = run(tmp_path, "-n", "0")
    assert done.returncode == code, done.stdout
    assert all(line.startswith("flaky: ") for line in last(done, count))
    assert ("4 tests are flaky, at most 3 are allowed" in done.stdout) == (code == 1)


def test_a_known_flaky_test_is_printed_with_its_date_and_cause(tmp_path: Path) -> None:
    make_project(tmp_path, test_sample=FLAKY.replace("COUNT", "1"))
    (tmp_path / "tests").mkdir()
    entry = '[[flaky]]\ntest = "test_sample.py::test_fails_at_first"\nsince = 2026-11-18\ncause = "it is new here"\n'
    (tmp_path / "tests" / "flaky.toml").write_text(entry)
    done = run(tmp_path, "-n", "0")
    assert done.returncode == 0
    assert "known since 2026-11-18: it is new here" in last(done)[0]


def test_a_list_of_more_than_ten_known_flaky_tests_is_refused(tmp_path: Path) -> None:
    make_project(tmp_path, test_sample=BROKEN)
    (tmp_path / "tests").mkdir()
    entries = "".join(f'[[flaky]]\ntest = "a::{n}"\nsince = 2026-11-18\ncause = "c"\n' for n in range(11))
    (tmp_path / "tests" / "flaky.toml").write_text(entries)
    done = run(tmp_path, "-n", "0")
    assert done.returncode == 1
    assert "lists 11 tests, at most 10 are allowed" in done.stderr


def test_a_crashed_worker_costs_the_run_no_test_and_its_test_runs_again_alone(tmp_path: Path) -> None:
    make_project(tmp_path, test_crash=CRASHING.replace("ALWAYS", "False"), test_other=BROKEN.replace("2", "1"))
    done = run(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout
    counts, flaky = last(done, 2)
    assert counts == "4 passed, 0 failed, 1 errors, 0 skipped, 0 xfailed, 1 of the failed ones flaky"
    assert flaky.startswith("flaky: test_crash.py::test_kills_its_worker ")


def test_a_test_that_always_kills_its_worker_fails_the_run_and_the_others_still_run(tmp_path: Path) -> None:
    make_project(tmp_path, test_crash=CRASHING.replace("ALWAYS", "True"), test_other=BROKEN.replace("2", "1"))
    done = run(tmp_path, "-n", "2")
    assert done.returncode == 1
    counts, broken = last(done, 2)
    assert counts == "4 passed, 0 failed, 1 errors, 0 skipped, 0 xfailed; exit code 1"
    assert broken.startswith("failed twice: test_crash.py::test_kills_its_worker ")


GATES = """
reference_seconds = 1000.0
in_order = ["test_order.py"]
[test]
minutes = MINUTES
[test.folders]
"." = 100
[system]
minutes = 1
paths = ["test_system.py"]
"""


def gated(directory: Path, minutes: str = "1") -> None:
    """The same table for the project of a few tests."""
    (directory / "tests").mkdir()
    (directory / "tests" / "gates.toml").write_text(GATES.replace("MINUTES", minutes))


def test_a_test_that_builds_on_others_runs_again_with_its_whole_file(tmp_path: Path) -> None:
    make_project(tmp_path, test_order=IN_ORDER)
    gated(tmp_path)
    done = run(tmp_path, "-n", "0", "-k", "test_")
    assert done.returncode == 0, done.stdout
    assert last(done)[0].startswith("flaky: test_order.py::test_uses ")


@pytest.mark.parametrize(("minutes", "code"), [("1", 0), ("0.0001", 1)])
def test_a_whole_gate_is_compared_with_its_budget(tmp_path: Path, minutes: str, code: int) -> None:
    slow = "import time\n\ndef test_waits(): time.sleep(6)\n" if code else "def test_passes(): pass\n"
    make_project(tmp_path, test_sample=slow, test_system=BROKEN)
    gated(tmp_path, minutes)
    done = run(tmp_path, "-n", "0")
    assert done.returncode == code, done.stdout
    assert "test_system.py" not in done.stdout
    assert ("too slow: the whole gate, by the clock" in done.stdout) == (code == 1)
