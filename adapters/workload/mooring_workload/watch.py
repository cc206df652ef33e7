"""Observes a running instance: each member is probed every `WATCH_SECONDS`.

A look probes whether the program takes work. If it does not answer, the program itself is inspected, for its state, its
restarts and its last lines.
"""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, Final

from mooring_adapter.instance_view import InstanceView, Member, Task
from mooring_adapter.metering import due_looks, is_meter_look, readings_of
from mooring_adapter.steps import MemberObservation, Observation, OnFailure, Reading, RunTask
from mooring_workload.deployment import QUIET, SERVES
from mooring_workload.health import ended_because
from mooring_workload.placement import NotPlaced, placement_of
from mooring_workload.profile import WorkloadProfile, read_profile
from mooring_workload.render import NotRenderable, Rendered, render

WATCH_SECONDS: Final = 60.0
LINES_SHOWN: Final = 5
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_LOOKS: Final = any(each.name == "looks" for each in fields(Observation))


def watch(view: InstanceView) -> Observation:
    """The results of the newest looks, and the looks that are due; nothing while an operation is in progress."""
    if view.operations:
        return Observation()
    profile = read_profile(view.manifest)
    seen: list[MemberObservation] = []
    due: list[RunTask] = []
    readings: list[Reading] = []
    for member in view.members:
        if not member.stands or member.allocation is None:
            continue
        try:
            rendered = render(_of_version(view, member, profile), view.instance.config, placement_of(member))
        except (NotRenderable, NotPlaced):
            continue
        looks = _looks(view, member)
        if (found := _seen(member, looks)) is not None:
            seen.append(found)
        if (wanted := _due(view, member, rendered, looks)) is not None:
            due.append(wanted)
        due += due_looks(view, member, rendered.ports)
        readings += readings_of(view, member)
    more: dict[str, Any] = {"looks": tuple(due)} if _LOOKS else {}
    return Observation(members=tuple(seen), health=_health(view, seen), readings=tuple(readings), **more)


def _of_version(view: InstanceView, member: Member, profile: WorkloadProfile) -> WorkloadProfile:
    """The profile that the member runs: after a partly failed upgrade it may be the target's."""
    target = view.target_manifest
    if member.version != profile.version and target is not None and target.get("version") == member.version:
        return read_profile(target)
    return profile


def _looks(view: InstanceView, member: Member) -> list[Task]:
    """The looks at a member since it became ready, the newest first."""
    since = str(member.adapter_detail.get("since", ""))
    found = [
        each
        for each in view.tasks
        if not each.operation_id
        and not is_meter_look(each)
        and each.member_id == member.id
        and (not since or each.created_at is None or each.created_at > datetime.fromisoformat(since))
    ]
    return sorted(
        found, key=lambda each: (each.created_at or datetime.min.replace(tzinfo=UTC), each.step), reverse=True
    )


def _seen(member: Member, looks: list[Task]) -> MemberObservation | None:
    """The observation by the newest completed look; a program that a drain has stopped needs none."""
    if QUIET in member.adapter_detail:
        why = "a drain has stopped its program; reconcile or repair starts it again"
        return MemberObservation(member_id=member.id, status="degraded", health="degraded", health_detail=why)
    look = next((each for each in looks if each.is_over), None)
    if look is None:
        return None
    if look.type.startswith("probe.") and look.succeeded:
        return MemberObservation(member_id=member.id, status="ready", health="healthy", health_detail=SERVES)
    if look.type.startswith("probe."):
        why = look.failure_detail or "it does not answer"
        return MemberObservation(member_id=member.id, status="degraded", health="degraded", health_detail=why[:1_000])
    result = look.result or {}
    failure = ended_because(look, member)
    observed: dict[str, Any] = {name: result[name] for name in ("state", "restarts") if name in result}
    detail: dict[str, Any] = {**member.adapter_detail, **observed}
    if failure is None:
        # It runs; the next probe shows whether it serves.
        return MemberObservation(member_id=member.id, detail=detail)
    lines = " | ".join(failure.last_lines[-LINES_SHOWN:])
    why = f"{failure.detail}; repair starts it again" + (f"; its last lines: {lines}" if lines else "")
    return MemberObservation(
        member_id=member.id, status="degraded", health="degraded", health_detail=why[:1_000], detail=detail
    )


def _due(view: InstanceView, member: Member, rendered: Rendered, looks: list[Task]) -> RunTask | None:
    if view.now is None or any(not each.is_over for each in looks):
        return None  # one look at a time
    period = int(view.now.timestamp() // WATCH_SECONDS)
    newest = looks[0] if looks else None
    probe = rendered.look or rendered.inspect
    step = f"watch/{member.id}/{period}"
    if newest is None or not newest.step.startswith(step):
        return _look(step, member, probe.type, probe.arguments)
    if newest.failed and newest.type.startswith("probe."):
        return _look(f"{step}/program", member, rendered.inspect.type, rendered.inspect.arguments)
    return None


def _look(step: str, member: Member, type_: str, arguments: Any) -> RunTask:
    return RunTask(step=step, member_id=member.id, type=type_, arguments=arguments, on_failure=OnFailure.GO_ON)


def _health(view: InstanceView, seen: list[MemberObservation]) -> str | None:
    """The health of the whole: that of its worst member, if all are known."""
    known = {each.member_id: each.health for each in seen if each.health is not None}
    standing = [each for each in view.members if each.stands]
    if not standing or not known:
        return None
    worst = [known.get(each.id, each.health) for each in standing]
    return "degraded" if "degraded" in worst else "healthy" if all(each == "healthy" for each in worst) else None
