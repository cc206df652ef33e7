"""The rules of a report: what an adapter may say of an operation, of members and of the instance, and when.

What is already recorded is accepted and changes nothing. The caller undoes a report that is refused half-way.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from mooring_adapter.conformance.fake_records import WHOLE, FakeInstance, FakeMember, FakeOperation
from mooring_adapter.conformance.platform_rules import (
    RequestRefused,
    conflict,
    illegal,
    invalid,
    not_found,
    require_turn,
)

STEPS_MAX: Final = 200
DETAIL_BYTES_MAX: Final = 16_384
REPORTED: Final[Mapping[str, frozenset[str]]] = {
    "joining": frozenset({"requested"}),
    "ready": frozenset({"joining", "degraded"}),
    "degraded": frozenset({"ready"}),
    "drained": frozenset({"draining"}),
    "failed": frozenset({"requested", "joining", "ready", "degraded", "draining", "drained"}),
}
"""What an adapter may report of a member, and from which states."""
OF_PORTS: Final = ("port", "path", "task_id")
OF_TERMINALS: Final = ("user", "directory", "environment")


def report_operation(
    instance: FakeInstance, operation: FakeOperation | None, body: Mapping[str, Any], now: datetime
) -> bool:
    """Apply what is reported of an operation; returns whether anything changed."""
    if not (body.get("begin") or "blocked" in body or body.get("steps")):
        return False
    if operation is None:
        raise invalid("operation_id: name the operation that begins, is blocked, or has these steps")
    before = (list(operation.steps.values()), operation.progress)
    steps, progress = _progress(operation, body.get("steps") or (), now)
    begins, blocked = bool(body.get("begin")), body.get("blocked")
    attempt = begins and operation.attempt_fence != instance.claim.fence
    names_blocker = blocked is not None and operation.status != "cancelling" and blocked != operation.blocker
    status = _next_status(operation, body)
    if status is None and not attempt and not names_blocker and (list(steps.values()), progress) == before:
        return False
    require_turn(operation)
    if operation.status == "accepted" and status is None:
        raise illegal("the operation has not begun: report `begin` with it")
    operation.steps, operation.progress = steps, progress
    if attempt:
        operation.attempts, operation.attempt_fence = operation.attempts + 1, instance.claim.fence
    if operation.started_at is None and (begins or status == "blocked"):
        operation.started_at = now
    if names_blocker:
        operation.blocker = dict(blocked or {})
    if status == "running":
        operation.blocker = None
    operation.status = status or operation.status
    return True


def _next_status(operation: FakeOperation, body: Mapping[str, Any]) -> str | None:
    begins, blocked = bool(body.get("begin")), body.get("blocked")
    if blocked is not None:
        return "blocked" if operation.status in ("accepted", "running") else None
    if operation.status == "blocked" and ("blocked" in body or begins):
        return "running"
    return "running" if begins and operation.status == "accepted" else None


def _progress(
    operation: FakeOperation, reports: list[Mapping[str, Any]] | tuple[()], now: datetime
) -> tuple[dict[str, dict[str, Any]], dict[str, Any] | None]:
    steps, progress = dict(operation.steps), operation.progress
    for each in reports:
        steps[each["name"]] = _step(steps.get(each["name"]), each, now.isoformat())
        if each["status"] == "running" and each.get("progress") is not None:
            progress = {"step": each["name"], **_whole_progress(each["progress"])}
    if len(steps) > STEPS_MAX:
        raise RequestRefused(409, "limit_reached", f"an operation has at most {STEPS_MAX} steps")
    return steps, progress


def _step(before: Mapping[str, Any] | None, report: Mapping[str, Any], now: str) -> dict[str, Any]:
    step = dict(before or {"name": report["name"], "status": "pending", "attempts": 0})
    if before is None or before["status"] != report["status"]:
        if report["status"] == "running":
            step |= {"attempts": step["attempts"] + 1, "started_at": now, "ended_at": None}
        elif report["status"] in ("done", "failed", "skipped"):
            step |= {"ended_at": now}
        step["status"] = report["status"]
    if report.get("detail") is not None:
        step["detail"] = report["detail"]
    if report.get("progress") is not None:
        step["progress"] = _whole_progress(report["progress"])
    return step


def _whole_progress(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"total": None, "unit": "", "stage": "", **given}


def report_member(
    instance: FakeInstance,
    member: FakeMember,
    report: Mapping[str, Any],
    operation: FakeOperation | None,
    now: datetime,
) -> bool:
    """Apply what is reported of a member; returns whether anything changed."""
    version = _version(instance, member, report.get("version"), operation)
    holds = _holds(instance, member, report.get("holds"), now)
    status, failure = report.get("status"), report.get("failure")
    if status is None or status == member.status:
        if failure is not None and member.status != "failed":
            raise invalid("members/failure: only a member with the status `failed` has a failure")
        changed = observe(member, report) or version != member.version or holds != member.holds
        if changed and member.status in ("removing", "removed"):
            raise illegal(f"{member.id} is {member.status}: it takes no observations")
        member.version, member.holds = version, holds
        return changed
    if not _may_become(member, status, operation):
        raise illegal(f"{member.id} is {member.status} and cannot become {status}")
    if status == "failed":
        if failure is None:
            raise invalid("members/failure: required with the status `failed`")
        member.failure = dict(failure)
    if status == "drained" and not member.reachable:
        raise conflict("the node does not answer, so nobody can have observed that the member is drained")
    observe(member, report)
    member.version, member.holds, member.status = version, holds, status
    if operation is not None and member.id in operation.member_ids:
        member.last_operation_id = operation.id
    return True


def _may_become(member: FakeMember, status: str, operation: FakeOperation | None) -> bool:
    if member.status in REPORTED[status]:
        return True
    whole = operation is not None and operation.kind in WHOLE
    if operation is None or operation.is_over:
        return False
    if (member.status, status) == ("failed", "joining"):
        return operation.phase == "adapter" and (whole or member.id in operation.member_ids)
    if status == "ready" and member.status in ("draining", "drained"):
        return whole or (operation.kind == "drain" and operation.status == "cancelling")
    return False


def observe(subject: FakeMember | FakeInstance, report: Mapping[str, Any]) -> bool:
    """Apply health and details; returns whether anything changed."""
    before = (subject.health, subject.health_detail, subject.adapter_detail)
    subject.health = report.get("health") or subject.health
    if "health_detail" in report:
        subject.health_detail = report["health_detail"]
    if report.get("detail") is not None:
        subject.adapter_detail = bounded(report["detail"], "detail")
    return before != (subject.health, subject.health_detail, subject.adapter_detail)


def _version(instance: FakeInstance, member: FakeMember, version: str | None, operation: FakeOperation | None) -> str:
    if version is None or version == member.version:
        return member.version
    pins = [instance.pin, instance.previous[0] if instance.previous else None]
    pins.append(operation.target_pin if operation is not None else None)
    if not any(pin is not None and pin["version"] == version for pin in pins):
        raise invalid("members/version: must be the instance's version or the target version of the operation")
    return version


def _holds(
    instance: FakeInstance, member: FakeMember, reports: list[dict[str, Any]] | None, now: datetime
) -> list[dict[str, Any]]:
    """The holds with the adapter's own replaced; those of other owners stay."""
    owner = instance.account_id
    own = {each["reason"]: each for each in member.holds if each["owner"] == owner}
    if reports is None or set(own) == {each["reason"] for each in reports}:
        return member.holds
    since = now.isoformat()
    new = [own.get(each["reason"], {"owner": owner, "reason": each["reason"], "since": since}) for each in reports]
    return [*(each for each in member.holds if each["owner"] != owner), *new]


