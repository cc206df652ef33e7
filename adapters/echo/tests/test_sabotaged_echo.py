"""The suite notices what people get wrong: every promise catches a sabotaged adapter that breaks it."""

import inspect
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adapters.echo.tests.sabotaged_echo import SABOTAGES
from mooring_adapter.conformance.report import BROKEN, PromiseResult
from mooring_adapter.conformance.suite import chosen, play, promises, read_profile

PART = Path(__file__).resolve().parents[1]
WAITING = frozenset({"side_by_side", "resume", "decommission", "cancel", "duplicates"})
"""Promises whose breach shows only by what never happens."""
WAIT_SECONDS, PATIENCE_SECONDS = 4.0, 60.0
LINES_MAX = 10
LANES = 3


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PART / name).read_text(encoding="utf-8"))
    return found


def caught(name: str) -> PromiseResult:
    promise = SABOTAGES[name][0]
    patience = WAIT_SECONDS if promise in WAITING else PATIENCE_SECONDS
    profile = read_profile(read("manifest.json"), {**read("conformance.json"), "patience_seconds": patience})
    command = (sys.executable, "-m", "adapters.echo.tests.sabotaged_echo", name)
    (result,) = play(command, profile, chosen(promises(), [promise]), lambda result: None)
    return result


def test_every_promise_has_a_sabotaged_adapter_a_few_lines_away_from_one_that_passes() -> None:
    assert {promise for promise, _ in SABOTAGES.values()} == {each.key for each in promises()}
    lengths = {name: len(inspect.getsource(patch).splitlines()) - 2 for name, (_, patch) in SABOTAGES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > LINES_MAX} == {}


def test_every_sabotaged_adapter_is_caught_by_the_promise_that_it_breaks() -> None:
    with ThreadPoolExecutor(LANES) as lanes:
        results = dict(zip(SABOTAGES, lanes.map(caught, SABOTAGES), strict=True))
    assert {name: each.verdict for name, each in results.items()} == dict.fromkeys(SABOTAGES, BROKEN)
    assert all(each.reason and each.request and each.advice for each in results.values())
    texts = {name: f"{each.reason} {each.request}" for name, each in results.items()}
    for name, telling in {
        "misspells_an_argument": "'enviroment' was unexpected",
        "is_ready_as_soon_as_it_is_started": "no probe or look has succeeded since it was started",
        "drains_without_a_look": "without any observation on its node",
        "upgrades_all_at_once": "were down at a time",
        "plans_from_the_old_configuration": "members got what they had before",
        "accepts_a_configuration_and_does_nothing": "nothing was written, started or run",
        "stops_nothing": "nobody had asked it to end",
        "asks_again_for_what_it_may_not_do": "403 permission_denied",
        "drops_the_correlation_id": "carries ''",
        "stops_the_old_one_first": "its replacement, was",
        "claims_a_version_that_nobody_started": "nothing was started there for it",
    }.items():
        assert telling in texts[name], (name, texts[name])
