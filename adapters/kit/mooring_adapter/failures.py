"""What a failure means: one table for the failures of tasks, one for the refusals of the platform.

Adapters report failures with the codes of operations (`image_pull_failed`, `unhealthy` …), whatever a task or a
response called them, so that people and the platform's rules read one vocabulary.
"""

from collections.abc import Mapping
from typing import Final

from mooring_adapter.instance_view import Member, Task
from mooring_adapter.steps import Failure
from mooring_sdk import MooringError

OF_TASK: Final[Mapping[str, str]] = {
    "refused": "runtime_error",
    "interrupted": "runtime_error",
    "timed_out": "step_timeout",
    "cancelled": "cancelled",
    "exited": "runtime_error",
    "not_found": "runtime_error",
    "digest_mismatch": "artifact_refused",
    "signature_invalid": "artifact_refused",
    "signature_key_unknown": "artifact_refused",
    "signature_missing": "artifact_refused",
    "signature_replayed": "artifact_refused",
    "image_pull_failed": "image_pull_failed",
    "no_progress": "image_pull_failed",
    "too_large": "config_refused",
    "path_refused": "config_refused",
    "permission_denied": "permission_denied",
    "probe_failed": "unhealthy",
    "capacity": "no_capacity",
    "host_error": "runtime_error",
}
"""The failure code of an operation for each failure code of a task."""

OF_REFUSAL: Final[Mapping[str, str]] = {
    "permission_denied": "permission_denied",
    "artifact_not_pinned": "artifact_refused",
    "artifact_not_registered": "artifact_refused",
    "artifact_revoked": "artifact_refused",
    "artifact_unverified": "artifact_refused",
    "digest_mismatch": "artifact_refused",
    "signature_invalid": "artifact_refused",
    "signature_key_unknown": "artifact_refused",
    "signature_missing": "artifact_refused",
    "signature_replayed": "artifact_refused",
    "policy_denied": "artifact_refused",
    "source_denied": "artifact_refused",
    "promotion_refused": "artifact_refused",
    "not_entitled": "permission_denied",
    "no_capacity": "no_capacity",
    "circuit_open": "circuit_open",
}
"""Non-retryable refusals of the platform; every other refusal is the adapter's mistake."""

AGAIN: Final = frozenset({"interrupted", "host_error"})
"""Failures of a task that say nothing about the app: another attempt may succeed."""

STALE: Final = frozenset({"conflict", "illegal_transition", "revision_conflict", "operation_in_progress"})
"""Refusals caused by an outdated view: the kit reads the instance again and plans again."""


def may_try_again(task: Task) -> bool:
    """Whether a failed task is worth another attempt."""
    return task.failed and (task.failure_code in AGAIN or task.status == "expired")


def of_task(task: Task, member: Member | None) -> Failure:
    """Why a task failed, with the code of an operation."""
    lines = tuple(task.last_lines or ())
    detail = task.failure_detail or task.failure_code or task.status
    if is_lost(member) or (task.status == "expired" and not _is_reachable(member)):
        return Failure("node_lost", f"{task.step}: the node of {_name(member)} is lost or unreachable", lines)
    code = "step_timeout" if task.status == "expired" else OF_TASK.get(task.failure_code or "", "runtime_error")
    exited = f" (exit code {task.exit_code})" if task.exit_code is not None else ""
    return Failure(code, f"{task.step}: {detail}{exited}", lines)


def of_member(member: Member) -> Failure:
    """Why a member failed, as it is recorded."""
    detail = member.failure_detail or "the member failed"
    return Failure(member.failure_code or "runtime_error", f"{_name(member)}: {detail}", tuple(member.last_lines or ()))


def of_refusal(error: MooringError) -> Failure:
    """What a refusal of the platform means for an operation."""
    return Failure(OF_REFUSAL.get(error.code, "adapter_error"), f"the platform refused: {error.code}: {error.detail}")


def is_lost(member: Member | None) -> bool:
    """Whether the platform has given up a member's node."""
    return member is not None and member.status == "failed" and member.failure_code == "node_lost"


def _is_reachable(member: Member | None) -> bool:
    return member is None or member.allocation is None or member.allocation.node_reachable


def _name(member: Member | None) -> str:
    return "a member" if member is None else member.name or member.id
