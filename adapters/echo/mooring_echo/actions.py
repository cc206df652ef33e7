"""The actions of the echo app: `echo.say` only reads, `echo.remember` writes to every seed."""

from mooring_adapter import Failure, Finish, InstanceView, OnFailure, Operation, Plan, RunTask
from mooring_echo.members import directory_of
from mooring_echo.plans import reachable, refused


def say(view: InstanceView, operation: Operation) -> Plan:
    """Let a gate print the text."""
    gates = [each for each in view.of("gate", "ready", "degraded") if reachable(each)]
    if not gates:
        return refused("unhealthy", "no gate is ready")
    spoken = view.task(operation, "say")
    member_id = gates[0].id if spoken is None or spoken.member_id is None else spoken.member_id
    arguments = {
        "argv": ["python3", "echo_node.py", "say", text_of(operation)],
        "directory": directory_of(view.member(member_id) or gates[0]),
        "timeout_seconds": 20,
    }
    task = RunTask(step="say", member_id=member_id, type="process.run", arguments=arguments)
    lines = [] if spoken is None else spoken.last_lines or []
    return Plan((task, Finish(output={"text": lines[-1] if lines else ""})))


def remember(view: InstanceView, operation: Operation) -> Plan:
    """Store the text on every seed; a majority of them has to succeed."""
    asked = [each for each in view.of("seed") if view.task(operation, f"remember/{each.id}") is not None]
    seeds = asked or [each for each in view.of("seed", "ready", "degraded") if reachable(each)]
    if not seeds:
        return refused("unhealthy", "no seed is ready")
    tasks = [
        RunTask(
            step=f"remember/{each.id}",
            member_id=each.id,
            type="process.run",
            on_failure=OnFailure.GO_ON,
            arguments={
                "argv": ["python3", "echo_node.py", "remember", text_of(operation)],
                "directory": directory_of(each),
                "timeout_seconds": 20,
            },
        )
        for each in seeds
    ]
    made = [view.task(operation, each.step) for each in tasks]
    kept = sum(1 for each in made if each is not None and each.succeeded)
    everyone = len(view.of("seed", "ready", "degraded", "draining", "drained", "failed"))
    if all(each is not None and each.is_over for each in made) and kept <= everyone // 2:
        failure = Failure("unhealthy", f"{kept} of {everyone} seeds stored it, which is not a majority")
        return Plan((*tasks, Finish(outcome="failed", failure=failure)))
    return Plan((*tasks, Finish(output={"seeds": kept})))


def text_of(operation: Operation) -> str:
    """The text to say or to remember."""
    return str((operation.request.get("input") or {}).get("text", ""))
