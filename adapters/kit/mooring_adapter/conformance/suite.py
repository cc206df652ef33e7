"""The suite: checks every promise of an adapter, one after the other, on one simulated platform."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from mooring_adapter.conformance.fake_program import find_program
from mooring_adapter.conformance.fault_scenarios import FAULT_PROMISES, crashes
from mooring_adapter.conformance.platform_protocol import (
    ConditionNotReached,
    PlatformUnderTest,
    PromiseBroken,
    SuiteProfile,
)
from mooring_adapter.conformance.platform_rules import components
from mooring_adapter.conformance.report import BROKEN, KEPT, NOT_PLAYED, PromiseResult
from mooring_adapter.conformance.scenarios import PLAIN_PROMISES, Promise
from mooring_adapter.conformance.simulated_platform import SimulatedPlatform

CRASH: Final = "crash"
DETAILS: Final = (
    "topology",
    "config",
    "config_change",
    "actions",
    "grows",
    "patience_seconds",
    "busy_drain_seconds",
    "next_manifest",
    "stand_in",
)

SECONDS: Final = {"patience_seconds": 20.0, "busy_drain_seconds": 2.0}


class ProfileRefused(ValueError):
    """The manifest or the profile cannot be used."""


def promises(*, every_crash: bool = False) -> list[Promise]:
    """All promises, in the order in which they are checked."""
    crash = Promise(
        CRASH,
        "If it is killed at any request of a deployment, another process continues from the records.",
        crashes(every_crash),
        ("process",),
    )
    return [*PLAIN_PROMISES, *FAULT_PROMISES, crash]


def chosen(known: Iterable[Promise], only: Sequence[str]) -> list[Promise]:
    """The promises with these keys, all if none are given; an unknown key is refused."""
    listed = list(known)
    if unknown := set(only) - {each.key for each in listed}:
        raise ProfileRefused(f"there is no promise {', '.join(sorted(unknown))}")
    return [each for each in listed if not only or each.key in only]


def read_profile(manifest: dict[str, Any], given: dict[str, Any] | None = None) -> SuiteProfile:
    """The values to test with: those of the profile, otherwise derived from the manifest."""
    details = given or {}
    if unknown := set(details) - set(DETAILS):
        raise ProfileRefused(f"a profile can have {', '.join(DETAILS)}; not {', '.join(sorted(unknown))}")
    for name in ("app", "version", "artifacts", "required_actions"):
        if name not in manifest:
            raise ProfileRefused(f"the manifest has no `{name}`")
    fake_program = details.get("stand_in", [])
    if not isinstance(fake_program, list) or not all(isinstance(each, str) and each for each in fake_program):
        raise ProfileRefused("`stand_in` must be a program and its arguments, as a list of strings")
    if fake_program and find_program(fake_program[0]) is None:
        raise ProfileRefused(f"`stand_in`: there is no program {fake_program[0]!r}")
    patience, busy_drain = (float(details.get(name, usual)) for name, usual in SECONDS.items())
    if not 0 < busy_drain < patience:
        raise ProfileRefused(
            f"a drain of `busy_drain_seconds` ({busy_drain:g}) must be over within `patience_seconds` ({patience:g})"
        )
    parts = components(manifest)
    topology = {each["key"]: max(each.get("min_count", 0), 1) for each in parts}
    room = [each["key"] for each in parts if each["max_count"] >= topology[each["key"]] + 3]
    return SuiteProfile(
        manifest=manifest,
        next_manifest=details.get("next_manifest") or {**manifest, "version": next_version(manifest["version"])},
        topology=details.get("topology", topology),
        config=details.get("config", {}),
        config_change=details.get("config_change", {}),
        actions=details.get("actions", {}),
        grows=details.get("grows", room[-1] if room else ""),
        patience_seconds=patience,
        busy_drain_seconds=busy_drain,
        fake_program=tuple(fake_program),
    )


def next_version(version: str) -> str:
    major, minor, *_ = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileRefused(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ProfileRefused(f"{path} is not a JSON object")
    return value


def play(
    command: Sequence[str], profile: SuiteProfile, wanted: Sequence[Promise], on_result: Callable[[PromiseResult], None]
) -> list[PromiseResult]:
    """Check the promises; `on_result` is called with each result as soon as it is known."""
    platform = SimulatedPlatform(command, profile)
    results = []
    try:
        for each in wanted:
            result = check_promise(platform, each)
            on_result(result)
            results.append(result)
            platform.clear()
    finally:
        platform.close()
    return results


def check_promise(platform: PlatformUnderTest, each: Promise) -> PromiseResult:
    begun = time.monotonic()
    why_not = each.applies(platform) or next(
        (f"this platform cannot play {need}" for need in each.needs if not platform.can(need)), None
    )
    if why_not is not None:
        return PromiseResult(each.key, each.sentence, NOT_PLAYED, 0.0, why_not)
    try:
        platform.adapter.forget_lines()
        platform.start_adapter()
        each.scenario(platform)
        return PromiseResult(each.key, each.sentence, KEPT, time.monotonic() - begun)
    except (PromiseBroken, ConditionNotReached) as error:
        seen = platform.broken()
        reason = f"{error} (seen: {'; '.join(dict.fromkeys(seen))})" if seen else str(error)
        if not platform.adapter.is_alive:
            reason += " (the adapter has ended)"
        lines = tuple(platform.adapter.last_lines())
        request = _telling_request(platform)
        # What one scenario left behind in the process must not spoil the next.
        platform.faults.clear()
        platform.kill_adapter()
        seconds = time.monotonic() - begun
        return PromiseResult(each.key, each.sentence, BROKEN, seconds, reason, lines, request, each.advice)


def _telling_request(platform: PlatformUnderTest) -> str:
    """The adapter's last request that was refused, or its last one about an instance."""
    answered = [each for each in platform.traffic() if each.instance_id is not None and each.status]
    refused = [each for each in answered if each.status >= 400]
    last = next(iter((refused or answered)[-1:]), None)
    if last is None:
        return "none about an instance"
    step = f" (step {last.body['step']})" if isinstance(last.body.get("step"), str) else ""
    return f"{last.method} {last.path}{step} → {last.status}{f' {last.code}' if last.code else ''}"
