"""The kit for adapters: write a pure `plan`, and the kit does the rest.

    from mooring_adapter import Adapter, Finish, Plan, ReportMember, RunTask, main

    def plan(view, operation):
        return Plan((…, Finish()))

    main(Adapter(app_slug="hello", plan=plan))

docs/adapter-kit.md is the reference, docs/tutorials/write-an-adapter.md the tutorial.
"""

from mooring_adapter.adapter import Adapter, Planner, Watcher
from mooring_adapter.instance_view import (
    Allocation,
    Attachment,
    Instance,
    InstanceView,
    Member,
    Operation,
    Pin,
    StepRecord,
    Task,
)
from mooring_adapter.next_actions import NextActions, next_actions
from mooring_adapter.program import main
from mooring_adapter.steps import (
    Barrier,
    Blocked,
    Failure,
    Finish,
    MakeSecret,
    MemberObservation,
    Observation,
    OnFailure,
    Plan,
    PlanRefused,
    Reading,
    ReportEndpoint,
    ReportInstance,
    ReportMember,
    ReportUsage,
    RunTask,
    Step,
    Usage,
    Wait,
)

# Deprecated names: adapters written for earlier versions of the kit import them. New code uses the names on the right.
World = InstanceView
Gather = Barrier
Watched = Observation
MemberSeen = MemberObservation
Due = NextActions
due = next_actions

__all__ = [
    "Adapter",
    "Allocation",
    "Attachment",
    "Barrier",
    "Blocked",
    "Due",
    "Failure",
    "Finish",
    "Gather",
    "Instance",
    "InstanceView",
    "MakeSecret",
    "Member",
    "MemberObservation",
    "MemberSeen",
    "NextActions",
    "Observation",
    "OnFailure",
    "Operation",
    "Pin",
    "Plan",
    "PlanRefused",
    "Planner",
    "Reading",
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
    "next_actions",
]
