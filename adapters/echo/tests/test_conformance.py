"""The echo adapter passes the conformance suite, in Python and as a shell script."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.conformance.report import KEPT, PromiseResult
from mooring_adapter.conformance.scenarios import Promise
from mooring_adapter.conformance.suite import chosen, play, promises, read_profile

PART = Path(__file__).resolve().parents[1]
SHELL_PLAYS = (
    "drain",
    "configure",
    "actions",
    "stale_lease",
    "task_failure",
    "node_loss",
    "never_quiet",
    "released",
)
"""The cheap and most telling promises: a shell that starts jq for each read is slow. `mooring adapter test` has all."""
LANES = 3


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PART / name).read_text(encoding="utf-8"))
    return found


def played(command: Sequence[str], details: dict[str, Any], wanted: Sequence[Promise]) -> list[PromiseResult]:
    """Check the promises on several simulated platforms in parallel, because a scenario mostly waits."""

    def lane(number: int) -> list[PromiseResult]:
        profile = read_profile(read("manifest.json"), {**details, "patience_seconds": 120})
        return play(command, profile, wanted[number::LANES], lambda results: None)

    with ThreadPoolExecutor(LANES) as lanes:
        return [each for results in lanes.map(lane, range(LANES)) for each in results]


def not_kept(results: list[PromiseResult]) -> dict[str, tuple[str | None, ...]]:
    """The promises that were not kept, with the reason and the last lines of the adapter's log."""
    return {each.promise: (each.reason, *each.last_lines) for each in results if each.verdict != KEPT}


def test_the_manifest_pins_the_script_as_it_is() -> None:
    digest = hashlib.sha256((PART / "mooring_echo" / "echo_node.py").read_bytes()).hexdigest()
    assert read("manifest.json")["artifacts"] == {"script": f"sha256:{digest}"}


def test_the_adapter_keeps_every_promise() -> None:
    results = played((sys.executable, "-m", "mooring_echo"), read("conformance.json"), promises())
    assert not_kept(results) == {}
    assert {each.promise for each in results} == {each.key for each in promises()}


@pytest.mark.real_part("the shell")
def test_the_same_adapter_as_a_shell_script_keeps_them_too() -> None:
    missing = [name for name in ("curl", "jq", "openssl") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    small = {**read("conformance.json"), "topology": {"seed": 1, "worker": 1, "gate": 1}}
    results = played((str(PART / "echo.sh"),), small, chosen(promises(), SHELL_PLAYS))
    assert not_kept(results) == {}
    assert len(results) == len(SHELL_PLAYS)
