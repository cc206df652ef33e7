"""What helps after a failure: whether the same may simply be asked for again, and what else somebody has to do.

Failures of an adapter and of the platform have the same words, and so the same advice.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from mooring.core.runtime.operation import OperationFailure

F = OperationFailure

RETRYABLE: Final = frozenset(
    {F.NO_CAPACITY, F.NODE_LOST, F.IMAGE_PULL_FAILED, F.ADAPTER_UNAVAILABLE, F.CIRCUIT_OPEN, F.NOT_QUIET, F.CANCELLED}
)
"""Failures that the same request may not meet again, although nobody changed it."""

ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        F.BOOTSTRAP_TIMEOUT: "read the last lines; a version that needs longer needs a longer deadline",
        F.STEP_TIMEOUT: "read what the step waits for; then ask again",
        F.DEADLINE_EXCEEDED: "read how far it came; what is done stays done, so ask again",
        F.NO_CAPACITY: "ask again when there is room, or ask for less",
        F.IMAGE_PULL_FAILED: "ask again; if it fails again, see whether the image's source answers the node",
        F.ARTIFACT_REFUSED: "an admin looks at the artifact's trust and at the policy",
        F.PERMISSION_DENIED: "an admin looks at the actions of the operator account",
        F.CONFIG_REFUSED: "change the configuration",
        F.RUNTIME_ERROR: "read the last lines; the app itself came to an error",
        F.UNHEALTHY: "read the last lines; the app runs and does not answer as it should",
        F.ADAPTER_UNAVAILABLE: "start the adapter of this app with the operator account of this project, and ask again",
        F.ADAPTER_ERROR: "whoever runs the adapter reads its log; the correlation id leads to the lines",
        F.NODE_LOST: "ask again: another machine is taken",
        F.BELOW_MINIMUM: "launch it again: too few members were left",
        F.NOT_QUIET: "ask again with a longer time, or remove it without waiting",
        F.CIRCUIT_OPEN: "wait until the circuit closes, or take another version",
        F.CANCELLED: "ask again if it is wanted after all",
    }
)
"""What somebody does about a failure."""


def advice_of(code: str) -> dict[str, Any]:
    """Whether trying again may help, and what else does; an unknown code is its adapter's own."""
    return {"retryable": code in RETRYABLE, "next": ADVICE.get(code, ADVICE[F.ADAPTER_ERROR])}


if set(ADVICE) != set(OperationFailure):
    raise ValueError("every failure of an operation has its advice")
