"""The steps of a plan: calls as data.

A plan is made anew whenever something changed, from what is recorded; it names what the whole operation consists of,
and the kit does what is due of it. A step's name is stable and unique within its operation: under it the platform
keeps the task, or the note that the step is done, so that whoever comes next goes on from there.

The order is in the list. Steps of one member follow each other; steps of different members go side by side; a step
without a member waits for all that stand before it, and all that stand behind it wait for it. `after` replaces that
rule by the names of the steps that have to be done first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

Grant = Mapping[str, Any]


class OnFailure(StrEnum):
    """What a failed task means."""

    FAIL_OPERATION = "fail_operation"
    """The operation ends as failed, with the task's failure."""
    FAIL_MEMBER = "fail_member"
    """The member is reported as failed and the rest of its steps is left out; the others go on."""
    GO_ON = "go_on"
    """It counts as done: the plan looks at the task itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed: a code of the closed list, words, and the last lines of its log."""

    code: str
    detail: str
    last_lines: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As it is sent."""
        return {"code": self.code, "detail": self.detail[:4_000], "last_lines": list(self.last_lines[-50:])}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What every step has; `after` None is the order of the list."""

    step: str
    after: tuple[str, ...] | None = None

    @property
    def of_member(self) -> str | None:
        """The member that the step is about, if it is about one."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTask(Step):
    """Have a task done on the node of a member. Made once under its step, however often it is asked for.

    `attempts` lets an attempt that was cut off (a node that restarted) be made again, as `<step>/2` and so on.
    """

    member_id: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    grants: tuple[Grant, ...] = ()
    on_failure: OnFailure = OnFailure.FAIL_OPERATION
    attempts: int = 1
    lifetime_seconds: int | None = None

    @property
    def of_member(self) -> str | None:
        return self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSecret(Step):
    """Have a secret kept for the instance; under one name the first one stays.

    `purpose` is `app_access` (shown to whoever may connect), `member_secret`, or `cluster_key` (a key by which the
    members prove themselves to each other); nobody is shown the last two.
    """

    name: str
    purpose: str = "member_secret"
    generate_bytes: int | None = 32
    value: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMember(Step):
    """Tell what was observed of a member. What is None is not told."""

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
    """Tell where the app is reached; an endpoint of the same name is replaced. `task` is the step that opened it.

    One of protocol `terminal` is where commands run: it has a user instead of a port.
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
    """Tell what was observed of the whole."""

    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None
    endpoints: tuple[Mapping[str, Any], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Step):
    """Everything before is done: a name for that, so that people see it and other steps can wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Step):
    """Nothing before `until`, by the platform's clock."""

    until: datetime
    member_id: str | None = None

    @property
    def of_member(self) -> str | None:
        return self.member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked(Step):
    """Something with a name stands in the way; the operation goes on by itself when the plan no longer says so."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Step):
    """The end: the last step of every plan.

    A success that follows on failed members of a deploy, an add or another change of the whole becomes the first one's
    failure, unless the plan `tolerates_failures`.
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
            raise PlanRefused(f"steps have names of their own; twice: {', '.join(sorted(doubled))}")
        known = set(names)
        for each in self.steps:
            if missing := set(each.after or ()) - known:
                raise PlanRefused(f"{each.step} waits for {', '.join(sorted(missing))}, which is no step of this plan")


class PlanRefused(ValueError):
    """A plan that cannot be carried out: a mistake in the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberObservation:
    """What a look at a running instance found of a member."""

    member_id: str
    status: str | None = None
    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Something metered, over an interval that is over; the record id is unique in the instance for ever."""

    record_id: str
    unit: str
    started_at: datetime
    ended_at: datetime
    quantity: float
    attached_project_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportUsage(Step):
    """Tell what was metered, in an operation: what `watch` would tell later where there is no later.

    The records are told before the step counts as done, and each is stored once, however often it is told.
    """

    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a look at a running instance found; what is already recorded so is not told again.

    `looks` are tasks of no operation that only look (probes, inspections); a step's name is made once, so each look
    has one of its own, such as `watch/<member>/<minute>`.
    """

    members: tuple[MemberObservation, ...] = ()
    health: str | None = None
    health_detail: str | None = None
    detail: Mapping[str, Any] | None = None
    topology_mode: str | None = None
    usage: tuple[Usage, ...] = ()
    looks: tuple[RunTask, ...] = ()
