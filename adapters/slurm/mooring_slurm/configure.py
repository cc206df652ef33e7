"""Changing the configuration of a running cluster: live where Slurm can, by a restart where it must, or refused.

Partitions are changed live by `scontrol`, and written to slurm.conf for the next start; jobs are not touched. `scontrol
reconfigure` would do both at once, but under Slurm 22.05 a worker still counted as allocated a minute after its last
job. What a worker offers is what its daemon registers with, so a change of that drains its node, which must not have
jobs, deletes it, and starts the daemon again. The rest is fixed when the cluster starts, and the refusal says why.
"""

from typing import Final

from mooring_adapter import Barrier, Finish, InstanceView, Member, OnFailure, Operation, Plan, RunTask, Step
from mooring_slurm.bring_up import await_node, gate, users
from mooring_slurm.drains import cordon, uncordon
from mooring_slurm.launch_config import LaunchConfig, Partition
from mooring_slurm.layout import SLURMD, MemberHome
from mooring_slurm.members import (
    UP,
    ClusterMembers,
    OperationRefused,
    ask,
    cluster_of,
    files,
    is_reached,
    need_controller,
    slurmd,
    stop,
)
from mooring_slurm.responses import ATTEMPTS, answered, ended, failure_of, job_ids

LIVE_SECONDS: Final = 60
UPDATE_OR_CREATE: Final = 'scontrol update "$@" || scontrol create "$@"'
QUIET_SECONDS: Final = 60
"""How long the last job of a worker may take to be cleaned up."""
OLD_USERS_FIRST: Final = "a user keeps the user id of their place in the list, so names can only be added at its end"


def configure(view: InstanceView, operation: Operation) -> Plan:
    """Put the new configuration into force."""
    before, after = cluster_of(view), cluster_of(view.with_target_config(operation))
    need_controller(after)
    refuse_fixed(before.config, after.config)
    members = [each for each in (after.controller, *after.workers) if each.status in UP]
    if unreached := [each.name for each in members if not is_reached(each)]:
        raise OperationRefused(
            "unhealthy", f"the node of {unreached[0]} does not answer, and every member gets new files"
        )
    if _sizes(before.config) != _sizes(after.config):
        return _resize(before.config, after, operation, members)
    if before.config == after.config:
        return Plan((Finish(evidence={"applied_by": "nothing", "because": "no daemon reads what changed"}),))
    return Plan((*_change_live(before.config, after, members), Finish(evidence={"applied_by": "reload"})))


def refuse_fixed(before: LaunchConfig, after: LaunchConfig) -> None:
    """Refuse what cannot change while the cluster runs."""
    if before.accounting != after.accounting:
        why = "accounting: it is set up when the cluster starts, and older jobs would be missing; launch a new cluster"
        raise OperationRefused("config_refused", why)
    if before.gpu_type != after.gpu_type:
        raise OperationRefused("config_refused", "gpu_type: jobs that run or wait name it; launch a new cluster")
    if after.users[: len(before.users)] != before.users:
        raise OperationRefused("config_refused", f"users: {OLD_USERS_FIRST}")
    if after.accounting and after.users != before.users:
        raise OperationRefused("config_refused", "users: with accounting they are registered when the cluster starts")
    kept = {each.name for each in after.partitions}
    if gone := [each.name for each in before.partitions if each.name not in kept]:
        why = f"partitions: Slurm would end the jobs of {gone[0]}; keep it, and make another one the default"
        raise OperationRefused("config_refused", why)


def _sizes(config: LaunchConfig) -> tuple[int | None, int | None]:
    return config.cpus_per_worker, config.memory_mib_per_worker


def _change_live(before: LaunchConfig, cluster: ClusterMembers, members: list[Member]) -> list[Step]:
    """Write the files of every member, create new users, and change the partitions that differ."""
    steps: list[Step] = []
    for member in members:
        steps.append(files(cluster, member, f"files/{member.id}"))
        steps += users(cluster, member, (f"files/{member.id}",))
    controller, known = cluster.controller, set(before.partitions)
    changed = [each for each in cluster.config.partitions if each not in known]
    live = [_partition(controller, each) for each in sorted(changed, key=lambda each: each.default)]
    return [*steps, Barrier(step="written"), *live, Barrier(step="live"), gate(cluster, controller, "gate/changed")]


def _partition(controller: Member, partition: Partition) -> RunTask:
    """Create a partition, or change the one of that name."""
    minutes = "INFINITE" if partition.max_minutes is None else str(partition.max_minutes)
    default = "YES" if partition.default else "NO"
    values = (f"PartitionName={partition.name}", "Nodes=ALL", f"Default={default}", "State=UP", f"MaxTime={minutes}")
    return RunTask(
        step=f"partition/{partition.name}",
        member_id=controller.id,
        type="process.run",
        arguments={
            "argv": ["sh", "-c", UPDATE_OR_CREATE, "sh", *values],
            "environment": {"SLURM_CONF": MemberHome(controller.name).slurm_conf},
            "directory": "/",
            "timeout_seconds": LIVE_SECONDS,
        },
        attempts=ATTEMPTS,
    )


def _resize(before: LaunchConfig, cluster: ClusterMembers, operation: Operation, members: list[Member]) -> Plan:
    """Register each worker again with its new size; Slurm does not let a node go on which jobs run."""
    controller, looked = cluster.controller, f"before/{cluster.controller.id}"
    steps: list[Step] = [ask(controller, looked, "look"), Barrier(step="looked")]
    jobs = answered(cluster.view, operation, looked).get("jobs", ())
    running = job_ids([each for each in jobs if each.get("state") == "RUNNING"])
    workers = [each for each in members if each.id != controller.id]
    begun = any(operation.is_done(f"cordon/{each.id}") for each in workers)
    if running and not begun:
        why = f"jobs {', '.join(running[:10])} run, and a worker changes its size only without jobs; drain the workers"
        raise OperationRefused("config_refused", why)
    if drained := [each.name for each in workers if each.status in ("draining", "drained")]:
        why = f"{drained[0]} is drained, and a worker that is registered again takes jobs; resume or remove it first"
        raise OperationRefused("config_refused", why)
    steps += _change_live(before, cluster, members)
    for member in workers:
        key = member.id
        steps += [Barrier(step=f"turn/{key}"), cordon(cluster, member, operation), Barrier(step=f"cordoned/{key}")]
        words = ("quiet", "--node", member.name, "--seconds", str(QUIET_SECONDS))
        steps.append(ask(member, f"quiet/{key}", *words, seconds=QUIET_SECONDS, on_failure=OnFailure.GO_ON))
        look = ended(cluster.view, operation, f"quiet/{key}")
        if look is not None and look.failed:
            undo = uncordon(cluster, member, f"uncordon/{key}", on_failure=OnFailure.GO_ON)
            end = Finish(outcome="failed", failure=failure_of(look, member))
            return Plan((*steps, undo, Barrier(step="undone"), end))
        steps += [
            Barrier(step=f"quieted/{key}"),
            ask(controller, f"delete/{key}", "delete", "--node", member.name),
            Barrier(step=f"deleted/{key}"),
            stop(member, f"stop/{key}", SLURMD, kill="main", grace_seconds=10),
            slurmd(cluster, member, f"start/{key}"),
            await_node(member, f"node/{key}"),
        ]
    evidence = {"applied_by": "restart", "restarted": [each.name for each in workers]}
    return Plan((*steps, Barrier(step="registered"), Finish(evidence=evidence)))
