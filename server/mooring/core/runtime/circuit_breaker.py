"""The circuit: when launches of one version on one shape keep failing, no more are begun for a while.

It is counted for each tenant: three failures in a row, within half an hour, open the circuit of that tenant. When
three tenants have theirs open, the fault is not the tenants', and it is open for all. What was not the version's fault
(no capacity, a lost node, somebody cancelled) is not among the facts. It closes by itself half an hour after the last
failure, and a launch that succeeds closes it at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mooring.core.kernel.errors import Code, Refusal
from mooring.core.runtime.operation import OperationFailure

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
"""Failures of a launch that say nothing about the version on this shape."""


@dataclass(frozen=True, slots=True)
class LaunchOutcome:
    """How one launch of the version on the shape ended."""

    tenant_id: str
    operation_id: str
    finished_at: datetime
    failure_code: str | None = None  # none: it succeeded


@dataclass(frozen=True, slots=True)
class CircuitFacts:
    """The newest launches of one version on one shape, of every tenant."""

    tenant_id: str  # who asks
    deploys: Sequence[LaunchOutcome] = ()


def why_open(facts: CircuitFacts, now: datetime) -> Refusal | None:
    """Why no launch is begun now; None where the circuit is closed."""
    failing = {tenant: _in_a_row(facts.deploys, tenant, now) for tenant in {each.tenant_id for each in facts.deploys}}
    opened = {tenant: failures for tenant, failures in failing.items() if len(failures) >= FAILURES_MAX}
    own = opened.get(facts.tenant_id, [])
    if own:
        return _refusal("in a row here", own)
    if len(opened) >= TENANTS_MAX:
        last = sorted((row[0] for row in opened.values()), key=lambda each: each.finished_at, reverse=True)
        return _refusal(f"in a row for {len(opened)} tenants", last, whose=False)
    return None


def _in_a_row(deploys: Sequence[LaunchOutcome], tenant_id: str, now: datetime) -> list[LaunchOutcome]:
    """A tenant's failures since its last success, within the window, the newest first."""
    own = sorted((each for each in deploys if each.tenant_id == tenant_id), key=lambda each: each.finished_at)
    failures: list[LaunchOutcome] = []
    for each in reversed(own):
        if each.failure_code is None or now - each.finished_at >= WINDOW:
            break
        if each.failure_code not in BLAMELESS:
            failures.append(each)
    return failures


def _refusal(how: str, failures: Sequence[LaunchOutcome], *, whose: bool = True) -> Refusal:
    """What the others' failures were is told, and not whose they were."""
    until = failures[0].finished_at + WINDOW
    told = [
        {"failure_code": each.failure_code, "finished_at": each.finished_at.isoformat()}
        | ({"operation_id": each.operation_id} if whose else {})
        for each in failures[:FAILURES_MAX]
    ]
    return Refusal(
        Code.CIRCUIT_OPEN,
        f"launches of this version on this shape failed {FAILURES_MAX} times {how}; the next may begin at "
        f"{until.isoformat()}",
        {"until": until.isoformat(), "failures": told},
    )
