"""Runs every linter, all of them even when one fails, and says for each in one line how it went.

Each check is a command; its output is shown only when it fails. Two run at a time.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PACKAGES = ("server/mooring", "sdk/mooring_sdk", "cli/mooring_cli", "agent/mooring_agent")
SPANNING = ("tools", "bench")
TESTS = ("server/tests", "sdk/tests", "cli/tests", "agent/tests", "tests", "conftest.py")


@dataclass(frozen=True)
class Check:
    """One linter, and the part of the environment that it needs."""

    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check, with its output."""

    name: str
    passed: bool
    seconds: float
    output: str


def existing(names: tuple[str, ...]) -> list[str]:
    """Those of the parts that are there and have code."""
    return [name for name in names if (ROOT / name).is_file() or any((ROOT / name).rglob("*.py"))]


def checks() -> list[Check]:
    """All checks, the slow ones first."""
    adapters = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("adapters/*/mooring_*"))
    sources = existing(PACKAGES) + adapters
    parts = {str(Path(source).parent) for source in sources}
    mypy = (str(BIN / "mypy"), "--no-error-summary")
    # Packages are checked under the names they are imported by, tests under their paths: two runs, since one
    # run cannot know a file by two names.
    return [
        Check(
            "mypy (code)",
            (*mypy, "--cache-dir=.mypy_cache/code", *sources, *existing(SPANNING)),
            (("MYPYPATH", ":".join(sorted(parts))),),
        ),
        Check("mypy (tests)", (*mypy, "--cache-dir=.mypy_cache/tests", *existing(TESTS), *_adapter_tests())),
        Check("console", (sys.executable, str(ROOT / "tools" / "console.py"), "--check")),
        Check("imports", (str(BIN / "lint-imports"), "--no-cache")),
        Check("ruff check", (str(BIN / "ruff"), "check", "--quiet", "--output-format=concise", ".")),
        Check("ruff format", (str(BIN / "ruff"), "format", "--check", ".")),
        Check("tidy", (sys.executable, "-m", "tools.tidy")),
        Check("lock", (sys.executable, "-m", "tools.lock", "--check")),
    ]


def _adapter_tests() -> list[str]:
    return existing(tuple(sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("adapters/*/tests"))))


def perform(check: Check) -> CheckResult:
    """Run one check to its end."""
    begun = time.monotonic()
    done = subprocess.run(
        check.command,
        cwd=ROOT,
        env={**os.environ, **dict(check.environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return CheckResult(check.name, done.returncode == 0, time.monotonic() - begun, done.stdout)


def main() -> int:
    with ThreadPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(perform, checks()))
    for result in results:
        if not result.passed:
            print(f"── {result.name}\n{result.output.rstrip()}\n")
    for result in results:
        print(f"{'ok  ' if result.passed else 'FAIL'} {result.seconds:6.1f} s  {result.name}")
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
