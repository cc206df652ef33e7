"""Plans that take members out: drain, remove, replace, and the end of the whole cluster.

A worker leaves Slurm before it leaves the platform: it gets no new jobs, its jobs end, its node is deleted, its daemon
stops. If its machine is gone, the controller deletes the node. Jobs are killed only when their time is over, and the
evidence names them.
"""

from collections.abc import Sequence
from typing import Any, Final

from mooring_adapter import (
    Barrier,
    Blocked,
    Failure,
    Finish,
    InstanceView,
    Member,
    OnFailure,
    Operation,
    Plan,
    ReportMember,
    ReportUsage,
    Step,
    failures,
)
from mooring_slurm.bring_up import (
    behind_stale,
    failed,
    is_controller,
    stale_nodes,
    start_failure,
    worker_ready,
    worker_up,
)
from mooring_slurm.controller_replacement import replace_controller
from mooring_slurm.drains import WorkerDrain
from mooring_slurm.layout import MUNGED, SLURMCTLD, SLURMD
from mooring_slurm.members import (
    OWNER,
    UP,
    ClusterMembers,
    OperationRefused,
    ask,
    cluster_of,
    controller_of,
    is_reached,
    need_controller,
    refuse_crowd,
    stop,
    workers_of,
)
from mooring_slurm.responses import answer_of, ended, job_ids
from mooring_slurm.usage import usage_until

LAST_LOOK_SECONDS: Final = 15
"""How much of the time for a cluster's end the last look may take."""


