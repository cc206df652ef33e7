"""The look at a running cluster: what Slurm says of every node becomes its member's health, and what differs is shown.

Health is read and never proved here: a full cluster cannot run a probe. One look at a time is made on the controller,
once in a while and whenever a member changed; a member whose drain was taken back is resumed in Slurm, where the drain
is the platform's own. A node whose member was torn down without Slurm being told (a forced remove) is deleted here.
"""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from mooring_adapter import InstanceView, Member, MemberObservation, Observation, RunTask, Task
from mooring_slurm.drift import Difference, differences, drain_owner, is_down, is_merely_silent, left_nodes, nodes_of
from mooring_slurm.layout import MemberHome
from mooring_slurm.members import OUTPUT_BYTES, OWNER, UP, controller_of, is_reached, workers_of
from mooring_slurm.responses import answer_of
from mooring_slurm.usage import accounts_of, usage_of

WATCH_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 30
FORGET_SECONDS: Final = 60
"""What the deletion of a node may take: the program itself waits half of it for Slurm to let go of its jobs."""
FORGOTTEN_MAX: Final = 20
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
CHANGING: Final = "changing"
COUNTED_MAX: Final = 20
NODE_FIELDS: Final = (
    "state",
    "reason",
    "reason_by",
    "jobs",
    "cpus_used",
    "gpus",
    "gpus_used",
    "version",
    "address",
    "responding",
)
UNREACHED: Final = "the controller's machine cannot be reached: nothing is known of Slurm"


def watch(view: InstanceView) -> Observation:
    """What is to be told of a cluster that runs."""
    controller = controller_of(view)
    if controller is None or controller.status not in UP:
        return Observation(health="degraded", health_detail="there is no controller that works")
    if not is_reached(controller):
        return Observation(health="degraded", health_detail=UNREACHED)
    asked = (look_task(view, controller),)
    look = newest_of(view, controller)
    if look is None or not look.is_over or not look.step.startswith("look/"):
        late = look is None or look.step.rpartition("/")[2] != asked[0].step.rpartition("/")[2]
        return Observation(looks=asked if late else ())
    seen = answer_of(look)
    if not look.succeeded or seen is None or "error" in seen:
        return _unanswered(view, controller, look, asked)
    usage, meter = usage_of(view, seen), metered(view, seen)
    if look.step.split("/")[1] != fingerprint(view) or is_changing(view):
        # It is older than the newest change, or something is being changed: it says nothing about how members stand.
        return Observation(detail={**view.instance.adapter_detail, **meter}, usage=usage, looks=asked)
    resumed, forgotten = resumes(view, seen), forgets(view, controller, seen)
    silent = silent_once(view, seen)
    found = [
        each
        for each in differences(view, seen)
        if (each.name != "stale_drain" or not resumed) and (each.name != "down" or each.node not in silent)
    ]
    health, why = health_of(view, found)
    wrong = {each.node for each in found}
    told = [each for each in workers_of(view) if _is_told(each) and (each.name in nodes_of(seen) or each.name in wrong)]
    members = tuple(worker_observation(each, seen, found) for each in told)
    return Observation(
        members=(*members, controller_observation(controller, seen)),
        health=health,
        health_detail=why,
        detail=detail_of(view, seen, found),
        usage=usage,
        looks=(*(forgotten or asked), *resumed),
    )


def newest_of(view: InstanceView, controller: Member) -> Task | None:
    """The last thing that the controller was asked beside operations: of a member the platform shows no more."""
    found = [each for each in view.looks if each.member_id == controller.id]
    return max(found, key=lambda each: (each.created_at or LONG_AGO, each.id), default=None)


def look_task(view: InstanceView, controller: Member) -> RunTask:
    """The next look: a name for each stretch of time, and for each change of the members that is over."""
    now = view.now or datetime.now(UTC)
    words = ["look"]
    if (after := view.instance.adapter_detail.get("ended_until")) is not None:
        words += ["--ended-after", str(after)]
    arguments: dict[str, Any] = {
        "argv": MemberHome(controller.name).argv(*words),
        "attempts": 1,
        "timeout_seconds": LOOK_SECONDS,
        "output_bytes": OUTPUT_BYTES,
    }
    seen_as = CHANGING if is_changing(view) else fingerprint(view)
    step = f"look/{seen_as}/{int(now.timestamp() // WATCH_SECONDS)}"
    return RunTask(step=step, member_id=controller.id, type="probe.exec", arguments=arguments)


def is_changing(view: InstanceView) -> bool:
    """Whether something is being changed: looks say nothing about how members stand until that is over."""
    return any(each.kind != "action" for each in view.operations)


def fingerprint(view: InstanceView) -> str:
    """How the members stand, and after what, in a few letters: another look is due when that has changed."""
    told = [(each.id, each.status, each.last_operation_id or "") for each in view.members]
    return hashlib.sha256(repr(sorted(told)).encode()).hexdigest()[:10]


