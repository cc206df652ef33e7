"""The steps of a plan: calls as data.

The kit asks for a plan whenever something has changed. The plan lists all steps of the operation, and the kit does
those that are due. A step's name is stable and unique within its operation: the platform stores the step's task, or
that the step is done, under this name, so that any replica can continue from there.

The order is that of the list. Steps of one member run one after the other, steps of different members in parallel. A
step without a member waits for all steps before it, and all steps behind it wait for it. `after` replaces this rule by
the names of the steps that have to be done first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Grant = Mapping[str, Any]


class OnFailure(StrEnum):
    """What the failure of a task leads to."""

    FAIL_OPERATION = "fail_operation"
    """The operation fails with the task's failure."""
    FAIL_MEMBER = "fail_member"
    """The member is reported as failed and its other steps are skipped; other members continue."""
    GO_ON = "go_on"
    """The step counts as done: the plan examines the task itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code of the closed list, a sentence, and the last lines of its log."""

    code: str
    detail: str
    last_lines: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """The JSON body."""
        return {"code": self.code, "detail": self.detail[:4_000], "last_lines": list(self.last_lines[-50:])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What every step has; without `after` the order is that of the list."""

    step: str
    after: tuple[str, ...] | None = None

    @property
    def of_member(self) -> str | None:
        """The member that the step concerns, if it concerns one."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask(Step):
    """Run a task on the node of a member. It is created once per step, however often it is requested.

    With `attempts` an interrupted task (the node restarted) is created again, as `<step>/2` and so on. A look of
    `watch` leaves no event and no audit row; set `audited` if it changes something.
    """

    member_id: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    on_failure: OnFailure = OnFailure.FAIL_OPERATION
    attempts: int = 1
    lifetime_seconds: int | None = None
    audited: bool = False

    @property
    def of_member(self) -> str | None:
        return self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSecret(Step):
    """Store a secret for the instance; the first one of a name stays.

    `purpose` is `app_access` (shown to everyone who may connect), `member_secret`, or `cluster_key` (a key by which the
    members authenticate to each other). The last two are shown to nobody.
    """

    name: str
    purpose: str = "member_secret"
    generate_bytes: int | None = 32
    value: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMember(Step):
    """Report what was observed about a member. Fields that are None are not sent."""

    member_id: str
    status: str | None = None
    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    version: str | None = None
    holds: tuple[Mapping[str, Any], ...] | None = None
    failure: Failure | None = None

    @property
    def of_member(self) -> str | None:
        return self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEndpoint(Step):
    """Report where the app is reached; an endpoint of the same name is replaced. `task` is the step that opened it.

    An endpoint of the protocol `terminal` runs commands: it has a user instead of a port.
    """

    name: str
    member_id: str
    protocol: str = "http"
    port: int | None = None
    path: str | None = None
    title: str | None = None
    task: str | None = None
    user: str | None = None
    directory: str | None = None
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportInstance(Step):
    """Report what was observed about the whole instance."""

    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None
    endpoints: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Step):
    """All steps before it are done: a name for people to see and for other steps to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Step):
    """Wait until a time of the platform's clock."""

    until: datetime
    member_id: str | None = None

    @property
    def of_member(self) -> str | None:
        return self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked(Step):
    """A named obstacle; the operation continues by itself when the plan no longer has it."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Step):
    """The end: the last step of every plan.

    If a member failed during a deploy, an add or another change of the whole, a success becomes that member's failure,
    unless the plan `tolerates_failures`.
    """

    step: str = "finish"
    outcome: str = "succeeded"
    tolerates_failures: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All steps of one operation, in order."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        names = [each.step for each in self.steps]
        if doubled := {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else None:
            raise PlanRefused(f"step names must be unique; used twice: {', '.join(sorted(doubled))}")
        known = set(names)
        for each in self.steps:
            if missing := set(each.after or ()) - known:
                raise PlanRefused(
                    f"{each.step} waits for {', '.join(sorted(missing))}, which is not a step of this plan"
                )


class PlanRefused(ValueError):
    """A plan that cannot be executed: a mistake in the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberObservation:
    """What was observed about a member of a running instance."""

    member_id: str
    status: str | None = None
    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """A metered quantity over a past interval; the record id is unique in the instance forever."""

    record_id: str
    unit: str
    started_at: datetime
    ended_at: datetime
    quantity: float
    attached_project_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a counter showed: inside an epoch the value never falls, and `seq` grows with each reading.

    What was used is the difference to the reading before, so a reading may be sent again, or be lost.
    """

    series: str
    epoch: int
    seq: int
    value: float
    at: datetime
    unit: str
    member_id: str | None = None
    component: str | None = None
    attached_project_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportUsage(Step):
    """Report usage within an operation, for what `watch` would report too late, such as at the end of an instance.

    The records are sent before the step counts as done, and each is stored once, however often it is sent.
    """

    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was observed about a running instance; the kit reports only what is not recorded yet.

    `looks` are tasks outside any operation that only observe (probes, inspections). A step name creates one task, so
    each look needs a name of its own, such as `watch/<member>/<minute>`.
    """

    members: tuple[MemberObservation, ...] = ()
    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None
    usage: tuple[Usage, ...] = ()
    looks: tuple[RunTask, ...] = ()
    readings: tuple[Reading, ...] = ()
