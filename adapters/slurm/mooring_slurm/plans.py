"""The plans of a Slurm cluster: one pure function for each kind of operation.

There is no state besides the records: every replica names the same steps at any time, and what was done under a name is
not done again. Workers start in parallel with their controller. Failures are reported with the node program's own
message.
"""

from collections.abc import Callable, Mapping
from typing import Final

from mooring_adapter import (
    Barrier,
    Failure,
    Finish,
    InstanceView,
    MakeSecret,
    Member,
    OnFailure,
    Operation,
    Plan,
    ReportInstance,
    ReportMember,
    RunTask,
    Step,
    failures,
)
from mooring_slurm.attachments import attach, detach
from mooring_slurm.bring_up import (
    await_node,
    behind_stale,
    controller_ready,
    controller_up,
    failed,
    gate,
    login,
    misses_controller,
    stale_nodes,
    start_failure,
    worker_ready,
    worker_up,
)
from mooring_slurm.configure import configure
from mooring_slurm.drains import uncordon
from mooring_slurm.failure_logs import with_failure_logs
from mooring_slurm.layout import SLURMCTLD, SLURMD
from mooring_slurm.members import (
    SECRET,
    SECRET_PURPOSE,
    UP,
    ClusterMembers,
    OperationRefused,
    ask,
    cluster_of,
    files,
    is_reached,
    need_controller,
    refuse_crowd,
    slurmctld,
    slurmd,
    stop,
)
from mooring_slurm.removal import MemberFailed, decommission, drain, remove, replace
from mooring_slurm.repair import reconcile, repair
from mooring_slurm.responses import answer_of, answered, ended, failure_of, job_ids

KEY_BYTES: Final = 64


def plan(view: InstanceView, operation: Operation) -> Plan:
    try:
        found = explained(PLANS[operation.kind](view, operation), view, operation)
    except OperationRefused as refused:
        found = refused.plan()
    return with_failure_logs(found, view, operation)


def explained(found: Plan, view: InstanceView, operation: Operation) -> Plan:
    """The plan, or if one of its tasks failed finally, the end with the failed program's own message."""
    for step in found.steps:
        if not isinstance(step, RunTask) or step.on_failure is not OnFailure.FAIL_OPERATION:
            continue
        task = ended(view, operation, step.step)
        if task is not None and task.failed and answer_of(task) is not None:
            member = view.member(step.member_id)
            failure = failure_of(task, member)
            is_new = member is not None and member.status in ("requested", "joining")
            reports = [failed(member, failure)] if member is not None and is_new else []
            return Plan((*reports, Finish(outcome="failed", failure=failure)))
    return found


def deploy(view: InstanceView, operation: Operation) -> Plan:
    """Start the controller and the workers in parallel; the others work on if a worker fails to start."""
    cluster = cluster_of(view)
    if view.instance.control_plane_scope == "tenant" and not cluster.config.accounting:
        raise OperationRefused("config_refused", "a cluster with attached projects needs `accounting`")
    refuse_crowd(cluster.workers)
    controller = cluster.controller
    gated = f"gate/{controller.id}" if cluster.config.accounting else None
    steps: list[Step] = [munge_key(), *controller_up(cluster, controller)]
    lost: dict[str, Member] = {}
    silent = ended(view, operation, f"gate/{controller.id}") is None  # the controller does not answer yet
    waiting = False
    for member in cluster.workers:
        failure = start_failure(view, operation, member)
        if failure is not None and silent and misses_controller(view, operation, member):
            waiting = True  # the controller's own steps report why it does not answer
            steps += worker_up(cluster, member, gated=gated)
            continue
        if failure is not None:
            lost[member.id] = member
            steps.append(failed(member, failure))
            continue
        steps += worker_up(cluster, member, gated=gated)
        steps.append(worker_ready(cluster, member, operation, cluster.version))
    if waiting:
        return Plan(tuple(steps))
    steps += [Barrier(step="proved"), controller_ready(cluster, controller, operation, cluster.version)]
    steps += [login(cluster, controller), topology(cluster)]
    if lost and len(lost) == len(cluster.workers):
        first = next(iter(lost.values()))
        raise MemberFailed(first, start_failure(view, operation, first) or failures.of_member(first))
    evidence = {
        "controller": controller.name,
        "proofs": {
            each.name: answered(view, operation, f"prove/{each.id}").get("job") for each in cluster.workers[:50]
        },
        "failed": [each.name for each in lost.values()],
    }
    return Plan((*steps, Finish(evidence=evidence, tolerates_failures=True)))


