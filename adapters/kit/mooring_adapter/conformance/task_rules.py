"""The rules of tasks: which task an adapter may create for a member, and what it may name in it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mooring_adapter.conformance.fake_records import FakeInstance, FakeMember, FakeOperation, FakeTask
from mooring_adapter.conformance.platform_rules import RequestRefused, conflict, invalid, not_found, require_turn
from mooring_adapter.conformance.task_arguments import check_arguments

PLATFORM_ONLY: Final = frozenset({"sandbox.create", "sandbox.destroy", "teardown.verify", "tunnel.open"})
PLATFORM_STEPS: Final = frozenset({*PLATFORM_ONLY, "tunnel"})
TASK_TYPES: Final = frozenset(
    {
        "files.write",
        "process.run",
        "service.start",
        "service.stop",
        "service.inspect",
        "container.launch",
        "container.control",
        "container.remove",
        "artifact.fetch",
        "probe.tcp",
        "probe.http",
        "probe.exec",
        "log.read",
    }
)
LOOKING: Final = frozenset({"probe.tcp", "probe.http", "probe.exec", "service.inspect", "log.read"})
ARGUMENTS_BYTES_MAX: Final = 262_144
LOG_BYTES_MAX: Final = 65_536


def earlier_task(
    instance: FakeInstance, member: FakeMember, operation: FakeOperation | None, step: str
) -> FakeTask | None:
    """The task that has this name already: operation and step, or for a look the member's allocation and step."""
    for task in instance.tasks.values():
        if operation is None:
            if task.operation_id is None and (task.member_id, task.step) == (member.id, step):
                return task
        elif (task.operation_id, task.step) == (operation.id, step):
            if task.member_id != member.id:
                raise RequestRefused(409, "name_taken", "a task of another member already has this name")
            return task
    return None


def check_task(
    instance: FakeInstance, member: FakeMember, operation: FakeOperation | None, body: Mapping[str, Any]
) -> None:
    """Refuse a task that the member cannot have now, or that no node would accept."""
    kind, step, arguments = str(body["type"]), str(body["step"]), body.get("arguments") or {}
    if member.status in ("removing", "removed"):
        raise conflict(f"member {member.id} is {member.status}: it takes no new tasks")
    if kind == "log.read" and isinstance(size := arguments.get("max_bytes"), int) and size > LOG_BYTES_MAX:
        raise invalid(f"arguments/max_bytes: at most {LOG_BYTES_MAX} bytes of a log at once")
    if operation is not None:
        require_turn(operation)
    elif kind not in LOOKING and not (kind == "container.control" and arguments.get("action") == "inspect"):
        raise invalid(f"operation_id: without an operation a task may only observe, and {kind} does more")
    for each in body.get("grants") or ():
        if each["secret"] not in instance.secrets:
            raise not_found(f"the instance has no secret {each['secret']!r}")
    for path, named in _named_artifacts(kind, arguments):
        _check_pinned(instance, operation, path, named)
    if kind in PLATFORM_ONLY:
        raise RequestRefused(403, "permission_denied", f"{kind} is reserved for the platform")
    if kind not in TASK_TYPES:
        raise invalid(f"type: there is no task type {kind!r}")
    if step.partition("/")[0] in PLATFORM_STEPS:
        raise invalid("step: this prefix is reserved for the platform's own steps")
    check_arguments(kind, arguments)
    if len(json.dumps(arguments, ensure_ascii=False).encode()) > ARGUMENTS_BYTES_MAX:
        raise invalid("arguments: they are too large")
    _check_grants([str(each["name"]) for each in body.get("grants") or ()], _secret_names(arguments))


def _named_artifacts(kind: str, arguments: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    if kind == "container.launch":
        yield "arguments/image", arguments.get("image")
    elif kind == "artifact.fetch":
        yield "arguments", arguments
    elif kind == "files.write" and isinstance(arguments.get("files"), list):
        for index, each in enumerate(arguments["files"]):
            if isinstance(each, dict) and "artifact" in each:
                yield f"arguments/files/{index}", each


def _check_pinned(instance: FakeInstance, operation: FakeOperation | None, path: str, named: Any) -> None:
    """Refuse an artifact that neither the instance nor the operation's target is pinned to."""
    if not isinstance(named, dict):
        raise invalid(f'{path}: {{"artifact": "<role>"}} or {{"digest": "sha256:…"}}')
    target = None if operation is None else operation.target_pin
    role, digest = named.get("artifact"), named.get("digest")
    if role is not None:
        pinned = (target or instance.pin)["artifacts"].get(role) if isinstance(role, str) else None
        is_pinned = pinned is not None and digest in (None, pinned)
    else:
        pins = [pin for pin in (instance.pin, target) if pin is not None]
        is_pinned = any(digest in pin["artifacts"].values() for pin in pins)
    if not is_pinned:
        raise RequestRefused(409, "artifact_not_pinned", f"{path}: not pinned by the instance or the operation")


def _secret_names(arguments: Mapping[str, Any]) -> set[str]:
    named = {arguments.get("secret"), *arguments.get("environment_secrets", {}).values()}
    named |= {each.get("secret") for each in (arguments.get("image", {}), *arguments.get("files", ()))}
    return {each for each in named if each is not None}


def _check_grants(granted: list[str], named: set[str]) -> None:
    if len(set(granted)) != len(granted):
        raise invalid("grants: one name is granted twice")
    if missing := sorted(named - set(granted)):
        raise invalid(f"arguments: the secret {missing[0]} is named but not granted")
    if unused := sorted(set(granted) - named):
        raise invalid(f"grants: the secret {unused[0]} is granted but not named in the arguments")
