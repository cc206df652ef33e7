"""The rules of the simulated platform: who may do what, and what follows from it.

They are the server's rules as far as an adapter can see them: fences, lifecycle transitions, names of tasks, the phases
of a teardown. What the server would refuse is refused here with the same code; `tests/parity` compares the two. Nothing
here waits or speaks HTTP; `report_rules.py`, `task_rules.py` and `usage_rules.py` have the rules of reports, tasks,
secrets and usage, and `fake_store.py` is the memory around them.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import jsonschema_rs

from mooring_adapter.conformance.fake_records import TEARDOWN, FakeInstance, FakeMember, FakeOperation, later

UP: Final = frozenset({"ready", "degraded"})
COMING: Final = frozenset({"requested", "joining"})
GONE: Final = frozenset({"removing", "removed"})
ENDS: Final[Mapping[str, frozenset[str]]] = {
    "succeeded": frozenset({"running", "cancelling"}),
    "failed": frozenset({"accepted", "running", "blocked", "cancelling"}),
    "cancelled": frozenset({"cancelling"}),
}
"""In which states an operation can end, by its outcome."""
OUTPUT_BYTES_MAX: Final = 262_144
CANCEL_SECONDS: Final = 120


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
    return RequestRefused(409, "conflict", detail, retryable=True)


def invalid(detail: str) -> RequestRefused:
    """A malformed request."""
    return RequestRefused(422, "validation_failed", detail)


def illegal(detail: str) -> RequestRefused:
    """A transition that the lifecycle does not have."""
    return RequestRefused(409, "illegal_transition", detail)


def require_turn(operation: FakeOperation) -> None:
    """Refuse unless the operation is open and in the adapter's phase."""
    if not operation.is_offered:
        raise conflict(f"operation {operation.id} is {operation.status}: it takes no more reports")


def standing(instance: FakeInstance, key: str) -> int:
    """The number of working members of a component."""
    return sum(1 for each in instance.members.values() if each.component_key == key and each.status in UP)


