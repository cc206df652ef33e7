"""The plans of a Slurm cluster: one function for each kind of operation, all of them pure.

Nothing is remembered beside the records: whoever plans, at whatever moment, names the same steps, and what was done
under a name is not done again. Workers come up beside their controller; what ends with an error says it in the words
of the program on the node.
"""

from collections.abc import Callable, Mapping
from typing import Final

from mooring_adapter import (
    Failure,
    Finish,
    Gather,
    MakeSecret,
    Member,
    OnFailure,
    Operation,
    Plan,
    ReportInstance,
    ReportMember,
    RunTask,
    Step,
    World,
    failures,
)
from mooring_slurm.answers import answer_of, answered, ended, failure_of, job_ids
from mooring_slurm.attaching import attach, detach
from mooring_slurm.coming import (
    await_node,
    behind_stale,
    broken,
    controller_ready,
    controller_up,
    failed,
    gate,
    login,
    misses_controller,
    stale_nodes,
    worker_ready,
    worker_up,
)
from mooring_slurm.drains import uncordon
from mooring_slurm.last_words import with_last_words
from mooring_slurm.layout import SLURMCTLD, SLURMD
from mooring_slurm.leaving import Broken, decommission, drain, remove, replace
from mooring_slurm.members import (
    SECRET,
    SECRET_PURPOSE,
    UP,
    Crew,
    Refused,
    ask,
    crew_of,
    files,
    is_reached,
    need_controller,
    refuse_crowd,
    slurmctld,
    slurmd,
    stop,
)
from mooring_slurm.mending import reconcile, repair

KEY_BYTES: Final = 64


def plan(world: World, operation: Operation) -> Plan:
    """The steps of any operation."""
    try:
        found = explained(PLANS[operation.kind](world, operation), world, operation)
    except Refused as refused:
        found = refused.plan()
    return with_last_words(found, world, operation)


def explained(found: Plan, world: World, operation: Operation) -> Plan:
    """The plan, or where a task of it failed for good, the end in the words of the program that failed."""
    for step in found.steps:
        if not isinstance(step, RunTask) or step.on_failure is not OnFailure.FAIL_OPERATION:
            continue
        task = ended(world, operation, step.step)
        if task is not None and task.failed and answer_of(task) is not None:
            member = world.member(step.member_id)
            failure = failure_of(task, member)
            coming = member is not None and member.status in ("requested", "joining")
            told = [failed(member, failure)] if member is not None and coming else []
            return Plan((*told, Finish(outcome="failed", failure=failure)))
    return found


def deploy(world: World, operation: Operation) -> Plan:
    """The controller and the workers side by side. A worker that does not come up leaves the others to work."""
    crew = crew_of(world)
    if world.instance.control_plane_scope == "tenant" and not crew.config.accounting:
        raise Refused("config_refused", "a cluster that projects are attached to needs `accounting`")
    refuse_crowd(crew.workers)
    head = crew.controller
    gated = f"gate/{head.id}" if crew.config.accounting else None
    steps: list[Step] = [munge_key(), *controller_up(crew, head)]
    lost: dict[str, Member] = {}
    silent = ended(world, operation, f"gate/{head.id}") is None  # the controller has not come up, or not yet
    waiting = False
    for member in crew.workers:
        failure = broken(world, operation, member)
        if failure is not None and silent and misses_controller(world, operation, member):
            waiting = True  # why there is none is told by the controller's own steps
            steps += worker_up(crew, member, gated=gated)
            continue
        if failure is not None:
            lost[member.id] = member
            steps.append(failed(member, failure))
            continue
        steps += worker_up(crew, member, gated=gated)
        steps.append(worker_ready(crew, member, operation, crew.version))
    if waiting:
        return Plan(tuple(steps))
    steps += [Gather(step="proved"), controller_ready(crew, head, operation, crew.version)]
    steps += [login(crew, head), topology(crew)]
    if lost and len(lost) == len(crew.workers):
        first = next(iter(lost.values()))
        raise Broken(first, broken(world, operation, first) or failures.of_member(first))
    evidence = {
        "controller": head.name,
        "proofs": {each.name: answered(world, operation, f"prove/{each.id}").get("job") for each in crew.workers[:50]},
        "failed": [each.name for each in lost.values()],
    }
    return Plan((*steps, Finish(evidence=evidence, tolerates_failures=True)))


def munge_key() -> MakeSecret:
    """The key by which the members of a cluster know each other; nobody else's, and shown to nobody."""
    return MakeSecret(step="secret", name=SECRET, purpose=SECRET_PURPOSE, generate_bytes=KEY_BYTES)


def topology(crew: Crew) -> ReportInstance:
    """How it stands."""
    return ReportInstance(step="topology", topology_mode=crew.topology_mode)


