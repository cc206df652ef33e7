"""The circuit breaker: when launches of one version on one shape keep failing, no more are started for a while.

It counts per tenant: three failures in a row within half an hour open the circuit for that tenant. When it is open for
three tenants, the fault is not theirs, and it opens for all. Failures that the version did not cause (no capacity, a
lost node, a cancelled launch) are not counted. The circuit closes half an hour after the last failure, or at once when
a launch succeeds.
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
