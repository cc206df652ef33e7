"""Reconcile and repair.

Reconcile compares the three views of the cluster, corrects what is the platform's own (a stale drain, a node without a
member), and shows the result. Repair also starts daemons that are down, rebuilds failed members, and runs a job on
each.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mooring_adapter import (
    Barrier,
    Failure,
    Finish,
    InstanceView,
    Member,
    Operation,
    Plan,
    ReportMember,
    Step,
    failures,
)
from mooring_slurm.bring_up import (
    EXAMINED,
    await_node,
    controller_ready,
    controller_up,
    failed,
    gate,
    prove,
    start_failure,
    users,
    worker_ready,
    worker_up,
)
from mooring_slurm.drains import cordon, uncordon
from mooring_slurm.drift import LEFT, Difference, differences, is_merely_silent, nodes_of, three_views
from mooring_slurm.layout import MARIADBD, MUNGED, SLURMCTLD, SLURMDBD
from mooring_slurm.members import (
    OWNER,
    UP,
    ClusterMembers,
    OperationRefused,
    ask,
    cluster_of,
    inspect,
    is_reached,
    mariadbd,
    munged,
    need_controller,
    services,
    slurmctld,
    slurmd,
    slurmdbd,
)
from mooring_slurm.responses import answered, ended, failure_of

CORRECTED_MAX = 50
"""The most differences that one operation corrects."""


def reconcile(view: InstanceView, operation: Operation) -> Plan:
    """Compare, correct what is our own, compare again, and show the result."""
    cluster = cluster_of(view)
    controller = cluster.controller
    if not is_reached(controller) or controller.status not in UP:
        found = [
            Difference(
                controller.name,
                "controller_unreachable",
                f"the controller is {controller.status}, so Slurm cannot be queried",
            )
        ]
        why = f"cannot ask the controller {controller.name}: it is {controller.status}, or its machine is unreachable"
        raise OperationRefused("unhealthy", why, **three_views(view, None, found))
    steps: list[Step] = [ask(controller, f"look/{controller.id}", "look")]
    if ended(view, operation, f"look/{controller.id}") is None:
        return Plan(tuple(steps))
    seen = answered(view, operation, f"look/{controller.id}")
    found = differences(view, seen)
    corrections = correct(cluster, operation, found)
    if not corrections:
        return Plan((*steps, Finish(evidence=three_views(view, seen, found))))
    steps += [*corrections, Barrier(step="mended"), ask(controller, f"check/{controller.id}", "look")]
    after = answered(view, operation, f"check/{controller.id}")
    left = [each for each in differences(view, after) if not is_settling(each, seen, after)] if after else found
    evidence = {**three_views(view, after or None, left)}
    evidence["put_right"] = [each.plain() for each in found if each.is_repairable][:CORRECTED_MAX]
    return Plan((*steps, Barrier(step="checked"), Finish(evidence=evidence)))


def is_settling(each: Difference, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a node is only briefly silent after a correction and answered before: that is not down."""
    node, earlier = nodes_of(after).get(each.node), nodes_of(before).get(each.node)
    if each.name != "down" or node is None or earlier is None or not earlier.get("responding"):
        return False
    return is_merely_silent(node)


def correct(cluster: ClusterMembers, operation: Operation, found: Sequence[Difference]) -> list[Step]:
    """The corrections of the platform's own differences that the controller can make."""
    members = {each.name: each for each in cluster.workers}
    steps: list[Step] = []
    for each in [each for each in found if each.is_repairable][:CORRECTED_MAX]:
        member = members.get(each.node)
        if each.name in ("unknown_node", LEFT):
            words = ("delete", "--node", each.node, "--gone", "--owner", OWNER)
            steps.append(ask(cluster.controller, f"forget/{each.node}", *words, **EXAMINED))
        elif each.name == "stale_drain" and member is not None:
            steps.append(uncordon(cluster, member, f"uncordon/{member.id}", **EXAMINED))
        elif each.name == "not_drained" and member is not None:
            steps.append(cordon(cluster, member, operation))
    return steps


