"""Plans of members that go: drained, removed, replaced, or with the whole cluster.

A worker leaves Slurm before it leaves the platform: it takes no new jobs, its jobs end, its node is deleted, its daemon
stops. One whose machine is gone is deleted all the same, by the controller. Jobs are cut off only where the time that
was given for them is over, and are named then.
"""

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
from mooring_slurm.bring_up import behind_stale, broken, failed, is_controller, stale_nodes, worker_ready, worker_up
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
"""What the last look may take of the time in which a cluster has to end."""


def drain(view: InstanceView, operation: Operation) -> Plan:
    """Drained is what was seen to have DRAIN and no job."""
    cluster = cluster_of(view)
    steps: list[Step] = []
    waiting = False
    for member in view.concerned(operation):
        if is_controller(member):
            raise OperationRefused("config_refused", "the controller runs no jobs: there is nothing to drain")
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
    if waiting:
        return Plan(tuple(steps))  # without an end: it is planned anew when the look is over
    return Plan((*steps, Finish(evidence={"quiet": [each.name for each in view.concerned(operation)]})))


def unreached(cluster: ClusterMembers, member: Member) -> Blocked | None:
    """Why a drain cannot go on now: what cannot be asked cannot be seen to be quiet."""
    need_controller(cluster)
    for each in (cluster.controller, member):
        if not is_reached(each):
            detail = f"the machine of {each.name} cannot be reached, so that nobody sees whether {member.name} is quiet"
            return Blocked(step="unreached", code="node_unreachable", detail=detail)
    return None


class WorkerRemoval:
    """One worker on its way out of Slurm."""

    def __init__(self, cluster: ClusterMembers, operation: Operation, member: Member) -> None:
        self.cluster, self.operation, self.member = cluster, operation, member
        self.quietness = WorkerDrain(cluster, operation, member)
        controller = cluster.controller
        self.has_controller = controller.status in UP and is_reached(controller)
        self.is_lost = not is_reached(member) and failures.is_lost(member)
        self.never_worked = member.status not in UP

    @property
    def waits(self) -> bool:
        """Whether its jobs still have time, and it is not known to be quiet or gone."""
        if self.is_lost or self.never_worked or not self.has_controller or self.quietness.is_absent:
            return False
        return not (self.quietness.is_quiet or self.quietness.is_given_up or self.quietness.is_dead)

    def steps(self) -> list[Step]:
        """What is known to be due of it; without its end while it waits."""
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
        """Its node in Slurm: idle it goes by itself; otherwise it is called down first, which ends its jobs there."""
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
        """What a person can check."""
        return {
            "node": self.member.name,
            "quiet": self.quietness.is_quiet,
            "deleted_in_slurm": self.has_controller,
            "cut_off_jobs": [] if self.quietness.is_quiet else job_ids(self.quietness.jobs),
        }


def remove(view: InstanceView, operation: Operation) -> Plan:
    """Drained first, as long as there is time; then its node is deleted and its daemon ends."""
    cluster = cluster_of(view)
    leaving = [WorkerRemoval(cluster, operation, each) for each in view.concerned(operation) if not is_controller(each)]
    steps = [step for each in leaving for step in each.steps()]
    if any(each.waits for each in leaving):
        return Plan(tuple(steps))
    heads = [each for each in view.concerned(operation) if is_controller(each)]
    steps += [stop(each, f"stop/{each.id}", MUNGED, kill="owner") for each in heads if is_reached(each)]
    return Plan((*steps, Finish(evidence={"left": [each.evidence() for each in leaving]})))


def replace(view: InstanceView, operation: Operation) -> Plan:
    """With a surge the new one stands before the old one goes; without, it takes the old one's place."""
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
        return Plan(tuple(steps))
    evidence = {"arrived": [each.name for each in new], "left": [each.evidence() for each in leaving]}
    return Plan((*steps, Barrier(step="replaced"), Finish(evidence=evidence)))


def arrivals(cluster: ClusterMembers, operation: Operation, new: list[Member]) -> list[Step]:
    """The new ones side by side; the operation ends with the first that does not come up."""
    steps = stale_nodes(cluster, operation, new)
    for member in new:
        if (failure := broken(cluster.view, operation, member)) is not None:
            raise MemberFailed(member, failure)
        steps += worker_up(cluster, member, behind=behind_stale(steps, member))
        steps.append(worker_ready(cluster, member, operation, cluster.version))
    return steps


class MemberFailed(OperationRefused):
    """A member that has to come up does not: it is told, and the operation ends."""

    def __init__(self, member: Member, failure: Failure) -> None:
        super().__init__(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
        self.member = member

    def plan(self, *before: Step) -> Plan:
        told = [failed(self.member, self.failure)] if self.member.status in ("requested", "joining") else []
        return super().plan(*told, *before)


def last_usage(view: InstanceView, operation: Operation) -> list[Step]:
    """Nobody watches a cluster that is being stopped: the last look at its jobs is made here."""
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
    """What ran is metered; the workers end, then the controller; what is not reached is the platform's to see to."""
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