def report_instance(instance: FakeInstance, report: Mapping[str, Any]) -> bool:
    """Apply what is reported of the instance as a whole; returns whether anything changed."""
    before = (instance.endpoints, instance.topology_mode)
    changed = observe(instance, report)
    if report.get("endpoints") is not None:
        endpoints = [_endpoint(instance, each) for each in report["endpoints"]]
        if len({each["name"] for each in endpoints}) != len(endpoints):
            raise invalid("instance/endpoints: must have unique names")
        instance.endpoints = endpoints
    instance.topology_mode = report.get("topology_mode") or instance.topology_mode
    changed = changed or before != (instance.endpoints, instance.topology_mode)
    if changed and instance.status == "stopped":
        raise conflict("the instance is stopped: it takes no more reports")
    return changed


def _endpoint(instance: FakeInstance, endpoint: Mapping[str, Any]) -> dict[str, Any]:
    member = instance.members.get(endpoint["member_id"])
    if member is None or member.status == "removed":
        raise not_found("an endpoint must be at a member of the instance")
    is_terminal = endpoint["protocol"] == "terminal"
    if is_terminal and endpoint.get("user") in ("root", "0"):
        raise invalid("instance/endpoints/user: must not be root: people run commands there")
    wrong = OF_PORTS if is_terminal else OF_TERMINALS
    if given := [each for each in wrong if endpoint.get(each) is not None]:
        raise invalid(f"instance/endpoints: an endpoint of protocol {endpoint['protocol']} has no {given[0]}")
    return {name: value for name, value in endpoint.items() if value is not None}


def bounded(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The adapter's own data, refused if it is too large."""
    if len(json.dumps(value, ensure_ascii=False).encode()) > DETAIL_BYTES_MAX:
        raise invalid(f"{path}: at most {DETAIL_BYTES_MAX} bytes of JSON")
    return dict(value)
