"""The plans of the echo app: one pure function for each kind of operation.

It has three roles, to show that the kit assumes no "controller and workers": `seed` needs a quorum (an odd number, of
which a majority has to work while one is changed), `worker` does the echoing, `gate` is the entry for people.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mooring_adapter import (
    Barrier,
    Blocked,
    Failure,
    Finish,
    InstanceView,
    Member,
    Operation,
    Plan,
    ReportEndpoint,
    ReportMember,
    RunTask,
    Step,
)
from mooring_echo.members import (
    STANDING,
    MemberDrain,
    bring_up,
    files,
    greeting_file,
    is_ready,
    port_of,
    start,
    stop,
    update_peers,
)

ROLES: Final = ("seed", "worker", "gate")


def plan(view: InstanceView, operation: Operation) -> Plan:
    return PLANS[operation.kind](view, operation)


def deploy(view: InstanceView, operation: Operation) -> Plan:
    """The seeds first, then the others."""
    members = alive(view)
    seeds = [each for each in members if each.component_key == "seed"]
    if len(seeds) % 2 == 0:
        return refused(
            "config_refused", f"the number of seeds must be odd, so that there is always a majority; it is {len(seeds)}"
        )
    steps = [step for each in seeds for step in bring_up(view, each, members)]
    steps.append(Barrier(step="seeds"))
    others = [each for each in members if each.component_key != "seed"]
    steps += [step for each in others for step in bring_up(view, each, members)]
    return Plan((*steps, *endpoints(view, members), Finish(evidence=evidence(members))))


def add(view: InstanceView, operation: Operation) -> Plan:
    """The new members in parallel; then the old ones get the new list of peers."""
    members = alive(view)
    new = view.concerned(operation)
    steps = [step for each in new for step in bring_up(view, each, members)]
    return Plan((*steps, *peer_updates(members, new), *endpoints(view, members), Finish(evidence=evidence(new))))


def drain(view: InstanceView, operation: Operation) -> Plan:
    """A member is drained when a probe found it quiet."""
    steps: list[Step] = []
    for member in view.concerned(operation):
        if blocker := quorum_blocker(view, member):
            return Plan((blocker, Finish()))
        quietness = MemberDrain(view, operation, member)
        if quietness.is_given_up:
            return refused("not_quiet", f"{member.name} still had work when the time ran out")
        steps += quietness.steps()
        if quietness.is_quiet:
            steps.append(
                ReportMember(
                    step=f"drained/{member.id}",
                    member_id=member.id,
                    status="drained",
                    detail={**member.adapter_detail, "cordoned_by": operation.id},
                )
            )
        else:
            return Plan(tuple(steps))  # without an end: the kit plans again when the probe is over
    return Plan((*steps, Finish(evidence={"quiet": operation.member_ids})))


def remove(view: InstanceView, operation: Operation) -> Plan:
    """Drain it while there is time, then stop the process; the platform tears down the rest."""
    steps: list[Step] = []
    leaving = view.concerned(operation)
    for member in leaving:
        if member.status not in STANDING or not reachable(member):
            continue  # a failed member has nothing to finish
        if blocker := quorum_blocker(view, member):
            return Plan((blocker, Finish()))
        quietness = MemberDrain(view, operation, member)
        steps += quietness.steps()
        if not quietness.is_quiet and not quietness.is_given_up:
            return Plan(tuple(steps))
        if quietness.is_quiet and member.status == "draining":
            steps.append(ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained"))
        steps.append(stop(member, f"stop/{member.id}"))
    staying = [each for each in alive(view) if each.id not in operation.member_ids]
    return Plan((*steps, *peer_updates(staying, leaving), Finish(evidence={"left": operation.member_ids})))


def replace(view: InstanceView, operation: Operation) -> Plan:
    """With a surge the new member is ready before the old one stops; without, the old one stops first."""
    concerned = view.concerned(operation)
    replaced = {each.replaces_id for each in concerned}
    new = [each for each in concerned if each.id not in replaced]
    old = [each for each in concerned if each.id in replaced]
    staying = [each for each in alive(view) if each.id not in replaced]
    arriving = [step for each in new for step in bring_up(view, each, staying)]
    leaving: list[Step] = []
    for member in old:
        if member.status in STANDING and reachable(member):
            quietness = MemberDrain(view, operation, member)
            leaving += quietness.steps()
            if not quietness.is_quiet and not quietness.is_given_up:
                before = [*arriving, Barrier(step="arrived")] if operation.request.get("surge", True) else []
                return Plan((*before, *leaving))
            if quietness.is_quiet and member.status == "draining":
                leaving.append(ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained"))
            leaving.append(stop(member, f"stop/{member.id}"))
    order = [arriving, leaving] if operation.request.get("surge", True) else [leaving, arriving]
    steps = [*order[0], Barrier(step="first"), *order[1], Barrier(step="second")]
    if operation.request.get("surge", True):
        steps = [*arriving, Barrier(step="arrived"), *leaving, Barrier(step="left")]
    return Plan((*steps, *peer_updates(staying, new), *endpoints(view, staying), Finish(evidence=evidence(new))))


def change_version(view: InstanceView, operation: Operation) -> Plan:
    """Upgrade and rollback: role by role, in lanes that leave a majority running."""
    target = operation.target_pin.version if operation.target_pin else view.instance.pin.version
    members = [each for each in alive(view) if each.status in STANDING]
    steps: list[Step] = []

    def of_member(member: Member) -> list[Step]:
        key = member.id
        return [
            files(view, member, members, f"files/{key}"),
            stop(member, f"stop/{key}"),
            start(member, target, f"start/{key}"),
            is_ready(member, f"probe/{key}"),
            ReportMember(step=f"version/{key}", member_id=key, version=target),
        ]

    for role in ROLES:
        steps += in_lanes([each for each in members if each.component_key == role], of_member)
        steps.append(Barrier(step=f"{role}s"))
    return Plan((*steps, *endpoints(view, members), Finish(evidence={"version": target})))


def restart(view: InstanceView, operation: Operation) -> Plan:
    """Restart the processes, in lanes that leave a majority running."""
    members = [each for each in alive(view) if each.status in STANDING]
    steps: list[Step] = []

    def of_member(member: Member) -> list[Step]:
        key = member.id
        return [
            stop(member, f"stop/{key}"),
            start(member, member.version, f"start/{key}"),
            is_ready(member, f"probe/{key}"),
        ]

    for role in ROLES:
        steps += in_lanes([each for each in members if each.component_key == role], of_member)
        steps.append(Barrier(step=f"{role}s"))
    return Plan((*steps, *endpoints(view, members), Finish(evidence=evidence(members))))


def configure(view: InstanceView, operation: Operation) -> Plan:
    """Write the new configuration for every working member, which reads it at its next request: nothing restarts."""
    target = view.with_target_config(operation)  # the instance keeps the old one until this has succeeded
    members = [each for each in alive(view) if each.status in STANDING and reachable(each)]
    steps: list[Step] = []
    for member in members:
        key, arguments = member.id, {"files": [greeting_file(target, member)]}
        steps.append(
            RunTask(step=f"greeting/{key}", member_id=key, type="files.write", arguments=arguments, attempts=3)
        )
        steps.append(is_ready(member, f"probe/{key}"))
    return Plan((*steps, Finish(evidence={"applied_by": "reload"})))


def repair(view: InstanceView, operation: Operation) -> Plan:
    """Build failed members again if their node is reachable, and update everybody's peers."""
    members = alive(view)
    wanted = operation.request.get("member_id")
    begun = [each for each in members if operation.is_done(f"join/{each.id}")]
    broken = [
        each
        for each in members
        if (each.status in ("failed", "joining") or each in begun) and reachable(each) and wanted in (None, each.id)
    ]
    steps: list[Step] = []
    for member in broken:
        first, *rest = bring_up(view, member, members)
        steps += [first, stop(member, f"stop/{member.id}"), *rest]
    standing = [each for each in members if each.status in STANDING and each not in broken]
    return Plan((*steps, *peer_updates(standing, broken), *endpoints(view, members), Finish(evidence=evidence(broken))))


