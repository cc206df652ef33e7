"""The adapter of example-app, on the kit: this file says what the app needs, the kit speaks the contract.

A plan is a pure function from the records to all steps of an operation. The kit does those that are due, and plans
again whenever something has changed.
"""

from mooring_adapter import (
    Adapter,
    Barrier,
    Failure,
    Finish,
    InstanceView,
    Member,
    OnFailure,
    Operation,
    Plan,
    ReportEndpoint,
    ReportMember,
    RunTask,
    Step,
    main,
)

APP = "example-app"
NEW = ("requested", "joining", "failed")
WORKING = ("ready", "degraded", "draining", "drained")


def port_of(member: Member) -> int:
    """A port of its own: on a host without isolated networks all members share the ports of the machine."""
    number = 5_381
    for character in member.id:
        number = (number * 33 + ord(character)) % 2**32
    return 20_000 + number % 12_000


def greeting_of(view: InstanceView, operation: Operation) -> str:
    """What the configuration says; the instance keeps the old one until a `configure` has succeeded."""
    config = operation.request["input"] if operation.kind == "configure" else view.instance.config
    return str(config.get("greeting", "Hello"))


def start(member: Member, version: str, greeting: str) -> list[Step]:
    """Write the program, start it, and see that it answers."""
    key, port, directory = member.id, port_of(member), f"/srv/{APP}/{member.id}"
    files = {"files": [{"path": f"{directory}/server.py", "mode": "0644", "artifact": "program"}]}
    service = {
        "name": APP,
        "argv": ["python3", "server.py", str(port)],
        "directory": directory,
        "environment": {"APP_VERSION": version, "APP_GREETING": greeting},
        "restart": {"policy": "on_failure", "backoff_seconds": 1, "limit": 10},
        "endpoint": {"name": "web", "port": port, "protocol": "http"},
    }
    probe = {"port": port, "path": "/ready", "attempts": 40, "interval_seconds": 0.25}
    return [
        RunTask(step=f"files/{key}", member_id=key, type="files.write", arguments=files, attempts=3),
        RunTask(step=f"start/{key}", member_id=key, type="service.start", arguments=service, attempts=3),
        RunTask(step=f"probe/{key}", member_id=key, type="probe.http", arguments=probe),
    ]


def bring_up(view: InstanceView, operation: Operation, member: Member) -> list[Step]:
    """From nothing to a ready member."""
    key = member.id
    return [
        ReportMember(step=f"join/{key}", member_id=key, status="joining"),
        *start(member, view.instance.pin.version, greeting_of(view, operation)),
        ReportMember(step=f"ready/{key}", member_id=key, status="ready", health="healthy"),
    ]


def quiet(operation: Operation, member: Member) -> RunTask:
    """Look until it has no work, as long as the caller allows. If your app can refuse new work, let it do so first."""
    seconds = float(operation.request.get("timeout_seconds") or 60)
    look = {
        "port": port_of(member),
        "path": "/quiet",
        "interval_seconds": 1,
        "attempts": min(max(int(seconds), 1), 600),
    }
    return RunTask(
        step=f"quiet/{member.id}",
        member_id=member.id,
        type="probe.http",
        arguments=look,
        on_failure=OnFailure.GO_ON,
    )


def stop(member: Member) -> Step:
    arguments = {"name": APP, "grace_seconds": 5}
    return RunTask(
        step=f"stop/{member.id}",
        member_id=member.id,
        type="service.stop",
        arguments=arguments,
        on_failure=OnFailure.GO_ON,
    )


def leave(operation: Operation, member: Member) -> list[Step]:
    """Let its work end, then stop it; a failed member has nothing to stop."""
    if member.status not in WORKING or (member.allocation and not member.allocation.node_reachable):
        return []
    waits = operation.kind != "decommission" and not operation.request.get("force")
    return [*([quiet(operation, member)] if waits else []), stop(member)]


def endpoint(member: Member) -> Step:
    return ReportEndpoint(
        step="endpoint", name="web", member_id=member.id, port=port_of(member), task=f"start/{member.id}"
    )


def plan(view: InstanceView, operation: Operation) -> Plan:
    """All steps of an operation."""
    members = [each for each in view.members if each.status not in ("removing", "removed")]
    named = view.concerned(operation)
    match operation.kind:
        case "deploy" | "add":
            first = [endpoint(members[0])] if operation.kind == "deploy" else []
            return Plan((*(step for each in named for step in bring_up(view, operation, each)), *first, Finish()))
        case "repair" | "reconcile":
            broken = [each for each in named or members if each.status in NEW]
            return Plan((*(step for each in broken for step in bring_up(view, operation, each)), Finish()))
        case "drain":
            return drain(view, operation, named[0])
        case "remove" | "decommission":
            return Plan((*(step for each in named or members for step in leave(operation, each)), Finish()))
        case "replace":
            new = [each for each in named if each.replaces_id]
            old = [each for each in named if not each.replaces_id]
            up = [step for each in new for step in bring_up(view, operation, each)]
            down = [step for each in old for step in leave(operation, each)]
            return Plan((*up, Barrier(step="up"), *(endpoint(each) for each in new[:1]), *down, Finish()))
        case "upgrade" | "rollback" | "restart" | "configure":
            return roll(view, operation, [each for each in members if each.status in WORKING])
        case other:
            return Plan((Finish(outcome="failed", failure=Failure("adapter_error", f"no plan for {other}")),))


def drain(view: InstanceView, operation: Operation, member: Member) -> Plan:
    """Drained means seen to be quiet; the plan has no end while that is not known."""
    look = quiet(operation, member)
    seen = view.task(operation, look.step)
    if seen is not None and seen.succeeded:
        return Plan((look, ReportMember(step="drained", member_id=member.id, status="drained"), Finish()))
    if seen is not None and seen.failed:
        failure = Failure("not_quiet", f"{member.name} still has work")
        return Plan((look, Finish(outcome="failed", failure=failure)))
    return Plan((look,))


def roll(view: InstanceView, operation: Operation, members: list[Member]) -> Plan:
    """Stop and start one member after the other, so that the rest serves."""
    version = operation.target_pin.version if operation.target_pin else view.instance.pin.version
    steps: list[Step] = []
    for each in members:
        steps += [stop(each), *start(each, version, greeting_of(view, operation))]
        if operation.target_pin:
            steps.append(ReportMember(step=f"version/{each.id}", member_id=each.id, version=version))
        steps.append(Barrier(step=f"through/{each.id}"))
    return Plan((*steps, Finish(evidence={"version": version})))


def greet(view: InstanceView, operation: Operation) -> Plan:
    """The action `page.greet`: a program on the first ready member prints the greeting."""
    ready = [each for each in view.members if each.status == "ready"]
    if not ready:
        return Plan((Finish(outcome="failed", failure=Failure("unhealthy", "no member is ready")),))
    words = ["echo", f"Hello, {operation.request['input']['name']}"]
    task = RunTask(step="greet", member_id=ready[0].id, type="process.run", arguments={"argv": words})
    done = view.task(operation, "greet")
    return Plan((task, Finish(output={"greeting": (done.last_lines or [""])[-1] if done else ""})))


if __name__ == "__main__":
    main(Adapter(app_slug=APP, plan=plan, actions={"page.greet": greet}))
