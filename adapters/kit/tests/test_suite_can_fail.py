"""The suite notices what is broken: each deliberately broken adapter fails the promise that it breaks, and says why."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mooring_adapter.conformance.report import BROKEN, KEPT, NOT_PLAYED, PromiseResult, as_json, conforms, table
from mooring_adapter.conformance.suite import ProfileRefused, chosen, play, promises, read_profile
from tests.support.rows import every_row

PATIENCE_SECONDS = 120.0
BROKEN_ADAPTER = Path(__file__).parent / "broken_adapter.py"
MANIFEST: dict[str, Any] = {
    "app": "broken",
    "version": "1.0.0",
    "artifacts": {"main": f"sha256:{'ab' * 32}"},
    "components": [{"key": "worker", "min_count": 1, "max_count": 10}],
    "required_actions": ["runtime.claim", "runtime.report", "task.create"],
}


def played(how: str, *keys: str) -> dict[str, PromiseResult]:
    profile = read_profile(MANIFEST, {"patience_seconds": 2 * PATIENCE_SECONDS, "busy_drain_seconds": PATIENCE_SECONDS})
    command: Sequence[str] = (sys.executable, str(BROKEN_ADAPTER), how)
    return {each.promise: each for each in play(command, profile, chosen(promises(), keys), lambda result: None)}


def test_a_poor_adapter_keeps_the_promises_that_it_knows() -> None:
    results = played("nothing", "deploy", "add", "stale_lease", "upgrade")
    assert {key: each.verdict for key, each in results.items()} == {
        "deploy": KEPT,
        "add": KEPT,
        "stale_lease": KEPT,
        "upgrade": NOT_PLAYED,
    }
    assert results["upgrade"].reason == "the manifest does not support upgrade"
    assert conforms(list(results.values()))


@every_row(
    ("how", "key", "why"),
    [
        ("ignores_fences", "stale_lease", "it still names the claim after 3 reports of its loss"),
        ("drains_too_early", "drain", "was reported as drained without any observation on its node"),
        ("starts_twice", "deploy", "is already running"),
    ],
)
def test_the_suite_names_the_broken_promise_and_the_reason(how: str, key: str, why: str) -> None:
    result = played(how, key)[key]
    assert result.verdict == BROKEN
    assert why in result.reason
    assert not conforms([result])


def test_the_suite_notices_a_drain_that_does_not_wait_for_quiet() -> None:
    result = played("drains_too_early", "never_quiet")["never_quiet"]
    assert result.verdict == BROKEN
    assert "while it had work" in result.reason


def test_a_program_that_ends_at_once_breaks_its_promise_and_its_end_is_reported() -> None:
    profile = read_profile(MANIFEST, {"patience_seconds": PATIENCE_SECONDS})
    command = (sys.executable, "-c", "print('out of order')")
    (result,) = play(command, profile, chosen(promises(), ["deploy"]), lambda result: None)
    assert result.verdict == BROKEN
    assert result.reason == "the end of deploy did not happen (the adapter has ended)"
    assert result.last_lines == ("out of order",)


def test_the_report_names_the_simulated_platform_and_every_promise() -> None:
    results = [PromiseResult("deploy", "It deploys.", BROKEN, 1.0, "it did not", ("the last line",))]
    shown = table(results, ["an-adapter"])
    assert "simulated platform" in shown
    assert "FAIL  deploy" in shown
    assert "it did not" in shown
    assert "0 kept, 1 broken, 0 not played" in shown
    assert '"platform": "simulated"' in as_json(results, ["an-adapter"])


def test_an_unknown_promise_is_refused() -> None:
    with pytest.raises(ProfileRefused, match="no promise deplyo"):
        chosen(promises(), ["deplyo"])
    with pytest.raises(ProfileRefused, match="not sizes"):
        read_profile(MANIFEST, {"sizes": 1})
    with pytest.raises(ProfileRefused, match="over within `patience_seconds`"):
        read_profile(MANIFEST, {"patience_seconds": 2})
