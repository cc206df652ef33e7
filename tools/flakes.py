"""A failed test gets a second run, alone, in a process of its own: what passes then is flaky, not broken.

Both outputs are kept below `.test-output/`. A flaky test does not fail the run, but it is printed last, by name, and
more than three of them do. The known ones stand in `tests/flaky.toml` with the date and the cause, ten at most.
"""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from tools.gates import Gates

KNOWN_FILE = Path("tests/flaky.toml")
KNOWN_MAX = 10
FLAKY_MAX = 3
AGAIN_MAX = 10
"""With more failures than this the tree is broken: the first ten get their second run, and all count as failed."""
AGAIN_SECONDS_MAX = 900.0


class FlakyListInvalid(ValueError):
    """The list of known flaky tests breaks its rules."""


@dataclass(frozen=True)
class KnownFlake:
    """A test that is known to be flaky, since when, and why as far as it is known."""

    test: str
    since: date
    cause: str


@dataclass(frozen=True)
class SecondRun:
    """A test that failed, and how it went alone."""

    nodeid: str
    passed: bool
    kept: Path


def known_flaky(root: Path) -> dict[str, KnownFlake]:
    """The known flaky tests of a tree, by name."""
    path = root / KNOWN_FILE
    if not path.is_file():
        return {}
    rows = tomllib.loads(path.read_text(encoding="utf-8")).get("flaky", [])
    if len(rows) > KNOWN_MAX:
        raise FlakyListInvalid(f"{KNOWN_FILE} lists {len(rows)} tests, at most {KNOWN_MAX} are allowed: mend one")
    known: dict[str, KnownFlake] = {}
    for row in rows:
        if set(row) != {"test", "since", "cause"} or not isinstance(row["since"], date) or not row["cause"].strip():
            raise FlakyListInvalid(f"{KNOWN_FILE}: an entry needs test, since (a date) and cause: {row}")
        known[row["test"]] = KnownFlake(**row)
    return known


def second_runs(
    root: Path,
    gates: Gates,
    failures: Mapping[str, str],
    *,
    directory: Path,
    options: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> list[SecondRun]:
    """Run each failed test again, one after the other; `failures` has the output of the first run by test."""
    done = []
    for nodeid in list(failures)[:AGAIN_MAX]:
        say(f"runs again, alone: {nodeid}")
        target = nodeid.partition("::")[0] if gates.is_in_order(nodeid) else nodeid
        passed, output = _alone(root, target, options)
        say(f"{'passed' if passed else 'failed'} alone: {nodeid}")
        kept = directory / f"{'flaky' if passed else 'failed'}-{_file_name(nodeid)}.txt"
        directory.mkdir(parents=True, exist_ok=True)
        kept.write_text(f"{nodeid}\n\n== first run ==\n{failures[nodeid]}\n\n== alone ==\n{output}\n", encoding="utf-8")
        done.append(SecondRun(nodeid, passed, kept))
    return done


def verdict(
    runs: Sequence[SecondRun], failed: int, known: Mapping[str, KnownFlake], root: Path
) -> tuple[list[str], bool]:
    """The last lines of the whole run, the flaky tests at the very end; and whether the run fails."""
    broken = [run for run in runs if not run.passed]
    flaky = [run for run in runs if run.passed]
    lines = [f"failed twice: {run.nodeid} ({_shown(run.kept, root)})" for run in broken]
    if failed > len(runs):
        lines.append(f"{failed - len(runs)} more tests failed and did not run again")
    if len(flaky) > FLAKY_MAX:
        lines.append(f"{len(flaky)} tests are flaky, at most {FLAKY_MAX} are allowed")
    for run in flaky:
        entry = known.get(run.nodeid) or known.get(run.nodeid.partition("[")[0])
        state = f"known since {entry.since}: {entry.cause}" if entry else f"not in {KNOWN_FILE}"
        lines.append(f"flaky: {run.nodeid} ({state}; {_shown(run.kept, root)})")
    return lines, bool(broken) or failed > len(runs) or len(flaky) > FLAKY_MAX


def _alone(root: Path, target: str, options: Sequence[str]) -> tuple[bool, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, target]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen(
        command,
        cwd=root,
        env=kept,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output = process.communicate(timeout=AGAIN_SECONDS_MAX)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = f"{process.communicate()[0]}\nkilled after {AGAIN_SECONDS_MAX:.0f} s"
    return process.returncode == 0, output


def _file_name(nodeid: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", nodeid)[-150:]


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
