"""Converts operations and tasks of the SDK into the types of the conformance suite."""

from mooring_adapter.conformance.platform_protocol import (
    OperationStatus,
    TaskStatus,
)
from mooring_sdk import models


def operation_view(each: models.Operation) -> OperationStatus:
    failure = None
    if each.failure_code is not None:
        failure = {"code": each.failure_code, "detail": each.failure_detail, "last_lines": each.last_lines}
    blocker = None if each.blocker_code is None else {"code": each.blocker_code, "detail": each.blocker}
    steps = tuple(step.name for step in each.steps)
    return OperationStatus(
        each.id, each.kind, each.status, each.phase, each.correlation_id, failure, each.output, blocker, steps
    )


def task_view(each: models.Task) -> TaskStatus:
    return TaskStatus(
        each.id, each.operation_id, each.step, each.type, each.member_id or "", each.status, each.correlation_id
    )
