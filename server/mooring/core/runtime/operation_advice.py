"""What helps after a failure: whether the same request may be repeated, and what else somebody has to do.

Adapters and the platform use the same failure codes, so both get the same advice.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mooring.core.runtime.operation import OperationFailure

F = OperationFailure

RETRYABLE: Final = frozenset(
    {F.NO_CAPACITY, F.NODE_LOST, F.IMAGE_PULL_FAILED, F.ADAPTER_UNAVAILABLE, F.CIRCUIT_OPEN, F.NOT_QUIET, F.CANCELLED}
)
"""Failures after which the same request may succeed unchanged."""

ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        F.BOOTSTRAP_TIMEOUT: "read the last lines; a version that takes longer needs a longer deadline",
        F.STEP_TIMEOUT: "read what the step waits for, then try again",
        F.DEADLINE_EXCEEDED: "read how far it got, then try again: finished steps stay done",
        F.NO_CAPACITY: "try again when there is room, or request less",
        F.IMAGE_PULL_FAILED: "try again; if it fails again, check that the node can reach the image's source",
        F.ARTIFACT_REFUSED: "ask an admin to check the artifact's trust and the policy",
        F.PERMISSION_DENIED: "ask an admin to check the actions of the operator account",
        F.CONFIG_REFUSED: "change the configuration",
        F.RUNTIME_ERROR: "read the last lines; the app itself failed",
        F.UNHEALTHY: "read the last lines; the app runs but does not answer as it should",
        F.ADAPTER_UNAVAILABLE: "start the adapter of this app with the operator account of this project, and try again",
        F.ADAPTER_ERROR: "ask the team that runs the adapter to read its log; search for the correlation id",
        F.NODE_LOST: "try again: another machine will be used",
        F.BELOW_MINIMUM: "launch it again: too few members are left",
        F.NOT_QUIET: "try again with a longer timeout, or remove it without waiting",
        F.CIRCUIT_OPEN: "wait until the circuit closes, or launch another version",
        F.CANCELLED: "request it again if it is still needed",
    }
)
"""What to do about each failure."""


def advice_of(code: str) -> dict[str, Any]:
    """Whether a retry may help, and what to do; an unknown code is the adapter's own."""
    return {"retryable": code in RETRYABLE, "next": ADVICE.get(code, ADVICE[F.ADAPTER_ERROR])}


if set(ADVICE) != set(OperationFailure):
    raise ValueError("every operation failure must have advice")
