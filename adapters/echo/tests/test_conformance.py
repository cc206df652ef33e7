"""Echo keeps its promises, in both languages."""

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
    "actions",
    "stale_lease",
    "task_failure",
    "node_loss",
    "never_quiet",
    "released",
)
"""What is cheap and tells most: a shell that starts jq for every look is slow. All of them: `mooring adapter test`."""
LANES = 3


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PART / name).read_text(encoding="utf-8"))
    return found


def played(command: Sequence[str], details: dict[str, Any], wanted: Sequence[Promise]) -> list[PromiseResult]:
    """Every promise, on some platforms side by side: much of the time somebody waits for somebody."""

    def lane(number: int) -> list[PromiseResult]:
        profile = read_profile(read("manifest.json"), {**details, "patience_seconds": 120})
        return play(command, profile, wanted[number::LANES], lambda verdict: None)

    with ThreadPoolExecutor(LANES) as lanes:
        return [each for verdicts in lanes.map(lane, range(LANES)) for each in verdicts]


def told(verdicts: list[PromiseResult]) -> dict[str, tuple[str | None, ...]]:
    """What is wrong with those that were not kept, with what the adapter said last."""
    return {each.promise: (each.reason, *each.last_lines) for each in verdicts if each.verdict != KEPT}


def test_the_manifest_pins_the_script_as_it_is() -> None:
    digest = hashlib.sha256((PART / "mooring_echo" / "echo_node.py").read_bytes()).hexdigest()
    assert read("manifest.json")["artifacts"] == {"script": f"sha256:{digest}"}


def test_the_adapter_keeps_every_promise() -> None:
    verdicts = played((sys.executable, "-m", "mooring_echo"), read("conformance.json"), promises())
    assert told(verdicts) == {}
    assert {each.promise for each in verdicts} == {each.key for each in promises()}


@pytest.mark.real_part("the shell")
def test_the_same_adapter_as_a_shell_script_keeps_them_too() -> None:
    missing = [name for name in ("curl", "jq", "openssl") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not on this machine: {', '.join(missing)}")
    small = {**read("conformance.json"), "topology": {"seed": 1, "worker": 1, "gate": 1}}
    verdicts = played((str(PART / "echo.sh"),), small, chosen(promises(), SHELL_PLAYS))
    assert told(verdicts) == {}
    assert len(verdicts) == len(SHELL_PLAYS)
