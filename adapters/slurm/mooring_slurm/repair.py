"""Reconcile and repair: what is compared, what is put right, and what is built again.

Reconcile looks, puts right what is the platform's own (a drain it left behind, a node of no member) and shows the three
views. Repair also starts what is down, builds failed members again, and proves by a job that they work.
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
    SEEN_TO,
    await_node,
    broken,
    controller_ready,
    controller_up,
    failed,
    gate,
    prove,
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

MENDED_MAX = 50
"""So many differences are put right in one operation."""


def reconcile(view: InstanceView, operation: Operation) -> Plan:
    """Compare, put right what is our own, compare again, and show it."""
    cluster = cluster_of(view)
    controller = cluster.controller
    if not is_reached(controller) or controller.status not in UP:
        found = [
            Difference(
                controller.name,
                "controller_unreachable",
                f"the controller is {controller.status}; nobody can ask Slurm",
            )
        ]
        why = f"cannot ask the controller {controller.name}: it is {controller.status}, or its machine is unreachable"
        raise OperationRefused("unhealthy", why, **three_views(view, None, found))
    steps: list[Step] = [ask(controller, f"look/{controller.id}", "look")]
    if ended(view, operation, f"look/{controller.id}") is None:
        return Plan(tuple(steps))
    seen = answered(view, operation, f"look/{controller.id}")
    found = differences(view, seen)
    mended = put_right(cluster, operation, found)
    if not mended:
        return Plan((*steps, Finish(evidence=three_views(view, seen, found))))
    steps += [*mended, Barrier(step="mended"), ask(controller, f"check/{controller.id}", "look")]
    after = answered(view, operation, f"check/{controller.id}")
    left = [each for each in differences(view, after) if not is_settling(each, seen, after)] if after else found
    evidence = {**three_views(view, after or None, left)}
    evidence["put_right"] = [each.plain() for each in found if each.is_mended][:MENDED_MAX]
    return Plan((*steps, Barrier(step="checked"), Finish(evidence=evidence)))


def is_settling(each: Difference, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a node is only silent in the moment after it was put right, and answered before: that is not down."""
    node, earlier = nodes_of(after).get(each.node), nodes_of(before).get(each.node)
    if each.name != "down" or node is None or earlier is None or not earlier.get("responding"):
        return False
    return is_merely_silent(node)


def put_right(cluster: ClusterMembers, operation: Operation, found: Sequence[Difference]) -> list[Step]:
    """What a controller alone can put right of what is the platform's own."""
    members = {each.name: each for each in cluster.workers}
    steps: list[Step] = []
    for each in [each for each in found if each.is_mended][:MENDED_MAX]:
        member = members.get(each.node)
        if each.name in ("unknown_node", LEFT):
            words = ("delete", "--node", each.node, "--gone", "--owner", OWNER)
            steps.append(ask(cluster.controller, f"forget/{each.node}", *words, **SEEN_TO))
        elif each.name == "stale_drain" and member is not None:
            steps.append(uncordon(cluster, member, f"uncordon/{member.id}", **SEEN_TO))
        elif each.name == "not_drained" and member is not None:
            steps.append(cordon(cluster, member, operation))
    return steps


def repair(view: InstanceView, operation: Operation) -> Plan:
    """The controller first, then what Slurm has of us, then the workers; each that is brought back proves itself."""
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
    steps += [*put_right(cluster, operation, found), Barrier(step="mended")]
    mending = WorkerRepair(
        cluster, operation, {each.node for each in found if each.name.endswith("_drain") and not each.is_mended}
    )
    if scope != "control_plane":
        for member in cluster.workers:
            if only in (None, member.id):
                steps += mending.worker(member)
    if is_begun(operation, controller):
        steps += [Barrier(step="proved"), controller_ready(cluster, controller, operation, cluster.version)]
    elif controller.status == "degraded":
        steps.append(
            ReportMember(step=f"ready/{controller.id}", member_id=controller.id, status="ready", health="healthy")
        )
    if mending.waits:
        return Plan(tuple(steps))
    evidence = mending.evidence(found)
    if mending.unlucky:
        member, failure = mending.unlucky[0]
        told = Failure(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
        return Plan((*steps, Barrier(step="tried"), Finish(outcome="failed", failure=told, evidence=evidence)))
    return Plan((*steps, Barrier(step="repaired"), Finish(evidence=evidence)))


def is_begun(operation: Operation, member: Member) -> bool:
    """Whether a member is built again: it had failed, or this operation has begun with it."""
    return member.status in ("failed", "joining", "requested") or operation.is_done(f"join/{member.id}")


def _head(cluster: ClusterMembers, operation: Operation) -> tuple[list[Step], bool]:
    """The controller runs and answers; whether all is known that the rest needs."""
    controller = cluster.controller
    if is_begun(operation, controller):
        return controller_up(cluster, controller, anew=True), True
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
    """The daemons that do not run; none while it is not known of all."""
    down = []
    for name in names:
        task = ended(view, operation, f"inspect/{name}/{member.id}")
        if task is None:
            return None
        if not task.succeeded or (task.result or {}).get("state") != "running":
            down.append(name)
    return down


class WorkerRepair:
    """The workers of a repair."""

    def __init__(self, cluster: ClusterMembers, operation: Operation, drained: set[str]) -> None:
        self.cluster, self.operation, self.drained = cluster, operation, drained
        self.unlucky: list[tuple[Member, Failure]] = []
        self.left_alone: dict[str, str] = {}
        self.started: list[str] = []
        self.proved: list[Member] = []
        self.waits = False

    def worker(self, member: Member) -> list[Step]:
        """One worker: built again, started again, or only proved."""
        if not is_reached(member):
            self.left_alone[member.name] = "its machine cannot be reached; replace it where it is gone"
            return []
        if is_begun(self.operation, member):
            return self._anew(member)
        return self._standing(member)

    def _anew(self, member: Member) -> list[Step]:
        failure = broken(self.cluster.view, self.operation, member)
        if failure is not None:
            self.unlucky.append((member, failure))
            return [failed(member, failure)] if member.status == "joining" else []
        self.started.append(member.name)
        self.proved.append(member)
        undrained = uncordon(self.cluster, member, f"undrain/{member.id}", **SEEN_TO)
        return [
            undrained,
            *worker_up(self.cluster, member, anew=True, behind=(undrained.step,)),
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
        steps += [*users(cluster, member, None, **SEEN_TO), await_node(member, f"node/{key}", **SEEN_TO)]
        if member.status not in ("ready", "degraded") or member.name in self.drained:
            self.left_alone[member.name] = "it is drained, so that no job can prove it"
            return steps
        self.proved.append(member)
        steps.append(prove(cluster, member, f"prove/{key}", **SEEN_TO))
        tried = [ended(cluster.view, operation, f"{verb}/{key}") for verb in ("node", "prove")]
        bad = next((each for each in tried if each is not None and each.failed), None)
        if bad is not None:
            failure = failure_of(bad, member)
            self.unlucky.append((member, failure))
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
                    health_detail="a job ran on it from end to end",
                )
            )
        elif tried[1] is None:
            self.waits = True
        return steps

    def evidence(self, found: Sequence[Difference]) -> Mapping[str, Any]:
        """What a person can check."""
        proofs = {
            each.name: answered(self.cluster.view, self.operation, f"prove/{each.id}").get("job")
            for each in self.proved
        }
        return {
            "started": self.started[:50],
            "proofs": dict(list(proofs.items())[:50]),
            "left_alone": dict(list(self.left_alone.items())[:50]),
            "found": [each.plain() for each in found[:MENDED_MAX]],
        }
