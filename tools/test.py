"""Runs one gate of the tests, gives failed tests a second run, and reports what was skipped and what it cost.

`--gate test` (the default) is `make test`, `--gate system` is `make test-system`; `tests/gates.toml` says which test
belongs where. Where files or folders are named, all of their tests run, of whichever gate. All other arguments are
pytest's. There are as many workers as cores; the tests of a file, or of a group that shares a resource, run one after
another on one of them.

pytest alone ends green when everything was skipped. Here every skip is listed with its reason, and on machines where
all real parts must be present (root on Debian or Ubuntu) a skipped test of a real part fails the run. Failed tests, and
the tests during which a worker crashed, run again alone (`tools/flakes.py`). The cost is compared with the budgets
(`tools/budget.py`) when a whole gate ran.
"""

import argparse
import os
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tools import budget, flakes, real_parts, soak
from tools.gates import ENVIRONMENT, SYSTEM, TEST, Gates, load, plain

MARKER = "real_part"
OUTPUT = Path(".test-output")
SHARED_OUT = ("-p", "tools.scheduling", "--dist", "loadgroup", "--no-loadscope-reorder")
KEPT_OPTIONS = {"-p": 1, "-c": 1, "--noconftest": 0}
"""What a second run takes over from the first, with the number of words that follow."""
CHOOSING = ("-k", "-m", "--lf", "--last-failed", "--ff", "--deselect", "-x", "--maxfail", "--co", "--collect-only")
"""Options with which a run is not of the whole gate, so that its cost says nothing."""
Report = pytest.TestReport | pytest.CollectReport


@dataclass(frozen=True, order=True)
class SkippedTest:
    """A test that did not run, and why."""

    nodeid: str
    reason: str
    is_real_part: bool


class RunSummary:
    """A pytest plugin that counts outcomes and keeps skips and failures; it lives where all workers report."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.skips: set[SkippedTest] = set()
        self.failures: dict[str, str] = {}
        self.durations: Counter[str] = Counter()
        self.inputs: dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        nodeid = plain(report.nodeid)
        self.durations[nodeid] += getattr(report, "duration", 0.0)  # type: ignore[assignment] # a Counter of floats
        if report.when == "call" and (inputs := dict(report.user_properties).get(soak.INPUTS)):
            self.inputs[nodeid] = int(str(inputs))
        if report.skipped:
            expected = hasattr(report, "wasxfail")
            self.outcomes["xfailed" if expected else "skipped"] += 1
            if not expected:
                self.skips.add(SkippedTest(nodeid, reason_of(report), MARKER in report.keywords))
        elif report.failed:
            if nodeid not in self.failures:
                self.outcomes["failed" if report.when == "call" else "errors"] += 1
            self.failures[nodeid] = self.failures.get(nodeid, "") + output_of(report)
        elif report.when == "call":
            self.outcomes["passed"] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.outcomes["errors"] += 1
        elif report.skipped:
            # A module that skips itself never shows its marks, so its text is asked.
            path = Path(report.nodeid)
            is_real = path.is_file() and MARKER in path.read_text(encoding="utf-8")
            self.outcomes["skipped"] += 1
            self.skips.add(SkippedTest(report.nodeid, reason_of(report), is_real))


def reason_of(report: Report) -> str:
    """Why a test was skipped, in its own words."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def output_of(report: pytest.TestReport) -> str:
    """What a failed phase of a test printed."""
    sections = [f"-- {title} --\n{text}" for title, text in report.sections]
    return "\n".join((f"-- {report.when} --", report.longreprtext, *sections, ""))


def real_parts_must_run() -> bool:
    """Whether this is a machine on which nothing may be missing."""
    return os.geteuid() == 0 and Path("/etc/debian_version").exists()