def resumes(view: InstanceView, seen: Mapping[str, Any]) -> tuple[RunTask, ...]:
    """Nodes that are wanted back: their member does its part, and the drain that they have is the platform's own."""
    nodes = nodes_of(seen)
    stale = {each.node for each in differences(view, seen) if each.name == "stale_drain"}
    found = []
    for member in workers_of(view):
        if member.name in stale and is_reached(member) and drain_owner(nodes[member.name]) == OWNER:
            reason = hashlib.sha256(str(nodes[member.name].get("reason")).encode()).hexdigest()[:10]
            words = ("resume", "--node", member.name, "--owner", OWNER)
            arguments = {"argv": MemberHome(member.name).argv(*words), "attempts": 3, "timeout_seconds": LOOK_SECONDS}
            step = f"wanted/{reason}/{int((view.now or datetime.now(UTC)).timestamp() // WATCH_SECONDS)}"
            found.append(RunTask(step=step, member_id=member.id, type="probe.exec", arguments=arguments))
    return tuple(found)


def forgets(view: InstanceView, controller: Member, seen: Mapping[str, Any]) -> tuple[RunTask, ...]:
    """Nodes that were left in Slurm: the controller deletes them, which ends the jobs that Slurm thinks run there.

    Each is tried once in a stretch of time, and the next look is made in the one after it.
    """
    found = []
    stretch = int((view.now or datetime.now(UTC)).timestamp() // WATCH_SECONDS)
    for name in left_nodes(view, seen)[:FORGOTTEN_MAX]:
        words = ("delete", "--node", name, "--gone", "--owner", OWNER)
        arguments = {"argv": MemberHome(controller.name).argv(*words), "attempts": 1, "timeout_seconds": FORGET_SECONDS}
        step = f"forget/{name}/{stretch}"
        found.append(RunTask(step=step, member_id=controller.id, type="probe.exec", arguments=arguments))
    return tuple(found)


def silent_once(view: InstanceView, seen: Mapping[str, Any]) -> frozenset[str]:
    """Nodes that only did not answer, and did at the look before: one moment's silence is not called down."""
    nodes = nodes_of(seen)
    return frozenset(
        each.name
        for each in workers_of(view)
        if each.name in nodes
        and is_merely_silent(nodes[each.name])
        and (each.adapter_detail.get("slurm") or {}).get("responding") is not False
    )


def health_of(view: InstanceView, found: list[Difference]) -> tuple[str, str]:
    """How the whole does, and why."""
    workers = workers_of(view)
    failed = [each.name for each in workers if each.status == "failed"]
    if failed:
        return "degraded", f"failed: {', '.join(failed[:5])}"
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        first = found[0]
        return "degraded", f"{first.node}: {first.detail}{more}".removeprefix(": ")[:500]
    if not workers:
        return "healthy", "the controller takes jobs; there are no workers"
    return "healthy", f"{len(workers)} workers"


def worker_observation(member: Member, seen: Mapping[str, Any], found: list[Difference]) -> MemberObservation:
    """What Slurm says of one worker."""
    node = nodes_of(seen).get(member.name)
    wrong = next((each for each in found if each.node == member.name), None)
    state = None if node is None else {name: node[name] for name in NODE_FIELDS if node.get(name) is not None}
    detail = {**member.adapter_detail, "slurm": state or {"state": ["ABSENT"]}}
    if member.status in ("draining", "drained"):
        health = "degraded" if node is None or is_down(node) else "healthy"
        return MemberObservation(member_id=member.id, health=health, detail=detail)
    if wrong is None:
        return MemberObservation(
            member_id=member.id, status="ready", health="healthy", health_detail="Slurm sends it jobs", detail=detail
        )
    return MemberObservation(
        member_id=member.id, status="degraded", health="degraded", health_detail=wrong.detail[:500], detail=detail
    )


def controller_observation(controller: Member, seen: Mapping[str, Any]) -> MemberObservation:
    """The controller answers."""
    known = {name: seen[name] for name in ("version", "partitions") if name in seen}
    status = "ready" if controller.status == "degraded" else None
    return MemberObservation(
        member_id=controller.id,
        status=status,
        health="healthy",
        health_detail="it answers",
        detail={**controller.adapter_detail, "slurm": known},
    )


def detail_of(view: InstanceView, seen: Mapping[str, Any], found: list[Difference]) -> dict[str, Any]:
    """What operators see of the whole; until when jobs were metered is in it, so that nobody meters them anew."""
    kept = {name: value for name, value in view.instance.adapter_detail.items() if name not in ("slurm", "drift")}
    return {
        **kept,
        **metered(view, seen),
        "slurm": {
            "version": seen.get("version"),
            "nodes": len(nodes_of(seen)),
            "jobs": dict(list(seen.get("job_counts", {}).items())[:COUNTED_MAX]),
        },
        "drift": [each.plain() for each in found[:COUNTED_MAX]],
    }


def metered(view: InstanceView, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Until when jobs were metered, once that is told (a mark of the program's own), and whose accounts are whose."""
    until, accounts = seen.get("ended_until"), accounts_of(view)
    return {**({} if until is None else {"ended_until": until}), **({"accounts": accounts} if accounts else {})}


def _unanswered(view: InstanceView, controller: Member, look: Task, asked: tuple[RunTask, ...]) -> Observation:
    """The controller does not answer: what it would say of the others is not known."""
    error = (answer_of(look) or {}).get("error")
    said = error.get("detail") if isinstance(error, Mapping) else None
    why = f"the controller does not answer: {said or look.failure_detail or look.status}"[:500]
    told = MemberObservation(
        member_id=controller.id,
        status="degraded" if controller.status == "ready" else None,
        health="degraded",
        health_detail=why,
    )
    return Observation(members=(told,), health="degraded", health_detail=why, looks=asked)


def _is_told(member: Member) -> bool:
    return member.status in UP and is_reached(member)
