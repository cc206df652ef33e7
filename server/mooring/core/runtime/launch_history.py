"""What earlier launches say about the next: how long it is expected to take, and whether it is worth trying.

The estimate uses the latest successful launches: of the same version if there are any, otherwise of the same app. It
has stages; each is the median of its measurements. Without measurements there is no estimate: the basis is `none`.

Launches of other tenants count only for the total duration. The stages of an adapter's steps, named by their first word
without the member, are shown only to the tenant that they belong to.

The circuit breaker: when launches of one version on one shape keep failing, no more are started for a while.

It counts per tenant: three failures in a row within half an hour open the circuit for that tenant. When it is open for
three tenants, the fault is not theirs, and it opens for all. Failures that the version did not cause (no capacity, a
lost node, a cancelled launch) are not counted. The circuit closes half an hour after the last failure, or at once when
a launch succeeds.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Any, Final

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.operation import OperationFailure

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


FAILURES_MAX: Final = 3
TENANTS_MAX: Final = 3
WINDOW: Final = timedelta(minutes=30)
BLAMELESS: Final = frozenset(
    {
        OperationFailure.NO_CAPACITY, OperationFailure.CANCELLED, OperationFailure.NODE_LOST,
        OperationFailure.CIRCUIT_OPEN, OperationFailure.CONFIG_REFUSED, OperationFailure.ADAPTER_UNAVAILABLE,
        OperationFailure.PERMISSION_DENIED, OperationFailure.ARTIFACT_REFUSED,
    }
)  # fmt: skip
"""Launch failures that say nothing about the version on this shape."""


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """How one launch of the version on the shape ended."""

    tenant_id: str
    operation_id: str
    finished_at: datetime
    failure_code: str | None = None  # None: it succeeded


@dataclass(frozen=True, slots=True)
class CircuitFacts:
    """The latest launches of one version on one shape, across all tenants."""

    tenant_id: str  # the tenant that wants to launch
    deploys: Sequence[LaunchOutcome] = ()


def why_open(facts: CircuitFacts, now: datetime) -> Refusal | None:
    """Why no launch may start now; None if the circuit is closed."""
    failing = {tenant: _in_a_row(facts.deploys, tenant, now) for tenant in {each.tenant_id for each in facts.deploys}}
    opened = {tenant: failures for tenant, failures in failing.items() if len(failures) >= FAILURES_MAX}
    own = opened.get(facts.tenant_id, [])
    if own:
        return _refusal("in a row in this tenant", own)
    if len(opened) >= TENANTS_MAX:
        last = sorted((row[0] for row in opened.values()), key=lambda each: each.finished_at, reverse=True)
        return _refusal(f"in a row for {len(opened)} tenants", last, own=False)
    return None


def _in_a_row(deploys: Sequence[LaunchOutcome], tenant_id: str, now: datetime) -> list[LaunchOutcome]:
    """A tenant's failures since its last success, within the window, newest first."""
    own = sorted((each for each in deploys if each.tenant_id == tenant_id), key=lambda each: each.finished_at)
    failures: list[LaunchOutcome] = []
    for each in reversed(own):
        if each.failure_code is None or now - each.finished_at >= WINDOW:
            break
        if each.failure_code not in BLAMELESS:
            failures.append(each)
    return failures


def _refusal(how: str, failures: Sequence[LaunchOutcome], *, own: bool = True) -> Refusal:
    """The refusal with the failures; those of other tenants are listed without their operation ids."""
    until = failures[0].finished_at + WINDOW
    listed = [
        {"failure_code": each.failure_code, "finished_at": each.finished_at.isoformat()}
        | ({"operation_id": each.operation_id} if own else {})
        for each in failures[:FAILURES_MAX]
    ]
    return Refusal(
        Code.CIRCUIT_OPEN,
        f"launches of this version on this shape failed {FAILURES_MAX} times {how}; the next may start at "
        f"{until.isoformat()}",
        {"until": until.isoformat(), "failures": listed},
    )
