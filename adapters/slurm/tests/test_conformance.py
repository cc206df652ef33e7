"""The Slurm adapter passes the conformance suite on a simulated Slurm."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mooring_adapter.conformance.report import BROKEN, KEPT, PromiseResult
from mooring_adapter.conformance.suite import play, promises, read_profile
from mooring_slurm.catalog import manifest_of

PROFILE = Path(__file__).resolve().parents[1] / "conformance.json"
COMMAND = (sys.executable, "-m", "mooring_slurm")
LANES = 3


def test_the_adapter_keeps_every_promise() -> None:
    details: dict[str, Any] = {**json.loads(PROFILE.read_text(encoding="utf-8")), "patience_seconds": 120}
    wanted = promises()

    def lane(number: int) -> list[PromiseResult]:
        return play(COMMAND, read_profile(manifest_of(), details), wanted[number::LANES], lambda verdict: None)

    with ThreadPoolExecutor(LANES) as lanes:
        verdicts = [each for found in lanes.map(lane, range(LANES)) for each in found]
    assert {each.promise: each.reason for each in verdicts if each.verdict == BROKEN} == {}
    assert {each.promise for each in verdicts if each.verdict == KEPT} == {each.key for each in wanted}