def munge_key() -> MakeSecret:
    """The key by which the members of a cluster authenticate to each other."""
    return MakeSecret(step="secret", name=SECRET, purpose=SECRET_PURPOSE, generate_bytes=KEY_BYTES)


def topology(cluster: ClusterMembers) -> ReportInstance:
    """Report whether the cluster runs in one allocation or in several."""
    return ReportInstance(step="topology", topology_mode=cluster.topology_mode)


def add(view: InstanceView, operation: Operation) -> Plan:
    """Start the new workers in parallel; the existing members are not touched."""
    cluster = cluster_of(view)
    need_controller(cluster)
    refuse_crowd(cluster.workers)
    new = view.concerned(operation)
    steps = stale_nodes(cluster, operation, new)
    failures_found: list[tuple[Member, Failure]] = []
    for member in new:
        failure = start_failure(view, operation, member)
        if failure is not None:
            failures_found.append((member, failure))
            steps.append(failed(member, failure))
            continue
        steps += worker_up(cluster, member, behind=behind_stale(steps, member))
        steps.append(worker_ready(cluster, member, operation, cluster.version))
    steps += [Barrier(step="proved"), topology(cluster)]
    proofs = {each.name: answered(view, operation, f"prove/{each.id}").get("job") for each in new[:50]}
    if not failures_found:
        return Plan((*steps, Finish(evidence={"proofs": proofs})))
    member, failure = failures_found[0]
    named = Failure(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
    evidence = {"proofs": proofs, "failed": [each.name for each, _ in failures_found]}
    return Plan((*steps, Finish(outcome="failed", failure=named, evidence=evidence)))


def change_version(view: InstanceView, operation: Operation) -> Plan:
    """Upgrade and rollback: the controller first, then the workers one after the other; jobs continue."""
    target = operation.target_pin.version if operation.target_pin else view.instance.pin.version
    cluster = cluster_of(view)
    need_controller(cluster)
    controller = cluster.controller
    steps: list[Step] = [ask(controller, f"before/{controller.id}", "look"), *restart_controller(cluster, operation)]
    steps.append(ReportMember(step=f"version/{controller.id}", member_id=controller.id, version=target))
    for member in standing_workers(cluster):
        steps += restart_worker(cluster, member)
        steps.append(ReportMember(step=f"version/{member.id}", member_id=member.id, version=target))
        steps.append(Barrier(step=f"changed/{member.id}"))
    steps.append(ask(controller, f"after/{controller.id}", "look"))
    evidence = {"version": target, **jobs_kept(cluster, operation)}
    return Plan((*steps, Barrier(step="looked"), Finish(evidence=evidence)))


def restart(view: InstanceView, operation: Operation) -> Plan:
    """Restart the daemons: the controller, which saves its queue, then the workers one by one; jobs continue."""
    cluster = cluster_of(view)
    need_controller(cluster)
    controller = cluster.controller
    steps: list[Step] = [
        ask(controller, f"before/{controller.id}", "look", on_failure=OnFailure.GO_ON),
        *restart_controller(cluster, operation),
    ]
    for member in standing_workers(cluster):
        steps += [*restart_worker(cluster, member), Barrier(step=f"changed/{member.id}")]
    steps.append(ask(controller, f"after/{controller.id}", "look"))
    return Plan((*steps, Barrier(step="looked"), Finish(evidence=jobs_kept(cluster, operation))))


def restart_controller(cluster: ClusterMembers, operation: Operation) -> list[Step]:
    """Stop the controller's daemon, which saves its state, and start it with the current files."""
    controller = cluster.controller
    return [
        files(cluster, controller, f"files/{controller.id}"),
        stop(controller, f"stop/{controller.id}", SLURMCTLD),
        slurmctld(cluster, controller, f"start/{controller.id}"),
        gate(cluster, controller, f"gate/{controller.id}"),
        Barrier(step="controller"),
    ]


def restart_worker(cluster: ClusterMembers, member: Member) -> list[Step]:
    """Restart only a worker's daemon; the processes of its jobs stay."""
    key = member.id
    return [
        files(cluster, member, f"files/{key}"),
        stop(member, f"stop/{key}", SLURMD, kill="main", grace_seconds=10),
        slurmd(cluster, member, f"start/{key}"),
        await_node(member, f"node/{key}"),
    ]


def standing_workers(cluster: ClusterMembers) -> list[Member]:
    """The workers that run, drained or not."""
    return [each for each in cluster.workers if each.status in UP]


def jobs_kept(cluster: ClusterMembers, operation: Operation) -> dict[str, object]:
    """The jobs that ran before, and their states afterwards."""
    controller = cluster.controller
    before, after = (answered(cluster.view, operation, f"{name}/{controller.id}") for name in ("before", "after"))
    ran = job_ids([each for each in before.get("jobs", ()) if each.get("state") == "RUNNING"])
    run = {str(each.get("id")): each.get("state") for each in after.get("jobs", ()) if str(each.get("id")) in set(ran)}
    return {"jobs_before": ran[:100], "jobs_after": dict(list(run.items())[:100])}


PLANS: Final[Mapping[str, Callable[[InstanceView, Operation], Plan]]] = {
    "deploy": deploy,
    "add": add,
    "drain": drain,
    "remove": remove,
    "replace": replace,
    "upgrade": change_version,
    "rollback": change_version,
    "restart": restart,
    "configure": configure,
    "repair": repair,
    "reconcile": reconcile,
    "decommission": decommission,
    "attach": attach,
    "detach": detach,
}


def cancel(view: InstanceView, operation: Operation) -> Plan:
    """Wait for running tasks; then start what was stopped, and resume what was drained."""
    tasks = view.tasks_of(operation)
    done = sorted(each.step for each in tasks.values() if each.succeeded)
    if any(not each.is_over and not _is_undoing(each.step) for each in tasks.values()):
        return Plan(())
    try:
        steps = _undo_steps(cluster_of(view), operation)
    except OperationRefused:
        steps = []
    end = Finish(step="cancelled", outcome="cancelled", evidence={"steps_done": done[:100]})
    return Plan((*steps, Barrier(step="undone"), end) if steps else (end,))


def _is_undoing(step: str) -> bool:
    return step.startswith(("uncordon/", "again/"))


def _undo_steps(cluster: ClusterMembers, operation: Operation) -> list[Step]:
    view, tasks = cluster.view, cluster.view.tasks_of(operation)
    steps: list[Step] = []
    if operation.kind in ("drain", "remove", "replace") and is_reached(cluster.controller):
        for member in view.concerned(operation):
            deleted = any(name.startswith(f"delete/{member.id}") for name in tasks)
            if f"cordon/{member.id}" in tasks and not deleted:
                steps.append(uncordon(cluster, member, f"uncordon/{member.id}", on_failure=OnFailure.GO_ON))
    if operation.kind in ("upgrade", "rollback", "restart", "configure", "repair"):
        for member in (cluster.controller, *cluster.workers):
            started = tasks.get(f"start/{member.id}")
            stopped = f"stop/{member.id}" in tasks and (started is None or not started.succeeded)
            if not stopped or not is_reached(member):
                continue
            name = f"again/{member.id}"
            go_on = OnFailure.GO_ON
            is_controller_member = member.id == cluster.controller.id
            steps.append(
                slurmctld(cluster, member, name, on_failure=go_on)
                if is_controller_member
                else slurmd(cluster, member, name, on_failure=go_on)
            )
    return steps