def repair(view: InstanceView, operation: Operation) -> Plan:
    """Repair the controller, then the platform's own differences, then the workers; a job runs on each worker."""
    cluster = cluster_of(view)
    scope, only = operation.request.get("scope", "whole_runtime"), operation.request.get("member_id")
    controller = cluster.controller
    if failures.is_lost(controller):
        raise OperationRefused("unhealthy", f"the controller {controller.name} is lost with its machine: replace it")
    steps, is_known = _head(cluster, operation) if only in (None, controller.id) else (list[Step](), True)
    if not is_known:
        return Plan(tuple(steps))
    if only is not None and only != controller.id:
        need_controller(cluster)
    steps += [Barrier(step="controller"), ask(controller, f"look/{controller.id}", "look")]
    if ended(view, operation, f"look/{controller.id}") is None:
        return Plan(tuple(steps))
    seen = answered(view, operation, f"look/{controller.id}")
    found = differences(view, seen)
    steps += [*correct(cluster, operation, found), Barrier(step="mended")]
    worker_repair = WorkerRepair(
        cluster, operation, {each.node for each in found if each.name.endswith("_drain") and not each.is_repairable}
    )
    if scope != "control_plane":
        for member in cluster.workers:
            if only in (None, member.id):
                steps += worker_repair.worker(member)
    if is_rebuilt(operation, controller):
        steps += [Barrier(step="proved"), controller_ready(cluster, controller, operation, cluster.version)]
    elif controller.status == "degraded":
        steps.append(
            ReportMember(step=f"ready/{controller.id}", member_id=controller.id, status="ready", health="healthy")
        )
    if worker_repair.waits:
        return Plan(tuple(steps))
    evidence = worker_repair.evidence(found)
    if worker_repair.failed:
        member, failure = worker_repair.failed[0]
        named = Failure(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
        return Plan((*steps, Barrier(step="tried"), Finish(outcome="failed", failure=named, evidence=evidence)))
    return Plan((*steps, Barrier(step="repaired"), Finish(evidence=evidence)))


def is_rebuilt(operation: Operation, member: Member) -> bool:
    """Whether a member is being rebuilt: it had failed, or this operation has begun to rebuild it."""
    return member.status in ("failed", "joining", "requested") or operation.is_done(f"join/{member.id}")


def _head(cluster: ClusterMembers, operation: Operation) -> tuple[list[Step], bool]:
    """The controller's steps, and whether everything is known that the rest needs."""
    controller = cluster.controller
    if is_rebuilt(operation, controller):
        return controller_up(cluster, controller, rebuild=True), True
    kinds: dict[str, Any] = {MUNGED: munged}
    if cluster.config.accounting:
        kinds |= {MARIADBD: mariadbd, SLURMDBD: slurmdbd}
    kinds[SLURMCTLD] = partial(slurmctld, cluster)
    steps: list[Step] = [inspect(controller, f"inspect/{name}/{controller.id}", name) for name in kinds]
    down = down_services(cluster.view, operation, controller, tuple(kinds))
    if down is None:
        return steps, False
    steps += [kinds[name](controller, f"start/{name}/{controller.id}") for name in down]
    return [*steps, gate(cluster, controller, f"gate/{controller.id}")], True


def down_services(view: InstanceView, operation: Operation, member: Member, names: Sequence[str]) -> list[str] | None:
    """The daemons that do not run; None until the state of all is known."""
    down = []
    for name in names:
        task = ended(view, operation, f"inspect/{name}/{member.id}")
        if task is None:
            return None
        if not task.succeeded or (task.result or {}).get("state") != "running":
            down.append(name)
    return down


class WorkerRepair:
    def __init__(self, cluster: ClusterMembers, operation: Operation, drained: set[str]) -> None:
        self.cluster, self.operation, self.drained = cluster, operation, drained
        self.failed: list[tuple[Member, Failure]] = []
        self.left_alone: dict[str, str] = {}
        self.started: list[str] = []
        self.proved: list[Member] = []
        self.waits = False

    def worker(self, member: Member) -> list[Step]:
        """The steps of one worker: it is rebuilt, its daemons are started, or only a job runs on it."""
        if not is_reached(member):
            self.left_alone[member.name] = "its machine is unreachable; replace the member if the machine is gone"
            return []
        if is_rebuilt(self.operation, member):
            return self._rebuild(member)
        return self._standing(member)

    def _rebuild(self, member: Member) -> list[Step]:
        failure = start_failure(self.cluster.view, self.operation, member)
        if failure is not None:
            self.failed.append((member, failure))
            return [failed(member, failure)] if member.status == "joining" else []
        self.started.append(member.name)
        self.proved.append(member)
        undrained = uncordon(self.cluster, member, f"undrain/{member.id}", **EXAMINED)
        return [
            undrained,
            *worker_up(self.cluster, member, rebuild=True, behind=(undrained.step,)),
            worker_ready(self.cluster, member, self.operation, self.cluster.version),
        ]

    def _standing(self, member: Member) -> list[Step]:
        cluster, operation, key = self.cluster, self.operation, member.id
        steps: list[Step] = [inspect(member, f"inspect/{name}/{key}", name) for name in services(member)]
        down = down_services(cluster.view, operation, member, services(member))
        if down is None:
            self.waits = True
            return steps
        for name in down:
            self.started.append(f"{member.name} {name}")
            step = f"start/{name}/{key}"
            steps.append(munged(member, step) if name == MUNGED else slurmd(cluster, member, step))
        steps += [*users(cluster, member, None, **EXAMINED), await_node(member, f"node/{key}", **EXAMINED)]
        if member.status not in ("ready", "degraded") or member.name in self.drained:
            self.left_alone[member.name] = "it is drained, so no job can run on it"
            return steps
        self.proved.append(member)
        steps.append(prove(cluster, member, f"prove/{key}", **EXAMINED))
        tried = [ended(cluster.view, operation, f"{verb}/{key}") for verb in ("node", "prove")]
        bad = next((each for each in tried if each is not None and each.failed), None)
        if bad is not None:
            failure = failure_of(bad, member)
            self.failed.append((member, failure))
            if member.status == "ready":
                steps.append(
                    ReportMember(
                        step=f"unwell/{key}",
                        member_id=key,
                        status="degraded",
                        health="degraded",
                        health_detail=failure.detail[:500],
                    )
                )
        elif tried[1] is not None and member.status == "degraded":
            steps.append(
                ReportMember(
                    step=f"well/{key}",
                    member_id=key,
                    status="ready",
                    health="healthy",
                    health_detail="a job ran on it from submission to end",
                )
            )
        elif tried[1] is None:
            self.waits = True
        return steps

    def evidence(self, found: Sequence[Difference]) -> Mapping[str, Any]:
        """What a person can verify."""
        proofs = {
            each.name: answered(self.cluster.view, self.operation, f"prove/{each.id}").get("job")
            for each in self.proved
        }
        return {
            "started": self.started[:50],
            "proofs": dict(list(proofs.items())[:50]),
            "left_alone": dict(list(self.left_alone.items())[:50]),
            "found": [each.plain() for each in found[:CORRECTED_MAX]],
        }