def summary(account: RunSummary, runs: list[flakes.SecondRun], exit_code: int) -> tuple[list[str], int]:
    """The inputs of fuzzers, the skips and the counts, and the exit code as far as skips decide it."""
    lines = [f"fuzzed: {nodeid}: {inputs:,} inputs" for nodeid, inputs in sorted(account.inputs.items())]
    lines += [f"skipped: {skip.nodeid}: {skip.reason}" for skip in sorted(account.skips)]
    missing = sorted({skip.nodeid for skip in account.skips if skip.is_real_part})
    if missing and real_parts_must_run():
        lines += [f"a real part was skipped where all of them must run: {name}" for name in missing]
        exit_code = exit_code or 1
    counts = account.outcomes
    words = [f"{counts[word]} {word}" for word in ("passed", "failed", "errors", "skipped", "xfailed")]
    flaky = sum(run.passed for run in runs)
    words += [f"{flaky} of the failed ones flaky"] if flaky else []
    return [*lines, ", ".join(words)], exit_code


def kept_options(arguments: list[str]) -> list[str]:
    """Those options that a second run needs too."""
    kept: list[str] = []
    for place, word in enumerate(arguments):
        if word in KEPT_OPTIONS:
            kept += arguments[place : place + 1 + KEPT_OPTIONS[word]]
    return kept


def workers_of(arguments: list[str]) -> list[str]:
    """The options that say how the tests are shared out: never more workers than cores, unless `-n` says so."""
    is_said = any(word.startswith(("-n", "--numprocesses")) and word != "--noconftest" for word in arguments)
    return [*SHARED_OUT, *([] if is_said else ["-n", str(cores())])]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def costs(gates: Gates, gate: str, account: RunSummary, *, wall_seconds: float, measured: list[float]) -> list[str]:
    """What to print about the cost of a whole gate."""
    factor = budget.slowness(gates, measured)
    spent = budget.spent_by_folder(gates, gate, account.durations)
    lines = budget.compared(gates, gate, spent, wall_seconds=wall_seconds, factor=factor)
    return budget.table(lines, factor)


def run(arguments: list[str], gate: str, root: Path) -> int:
    """Run the tests, the second runs, and print the account; the exit code."""
    gates, account = load(root), RunSummary()
    known = flakes.known_flaky(root)
    directory = root / OUTPUT / gate
    shutil.rmtree(directory, ignore_errors=True)
    is_named = bool(real_parts.named_paths(arguments, root))
    is_whole = bool(gates.gates) and not is_named and not any(word.startswith(CHOOSING) for word in arguments)
    if gates.gates and not is_named:
        os.environ[ENVIRONMENT] = gate
        arguments = [*arguments, *gates.collected(gate)]
    measured = [budget.calibrate(cores())] if is_whole else []
    begun = time.monotonic()
    exit_code = int(pytest.main(["-q", *workers_of(arguments), *arguments], plugins=[account]))
    wall_seconds = time.monotonic() - begun
    measured += [budget.calibrate(cores())] if is_whole else []
    runs = []
    if exit_code == pytest.ExitCode.TESTS_FAILED and account.failures:
        options = kept_options(arguments)
        runs = flakes.second_runs(root, gates, account.failures, directory=directory, options=options)
        fate, is_failed = flakes.verdict(runs, len(account.failures), known, root)
        exit_code = int(is_failed)
    else:
        fate = []
    lines, exit_code = summary(account, runs, exit_code)
    if is_whole:
        table = costs(gates, gate, account, wall_seconds=wall_seconds, measured=measured)
        exit_code = exit_code or int(any(line.startswith("too slow") for line in table))
        lines = [*table, *lines]
    lines[-1] += "" if exit_code == 0 else f"; exit code {exit_code}"
    print("\n".join([*lines, *fate]), flush=True)
    return exit_code


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--gate", choices=(TEST, SYSTEM), default=TEST)
    own, others = parser.parse_known_args(arguments)
    root = Path.cwd()
    if root == real_parts.ROOT and real_parts_must_run():
        real_parts.prepare(others)
    try:
        return run([*others, *soak.options()], own.gate, root)
    except flakes.FlakyListInvalid as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
