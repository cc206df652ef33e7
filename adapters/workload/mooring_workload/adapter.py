"""The workload adapter's plans: what is done for each kind of operation, as data, from what is recorded.

Every member runs the same profile, each in an owner of its own.

**Drained** is a plain program when it has ended: nobody taught it to finish its work first, and nothing else can be
observed of it. So a drain stops the program, within the grace of the manifest, and looks whether it is gone.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from mooring_adapter import failures
from mooring_adapter.adapter import Adapter
from mooring_adapter.steps import Finish, Gather, Plan, ReportMember, Step
from mooring_adapter.world import Operation, World
from mooring_workload.case import QUIET, Case, Ended
from mooring_workload.judge import RUNNING, ended_because, failure_of
from mooring_workload.profile import read_profile
from mooring_workload.watch import WATCH_SECONDS, watch

TO_ANOTHER_VERSION: Final = frozenset({"upgrade", "rollback"})


def plan(world: World, operation: Operation) -> Plan:
    """The steps of an operation, by its kind."""
    manifest = world.manifest
    if operation.kind in TO_ANOTHER_VERSION and world.target_manifest is not None:
        manifest = world.target_manifest
    case = Case(world, operation, read_profile(manifest), world.tasks_of(operation))
    steps: list[Step] = []
    try:
        for step in PLANS[operation.kind](case):
            steps.append(step)
    except Ended as ended:
        steps.append(Finish(outcome="failed", failure=ended.failure))
    return Plan(tuple(steps))


def _deploy(case: Case) -> Iterator[Step]:
    """Deploy and add: all at once, and the end is told when each has come up or failed."""
    members = case.world.concerned(case.operation)
    for member in members:
        if not failures.is_lost(member):
            case.rendered(member)  # what cannot be run is told before anything is begun
    yield from case.secrets()
    for member in members:
        if not failures.is_lost(member):
            yield ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining")
    for member in members:
        yield from case.up(member)
    yield Gather(step="gather")
    up = [each for each in members if each.id not in case.failed]
    if case.operation.kind != "deploy" or _is_short(case.world, [each.component_key for each in up]):
        case.refuse_failed()
    yield from case.endpoints()
    yield Finish(evidence={"ready": [each.id for each in up], "failed": sorted(case.failed)})


def _is_short(world: World, up: list[str]) -> bool:
    """Whether a component has fewer members than it needs."""
    components = world.manifest.get("components")
    if not components:
        return not up
    return any(up.count(each["key"]) < each.get("min_count", 0) for each in components)


def _drain(case: Case) -> Iterator[Step]:
    for member in case.world.concerned(case.operation):
        rendered = case.rendered(member)
        yield case.run(rendered.stop, member)
        stopped = case.over("stop", member)
        if stopped is None:
            continue
        yield case.run(rendered.inspect, member)
        look = case.over("inspect", member)
        if look is None:
            continue
        state = str((look.result or {}).get("state", "absent" if look.failure_code == "not_found" else "unknown"))
        if state in RUNNING or state == "unknown":
            why = f"{member.name or member.id} is {state} after {case.profile.grace_seconds} s of grace"
            raise Ended("not_quiet", why, tuple(look.last_lines or ()))
        detail = {**member.adapter_detail, QUIET: f"its program has ended ({state})"}
        yield ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained", detail=detail)
    yield Finish(evidence={"quiet_by": "the program was stopped, and was seen to have ended"})


def _let_go(case: Case) -> Iterator[Step]:
    """The graceful half of a removal or of the end of the whole; the rest is the platform's."""
    members = case.world.concerned(case.operation)
    if case.operation.kind == "remove":
        yield from case.endpoints(*members)
    for member in members:
        yield from case.down(member)
    yield Finish(evidence={"stopped": [each.id for each in members]})


