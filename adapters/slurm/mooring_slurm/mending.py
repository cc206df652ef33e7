"""Reconcile and repair: what is compared, what is put right, and what is built again.

Reconcile looks, puts right what is the platform's own (a drain it left behind, a node of no member) and shows the three
views. Repair also starts what is down, builds failed members again, and proves by a job that they work.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mooring_adapter import Failure, Finish, Gather, Member, Operation, Plan, ReportMember, Step, World, failures
from mooring_slurm.answers import answered, ended, failure_of
from mooring_slurm.coming import (
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
from mooring_slurm.layout import MARIADBD, MUNGED, SLURMCTLD, SLURMDBD
from mooring_slurm.members import (
    OWNER,
    UP,
    Crew,
    Refused,
    ask,
    crew_of,
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
from mooring_slurm.views import LEFT, Difference, differences, is_merely_silent, nodes_of, three_views

MENDED_MAX = 50
"""So many differences are put right in one operation."""


def reconcile(world: World, operation: Operation) -> Plan:
    """Compare, put right what is our own, compare again, and show it."""
    crew = crew_of(world)
    head = crew.controller
    if not is_reached(head) or head.status not in UP:
        found = [
            Difference(head.name, "controller_unreachable", f"the controller is {head.status}; nobody can ask Slurm")
        ]
        why = f"the controller {head.name} cannot be asked: its machine is not reached, or it is {head.status}"
        raise Refused("unhealthy", why, **three_views(world, None, found))
    steps: list[Step] = [ask(head, f"look/{head.id}", "look")]
    if ended(world, operation, f"look/{head.id}") is None:
        return Plan(tuple(steps))
    seen = answered(world, operation, f"look/{head.id}")
    found = differences(world, seen)
    mended = put_right(crew, operation, found)
    if not mended:
        return Plan((*steps, Finish(evidence=three_views(world, seen, found))))
    steps += [*mended, Gather(step="mended"), ask(head, f"check/{head.id}", "look")]
    after = answered(world, operation, f"check/{head.id}")
    left = [each for each in differences(world, after) if not is_settling(each, seen, after)] if after else found
    evidence = {**three_views(world, after or None, left)}
    evidence["put_right"] = [each.plain() for each in found if each.is_mended][:MENDED_MAX]
    return Plan((*steps, Gather(step="checked"), Finish(evidence=evidence)))


def is_settling(each: Difference, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a node is only silent in the moment after it was put right, and answered before: that is not down."""
    node, earlier = nodes_of(after).get(each.node), nodes_of(before).get(each.node)
    if each.name != "down" or node is None or earlier is None or not earlier.get("responding"):
        return False
    return is_merely_silent(node)


def put_right(crew: Crew, operation: Operation, found: Sequence[Difference]) -> list[Step]:
    """What a controller alone can put right of what is the platform's own."""
    members = {each.name: each for each in crew.workers}
    steps: list[Step] = []
    for each in [each for each in found if each.is_mended][:MENDED_MAX]:
        member = members.get(each.node)
        if each.name in ("unknown_node", LEFT):
            words = ("delete", "--node", each.node, "--gone", "--owner", OWNER)
            steps.append(ask(crew.controller, f"forget/{each.node}", *words, **SEEN_TO))
        elif each.name == "stale_drain" and member is not None:
            steps.append(uncordon(crew, member, f"uncordon/{member.id}", **SEEN_TO))
        elif each.name == "not_drained" and member is not None:
            steps.append(cordon(crew, member, operation))
    return steps


def repair(world: World, operation: Operation) -> Plan:
    """The controller first, then what Slurm has of us, then the workers; each that is brought back proves itself."""
    crew = crew_of(world)
    scope, only = operation.request.get("scope", "whole_runtime"), operation.request.get("member_id")
    head = crew.controller
    if failures.is_lost(head):
        raise Refused("unhealthy", f"the controller {head.name} is lost with its machine: replace it")
    steps, is_known = _head(crew, operation) if only in (None, head.id) else (list[Step](), True)
    if not is_known:
        return Plan(tuple(steps))
    if only is not None and only != head.id:
        need_controller(crew)
    steps += [Gather(step="controller"), ask(head, f"look/{head.id}", "look")]
    if ended(world, operation, f"look/{head.id}") is None:
        return Plan(tuple(steps))
    seen = answered(world, operation, f"look/{head.id}")
    found = differences(world, seen)
    steps += [*put_right(crew, operation, found), Gather(step="mended")]
    mending = Mending(
        crew, operation, {each.node for each in found if each.name.endswith("_drain") and not each.is_mended}
    )
    if scope != "control_plane":
        for member in crew.workers:
            if only in (None, member.id):
                steps += mending.worker(member)
    if is_begun(operation, head):
        steps += [Gather(step="proved"), controller_ready(crew, head, operation, crew.version)]
    elif head.status == "degraded":
        steps.append(ReportMember(step=f"ready/{head.id}", member_id=head.id, status="ready", health="healthy"))
    if mending.waits:
        return Plan(tuple(steps))
    evidence = mending.evidence(found)
    if mending.unlucky:
        member, failure = mending.unlucky[0]
        told = Failure(failure.code, f"{member.name}: {failure.detail}", failure.last_lines)
        return Plan((*steps, Gather(step="tried"), Finish(outcome="failed", failure=told, evidence=evidence)))
    return Plan((*steps, Gather(step="repaired"), Finish(evidence=evidence)))


