"""Runs the tests and gives an account of what was not run.

pytest alone ends green when everything was skipped. Here every skip is listed with its reason, the counts are the
last thing printed, and on the machines where all real parts must be there (root on Debian or Ubuntu) a skipped test
of a real part fails the run. Arguments are pytest's; four workers unless `-n` says otherwise: much of the time is
waiting.
"""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tools import real_parts

MARKER = "real_part"
Report = pytest.TestReport | pytest.CollectReport


class Account:
    """A pytest plugin that counts outcomes and keeps every skip; it lives where all workers report."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.skips: list[tuple[str, str, bool]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            expected = hasattr(report, "wasxfail")
            self.outcomes["xfailed" if expected else "skipped"] += 1
            if not expected:
                self.skips.append((report.nodeid, reason_of(report), MARKER in report.keywords))
        elif report.failed:
            self.outcomes["failed" if report.when == "call" else "errors"] += 1
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
            self.skips.append((report.nodeid, reason_of(report), is_real))


def reason_of(report: Report) -> str:
    """The words that the skip was given."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def real_parts_must_run() -> bool:
    """Whether this is a machine on which nothing may be missing."""
    return os.geteuid() == 0 and Path("/etc/debian_version").exists()


def summary(account: Account, exit_code: int) -> tuple[list[str], int]:
    """The last lines to print, and the exit code of the whole run."""
    lines = [f"skipped: {name}: {reason}" for name, reason, _ in sorted(set(account.skips))]
    missing = sorted({name for name, _, is_real in account.skips if is_real})
    if missing and real_parts_must_run():
        lines += [f"a real part was skipped where all of them must run: {name}" for name in missing]
        exit_code = exit_code or 1
    counts = account.outcomes
    words = [f"{counts[word]} {word}" for word in ("passed", "failed", "errors", "skipped", "xfailed")]
    lines.append(", ".join(words) + ("" if exit_code == 0 else f"; exit code {exit_code}"))
    return lines, exit_code


def main(arguments: list[str]) -> int:
    account = Account()
    chosen = any(word.startswith(("-n", "--numprocesses")) for word in arguments)
    workers = [] if chosen else ["-n", "4", "--dist", "worksteal"]
    if real_parts_must_run():
        real_parts.prepare(arguments)
    exit_code = int(pytest.main(["-q", *workers, *arguments], plugins=[account]))
    lines, exit_code = summary(account, exit_code)
    print("\n".join(lines), flush=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