def decommission(view: InstanceView, operation: Operation) -> Plan:
    """Stop every process gracefully; the platform handles unreachable nodes."""
    leaving = [each for each in view.members if each.status in STANDING and reachable(each)]
    steps = [stop(each, f"stop/{each.id}") for each in leaving]
    return Plan((*steps, Finish(evidence={"ended": len(leaving)})))


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
    "reconcile": repair,
    "decommission": decommission,
}


def in_lanes(members: Sequence[Member], steps_of: Callable[[Member], list[Step]]) -> list[Step]:
    """One member after the other, in as many lanes as leave a majority running."""
    lanes = max((len(members) - 1) // 2, 1)
    last: list[str | None] = [None] * lanes
    found: list[Step] = []
    for index, member in enumerate(members):
        lane = index % lanes
        steps = steps_of(member)
        if last[lane] is not None and isinstance(steps[0], RunTask):
            steps[0] = after(steps[0], str(last[lane]))
        last[lane] = steps[-1].step
        found += steps
    return found


def after(task: RunTask, step: str) -> RunTask:
    """The task, to run after another step."""
    return RunTask(
        step=task.step,
        member_id=task.member_id,
        type=task.type,
        arguments=task.arguments,
        after=(step,),
        on_failure=task.on_failure,
        attempts=task.attempts,
    )


def alive(view: InstanceView) -> list[Member]:
    """The members that are not being removed, role by role."""
    gone = ("removing", "removed")
    return [each for role in ROLES for each in view.of(role) if each.status not in gone]


def reachable(member: Member) -> bool:
    """Whether tasks can run on its node."""
    return member.failure_code != "node_lost" and (member.allocation is None or member.allocation.node_reachable)


def quorum_blocker(view: InstanceView, member: Member) -> Blocked | None:
    """Why a seed cannot be taken out now: a majority of the seeds has to work without it."""
    if member.component_key != "seed":
        return None
    seeds = [each for each in alive(view) if each.component_key == "seed"]
    others = [each for each in seeds if each.id != member.id and each.stands and reachable(each)]
    if len(others) > len(seeds) // 2 or len(seeds) == 1:
        return None  # the platform enforces the minimum, so it has allowed the last one to go
    detail = (
        f"{len(others)} of {len(seeds)} seeds would be left, which is not a majority; wait for the others, or repair"
    )
    return Blocked(step="quorum", code="quorum", detail=detail)


def peer_updates(members: Sequence[Member], changed: Sequence[Member]) -> list[Step]:
    """Update the working members' peers: everybody's if seeds changed, the gates' if workers changed."""
    roles = {each.component_key for each in changed}
    known = {each.id for each in changed}
    concerned = [
        each
        for each in members
        if "seed" in roles or ("worker" in roles and each.component_key == "gate")
        if each.id not in known and each.status in STANDING and reachable(each)
    ]
    return [update_peers(each, members) for each in concerned]


def endpoints(view: InstanceView, members: Sequence[Member]) -> list[Step]:
    """Report the web endpoint on the first gate that is neither failed nor draining, unless it is recorded already."""
    gates = [each for each in members if each.component_key == "gate" and each.status not in ("failed", "draining")]
    if not gates:
        return []
    gate = gates[0]
    known = next((each for each in view.instance.endpoints if each.get("name") == "web"), {})
    if known.get("member_id") == gate.id:
        return []
    return [
        ReportEndpoint(
            step="endpoint",
            name="web",
            member_id=gate.id,
            protocol="http",
            port=port_of(gate),
            title="Echo",
            task=f"start/{gate.id}",
        )
    ]


def evidence(members: Sequence[Member]) -> dict[str, object]:
    """What a person can verify."""
    return {"members": {each.name: port_of(each) for each in members[:50]}}


def refused(code: str, detail: str) -> Plan:
    """Fail the operation."""
    return Plan((Finish(outcome="failed", failure=Failure(code, detail)),))
