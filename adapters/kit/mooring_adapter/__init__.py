"""The kit for adapters: write a pure `plan`, and this does the rest.

    from mooring_adapter import Adapter, Finish, Plan, ReportMember, RunTask, main

    def plan(world, operation):
        return Plan((…, Finish()))

    main(Adapter(app_slug="hello", plan=plan))

docs/adapter-kit.md is the page to read, docs/tutorials/write-an-adapter.md the one to follow.
"""

from mooring_adapter.adapter import Adapter, Planner, Watcher
from mooring_adapter.due import Due, due
from mooring_adapter.program import main
from mooring_adapter.steps import (
    Blocked,
    Failure,
    Finish,
    Gather,
    MakeSecret,
    MemberSeen,
    OnFailure,
    Plan,
    PlanRefused,
    ReportEndpoint,
    ReportInstance,
    ReportMember,
    ReportUsage,
    RunTask,
    Step,
    Usage,
    Wait,
    Watched,
)
from mooring_adapter.world import (
    Allocation,
    Attachment,
    Instance,
    Member,
    Operation,
    Pin,
    StepRecord,
    Task,
    World,
)

__all__ = [
    "Adapter",
    "Allocation",
    "Attachment",
    "Blocked",
    "Due",
    "Failure",
    "Finish",
    "Gather",
    "Instance",
    "MakeSecret",
    "Member",
    "MemberSeen",
    "OnFailure",
    "Operation",
    "Pin",
    "Plan",
    "PlanRefused",
    "Planner",
    "ReportEndpoint",
    "ReportInstance",
    "ReportMember",
    "ReportUsage",
    "RunTask",
    "Step",
    "StepRecord",
    "Task",
    "Usage",
    "Wait",
    "Watched",
    "Watcher",
    "World",
    "due",
    "main",
]
