"""The controller, replaced: the one member that holds something which no other has, the queue.

Its state lies in its own sandbox, so that another controller begins with an empty queue. Where the old one can still be
asked, it is replaced only when no job waits or runs; where its machine is gone, its queue is gone already, and that is
said.
"""

from collections.abc import Sequence
from typing import Final

from mooring_adapter import Finish, Gather, Member, OnFailure, Operation, Plan, Step, World
from mooring_slurm.answers import answered, ended
from mooring_slurm.coming import await_node, controller_ready, controller_up, login, prove
from mooring_slurm.layout import MUNGED, SLURMCTLD, SLURMD
from mooring_slurm.members import UP, Refused, ask, crew_of, files, is_reached, slurmd, stop

OPEN_STATES: Final = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING")


def replace_controller(world: World, operation: Operation, old: Sequence[Member], new: Sequence[Member]) -> Plan:
    """The old one ends, the new one comes up, and every worker turns to it."""
    leaving, head = old[0], new[0]
    crew = crew_of(world, head)
    steps: list[Step] = []
    asked = leaving.status in UP and is_reached(leaving)
    if asked:
        steps.append(ask(leaving, f"queue/{leaving.id}", "look", on_failure=OnFailure.GO_ON))
        _refuse_queue(world, operation, leaving)
        steps += [
            stop(leaving, f"stop/{leaving.id}", SLURMCTLD, after=(f"queue/{leaving.id}",)),
            stop(leaving, f"quit/{leaving.id}", MUNGED, kill="owner", grace_seconds=10),
        ]
    steps += [Gather(step="left"), *controller_up(crew, head), Gather(step="controller")]
    turned = [each for each in crew.workers if each.status in UP and is_reached(each)]
    for member in turned:
        key = member.id
        steps += [
            files(crew, member, f"files/{key}"),
            stop(member, f"stop/{key}", SLURMD, kill="main", grace_seconds=10),
            slurmd(crew, member, f"start/{key}"),
            await_node(member, f"node/{key}"),
        ]
        if member.status in ("ready", "degraded"):
            steps.append(prove(crew, member, f"prove/{key}"))
    steps += [Gather(step="workers"), controller_ready(crew, head, operation, crew.version)]
    steps.append(login(crew, head))
    evidence = {"controller": head.name, "turned": [each.name for each in turned], "queue": _queue_words(asked)}
    return Plan((*steps, Gather(step="replaced"), Finish(evidence=evidence)))


def _queue_words(asked: bool) -> str:
    return "it was empty" if asked else "it was lost with the machine of the old controller"


def _refuse_queue(world: World, operation: Operation, leaving: Member) -> None:
    """A queue that is not empty is not thrown away."""
    step = f"queue/{leaving.id}"
    task = ended(world, operation, step)
    if task is None or operation.is_done(f"stop/{leaving.id}"):
        return
    if task.failed:
        return  # it does not answer: there is no queue that could be asked for
    counts = answered(world, operation, step).get("job_counts", {})
    open_jobs = sum(int(counts.get(state, 0)) for state in OPEN_STATES)
    if open_jobs:
        raise Refused(
            "not_quiet",
            f"{open_jobs} jobs wait or run, and another controller would not know them; let them end or cancel them, "
            "or repair the instance instead",
        )