def is_begun(operation: Operation, member: Member) -> bool:
    """Whether a member is built again: it had failed, or this operation has begun with it."""
    return member.status in ("failed", "joining", "requested") or operation.is_done(f"join/{member.id}")


def _head(crew: Crew, operation: Operation) -> tuple[list[Step], bool]:
    """The controller runs and answers; whether all is known that the rest needs."""
    head = crew.controller
    if is_begun(operation, head):
        return controller_up(crew, head, anew=True), True
    kinds: dict[str, Any] = {MUNGED: munged}
    if crew.config.accounting:
        kinds |= {MARIADBD: mariadbd, SLURMDBD: slurmdbd}
    kinds[SLURMCTLD] = partial(slurmctld, crew)
    steps: list[Step] = [inspect(head, f"inspect/{name}/{head.id}", name) for name in kinds]
    down = down_services(crew.world, operation, head, tuple(kinds))
    if down is None:
        return steps, False
    steps += [kinds[name](head, f"start/{name}/{head.id}") for name in down]
    return [*steps, gate(crew, head, f"gate/{head.id}")], True


def down_services(world: World, operation: Operation, member: Member, names: Sequence[str]) -> list[str] | None:
    """The daemons that do not run; none while it is not known of all."""
    down = []
    for name in names:
        task = ended(world, operation, f"inspect/{name}/{member.id}")
        if task is None:
            return None
        if not task.succeeded or (task.result or {}).get("state") != "running":
            down.append(name)
    return down


class Mending:
    """The workers of a repair."""

    def __init__(self, crew: Crew, operation: Operation, drained: set[str]) -> None:
        self.crew, self.operation, self.drained = crew, operation, drained
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
        failure = broken(self.crew.world, self.operation, member)
        if failure is not None:
            self.unlucky.append((member, failure))
            return [failed(member, failure)] if member.status == "joining" else []
        self.started.append(member.name)
        self.proved.append(member)
        undrained = uncordon(self.crew, member, f"undrain/{member.id}", **SEEN_TO)
        return [
            undrained,
            *worker_up(self.crew, member, anew=True, behind=(undrained.step,)),
            worker_ready(self.crew, member, self.operation, self.crew.version),
        ]

    def _standing(self, member: Member) -> list[Step]:
        crew, operation, key = self.crew, self.operation, member.id
        steps: list[Step] = [inspect(member, f"inspect/{name}/{key}", name) for name in services(member)]
        down = down_services(crew.world, operation, member, services(member))
        if down is None:
            self.waits = True
            return steps
        for name in down:
            self.started.append(f"{member.name} {name}")
            step = f"start/{name}/{key}"
            steps.append(munged(member, step) if name == MUNGED else slurmd(crew, member, step))
        steps += [*users(crew, member, None, **SEEN_TO), await_node(member, f"node/{key}", **SEEN_TO)]
        if member.status not in ("ready", "degraded") or member.name in self.drained:
            self.left_alone[member.name] = "it is drained, so that no job can prove it"
            return steps
        self.proved.append(member)
        steps.append(prove(crew, member, f"prove/{key}", **SEEN_TO))
        tried = [ended(crew.world, operation, f"{verb}/{key}") for verb in ("node", "prove")]
        bad = next((each for each in tried if each is not None and each.failed), None)
        if bad is not None:
            failure = failure_of(bad, member)
            self.unlucky.append((member, failure))
            if member.status == "ready":
                steps.append(
                    ReportMember(
                        step=f"unwell/{key}", member_id=key, status="degraded", health="degraded",
                        health_detail=failure.detail[:500],
                    )
                )  # fmt: skip
        elif tried[1] is not None and member.status == "degraded":
            steps.append(
                ReportMember(
                    step=f"well/{key}", member_id=key, status="ready", health="healthy",
                    health_detail="a job ran on it from end to end",
                )
            )  # fmt: skip
        elif tried[1] is None:
            self.waits = True
        return steps

    def evidence(self, found: Sequence[Difference]) -> Mapping[str, Any]:
        """What a person can check."""
        proofs = {
            each.name: answered(self.crew.world, self.operation, f"prove/{each.id}").get("job") for each in self.proved
        }  # fmt: skip
        return {
            "started": self.started[:50],
            "proofs": dict(list(proofs.items())[:50]),
            "left_alone": dict(list(self.left_alone.items())[:50]),
            "found": [each.plain() for each in found[:MENDED_MAX]],
        }
