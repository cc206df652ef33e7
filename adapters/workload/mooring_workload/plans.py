"""The workload adapter's plans: one pure generator of steps for each kind of operation.

Every member runs the same profile, each with its own owner on the node.

A plain program is **drained** when it has ended: it cannot finish its work first, and nothing else can be observed. So
a drain stops the program, within the grace period of the manifest, and checks that it has ended.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mooring_adapter import failures
from mooring_adapter.instance_view import InstanceView, Operation
from mooring_adapter.steps import Barrier, Finish, Plan, ReportMember, Step
from mooring_workload.deployment import QUIET, Deployment, OperationFailed
from mooring_workload.health import RUNNING, ended_because, failure_of
from mooring_workload.profile import read_profile

TO_ANOTHER_VERSION: Final = frozenset({"upgrade", "rollback"})


def plan(view: InstanceView, operation: Operation) -> Plan:
    """The steps of an operation."""
    manifest = view.manifest
    if operation.kind in TO_ANOTHER_VERSION and view.target_manifest is not None:
        manifest = view.target_manifest
    if operation.kind == "configure":
        view = view.with_target_config(operation)
    deployment = Deployment(view, operation, read_profile(manifest), view.tasks_of(operation))
    steps: list[Step] = []
    try:
        for step in PLANS[operation.kind](deployment):
            steps.append(step)
    except OperationFailed as ended:
        steps.append(Finish(outcome="failed", failure=ended.failure))
    return Plan(tuple(steps))


def _deploy(deployment: Deployment) -> Iterator[Step]:
    """Deploy and add: all members in parallel; it ends when each serves or has failed."""
    members = deployment.view.concerned(deployment.operation)
    for member in members:
        if not failures.is_lost(member):
            deployment.rendered(member)  # fail before anything starts if a member cannot run
    yield from deployment.secrets()
    for member in members:
        if not failures.is_lost(member):
            yield ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining")
    for member in members:
        yield from deployment.up(member)
    yield Barrier(step="gather")
    up = [each for each in members if each.id not in deployment.failed]
    if deployment.operation.kind != "deploy" or _is_short(deployment.view, [each.component_key for each in up]):
        deployment.refuse_failed()
    yield from deployment.endpoints()
    yield Finish(evidence={"ready": [each.id for each in up], "failed": sorted(deployment.failed)})


def _is_short(view: InstanceView, up: list[str]) -> bool:
    """Whether a component has fewer members than it needs."""
    components = view.manifest.get("components")
    if not components:
        return not up
    return any(up.count(each["key"]) < each.get("min_count", 0) for each in components)


def _drain(deployment: Deployment) -> Iterator[Step]:
    for member in deployment.view.concerned(deployment.operation):
        rendered = deployment.rendered(member)
        yield deployment.run(rendered.stop, member)
        stopped = deployment.over("stop", member)
        if stopped is None:
            continue
        yield deployment.run(rendered.inspect, member)
        look = deployment.over("inspect", member)
        if look is None:
            continue
        state = str((look.result or {}).get("state", "absent" if look.failure_code == "not_found" else "unknown"))
        if state in RUNNING or state == "unknown":
            why = f"{member.name or member.id} is {state} after {deployment.profile.grace_seconds} s of grace"
            raise OperationFailed("not_quiet", why, tuple(look.last_lines or ()))
        detail = {**member.adapter_detail, QUIET: f"its program has ended ({state})"}
        yield ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained", detail=detail)
    yield Finish(evidence={"quiet_by": "the program was stopped and observed to have ended"})


def _stop_members(deployment: Deployment) -> Iterator[Step]:
    """The graceful part of a removal or a decommission; the platform does the rest."""
    members = deployment.view.concerned(deployment.operation)
    if deployment.operation.kind == "remove":
        yield from deployment.endpoints(*members)
    for member in members:
        yield from deployment.down(member)
    yield Finish(evidence={"stopped": [each.id for each in members]})


def _replace(deployment: Deployment) -> Iterator[Step]:
    """With a surge the new member starts first, otherwise the old one stops first."""
    concerned = deployment.view.concerned(deployment.operation)
    new = [each for each in concerned if each.replaces_id is not None]
    old = [each for each in concerned if each.replaces_id is None]
    surge = bool(deployment.operation.request.get("surge"))
    yield from deployment.secrets()
    if not surge:
        for member in old:
            yield from deployment.down(member)
        yield Barrier(step="given-way")
    for member in new:
        if not failures.is_lost(member):
            yield ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining")
        yield from deployment.up(member)
    yield Barrier(step="gather")
    deployment.refuse_failed()
    yield from deployment.endpoints(*old)
    if surge:
        for member in old:
            yield from deployment.down(member)
    evidence = {"ready": [each.id for each in new], "stopped": [each.id for each in old]}
    yield Finish(evidence=evidence)


def _change_version(deployment: Deployment) -> Iterator[Step]:
    """Upgrade and rollback: restart each member with the other version, one by one unless `in_place`."""
    profile = deployment.profile
    if profile.upgrade_strategy == "none" and deployment.operation.kind == "upgrade":
        raise OperationFailed("config_refused", f"{profile.app} {profile.version} does not support upgrades to it")
    yield from deployment.secrets()
    for member in deployment.members:
        is_there = member.version == profile.version and member.stands
        if is_there and f"busy/{member.id}" not in {each.name for each in deployment.operation.steps}:
            continue  # an earlier operation did this
        yield from deployment.rebuild(member, f"it changes to version {profile.version}")
        if profile.upgrade_strategy != "in_place":
            yield Barrier(step=f"changed/{member.id}")
            deployment.refuse_failed()
    yield Barrier(step="gather")
    deployment.refuse_failed()
    yield from deployment.endpoints()
    yield Finish(evidence={"version": profile.version})


def _restart(deployment: Deployment) -> Iterator[Step]:
    for member in deployment.members:
        rendered = deployment.rendered(member)
        because = "it is being restarted"
        yield ReportMember(step=f"busy/{member.id}", member_id=member.id, status="degraded", health_detail=because)
        for work in rendered.restart:
            yield deployment.run(work, member)
            task = deployment.over(work.name, member)
            if task is None:
                break
            if task.failed and work.name != "stop":
                yield deployment.fail(member, failure_of(task, member))
                break
        else:
            yield from deployment.serving(member, rendered)
    yield Barrier(step="gather")
    deployment.refuse_failed()
    yield from deployment.endpoints()
    yield Finish(evidence={"restarted": [each.id for each in deployment.members]})


def _configure(deployment: Deployment) -> Iterator[Step]:
    """A program reads its configuration when it starts: restart the members, one by one, if it reads what changed."""
    changed = deployment.operation.changed_fields
    read = {each.from_config for each in deployment.profile.environment if each.from_config is not None}
    stored = sorted(changed & {each.from_config for each in deployment.profile.environment if each.hidden})
    if stored:
        why = f"{stored[0]} is stored as a secret at launch; launch a new instance with the new value"
        raise OperationFailed("config_refused", why)
    if not changed & read:
        yield Finish(evidence={"applied_by": "nothing", "because": "no program reads what changed"})
        return
    for member in deployment.members:
        deployment.rendered(member)  # fail before anything stops if a member could not run
    for member in deployment.members:
        yield from deployment.rebuild(member, "its configuration changes")
        yield Barrier(step=f"changed/{member.id}")
        deployment.refuse_failed()
    yield from deployment.endpoints()
    yield Finish(evidence={"applied_by": "restart", "restarted": [each.id for each in deployment.members]})


def _repair(deployment: Deployment) -> Iterator[Step]:
    """Repair and reconcile: check each member, and restart those that do not serve."""
    if deployment.operation.request.get("scope") == "control_plane":
        raise OperationFailed("config_refused", "there is no separate control plane; use the scope whole_runtime")
    wanted = deployment.operation.request.get("member_id")
    members = [each for each in deployment.members if wanted in (None, each.id)]
    yield from deployment.secrets()
    for member in members:
        rendered = deployment.rendered(member)
        yield deployment.run(rendered.look or rendered.inspect, member, "examine")
        seen = deployment.over("examine", member)
        if seen is None:
            continue
        serves = seen.succeeded if rendered.look is not None else ended_because(seen, member) is None
        broken = not serves or member.status in ("failed", "joining") or not deployment.has_wanted_config(member)
        if broken or f"busy/{member.id}" in _recorded_steps(deployment):
            yield from deployment.rebuild(member, "it is being restarted")
        elif member.status == "degraded" or member.health != "healthy":
            yield deployment.ready(member, rendered)
    yield Barrier(step="gather")
    deployment.refuse_failed()
    yield from deployment.endpoints()
    yield Finish(evidence={"looked_at": [each.id for each in members]})


def _recorded_steps(deployment: Deployment) -> frozenset[str]:
    """The recorded steps: a restart that was begun continues, whatever the member's state is meanwhile."""
    return frozenset(each.name for each in deployment.operation.steps)


Kind = Callable[[Deployment], Iterator[Step]]
PLANS: Final[Mapping[str, Kind]] = {
    "deploy": _deploy,
    "add": _deploy,
    "drain": _drain,
    "remove": _stop_members,
    "replace": _replace,
    "upgrade": _change_version,
    "rollback": _change_version,
    "restart": _restart,
    "configure": _configure,
    "repair": _repair,
    "reconcile": _repair,
    "decommission": _stop_members,
}
