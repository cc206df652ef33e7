"""Adapters are guests: they run, and are tested, where the server is not installed."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FORBIDDING = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mooring", "mooring_agent", "mooring_cli"):
            raise ImportError(f"{name} is not installed where adapters are")
        return None

sys.meta_path.insert(0, Forbidden())
"""
IMPORTS = "import mooring_adapter, mooring_adapter.conformance.suite, mooring_echo.__main__; print('imported')"
TESTS = "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-n0', *sys.argv[1:]]))"


def alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FORBIDDING + program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_kit_and_adapters_are_imported_without_the_server() -> None:
    done = alone(IMPORTS)
    assert (done.returncode, done.stdout.strip()) == (0, "imported"), done.stderr


def test_their_pure_tests_run_without_the_server() -> None:
    done = alone(TESTS, "adapters/kit/tests/test_next_actions.py", "adapters/echo/tests/test_plans.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_hook_forbids_the_server() -> None:
    done = alone("import mooring")
    assert done.returncode != 0
    assert "is not installed where adapters are" in done.stderr