def components(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The components of a manifest; a manifest without any has one component with one member."""
    return manifest.get("components") or [{"key": "main", "min_count": 1, "max_count": 1}]


def merged(config: Any, patch: Any) -> Any:
    """The configuration after a merge patch (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    found = dict(config) if isinstance(config, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def graceful_seconds(instance: FakeInstance) -> float:
    """How long the app may take to end, after the time for its work to finish."""
    return float(instance.manifest.get("lifecycle", {}).get("delete", {}).get("graceful_seconds", 60))


def finish(instance: FakeInstance, operation: FakeOperation, report: Mapping[str, Any], now: datetime) -> bool:
    """Apply the adapter's end of an operation; returns whether it was new."""
    outcome, failure = str(report["outcome"]), report.get("failure")
    if operation.is_over or operation.phase == "platform":
        ended_as = operation.status if operation.is_over else operation.outcome.get("outcome")
        if ended_as == outcome:
            return False
        raise illegal(f"the operation is {operation.status}: it cannot also end as {outcome}")
    if outcome == "failed" and failure is None:
        raise invalid("failure: required with the outcome `failed`")
    if operation.status not in ENDS[outcome]:
        raise illegal(f"an operation that is {operation.status} cannot end as {outcome}")
    if operation.kind in TEARDOWN and (outcome == "succeeded" or operation.kind == "decommission"):
        operation.outcome, operation.phase = dict(report), "platform"
        return True
    check_output(instance, operation, report)
    if outcome == "succeeded" and (missing := what_is_missing(instance, operation)):
        raise conflict(missing)
    operation.outcome = dict(report)
    end(instance, operation, outcome, now)
    return True


def check_output(instance: FakeInstance, operation: FakeOperation, report: Mapping[str, Any]) -> None:
    """Only a succeeded action has an output, which fits the manifest's schema."""
    output = report.get("output")
    if operation.kind != "action" or report["outcome"] != "succeeded":
        if output is not None:
            raise invalid("output: only a succeeded action has an output")
        return
    actions = {each["name"]: each for each in instance.manifest.get("actions", ())}
    schema = actions.get(operation.request.get("action"), {}).get("output_schema")
    if len(json.dumps(output or {})) > OUTPUT_BYTES_MAX:
        raise invalid(f"output: at most {OUTPUT_BYTES_MAX} bytes")
    if schema is not None and not jsonschema_rs.is_valid(schema, output or {}):
        raise invalid("output: it does not fit the action's `output_schema`")


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
            if any(each.status not in ("drained", *GONE) for each in named):
                return "a drain is not done while its member is not drained"
        case "upgrade" | "rollback":
            wanted = (operation.target_pin or {}).get("version")
            there = [each for each in instance.members.values() if each.status not in ("failed", *GONE)]
            if old := [each.name for each in there if each.version != wanted]:
                return f"{operation.kind} is not done with {', '.join(old)} on the old version"
    return None


def _attachment(instance: FakeInstance, operation: FakeOperation) -> dict[str, Any]:
    return instance.attachments[operation.request["attachment"]["id"]]


def end(instance: FakeInstance, operation: FakeOperation, outcome: str, now: datetime) -> None:
    """End an operation, and apply what follows for its instance."""
    operation.status, operation.blocker = outcome, None
    failure = operation.outcome.get("failure") or {"code": "cancelled", "detail": "the operation was cancelled"}
    match operation.kind, outcome:
        case "deploy", "succeeded":
            if instance.status == "starting":
                instance.status = "running"
        case "deploy", _:
            _fail_coming(instance, operation, list(instance.members), failure)
            if instance.status in ("created", "starting"):
                instance.status, instance.failure = "failed", failure
        case "add" | "replace", "failed" | "cancelled":
            _fail_coming(instance, operation, operation.member_ids, failure)
        case "drain" | "remove", "cancelled":
            for member_id in operation.member_ids if instance.status == "running" else ():
                member = instance.members[member_id]
                member.status = "ready" if member.status == "draining" else member.status
        case "upgrade" | "rollback", "succeeded":
            before, same = (instance.pin, instance.manifest), operation.target_pin == instance.pin
            instance.pin = operation.target_pin or instance.pin
            instance.manifest = instance.target_manifest or instance.manifest
            if operation.kind == "upgrade" or not same:
                instance.previous = before if operation.kind == "upgrade" else None
        case "configure", "succeeded":
            instance.config = dict(operation.request["input"])
        case "attach", _:
            _attachment(instance, operation)["status"] = "active" if outcome == "succeeded" else "refused"
        case "detach", "succeeded":
            _attachment(instance, operation)["status"] = "detached"
        case _:
            pass
    if operation.kind in ("upgrade", "rollback"):
        instance.target_manifest = None


def _fail_coming(
    instance: FakeInstance, operation: FakeOperation, member_ids: list[str], failure: Mapping[str, Any]
) -> None:
    """Fail the members that are not up yet; the others stay as they are."""
    for member in (instance.members[each] for each in member_ids):
        if member.status in COMING:
            member.status, member.failure, member.last_operation_id = "failed", dict(failure), operation.id


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
    if operation.cancelling_until is not None:
        return now >= operation.cancelling_until
    of_phase = operation.phase_deadline_at if operation.kind in TEARDOWN else None
    return now >= (of_phase or operation.deadline_at)


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


def cancel(operation: FakeOperation, reason: str, now: datetime) -> None:
    """Ask an operation to end early; its blocker goes with the state."""
    if operation.status == "cancelling":
        return
    operation.status, operation.blocker, operation.cancel_reason = "cancelling", None, reason
    operation.cancelling_until = later(now, CANCEL_SECONDS)


def stop(instance: FakeInstance, now: datetime) -> None:
    """Stop the instance, and cancel its open operations."""
    instance.status = "stopping"
    for operation in instance.open_operations:
        if operation.kind != "decommission":
            cancel(operation, "the instance is stopped", now)