def drain(view: InstanceView, operation: Operation) -> Plan:
    """A worker is drained when it was observed to have DRAIN and no jobs."""
    cluster = cluster_of(view)
    steps: list[Step] = []
    busy: list[Step] = []
    waiting = False
    for member in view.concerned(operation):
        if is_controller(member):
            raise OperationRefused("config_refused", "the controller runs no jobs and cannot be drained")
        if blocker := unreached(cluster, member):
            return Plan((blocker, Finish()))
        quietness = WorkerDrain(cluster, operation, member)
        if quietness.is_given_up:
            raise quietness.refusal()
        steps += quietness.steps()
        if quietness.is_drained:
            steps.append(ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained"))
        else:
            waiting = True
            busy += quietness.blocker()
    if waiting:
        return Plan((*steps, *busy[:1]))  # without an end: the kit plans again when the check is over
    return Plan((*steps, Finish(evidence={"quiet": [each.name for each in view.concerned(operation)]})))


def unreached(cluster: ClusterMembers, member: Member) -> Blocked | None:
    """Why a drain is blocked: an unreachable machine cannot be observed to be quiet."""
    need_controller(cluster)
    for each in (cluster.controller, member):
        if not is_reached(each):
            detail = f"the machine of {each.name} is unreachable, so {member.name} cannot be checked for jobs"
            return Blocked(step="unreached", code="node_unreachable", detail=detail)
    return None


class WorkerRemoval:
    """The removal of one worker from Slurm."""

    def __init__(self, cluster: ClusterMembers, operation: Operation, member: Member) -> None:
        self.cluster, self.operation, self.member = cluster, operation, member
        self.quietness = WorkerDrain(cluster, operation, member)
        controller = cluster.controller
        self.has_controller = controller.status in UP and is_reached(controller)
        self.is_lost = not is_reached(member) and failures.is_lost(member)
        self.never_worked = member.status not in UP

    @property
    def waits(self) -> bool:
        """Whether its jobs still have time, and it is neither quiet nor gone."""
        if self.is_lost or self.never_worked or not self.has_controller or self.quietness.is_absent:
            return False
        return not (self.quietness.is_quiet or self.quietness.is_given_up or self.quietness.is_dead)

    def steps(self) -> list[Step]:
        """The steps that are known; without the end while it waits."""
        member, found = self.member, list[Step]()
        if not self.is_lost and not self.never_worked and self.has_controller and not self.quietness.is_absent:
            found += self.quietness.steps()
            if self.waits:
                return found
            if self.quietness.is_drained and member.status in ("draining", "drained"):
                found.append(ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained"))
        if self.has_controller:
            found += self._deleted((found[-1].step,) if found else None)
        if is_reached(member):
            after = (found[-1].step,) if found else None
            found.append(stop(member, f"stop/{member.id}", SLURMD, kill="owner", grace_seconds=10, after=after))
        return found

    def _deleted(self, after: tuple[str, ...] | None) -> list[Step]:
        """Delete its node in Slurm; if it is busy, it is marked down first, which ends its jobs."""
        words = ("delete", "--node", self.member.name)
        key = f"delete/{self.member.id}"
        if not self.quietness.is_quiet:
            return [ask(self.cluster.controller, key, *words, "--gone", "--owner", OWNER, after=after)]
        first = ask(self.cluster.controller, key, *words, on_failure=OnFailure.GO_ON, after=after)
        task = ended(self.cluster.view, self.operation, key)
        if task is None or task.succeeded:
            return [first]
        return [first, ask(self.cluster.controller, f"{key}/down", *words, "--gone", "--owner", OWNER, after=(key,))]

    def evidence(self) -> dict[str, Any]:
        """What a person can verify."""
        return {
            "node": self.member.name,
            "quiet": self.quietness.is_quiet,
            "deleted_in_slurm": self.has_controller,
            "cut_off_jobs": [] if self.quietness.is_quiet else job_ids(self.quietness.jobs),
        }


def remove(view: InstanceView, operation: Operation) -> Plan:
    """Drain the workers while there is time, then delete their nodes and stop their daemons."""
    cluster = cluster_of(view)
    leaving = [WorkerRemoval(cluster, operation, each) for each in view.concerned(operation) if not is_controller(each)]
    steps = [step for each in leaving for step in each.steps()]
    if any(each.waits for each in leaving):
        return Plan((*steps, *blockers(leaving)))
    heads = [each for each in view.concerned(operation) if is_controller(each)]
    steps += [stop(each, f"stop/{each.id}", MUNGED, kill="owner") for each in heads if is_reached(each)]
    return Plan((*steps, Finish(evidence={"left": [each.evidence() for each in leaving]})))


def blockers(leaving: Sequence[WorkerRemoval]) -> list[Step]:
    """What the removal waits for first."""
    return [step for each in leaving if each.waits for step in each.quietness.blocker()][:1]


def replace(view: InstanceView, operation: Operation) -> Plan:
    """With a surge the new member is ready before the old one stops; without, the old one stops first."""
    concerned = view.concerned(operation)
    replaced = {each.replaces_id for each in concerned}
    new = [each for each in concerned if each.id not in replaced]
    old = [each for each in concerned if each.id in replaced]
    if any(is_controller(each) for each in concerned):
        return replace_controller(view, operation, old, new)
    cluster = cluster_of(view)
    need_controller(cluster)
    refuse_crowd(cluster.workers)
    arriving = arrivals(cluster, operation, new)
    leaving = [WorkerRemoval(cluster, operation, each) for each in old]
    going = [step for each in leaving for step in each.steps()]
    waits = any(each.waits for each in leaving)
    if operation.request.get("surge", True):
        steps = [*arriving, Barrier(step="arrived"), *going]
    else:
        steps = going if waits else [*going, Barrier(step="left"), *arriving]
    if waits:
        return Plan((*steps, *blockers(leaving)))
    evidence = {"arrived": [each.name for each in new], "left": [each.evidence() for each in leaving]}
    return Plan((*steps, Barrier(step="replaced"), Finish(evidence=evidence)))


def arrivals(cluster: ClusterMembers, operation: Operation, new: list[Member]) -> list[Step]:
    """Start the new workers in parallel; the first one that fails to start fails the operation."""
    steps = stale_nodes(cluster, operation, new)
    for member in new:
        if (failure := start_failure(cluster.view, operation, member)) is not None:
            raise MemberFailed(member, failure)
        steps += worker_up(cluster, member, behind=behind_stale(steps, member))
        steps.append(worker_ready(cluster, member, operation, cluster.version))
    return steps


class MemberFailed(OperationRefused):
    """A required member failed to start: it is reported as failed, and the operation fails."""

    def __init__(self, member: Member, failure: Failure) -> None:
        super().__init__(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
        self.member = member

    def plan(self, *before: Step) -> Plan:
        reports = [failed(self.member, self.failure)] if self.member.status in ("requested", "joining") else []
        return super().plan(*reports, *before)


def last_usage(view: InstanceView, operation: Operation) -> list[Step]:
    """Report the last usage: a cluster that is being stopped is no longer watched."""
    controller = controller_of(view)
    if controller is None or controller.status not in UP or not is_reached(controller):
        return []
    mark = view.instance.adapter_detail.get("ended_until")
    words = ("look",) if mark is None else ("look", "--ended-after", str(mark))
    step = f"last/{controller.id}"
    looked = ask(controller, step, *words, answer_seconds=LAST_LOOK_SECONDS, attempts=1, on_failure=OnFailure.GO_ON)
    task = ended(view, operation, step)
    if task is None or not task.succeeded or task.finished_at is None:
        return [looked]
    used = usage_until(view, answer_of(task) or {}, task.finished_at)
    return [looked, ReportUsage(step="usage", usage=used)]


def decommission(view: InstanceView, operation: Operation) -> Plan:
    """Report the last usage, stop the workers, then the controller; the platform handles unreachable machines."""
    workers = [each for each in workers_of(view) if each.status != "requested" and is_reached(each)]
    steps = last_usage(view, operation)
    if steps and ended(view, operation, steps[0].step) is None:
        return Plan(tuple(steps))
    steps += [stop(each, f"stop/{each.id}", SLURMD, kill="owner", grace_seconds=10) for each in workers]
    controller = controller_of(view)
    if controller is not None and controller.status != "requested" and is_reached(controller):
        steps += [
            Barrier(step="workers"),
            stop(controller, f"stop/{controller.id}", SLURMCTLD),
            stop(controller, f"quit/{controller.id}", MUNGED, kill="owner"),
        ]
    return Plan((*steps, Finish(evidence={"ended": len(workers) + (controller is not None)})))
