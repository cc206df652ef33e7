"""Observes a running cluster: Slurm's state of every node becomes its member's health, and differences are shown.

Health is only read here, because a full cluster cannot run a test job. One look at a time runs on the controller,
periodically and whenever a member has changed. A member whose drain was taken back is resumed in Slurm if the drain is
the platform's own. A node that a forced removal left in Slurm is deleted.
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
"""How long the deletion of a node may take: the node program waits half of it for Slurm to end the node's jobs."""
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
UNREACHED: Final = "the controller's machine is unreachable, so the state of Slurm is unknown"


def watch(view: InstanceView) -> Observation:
    """Observe a running cluster."""
    controller = controller_of(view)
    if controller is None or controller.status not in UP:
        return Observation(health="degraded", health_detail="there is no working controller")
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
        # It is older than the last change, or a change is in progress: it says nothing about the members.
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
    observable = [
        each
        for each in workers_of(view)
        if _is_observable(each) and (each.name in nodes_of(seen) or each.name in wrong)
    ]
    members = tuple(worker_observation(each, seen, found) for each in observable)
    return Observation(
        members=(*members, controller_observation(controller, seen)),
        health=health,
        health_detail=why,
        detail=detail_of(view, seen, found),
        usage=usage,
        looks=(*(forgotten or asked), *resumed),
    )


def newest_of(view: InstanceView, controller: Member) -> Task | None:
    """The controller's last task outside operations; the platform shows only one per member."""
    found = [each for each in view.looks if each.member_id == controller.id]
    return max(found, key=lambda each: (each.created_at or LONG_AGO, each.id), default=None)


def look_task(view: InstanceView, controller: Member) -> RunTask:
    """The next look: its name changes with each period of time and with each change of the members."""
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
    """Whether a change is in progress: until it is over, looks say nothing about the members."""
    return any(each.kind != "action" for each in view.operations)


def fingerprint(view: InstanceView) -> str:
    """A digest of the members' states: another look is due when it changes."""
    states = [(each.id, each.status, each.last_operation_id or "") for each in view.members]
    return hashlib.sha256(repr(sorted(states)).encode()).hexdigest()[:10]


def resumes(view: InstanceView, seen: Mapping[str, Any]) -> tuple[RunTask, ...]:
    """Resume nodes whose member works although the platform's own drain is still there."""
    nodes = nodes_of(seen)
    stale = {each.node for each in differences(view, seen) if each.name == "stale_drain"}
    found = []
    for member in workers_of(view):
        if member.name in stale and is_reached(member) and drain_owner(nodes[member.name]) == OWNER:
            reason = hashlib.sha256(str(nodes[member.name].get("reason")).encode()).hexdigest()[:10]
            words = ("resume", "--node", member.name, "--owner", OWNER)
            arguments = {"argv": MemberHome(member.name).argv(*words), "attempts": 3, "timeout_seconds": LOOK_SECONDS}
            step = f"wanted/{reason}/{int((view.now or datetime.now(UTC)).timestamp() // WATCH_SECONDS)}"
            found.append(RunTask(step=step, member_id=member.id, type="probe.exec", arguments=arguments, audited=True))
    return tuple(found)


def forgets(view: InstanceView, controller: Member, seen: Mapping[str, Any]) -> tuple[RunTask, ...]:
    """Delete nodes that were left in Slurm, which ends the jobs that Slurm believes to run there.

    Each is tried once per period, and the next look follows in the next period.
    """
    found = []
    period = int((view.now or datetime.now(UTC)).timestamp() // WATCH_SECONDS)
    for name in left_nodes(view, seen)[:FORGOTTEN_MAX]:
        words = ("delete", "--node", name, "--gone", "--owner", OWNER)
        arguments = {"argv": MemberHome(controller.name).argv(*words), "attempts": 1, "timeout_seconds": FORGET_SECONDS}
        step = f"forget/{name}/{period}"
        found.append(RunTask(step=step, member_id=controller.id, type="probe.exec", arguments=arguments, audited=True))
    return tuple(found)


def silent_once(view: InstanceView, seen: Mapping[str, Any]) -> frozenset[str]:
    """Nodes that do not answer but did at the look before: a single silence does not count as down."""
    nodes = nodes_of(seen)
    return frozenset(
        each.name
        for each in workers_of(view)
        if each.name in nodes
        and is_merely_silent(nodes[each.name])
        and (each.adapter_detail.get("slurm") or {}).get("responding") is not False
    )


def health_of(view: InstanceView, found: list[Difference]) -> tuple[str, str]:
    """The health of the whole, and why."""
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
    return "healthy", "1 worker" if len(workers) == 1 else f"{len(workers)} workers"


def worker_observation(member: Member, seen: Mapping[str, Any], found: list[Difference]) -> MemberObservation:
    """What to report about a worker: degraded if Slurm does not know it or it differs from the target."""
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
    """The observation of a controller that answers."""
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
    """The instance's detail; it contains how far jobs were metered, so that none is metered twice."""
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
    """How far jobs were metered (an opaque mark of the node program), and the projects of the accounts."""
    until, accounts = seen.get("ended_until"), accounts_of(view)
    return {**({} if until is None else {"ended_until": until}), **({"accounts": accounts} if accounts else {})}


def _unanswered(view: InstanceView, controller: Member, look: Task, asked: tuple[RunTask, ...]) -> Observation:
    """The observation of a controller that does not answer; the state of the workers is unknown."""
    error = (answer_of(look) or {}).get("error")
    detail = error.get("detail") if isinstance(error, Mapping) else None
    why = f"the controller does not answer: {detail or look.failure_detail or look.status}"[:500]
    observed = MemberObservation(
        member_id=controller.id,
        status="degraded" if controller.status == "ready" else None,
        health="degraded",
        health_detail=why,
    )
    return Observation(members=(observed,), health="degraded", health_detail=why, looks=asked)


def _is_observable(member: Member) -> bool:
    return member.status in UP and is_reached(member)