def add(world: World, operation: Operation) -> Plan:
    """The new workers side by side; nothing that stands is touched."""
    crew = crew_of(world)
    need_controller(crew)
    refuse_crowd(crew.workers)
    new = world.concerned(operation)
    steps = stale_nodes(crew, operation, new)
    unlucky: list[tuple[Member, Failure]] = []
    for member in new:
        failure = broken(world, operation, member)
        if failure is not None:
            unlucky.append((member, failure))
            steps.append(failed(member, failure))
            continue
        steps += worker_up(crew, member, behind=behind_stale(steps, member))
        steps.append(worker_ready(crew, member, operation, crew.version))
    steps += [Gather(step="proved"), topology(crew)]
    proofs = {each.name: answered(world, operation, f"prove/{each.id}").get("job") for each in new[:50]}
    if not unlucky:
        return Plan((*steps, Finish(evidence={"proofs": proofs})))
    member, failure = unlucky[0]
    told = Failure(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
    evidence = {"proofs": proofs, "failed": [each.name for each, _ in unlucky]}
    return Plan((*steps, Finish(outcome="failed", failure=told, evidence=evidence)))


def change_version(world: World, operation: Operation) -> Plan:
    """Upgrade and rollback: the controller first, then the workers one after the other; jobs go on."""
    target = operation.target_pin.version if operation.target_pin else world.instance.pin.version
    crew = crew_of(world)
    need_controller(crew)
    head = crew.controller
    steps: list[Step] = [ask(head, f"before/{head.id}", "look"), *head_anew(crew, operation)]
    steps.append(ReportMember(step=f"version/{head.id}", member_id=head.id, version=target))
    for member in standing_workers(crew):
        steps += worker_anew(crew, member)
        steps.append(ReportMember(step=f"version/{member.id}", member_id=member.id, version=target))
        steps.append(Gather(step=f"changed/{member.id}"))
    steps.append(ask(head, f"after/{head.id}", "look"))
    evidence = {"version": target, **jobs_kept(crew, operation)}
    return Plan((*steps, Gather(step="looked"), Finish(evidence=evidence)))


def restart(world: World, operation: Operation) -> Plan:
    """The same daemons anew: the controller, which saves its queue, then one worker after the other; jobs go on."""
    crew = crew_of(world)
    need_controller(crew)
    head = crew.controller
    steps: list[Step] = [
        ask(head, f"before/{head.id}", "look", on_failure=OnFailure.GO_ON),
        *head_anew(crew, operation),
    ]
    for member in standing_workers(crew):
        steps += [*worker_anew(crew, member), Gather(step=f"changed/{member.id}")]
    steps.append(ask(head, f"after/{head.id}", "look"))
    return Plan((*steps, Gather(step="looked"), Finish(evidence=jobs_kept(crew, operation))))


def head_anew(crew: Crew, operation: Operation) -> list[Step]:
    """The controller's daemon ends, which saves its state, and begins again with the files of now."""
    head = crew.controller
    return [
        files(crew, head, f"files/{head.id}"),
        stop(head, f"stop/{head.id}", SLURMCTLD),
        slurmctld(crew, head, f"start/{head.id}"),
        gate(crew, head, f"gate/{head.id}"),
        Gather(step="controller"),
    ]


def worker_anew(crew: Crew, member: Member) -> list[Step]:
    """A worker's daemon alone ends and begins again: what its jobs run under stays."""
    key = member.id
    return [
        files(crew, member, f"files/{key}"),
        stop(member, f"stop/{key}", SLURMD, kill="main", grace_seconds=10),
        slurmd(crew, member, f"start/{key}"),
        await_node(member, f"node/{key}"),
    ]


def standing_workers(crew: Crew) -> list[Member]:
    """Those that run, wherever they are with a drain."""
    return [each for each in crew.workers if each.status in UP]


def jobs_kept(crew: Crew, operation: Operation) -> dict[str, object]:
    """The jobs that ran before and go on, or ended meanwhile: nothing of it is guessed."""
    head = crew.controller
    before, after = (answered(crew.world, operation, f"{name}/{head.id}") for name in ("before", "after"))
    ran = job_ids([each for each in before.get("jobs", ()) if each.get("state") == "RUNNING"])
    run = {
        str(each.get("id")): each.get("state") for each in after.get("jobs", ()) if str(each.get("id")) in set(ran)
    }  # fmt: skip
    return {"jobs_before": ran[:100], "jobs_after": dict(list(run.items())[:100])}


PLANS: Final[Mapping[str, Callable[[World, Operation], Plan]]] = {
    "deploy": deploy,
    "add": add,
    "drain": drain,
    "remove": remove,
    "replace": replace,
    "upgrade": change_version,
    "rollback": change_version,
    "restart": restart,
    "repair": repair,
    "reconcile": reconcile,
    "decommission": decommission,
    "attach": attach,
    "detach": detach,
}


def cancel(world: World, operation: Operation) -> Plan:
    """An early end: what is under way ends; then what was stopped runs again, and what was drained takes jobs again."""
    tasks = world.tasks_of(operation)
    done = sorted(each.step for each in tasks.values() if each.succeeded)
    if any(not each.is_over and not _is_undoing(each.step) for each in tasks.values()):
        return Plan(())
    try:
        steps = _undone(crew_of(world), operation)
    except Refused:
        steps = []
    end = Finish(step="cancelled", outcome="cancelled", evidence={"steps_done": done[:100]})
    return Plan((*steps, Gather(step="undone"), end) if steps else (end,))


def _is_undoing(step: str) -> bool:
    return step.startswith(("uncordon/", "again/"))


def _undone(crew: Crew, operation: Operation) -> list[Step]:
    world, tasks = crew.world, crew.world.tasks_of(operation)
    steps: list[Step] = []
    if operation.kind in ("drain", "remove", "replace") and is_reached(crew.controller):
        for member in world.concerned(operation):
            deleted = any(name.startswith(f"delete/{member.id}") for name in tasks)
            if f"cordon/{member.id}" in tasks and not deleted:
                steps.append(uncordon(crew, member, f"uncordon/{member.id}", on_failure=OnFailure.GO_ON))
    if operation.kind in ("upgrade", "rollback", "restart", "repair"):
        for member in (crew.controller, *crew.workers):
            started = tasks.get(f"start/{member.id}")
            stopped = f"stop/{member.id}" in tasks and (started is None or not started.succeeded)
            if not stopped or not is_reached(member):
                continue
            name = f"again/{member.id}"
            go_on = OnFailure.GO_ON
            is_head = member.id == crew.controller.id
            steps.append(
                slurmctld(crew, member, name, on_failure=go_on)
                if is_head
                else slurmd(crew, member, name, on_failure=go_on)
            )  # fmt: skip
    return steps
