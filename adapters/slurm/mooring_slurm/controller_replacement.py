"""Replacing the controller, the one member with state that no other has: the queue.

The queue is in the controller's own sandbox, so a new controller starts with an empty one. If the old controller still
answers, it is replaced only if no job is pending or running. If its machine is gone, the queue is already lost, and the
evidence says so.
"""

from collections.abc import Sequence
from typing import Final

from mooring_adapter import Barrier, Finish, InstanceView, Member, OnFailure, Operation, Plan, Step
from mooring_slurm.bring_up import await_node, controller_ready, controller_up, login, prove
from mooring_slurm.layout import MUNGED, SLURMCTLD, SLURMD
from mooring_slurm.members import UP, OperationRefused, ask, cluster_of, files, is_reached, slurmd, stop
from mooring_slurm.responses import answered, ended

OPEN_STATES: Final = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")


def replace_controller(view: InstanceView, operation: Operation, old: Sequence[Member], new: Sequence[Member]) -> Plan:
    """Stop the old controller, start the new one, and point every worker to it."""
    leaving, controller = old[0], new[0]
    cluster = cluster_of(view, controller)
    steps: list[Step] = []
    asked = leaving.status in UP and is_reached(leaving)
    if asked:
        steps.append(ask(leaving, f"queue/{leaving.id}", "look", on_failure=OnFailure.GO_ON))
        _refuse_queue(view, operation, leaving)
        steps += [
            stop(leaving, f"stop/{leaving.id}", SLURMCTLD, after=(f"queue/{leaving.id}",)),
            stop(leaving, f"quit/{leaving.id}", MUNGED, kill="owner", grace_seconds=10),
        ]
    steps += [Barrier(step="left"), *controller_up(cluster, controller), Barrier(step="controller")]
    turned = [each for each in cluster.workers if each.status in UP and is_reached(each)]
    for member in turned:
        key = member.id
        steps += [
            files(cluster, member, f"files/{key}"),
            stop(member, f"stop/{key}", SLURMD, kill="main", grace_seconds=10),
            slurmd(cluster, member, f"start/{key}"),
            await_node(member, f"node/{key}"),
        ]
        if member.status in ("ready", "degraded"):
            steps.append(prove(cluster, member, f"prove/{key}"))
    steps += [Barrier(step="workers"), controller_ready(cluster, controller, operation, cluster.version)]
    steps.append(login(cluster, controller))
    evidence = {
        "controller": controller.name,
        "turned": [each.name for each in turned],
        "queue": _queue_evidence(asked),
    }
    return Plan((*steps, Barrier(step="replaced"), Finish(evidence=evidence)))


def _queue_evidence(asked: bool) -> str:
    return "it was empty" if asked else "it was lost with the machine of the old controller"


def _refuse_queue(view: InstanceView, operation: Operation, leaving: Member) -> None:
    """Refuse to discard a queue that is not empty."""
    step = f"queue/{leaving.id}"
    task = ended(view, operation, step)
    if task is None or operation.is_done(f"stop/{leaving.id}"):
        return
    if task.failed:
        return  # it does not answer, so the queue cannot be read
    counts = answered(view, operation, step).get("job_counts", {})
    open_jobs = sum(int(counts.get(state, 0)) for state in OPEN_STATES)
    if open_jobs:
        raise OperationRefused(
            "not_quiet",
            f"{open_jobs} jobs are pending or running and would be lost; wait for them, cancel them, "
            "or repair the instance instead",
        )