def _replace(case: Case) -> Iterator[Step]:
    """The new one first where there is room for both, else the old one gives way first."""
    concerned = case.world.concerned(case.operation)
    new = [each for each in concerned if each.replaces_id is not None]
    old = [each for each in concerned if each.replaces_id is None]
    surge = bool(case.operation.request.get("surge"))
    yield from case.secrets()
    if not surge:
        for member in old:
            yield from case.down(member)
        yield Gather(step="given-way")
    for member in new:
        if not failures.is_lost(member):
            yield ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining")
        yield from case.up(member)
    yield Gather(step="gather")
    case.refuse_failed()
    yield from case.endpoints(*old)
    if surge:
        for member in old:
            yield from case.down(member)
    evidence = {"ready": [each.id for each in new], "stopped": [each.id for each in old]}
    yield Finish(evidence=evidence)


def _change_version(case: Case) -> Iterator[Step]:
    """Upgrade and rollback: each member gives way to itself at the other version, one after the other unless the
    strategy is `in_place`."""
    profile = case.profile
    if profile.upgrade_strategy == "none" and case.operation.kind == "upgrade":
        raise Ended("config_refused", f"{profile.app} {profile.version} says that nothing is upgraded to it")
    yield from case.secrets()
    for member in case.members:
        is_there = member.version == profile.version and member.stands
        if is_there and f"busy/{member.id}" not in {each.name for each in case.operation.steps}:
            continue  # an earlier operation brought it there
        yield from case.anew(member, f"it changes to version {profile.version}")
        if profile.upgrade_strategy != "in_place":
            yield Gather(step=f"changed/{member.id}")
            case.refuse_failed()
    yield Gather(step="gather")
    case.refuse_failed()
    yield from case.endpoints()
    yield Finish(evidence={"version": profile.version})


def _restart(case: Case) -> Iterator[Step]:
    for member in case.members:
        rendered = case.rendered(member)
        because = "it is started anew"
        yield ReportMember(step=f"busy/{member.id}", member_id=member.id, status="degraded", health_detail=because)
        for work in rendered.restart:
            yield case.run(work, member)
            task = case.over(work.name, member)
            if task is None:
                break
            if task.failed and work.name != "stop":
                yield case.fail(member, failure_of(task, member))
                break
        else:
            yield from case.serving(member, rendered)
    yield Gather(step="gather")
    case.refuse_failed()
    yield from case.endpoints()
    yield Finish(evidence={"restarted": [each.id for each in case.members]})


def _repair(case: Case) -> Iterator[Step]:
    """Repair and reconcile: look at each member, leave alone what serves, and start anew what does not."""
    if case.operation.request.get("scope") == "control_plane":
        raise Ended("config_refused", "there is no control plane apart from the members; repair whole_runtime")
    wanted = case.operation.request.get("member_id")
    members = [each for each in case.members if wanted in (None, each.id)]
    yield from case.secrets()
    for member in members:
        rendered = case.rendered(member)
        yield case.run(rendered.look or rendered.inspect, member, "examine")
        seen = case.over("examine", member)
        if seen is None:
            continue
        serves = seen.succeeded if rendered.look is not None else ended_because(seen, member) is None
        if not serves or member.status in ("failed", "joining") or f"busy/{member.id}" in _told(case):
            yield from case.anew(member, "it is started anew")
        elif member.status == "degraded" or member.health != "healthy":
            yield case.ready(member, rendered)
    yield Gather(step="gather")
    case.refuse_failed()
    yield from case.endpoints()
    yield Finish(evidence={"looked_at": [each.id for each in members]})


def _told(case: Case) -> frozenset[str]:
    """The steps that were told already: what was begun is gone on with, however the member looks meanwhile."""
    return frozenset(each.name for each in case.operation.steps)


Kind = Callable[[Case], Iterator[Step]]
PLANS: Final[Mapping[str, Kind]] = {
    "deploy": _deploy,
    "add": _deploy,
    "drain": _drain,
    "remove": _let_go,
    "replace": _replace,
    "upgrade": _change_version,
    "rollback": _change_version,
    "restart": _restart,
    "repair": _repair,
    "reconcile": _repair,
    "decommission": _let_go,
}


def adapter(**more: Any) -> Adapter:
    """The workload adapter, for every app that its key was given."""
    return Adapter(plan=plan, watch=watch, watch_seconds=WATCH_SECONDS, **more)
