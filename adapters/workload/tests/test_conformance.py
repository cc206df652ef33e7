"""The workload adapter passes the conformance suite, as a process and as a container, without the server."""

import subprocess
import sys
from typing import Any

from mooring_adapter.conformance.report import KEPT, NOT_PLAYED, PromiseResult
from mooring_adapter.conformance.suite import chosen, play, promises, read_profile
from mooring_workload.catalog import manifest_of

COMMAND = (sys.executable, "-m", "mooring_workload")
PATIENT = {"patience_seconds": 120}
GREETING = {"config_change": {"greeting": "ahoy"}}
DIGEST = f"sha256:{'ab' * 32}"
SECRET = {"name": "KEY", "from_secret": "access-key"}
ALONE = """
import sys

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("mooring", "mooring_agent", "mooring_cli"):
            raise ImportError(f"{name} is not installed where adapters are")

sys.meta_path.insert(0, Forbidden())
import mooring_workload.__main__
"""


def not_kept(results: list[PromiseResult], kept: tuple[str, ...]) -> dict[str, tuple[str | None, ...]]:
    """The promises with another verdict, with the reason and the last lines of the adapter's log."""
    return {each.promise: (each.reason, *each.last_lines) for each in results if each.verdict not in kept}


def container() -> dict[str, Any]:
    """The small app in an image, with a secret."""
    manifest = manifest_of("hello", {"image": DIGEST})
    manifest["runtime_profile"]["env"].append(SECRET)
    manifest["required_actions"] += ["secret.create", "secret.grant"]
    return manifest


def test_every_promise_is_kept() -> None:
    results = play(COMMAND, read_profile(manifest_of("hello"), PATIENT | GREETING), promises(), lambda verdict: None)
    assert not_kept(results, (KEPT, NOT_PLAYED)) == {}
    assert [each.promise for each in results if each.verdict == NOT_PLAYED] == ["actions"], "its manifest has none"


def test_a_container_with_a_secret_keeps_them_where_it_differs() -> None:
    wanted = chosen(promises(), ["deploy", "upgrade", "restart", "repair", "drain", "task_failure"])
    results = play(COMMAND, read_profile(container(), PATIENT), wanted, lambda verdict: None)
    assert not_kept(results, (KEPT,)) == {}
    assert len(results) == len(wanted)


def test_it_is_imported_without_the_server() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
