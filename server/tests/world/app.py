"""The app of the simulated world: a pure plan for every operation kind, over the real kit.

Every member has a file and a service; what an operation does to a member is a task, so that each kind has steps at
which an agent, an adapter or the worker can die.
"""

from typing import Final

from mooring_adapter import Adapter
from mooring_adapter.instance_view import InstanceView, Member, Operation
from mooring_adapter.steps import (
    Barrier,
    Finish,
    MakeSecret,
    OnFailure,
    Plan,
    ReportEndpoint,
    ReportInstance,
    ReportMember,
    RunTask,
    Step,
)

ATTEMPTS: Final = 3
DOWN: Final = frozenset({"requested", "joining", "failed"})


def plan(world: InstanceView, operation: Operation) -> Plan:
    """All steps of an operation."""
    return Plan((*_STEPS[operation.kind](world, operation), Finish()))


def act(world: InstanceView, operation: Operation) -> Plan:
    """The one action."""
    seed = world.of("seed")[0]
    return Plan((_run(seed, "remember", "true"), Finish(output={"seeds": 1})))


def _run(member: Member, step: str, word: str, on_failure: OnFailure = OnFailure.FAIL_OPERATION) -> RunTask:
    return RunTask(
        step=f"{step}/{member.id}",
        member_id=member.id,
        type="process.run",
        arguments={"argv": [word]},
        on_failure=on_failure,
        attempts=ATTEMPTS,
    )


def _up(member: Member, version: str) -> list[Step]:
    """From nothing to ready."""
    content = {"files": [{"path": "/app/config", "content": member.name}]}
    return [
        ReportMember(step=f"join/{member.id}", member_id=member.id, status="joining"),
        RunTask(
            step=f"config/{member.id}", member_id=member.id, type="files.write", arguments=content, attempts=ATTEMPTS
        ),
        RunTask(
            step=f"start/{member.id}",
            member_id=member.id,
            type="service.start",
            attempts=ATTEMPTS,
            arguments={"name": "app", "argv": ["/app/run"]},
        ),
        ReportMember(step=f"ready/{member.id}", member_id=member.id, status="ready", health="healthy", version=version),
    ]


def _deploy(world: InstanceView, operation: Operation) -> list[Step]:
    members, version = world.concerned(operation), world.instance.pin.version
    steps: list[Step] = [MakeSecret(step="secret", name="token", purpose="app_access")]
    steps += [step for each in members for step in _up(each, version)]
    first = members[0]
    endpoint = ReportEndpoint(step="endpoint", name="web", member_id=first.id, port=8080)
    return [*steps, Barrier(step="up"), endpoint, ReportInstance(step="well", health="healthy")]


def _add(world: InstanceView, operation: Operation) -> list[Step]:
    return [step for each in world.concerned(operation) for step in _up(each, world.instance.pin.version)]


def _quiet(member: Member) -> list[Step]:
    return [
        _run(member, "quiet", "quiesce"),
        ReportMember(step=f"drained/{member.id}", member_id=member.id, status="drained"),
    ]


def _drain(world: InstanceView, operation: Operation) -> list[Step]:
    return [step for each in world.concerned(operation) for step in _quiet(each)]


def _down(world: InstanceView, operation: Operation) -> list[Step]:
    members = world.concerned(operation) if operation.kind == "remove" else world.members
    return [_run(each, "farewell", "stop", OnFailure.GO_ON) for each in members if each.status != "requested"]


def _replace(world: InstanceView, operation: Operation) -> list[Step]:
    by_id = {each.id: each for each in world.concerned(operation)}
    steps: list[Step] = []
    for each in by_id.values():
        if each.replaces_id in by_id:
            steps += [*_up(each, world.instance.pin.version), Barrier(step=f"up/{each.id}")]
            old = by_id[str(each.replaces_id)]
            steps.append(_run(old, "farewell", "stop", OnFailure.GO_ON))
    return steps


def _version(world: InstanceView, operation: Operation) -> list[Step]:
    target = "" if operation.target_pin is None else operation.target_pin.version
    steps: list[Step] = []
    for each in world.concerned(operation):
        if each.status not in DOWN:
            steps.append(_run(each, "switch", "switch"))
            steps.append(ReportMember(step=f"switched/{each.id}", member_id=each.id, version=target))
    return steps


def _again(world: InstanceView, operation: Operation) -> list[Step]:
    """Restart, reconcile, repair: what stands is touched, what failed is built again."""
    steps: list[Step] = []
    for each in world.concerned(operation):
        done = operation.is_done(f"join/{each.id}")
        if operation.kind == "repair" and (done or (each.status == "failed" and each.failure_code != "node_lost")):
            steps += _up(each, world.instance.pin.version)
        elif each.stands:
            steps.append(_run(each, operation.kind, "restart"))
    return steps


def _account(world: InstanceView, operation: Operation) -> list[Step]:
    """What another project needs here, and its end."""
    return [_run(each, operation.kind, "account") for each in world.of("seed")[:1] if each.status != "requested"]


_STEPS: Final = {
    "deploy": _deploy, "add": _add, "drain": _drain, "remove": _down, "decommission": _down, "replace": _replace,
    "upgrade": _version, "rollback": _version, "reconcile": _again, "repair": _again, "restart": _again,
    "attach": _account, "detach": _account,
}  # fmt: skip
APP: Final = Adapter(plan=plan, app_slug="web-tool", actions={"echo.remember": act})
