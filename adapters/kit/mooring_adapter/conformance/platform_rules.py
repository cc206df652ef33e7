"""The rules of the simulated platform: who may do what, and what follows from it.

They are the server's rules as far as an adapter can see them: fences, lifecycle transitions, names of tasks, the phases
of a teardown. What the server would refuse is refused here with the same code. Nothing here waits or
speaks HTTP; `store.py` is the memory around it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from mooring_adapter.conformance.fake_records import TEARDOWN, FakeInstance, FakeMember, FakeOperation, later

PLATFORM_ONLY: Final = frozenset({"sandbox.create", "sandbox.destroy", "teardown.verify", "tunnel.open"})
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
LOOKING: Final = frozenset(
    {"probe.tcp", "probe.http", "probe.exec", "service.inspect", "log.read", "container.control"}
)
REPORTED: Final[Mapping[str, frozenset[str]]] = {
    "joining": frozenset({"requested", "failed"}),
    "ready": frozenset({"joining", "degraded"}),
    "degraded": frozenset({"ready"}),
    "drained": frozenset({"draining"}),
    "failed": frozenset({"requested", "joining", "ready", "degraded", "draining", "drained"}),
}
"""What an adapter may report of a member, and from which states."""
FAILURES: Final = frozenset(
    {
        "bootstrap_timeout",
        "step_timeout",
        "deadline_exceeded",
        "no_capacity",
        "image_pull_failed",
        "artifact_refused",
        "permission_denied",
        "config_refused",
        "runtime_error",
        "unhealthy",
        "adapter_unavailable",
        "adapter_error",
        "node_lost",
        "below_minimum",
        "not_quiet",
        "circuit_open",
        "cancelled",
    }
)


class RequestRefused(Exception):
    """A response that is not a success, with a code of the platform's catalogue."""

    def __init__(self, status: int, code: str, detail: str, *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {detail}")
        self.status, self.code, self.detail, self.retryable = status, code, detail, retryable


def not_found(detail: str = "not found") -> RequestRefused:
    """A resource that does not exist, or is not the caller's."""
    return RequestRefused(404, "not_found", detail)


def conflict(detail: str) -> RequestRefused:
    """A request that does not fit the current state."""
    return RequestRefused(409, "conflict", detail)


def invalid(detail: str) -> RequestRefused:
    """A malformed request."""
    return RequestRefused(422, "validation_failed", detail)


def checked_failure(failure: Any) -> dict[str, Any]:
    """Validate a failure against the closed list of codes."""
    if not isinstance(failure, dict) or failure.get("code") not in FAILURES:
        raise invalid("a failure needs a code of the closed list and a detail")
    return failure


def report_member(instance: FakeInstance, member: FakeMember, report: Mapping[str, Any]) -> None:
    """Apply an adapter's report about a member; a transition that the lifecycle does not have is refused."""
    status = report.get("status")
    if status is not None and status != member.status:
        if status not in REPORTED:
            raise invalid(f"an adapter must not report {status!r}")
        if member.status not in REPORTED[status]:
            raise RequestRefused(
                409, "illegal_transition", f"{member.id} is {member.status} and cannot become {status}"
            )
        if status == "failed":
            member.failure = checked_failure(report.get("failure"))
        elif status == "joining":
            member.failure = None
        member.status = status
    member.health = report.get("health", "healthy" if status == "ready" else member.health)
    member.version = report.get("version", member.version)
    member.adapter_detail = dict(report.get("detail", member.adapter_detail))
    if "holds" in report:
        member.holds = [{"owner": instance.account_id, **each} for each in report["holds"]]


def begin(instance: FakeInstance, operation: FakeOperation, now: datetime) -> None:
    if operation.started_at is None and operation.status != "cancelling":
        operation.started_at = now
        operation.status = "running" if operation.status == "accepted" else operation.status
        operation.attempts += 1
        if operation.kind == "deploy" and instance.status == "created":
            instance.status = "starting"


def block(operation: FakeOperation, blocker: Mapping[str, Any] | None) -> None:
    """Set or clear the blocker of an operation."""
    if blocker is None:
        operation.status = "running" if operation.status == "blocked" else operation.status
        operation.blocker = None
    else:
        if operation.status not in ("running", "blocked"):
            raise RequestRefused(409, "illegal_transition", f"the operation is {operation.status}")
        operation.status, operation.blocker = "blocked", dict(blocker)


def standing(instance: FakeInstance, key: str) -> int:
    """The number of working members of a component."""
    up = ("ready", "degraded")
    return sum(1 for each in instance.members.values() if each.component_key == key and each.status in up)


def components(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The components of a manifest; a manifest without any has one component with one member."""
    return manifest.get("components") or [{"key": "main", "min_count": 1, "max_count": 1}]


def graceful_seconds(instance: FakeInstance) -> float:
    """How long the app may take to end, after the time for its work to finish."""
    return float(instance.manifest.get("lifecycle", {}).get("delete", {}).get("graceful_seconds", 60))


def finish(instance: FakeInstance, operation: FakeOperation, report: Mapping[str, Any], now: datetime) -> None:
    """Apply the adapter's end of an operation."""
    outcome = report.get("outcome")
    if outcome not in ("succeeded", "failed", "cancelled"):
        raise invalid("the outcome must be succeeded, failed or cancelled")
    if operation.is_over or operation.phase == "platform":
        if operation.outcome.get("outcome") == outcome:
            return  # a repeated request
        raise RequestRefused(409, "illegal_transition", f"the operation is {operation.status}")
    if outcome == "cancelled" and operation.status != "cancelling":
        raise RequestRefused(409, "illegal_transition", "it is not being cancelled")
    if outcome == "failed":
        checked_failure(report.get("failure"))
    if operation.started_at is None and operation.status != "cancelling":
        raise RequestRefused(409, "illegal_transition", "it has not been begun")
    if operation.status in ("accepted", "blocked") and outcome == "succeeded":
        raise RequestRefused(409, "illegal_transition", f"an operation that is {operation.status} cannot succeed")
    if outcome == "succeeded" and (missing := what_is_missing(instance, operation)):
        raise conflict(missing)
    operation.outcome = dict(report)
    if operation.kind in TEARDOWN and (outcome == "succeeded" or operation.kind == "decommission"):
        operation.phase = "platform"
        return
    end(instance, operation, outcome, now)


def what_is_missing(instance: FakeInstance, operation: FakeOperation) -> str | None:
    """Why an operation cannot have succeeded, if it cannot."""
    named = [instance.members[each] for each in operation.member_ids]
    match operation.kind:
        case "deploy":
            for each in components(instance.manifest):
                if standing(instance, each["key"]) < each.get("min_count", 0):
                    return f"{each['key']} has fewer ready members than it needs"
        case "add":
            if unready := [each.name for each in named if each.status in ("requested", "joining", "failed")]:
                return f"an add is not done without {', '.join(unready)}"
        case "drain":
            if any(each.status != "drained" for each in named):
                return "a drain is not done while its member is not drained"
        case "upgrade" | "rollback":
            wanted = (operation.target_pin or {}).get("version")
            if old := [each.name for each in named if each.status != "failed" and each.version != wanted]:
                return f"{operation.kind} is not done with {', '.join(old)} on the old version"
    return None


def _attachment(instance: FakeInstance, operation: FakeOperation) -> dict[str, Any]:
    return instance.attachments[operation.request["attachment"]["id"]]


def end(instance: FakeInstance, operation: FakeOperation, outcome: str, now: datetime) -> None:
    """End an operation, and apply what follows for its instance."""
    operation.status, operation.blocker = outcome, None
    failure = operation.outcome.get("failure")
    match operation.kind, outcome:
        case "deploy", "succeeded":
            instance.status = "running"
        case "deploy", _:
            if instance.status in ("created", "starting"):
                instance.status = "failed"
                instance.failure = failure or {"code": "cancelled", "detail": "the deployment was cancelled"}
        case "upgrade" | "rollback", "succeeded":
            before = (instance.pin, instance.manifest)
            instance.pin = operation.target_pin or instance.pin
            instance.manifest = instance.target_manifest or instance.manifest
            instance.previous = before if operation.kind == "upgrade" else None
        case "attach", _:
            _attachment(instance, operation)["status"] = "active" if outcome == "succeeded" else "refused"
        case "detach", "succeeded":
            _attachment(instance, operation)["status"] = "detached"
        case _:
            pass
    if operation.kind in ("upgrade", "rollback"):
        instance.target_manifest = None
    if operation.kind in ("deploy", "add") and outcome != "succeeded":
        for member_id in operation.member_ids:
            member = instance.members[member_id]
            if member.status in ("requested", "joining"):
                member.status = "failed"
                member.failure = failure or {"code": "cancelled", "detail": "cancelled"}


def torn_down(instance: FakeInstance, operation: FakeOperation) -> list[FakeMember]:
    """The members that a teardown removes."""
    if operation.kind == "decommission":
        return list(instance.members.values())
    named = [instance.members[each] for each in operation.member_ids]
    if operation.kind == "remove":
        return named
    replaced = {each.replaces_id for each in named}
    return [each for each in named if each.id in replaced]


def tick(instance: FakeInstance, now: datetime) -> bool:
    """Do what the platform's worker would do now; returns whether anything changed."""
    changed = False
    for operation in instance.open_operations:
        if operation.phase == "adapter" and _is_late(operation, now):
            changed = True
            _expire(instance, operation, now)
        if operation.phase == "platform" and not operation.is_over:
            changed = _tear_down(instance, operation, now) or changed
    return changed


def _is_late(operation: FakeOperation, now: datetime) -> bool:
    until = operation.phase_deadline_at or operation.deadline_at
    return now >= until


def _expire(instance: FakeInstance, operation: FakeOperation, now: datetime) -> None:
    if operation.status == "cancelling":
        end(instance, operation, "cancelled", now)
    elif operation.kind in TEARDOWN:
        operation.phase = "platform"
        operation.outcome = {"outcome": "succeeded", "evidence": {"graceful": False}}
    else:
        code = "bootstrap_timeout" if operation.kind == "deploy" else "deadline_exceeded"
        operation.outcome = {"outcome": "failed", "failure": {"code": code, "detail": "the deadline passed"}}
        end(instance, operation, "failed", now)


def _tear_down(instance: FakeInstance, operation: FakeOperation, now: datetime) -> bool:
    """Tear down members; a member on a lost node waits for a write-off, as on the real platform."""
    changed = False
    waiting = False
    for member in torn_down(instance, operation):
        if member.status == "removed":
            continue
        if member.status != "removing":
            member.status, changed = "removing", True
        if member.reachable:
            member.status, changed = "removed", True
        else:
            waiting = True
    if waiting:
        return changed
    if operation.kind == "decommission" and instance.status == "stopping":
        instance.status = "stopped"
    end(instance, operation, "succeeded", now)
    return True


def stop(instance: FakeInstance, now: datetime) -> None:
    """Stop the instance, and cancel its open operations."""
    instance.status = "stopping"
    for operation in instance.open_operations:
        if operation.kind != "decommission":
            operation.status = "cancelling"
            operation.phase_deadline_at = later(now, 120)
