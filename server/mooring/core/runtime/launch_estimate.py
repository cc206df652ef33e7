"""How long a launch is expected to take, by stage, from measured launches.

The estimate uses the latest successful launches: of the same version if there are any, otherwise of the same app. Each
stage is the median of its measurements. Without measurements there is no estimate: the basis is `none`.

Launches of other tenants count only for the total duration. The stages of an adapter's steps, named by their first word
without the member, are shown only to the tenant that they belong to.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from statistics import median
from typing import Any, Final

SAMPLES_MAX: Final = 20
CAPACITY: Final = "capacity"
CLAIM: Final = "claim"
DEPLOY: Final = "deploy"
_WORD: Final = re.compile(r"[A-Za-z0-9_.-]+")


class Basis(StrEnum):
    """Which launches were measured."""

    VERSION = "version"
    APP = "app"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MeasuredLaunch:
    """One launch that succeeded."""

    version_id: str
    created_at: datetime
    dispatched_at: datetime | None
    started_at: datetime | None
    finished_at: datetime
    steps: Sequence[Mapping[str, Any]]
    own: bool = True  # of the tenant that asks


@dataclass(frozen=True, slots=True)
class LaunchStage:
    """One stage of a launch and its median duration."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchEstimate:
    """The expected time until ready, and what it is based on."""

    basis: Basis = Basis.NONE
    samples: int = 0
    seconds: float | None = None
    stages: tuple[LaunchStage, ...] = ()


def estimate(launches: Iterable[MeasuredLaunch], version_id: str | None) -> LaunchEstimate:
    """Estimate the next launch from measured ones."""
    latest = sorted(launches, key=lambda each: each.finished_at, reverse=True)
    same = [each for each in latest if each.version_id == version_id]
    basis, used = (Basis.VERSION, same) if same else (Basis.APP, latest)
    used = used[:SAMPLES_MAX]
    if not used:
        return LaunchEstimate()
    times: dict[str, list[float]] = {}
    for each in reversed(used):
        for name, seconds in _stages(each):
            times.setdefault(name, []).append(seconds)
    total = median(_between(each.created_at, each.finished_at) for each in used)
    stages = tuple(LaunchStage(name, round(median(seconds), 3)) for name, seconds in times.items())
    return LaunchEstimate(basis, len(used), round(total, 3), stages)


def _stages(launch: MeasuredLaunch) -> Iterable[tuple[str, float]]:
    """How long one launch waited for capacity, waited for its adapter, and took for each step."""
    if launch.dispatched_at is not None:
        yield CAPACITY, _between(launch.created_at, launch.dispatched_at)
        if launch.started_at is not None:
            yield CLAIM, _between(launch.dispatched_at, launch.started_at)
    if not launch.own:
        yield DEPLOY, _between(launch.started_at or launch.created_at, launch.finished_at)
        return
    spans: dict[str, tuple[datetime, datetime]] = {}
    for step in launch.steps:
        word = _WORD.match(str(step["name"]))
        if word is None or step.get("started_at") is None or step.get("ended_at") is None:
            continue
        began, ended = _time(step["started_at"]), _time(step["ended_at"])
        known = spans.get(word[0], (began, ended))  # members in parallel: from the first start to the last end
        spans[word[0]] = (min(began, known[0]), max(ended, known[1]))
    for name, (began, ended) in spans.items():
        yield name, _between(began, ended)


def _between(began: datetime, ended: datetime) -> float:
    return max(0.0, (ended - began).total_seconds())


def _time(value: Any) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(value)
