"""What the simulated platform sees that an adapter must not do, although no request is refused for it.

The real platform cannot know what an adapter looked at before it reported something, and believes it. The suite can:
its nodes are simulated, and every task is recorded.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mooring_adapter.conformance.fake_nodes import FakeNodes, is_observing, is_stopping
from mooring_adapter.conformance.fake_records import OPENING, FakeInstance, FakeMember, FakeOperation, FakeTask
from mooring_adapter.conformance.platform_rules import components, graceful_seconds

STANDING: Final = frozenset({"ready", "degraded", "draining", "drained"})
"""Members that worked; one that was still starting has nothing to end."""


def of_report(instance: FakeInstance, member: FakeMember, report: Mapping[str, Any], nodes: FakeNodes) -> Iterator[str]:
    """What is wrong with a report about a member."""
    status = report.get("status")
    if status == "drained" and member.status == "draining":
        since = list(instance.tasks.values())[member.draining_since :]
        if not any(each.member_id == member.id and each.status == "succeeded" and is_observing(each) for each in since):
            yield f"{member.name} was reported as drained without any observation on its node since the drain began"
        if nodes.never_quiet:
            yield f"{member.name} was reported as drained while it had work"
    if status == "ready" and member.status == "joining":
        if not member.reachable:
            yield f"{member.name} was reported as ready although its node is lost"
        elif not _is_probed(instance, member):
            yield f"{member.name} was reported as ready, and no probe or look has succeeded since it was started"
    version = report.get("version")
    if version not in (None, member.version) and not _was_started(instance, member):
        yield f"{member.name} was reported to run version {version}, and nothing was started there for it"


def _of_member(instance: FakeInstance, member: FakeMember) -> list[FakeTask]:
    return [each for each in instance.tasks.values() if each.member_id == member.id and each.status == "succeeded"]


def _is_probed(instance: FakeInstance, member: FakeMember) -> bool:
    done = _of_member(instance, member)
    started = [index for index, each in enumerate(done) if each.type in OPENING]
    return any(is_observing(each) for each in done[started[-1] if started else 0 :])


def _was_started(instance: FakeInstance, member: FakeMember) -> bool:
    """Whether an open operation towards another version started something on the member."""
    towards = {each.id for each in instance.open_operations if each.kind in ("upgrade", "rollback")}
    return any(each.operation_id in towards and starts(each) for each in _of_member(instance, member))


def starts(task: FakeTask) -> bool:
    """Whether a task starts a program of the app, or starts it again."""
    again = task.type == "container.control" and task.arguments.get("action") in ("start", "restart")
    return again or task.type in OPENING


def of_task(instance: FakeInstance, task: FakeTask) -> Iterator[str]:
    """What is wrong with a task that an adapter creates: a replaced member stops only after the new one is ready.

    A component that has one member at the most may hand over in its own way: two at a time may be one too many.
    """
    operation = instance.operations.get(task.operation_id or "")
    if operation is None or operation.kind != "replace" or not is_stopping(task) or not operation.request.get("surge"):
        return
    new = [instance.members[each] for each in operation.member_ids if instance.members[each].replaces_id]
    if task.member_id not in operation.member_ids or any(each.id == task.member_id for each in new):
        return
    alone = {each["key"] for each in components(instance.manifest) if each.get("max_count") == 1}
    for each in new:
        if each.status != "ready" and each.component_key not in alone:
            old = instance.members[task.member_id].name
            yield f"{old} was stopped while {each.name}, its replacement, was {each.status}"


def of_end(instance: FakeInstance, operation: FakeOperation, nodes: FakeNodes) -> Iterator[str]:
    """What is wrong with the end of an operation: a graceful stop leaves nothing running."""
    if operation.kind not in ("remove", "decommission") or not graceful_seconds(instance):
        return
    for member_id in operation.member_ids:
        member = instance.members[member_id]
        if member.reachable and member.status in STANDING and nodes.running.get(member_id):
            left = ", ".join(sorted(nodes.running[member_id]))
            yield f"{operation.kind} was finished while {left} of {member.name} ran, and nobody had asked it to end"
